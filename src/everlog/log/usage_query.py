"""Usage queries on metadata in memory, and the merged usage of several stores.

The answers equal those of the index, for stores that have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from everlog.log.usage_fold import session_usage, sum_groups, usage_weight
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
            by_model = sum_groups(selected, lambda row: (row.model, not row.cost))
            all_spenders.append(Spender(data.id, data.display_title, data.agent, data.sender, by_model))
    return UsageReport(sum_groups(rows, _day_key), _top_spenders(all_spenders, spenders), len(all_spenders))


def merge_reports(reports: Sequence[UsageReport], spenders: int) -> UsageReport:
    """Merge the reports of several stores into one."""
    return UsageReport(
        sum_groups((row for report in reports for row in report.spent), _day_key),
        _top_spenders((spender for report in reports for spender in report.spenders), spenders),
        sum(report.sessions for report in reports),
        sum(report.behind for report in reports),
    )


def _day_key(row: UsageRow) -> tuple[str, str, bool]:
    """Rows with a stated cost are separate, and first."""
    return row.day, row.model, not row.cost


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
