"""Usage of sessions whose metadata is at hand, and of several stores as one.

The same answer as the index gives, for stores that have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from everlog.log.usage_fold import total, weight
from everlog.log.usage_fold import used as used_by
from everlog.model import Metadata, UsageRow
from everlog.ports import Spender, UsageReport


def used(sessions: Iterable[Metadata], days: tuple[str, str], spenders: int) -> UsageReport:
    """What some sessions spent between two days; an empty one is open."""
    first, last = days
    rows: list[UsageRow] = []
    found: list[Spender] = []
    for data in sessions:
        own = [one for one in used_by(data) if first <= one.day and (not last or one.day <= last)]
        if own:
            rows += own
            found.append(Spender(data.id, data.title, data.agent, data.sender, _by_model(own)))
    return UsageReport(_by_day(rows), _largest(found, spenders), len(found))


def joined(answers: Sequence[UsageReport], spenders: int) -> UsageReport:
    """What several stores answered, as one."""
    return UsageReport(
        _by_day(row for one in answers for row in one.spent),
        _largest((found for one in answers for found in one.spenders), spenders),
        sum(one.sessions for one in answers),
        sum(one.behind for one in answers),
    )


def _by_day(rows: Iterable[UsageRow]) -> tuple[UsageRow, ...]:
    """One row for each day and model; what has a stated cost stands apart, before the rest."""
    groups: dict[tuple[str, str, bool], list[UsageRow]] = {}
    for row in rows:
        groups.setdefault((row.day, row.model, not row.cost), []).append(row)
    return tuple(total(groups[key], key[0], key[1]) for key in sorted(groups))


def _by_model(rows: Iterable[UsageRow]) -> tuple[UsageRow, ...]:
    """One row for each model, under its last day; what has a stated cost stands apart here too."""
    groups: dict[tuple[str, bool], list[UsageRow]] = {}
    for row in rows:
        groups.setdefault((row.model, not row.cost), []).append(row)
    return tuple(
        total(groups[key], max(row.day for row in groups[key]), key[0]) for key in sorted(groups)
    )


def _largest(found: Iterable[Spender], most: int) -> tuple[Spender, ...]:
    """So many that took most tokens, and so many with the highest stated costs.

    Prices are not known here: what costs most is among the first by estimates, or by statements.
    """
    most = max(most, 0)
    sums = [(sum(map(weight, one.spent)), sum(row.cost for row in one.spent), one) for one in found]
    sums.sort(key=lambda one: (-one[0], -one[1], one[2].session))
    stated = sorted((one for one in sums if one[1] > 0), key=lambda one: -one[1])
    named = {id(one) for *_, one in (*sums[:most], *stated[:most])}
    return tuple(one for *_, one in sums if id(one) in named)
