"""The usage of a session by day and model: nothing counted twice, nothing lost.

    an input      begins an exchange; counts until the next one are pending
    a message     adds its usage and its tool calls to the pending counts
    usage         adds the usage of an answer that was stored without it
    turn_end      replaces the pending counts: it includes the usage of subagents
    otherwise     (the next input, an interrupted turn) the pending counts are settled

Days are in UTC, by the record's own time. Messages copied from another session, by a fork or by a
promotion, are counted there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from everlog.ids import epoch_ms, timestamp
from everlog.model import Message, Metadata, ToolCall, Usage, UsageRow

DayAndModel = tuple[str, str]
Counters = list[Any]  # turns, tool calls, tokens in, out, from the cache, to the cache; cost

_MINUTE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d", re.ASCII)
MAX_TOKENS = 1 << 50  # of one record; a larger count is invalid
_MAX_COST = 1e9
# The weight of a token relative to an input token, as prices usually are. For sorting only.
TOKEN_WEIGHTS = {"input_tokens": 1.0, "output_tokens": 5.0, "cache_read_tokens": 0.1, "cache_write_tokens": 1.25}


class UsageFold:
    """The running usage counters of one log."""

    __slots__ = ("_last_day", "_pending", "_settled", "_settled_rows")

    def __init__(self, metadata: Metadata) -> None:
        self._settled = _to_sums(metadata.spent)
        self._pending = _to_sums(metadata.spending)  # since the last input
        self._settled_rows: tuple[UsageRow, ...] | None = metadata.spent  # None: outdated
        self._last_day = ("-", "")  # cache: the last minute looked up, and its day

    def day(self, stamp: str, fallback: str) -> str:
        """Return the day of a timestamp; most are in the same minute as the one before."""
        minute, day = self._last_day
        if stamp[:16] == minute and stamp[-1] == "Z":
            return day
        day = day_of(stamp, fallback)
        self._last_day = (stamp[:16] if _is_utc(stamp) else "-", day)
        return day

    def begin_exchange(self, day: str, model: str) -> None:
        """Begin an exchange with an input; settles what is pending, as no turn_end can follow."""
        self.settle()
        self._pending[day, model] = [1, 0, 0, 0, 0, 0, 0.0]

    def add_message(self, message: Message, day: str, model: str) -> None:
        """Add the usage of an assistant message to the pending counters."""
        calls = 0
        for block in message.content:
            if type(block) is ToolCall:
                calls += 1
        usage = message.usage
        if usage is None and not calls:
            return
        pending, key = self._pending, (day, model)
        counters = pending.get(key)
        if counters is None:
            # The model may have been unknown when the input came.
            counters = pending.pop((day, ""), None) if model else None
            counters = pending[key] = counters or [0, 0, 0, 0, 0, 0, 0.0]
        counters[1] += calls
        if usage is not None:  # on the append path: no function calls, and zeros are not added
            if 0 < (count := usage.input_tokens) <= MAX_TOKENS:
                counters[2] += count
            if 0 < (count := usage.output_tokens) <= MAX_TOKENS:
                counters[3] += count
            if 0 < (count := usage.cache_read_tokens) <= MAX_TOKENS:
                counters[4] += count
            if 0 < (count := usage.cache_write_tokens) <= MAX_TOKENS:
                counters[5] += count
            if 0.0 < (cost := usage.cost) <= _MAX_COST:
                counters[6] += cost

    def add_usage(self, data: Mapping[str, Any], day: str, model: str) -> None:
        """Add the usage of an answer, from a `usage` event, to the pending counters."""
        stated, name = data.get("usage"), data.get("model")
        tokens = stated if isinstance(stated, dict) else {}
        usage = Usage(
            input_tokens=parse_count(tokens.get("inputTokens")),
            output_tokens=parse_count(tokens.get("outputTokens")),
            cache_read_tokens=parse_count(tokens.get("cacheReadTokens")),
            cache_write_tokens=parse_count(tokens.get("cacheWriteTokens")),
            cost=parse_cost(tokens.get("cost")),
        )
        answer = Message(role="assistant", content=(), usage=usage)
        self.add_message(answer, day, name if isinstance(name, str) and name else model)

    def end_turn(self, data: Mapping[str, Any], day: str, model: str) -> None:
        """End a turn: its own counts replace the pending ones."""
        usage = data.get("usage")
        tokens = usage if isinstance(usage, dict) else {}
        name = data.get("model")
        counters = [
            1,
            parse_count(data.get("toolCalls")),
            parse_count(tokens.get("inputTokens")),
            parse_count(tokens.get("outputTokens")),
            parse_count(tokens.get("cacheReadTokens")),
            parse_count(tokens.get("cacheWriteTokens")),
            parse_cost(data.get("cost")),
        ]
        self._pending = {(day, name if isinstance(name, str) and name else model): counters}
        self.settle()

    def settle(self) -> None:
        """Add the pending counters to the settled ones."""
        if self._pending:
            settled = self._settled
            for key, counters in self._pending.items():
                sums = settled.setdefault(key, counters)
                if sums is not counters:
                    sums[:] = [a + b for a, b in zip(sums, counters, strict=True)]
            self._pending = {}
            self._settled_rows = None

    def clear(self) -> None:
        """Drop all counters: the usage belongs to another session."""
        self._settled, self._pending, self._settled_rows = {}, {}, ()

    def settled_rows(self) -> tuple[UsageRow, ...]:
        """Return the settled usage, by day and model."""
        if self._settled_rows is None:
            self._settled_rows = _to_rows(self._settled)
        return self._settled_rows

    def pending_rows(self) -> tuple[UsageRow, ...]:
        """Return the pending usage, by day and model."""
        return _to_rows(self._pending) if self._pending else ()


def day_of(stamp: str, fallback: str) -> str:
    """Return the UTC day of a timestamp, or that of `fallback` if it is not a valid time."""
    if _is_utc(stamp):
        return stamp[:10]
    moment = epoch_ms(stamp)
    if moment is None or moment < 0:
        return fallback[:10]
    return timestamp(moment / 1000)[:10]


def _is_utc(stamp: str) -> bool:
    """Return whether a timestamp is `2026-11-16T08:30…Z`, so that its start is the day."""
    return stamp[-1:] == "Z" and bool(_MINUTE.match(stamp)) and epoch_ms(stamp[:10]) is not None


# --- sums -----------------------------------------------------------------------------------


def session_usage(metadata: Metadata) -> tuple[UsageRow, ...]:
    """Return the usage of a session, the pending exchange included."""
    settled, pending = metadata.spent, metadata.spending
    return sum_by_day_and_model((*settled, *pending)) if pending else settled


def sum_by_day_and_model(rows: Iterable[UsageRow]) -> tuple[UsageRow, ...]:
    """Merge rows into one for each day and model, oldest first."""
    return sum_groups(rows, lambda row: (row.day, row.model))


def sum_groups(rows: Iterable[UsageRow], key: Callable[[UsageRow], tuple[Any, ...]]) -> tuple[UsageRow, ...]:
    """Merge the rows of each group into one, with its model and its last day; in the order of the keys."""
    groups: dict[tuple[Any, ...], list[UsageRow]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return tuple(
        total_usage(group, max(row.day for row in group), group[0].model) for _, group in sorted(groups.items())
    )


def total_usage(rows: Iterable[UsageRow], day: str = "", model: str = "") -> UsageRow:
    """Sum rows into one row with the given day and model."""
    counters: Counters = [0, 0, 0, 0, 0, 0, 0.0]
    for row in rows:
        counters = [a + b for a, b in zip(counters, _counters_of(row), strict=True)]
    return UsageRow(day, model, *counters)


def usage_weight(row: UsageRow) -> float:
    """Return the approximate weight of a row in input tokens; for sorting without prices."""
    return float(sum(getattr(row, name) * factor for name, factor in TOKEN_WEIGHTS.items()))


def _to_sums(rows: Iterable[UsageRow]) -> dict[DayAndModel, Counters]:
    return {(row.day, row.model): _counters_of(row) for row in rows}


def _to_rows(sums: Mapping[DayAndModel, Counters]) -> tuple[UsageRow, ...]:
    return tuple(UsageRow(*key, *sums[key]) for key in sorted(sums))


def _counters_of(row: UsageRow) -> Counters:
    return list(msgspec.structs.astuple(row)[2:])


def parse_count(value: object, most: int = MAX_TOKENS) -> int:
    """Return a count stated by a record or a server; 0 if it is not a valid count."""
    return int(value) if isinstance(value, int | float) and 0 < value <= most else 0


def parse_cost(value: object) -> float:
    """Return a cost stated by a record; 0.0 if it is not a valid cost."""
    return float(value) if isinstance(value, int | float) and 0 < value <= _MAX_COST else 0.0
