"""Usage queries on metadata in memory, and the merged usage of several stores.

The answers equal those of the index, for stores that have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from everlog.log.usage_fold import session_usage, total_usage, usage_weight
from everlog.model import Metadata, UsageRow
from everlog.ports import Spender, UsageReport


def query_usage(sessions: Iterable[Metadata], days: tuple[str, str], spenders: int) -> UsageReport:
    """Return the usage of sessions between two days; an empty day is unlimited."""
    first, last = days
    rows: list[UsageRow] = []
    all_spenders: list[Spender] = []
    for data in sessions:
        usage = session_usage(data)
        selected = [row for row in usage if first <= row.day and (not last or row.day <= last)]
        if selected:
            rows += selected
            by_model, title = _by_model(selected), data.display_title
            all_spenders.append(Spender(data.id, title, data.agent, data.sender, by_model))
    return UsageReport(_by_day(rows), _top_spenders(all_spenders, spenders), len(all_spenders))


def merge_reports(reports: Sequence[UsageReport], spenders: int) -> UsageReport:
    """Merge the reports of several stores into one."""
    return UsageReport(
        _by_day(row for report in reports for row in report.spent),
        _top_spenders((spender for report in reports for spender in report.spenders), spenders),
        sum(report.sessions for report in reports),
        sum(report.behind for report in reports),
    )


def _by_day(rows: Iterable[UsageRow]) -> tuple[UsageRow, ...]:
    """Return a row for each day and model; rows with a stated cost are separate, and first."""
    groups: dict[tuple[str, str, bool], list[UsageRow]] = {}
    for row in rows:
        groups.setdefault((row.day, row.model, not row.cost), []).append(row)
    return tuple(total_usage(groups[key], key[0], key[1]) for key in sorted(groups))


def _by_model(rows: Iterable[UsageRow]) -> tuple[UsageRow, ...]:
    """Return a row for each model, with its last day; those with a stated cost separate."""
    groups: dict[tuple[str, bool], list[UsageRow]] = {}
    for row in rows:
        groups.setdefault((row.model, not row.cost), []).append(row)
    return tuple(total_usage(groups[key], max(row.day for row in groups[key]), key[0]) for key in sorted(groups))


def _top_spenders(spenders: Iterable[Spender], limit: int) -> tuple[Spender, ...]:
    """Return the `limit` with the most tokens, and the `limit` with the highest stated costs.

    Prices are unknown here: the most expensive are among the first by estimate or by stated cost.
    """
    limit = max(limit, 0)
    sums = [
        (sum(map(usage_weight, spender.spent)), sum(row.cost for row in spender.spent), spender) for spender in spenders
    ]
    sums.sort(key=lambda entry: (-entry[0], -entry[1], entry[2].session))
    stated = sorted((entry for entry in sums if entry[1] > 0), key=lambda entry: -entry[1])
    chosen_ids = {id(spender) for *_, spender in (*sums[:limit], *stated[:limit])}
    return tuple(spender for *_, spender in sums if id(spender) in chosen_ids)
