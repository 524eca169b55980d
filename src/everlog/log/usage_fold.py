"""What a session spent, by day and model: nothing twice, nothing lost.

    an input      begins an exchange; whatever is counted until the next one is kept apart
    a message     adds its usage and its tool calls to that
    turn_end      says it better, since it knows of the agents that were asked: it counts instead
    otherwise     (the next input, an interrupted turn) what was kept apart is what was spent

A day is one of UTC, by the record's own time. What was copied in from another session, by a fork
or by a promotion, was spent there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from everlog.ids import epoch_ms, timestamp
from everlog.model import Message, Metadata, ToolCall, UsageRow

Key = tuple[str, str]  # day and model
Numbers = list[Any]  # turns, tool calls, tokens in, out, from the cache, to the cache; cost

_MINUTE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d", re.ASCII)
MOST = 1 << 50  # tokens of one record; above it a count is none
_MOST_COST = 1e9
# How much a token weighs against one of input: the usual relation of prices. For an order only.
WEIGHTS = {
    "input_tokens": 1.0,
    "output_tokens": 5.0,
    "cache_read_tokens": 0.1,
    "cache_write_tokens": 1.25,
}


class Purse:
    """The running numbers of one log."""

    __slots__ = ("_day", "_kept", "_settled", "_spent")

    def __init__(self, metadata: Metadata) -> None:
        self._settled = _opened(metadata.spent)
        self._kept = _opened(metadata.spending)  # since the last input
        self._spent: tuple[UsageRow, ...] | None = metadata.spent  # None: to be made again
        self._day = ("-", "")  # the minute that was last asked for, and its day

    def day(self, stamp: str, otherwise: str) -> str:
        """The day of a record's time: most are of the same minute as the one before."""
        minute, day = self._day
        if stamp[:16] == minute and stamp[-1] == "Z":
            return day
        day = day_of(stamp, otherwise)
        self._day = (stamp[:16] if _in_utc(stamp) else "-", day)
        return day

    def begin(self, day: str, model: str) -> None:
        """An input came: what was kept apart before it has no better count coming."""
        self.settle()
        self._kept[day, model] = [1, 0, 0, 0, 0, 0, 0.0]

    def add(self, message: Message, day: str, model: str) -> None:
        """Keep apart what a message of a model took."""
        calls = 0
        for block in message.content:
            if type(block) is ToolCall:
                calls += 1
        usage = message.usage
        if usage is None and not calls:
            return
        kept, key = self._kept, (day, model)
        numbers = kept.get(key)
        if numbers is None:
            # The input may have come before anybody knew the model.
            numbers = kept.pop((day, ""), None) if model else None
            numbers = kept[key] = numbers or [0, 0, 0, 0, 0, 0, 0.0]
        numbers[1] += calls
        if usage is not None:  # an append waits for this: no calls, and what is 0 is not added
            if 0 < (count := usage.input_tokens) <= MOST:
                numbers[2] += count
            if 0 < (count := usage.output_tokens) <= MOST:
                numbers[3] += count
            if 0 < (count := usage.cache_read_tokens) <= MOST:
                numbers[4] += count
            if 0 < (count := usage.cache_write_tokens) <= MOST:
                numbers[5] += count
            if 0.0 < (cost := usage.cost) <= _MOST_COST:
                numbers[6] += cost

    def end(self, data: Mapping[str, Any], day: str, model: str) -> None:
        """A turn ended: its own count stands for what was kept apart."""
        usage = data.get("usage")
        told = usage if isinstance(usage, dict) else {}
        name = data.get("model")
        numbers = [
            1,
            whole(data.get("toolCalls")),
            whole(told.get("inputTokens")),
            whole(told.get("outputTokens")),
            whole(told.get("cacheReadTokens")),
            whole(told.get("cacheWriteTokens")),
            price(data.get("cost")),
        ]
        self._kept = {(day, name if isinstance(name, str) and name else model): numbers}
        self.settle()

    def settle(self) -> None:
        """What was kept apart was spent."""
        if self._kept:
            settled = self._settled
            for key, numbers in self._kept.items():
                sums = settled.get(key)
                if sums is None:
                    settled[key] = numbers
                else:
                    for place, number in enumerate(numbers):
                        if number:
                            sums[place] += number
            self._kept = {}
            self._spent = None

    def forget(self) -> None:
        """All of it was spent in another session."""
        self._settled, self._kept, self._spent = {}, {}, ()

    def spent(self) -> tuple[UsageRow, ...]:
        """What is settled, by day and model."""
        if self._spent is None:
            self._spent = _closed(self._settled)
        return self._spent

    def spending(self) -> tuple[UsageRow, ...]:
        """What is kept apart."""
        return _closed(self._kept) if self._kept else ()


def day_of(stamp: str, otherwise: str) -> str:
    """The day of a record's time in UTC, or of another time if it is none."""
    if _in_utc(stamp):
        return stamp[:10]
    moment = epoch_ms(stamp)
    if moment is None or moment < 0:
        return otherwise[:10]
    return timestamp(moment / 1000)[:10]


def _in_utc(stamp: str) -> bool:
    """Whether it is `2026-11-16T08:30…Z`, whatever the rest: so its beginning tells the day."""
    return stamp[-1:] == "Z" and bool(_MINUTE.match(stamp)) and epoch_ms(stamp[:10]) is not None


# --- sums -----------------------------------------------------------------------------------


def used(metadata: Metadata) -> tuple[UsageRow, ...]:
    """All that a session spent, what the last exchange took so far included."""
    return summed((*metadata.spent, *metadata.spending)) if metadata.spending else metadata.spent


def summed(rows: Iterable[UsageRow]) -> tuple[UsageRow, ...]:
    """Rows by day and model, oldest first, one of each."""
    sums: dict[Key, Numbers] = {}
    for row in rows:
        sums[row.day, row.model] = _summed(_numbers(row), sums.get((row.day, row.model)))
    return _closed(sums)


def total(rows: Iterable[UsageRow], day: str = "", model: str = "") -> UsageRow:
    """One row for all of them, under this name."""
    numbers: Numbers = [0, 0, 0, 0, 0, 0, 0.0]
    for row in rows:
        numbers = _summed(_numbers(row), numbers)
    return UsageRow(day, model, *numbers)


def weight(row: UsageRow) -> float:
    """What a row comes to in tokens of input, about: for an order where prices are not known."""
    return float(sum(getattr(row, name) * each for name, each in WEIGHTS.items()))


def _opened(rows: Iterable[UsageRow]) -> dict[Key, Numbers]:
    return {(row.day, row.model): _numbers(row) for row in rows}


def _closed(sums: Mapping[Key, Numbers]) -> tuple[UsageRow, ...]:
    return tuple(UsageRow(*key, *sums[key]) for key in sorted(sums))


def _numbers(row: UsageRow) -> Numbers:
    return [
        row.turns,
        row.tool_calls,
        row.input_tokens,
        row.output_tokens,
        row.cache_read_tokens,
        row.cache_write_tokens,
        row.cost,
    ]


def _summed(one: Numbers, other: Numbers | None) -> Numbers:
    return (
        one if other is None else [first + second for first, second in zip(other, one, strict=True)]
    )


def whole(value: object) -> int:
    """A count that a record states; what is none counts nothing."""
    return int(value) if isinstance(value, int | float) and 0 < value <= MOST else 0


def price(value: object) -> float:
    """A cost that a record states, likewise."""
    return float(value) if isinstance(value, int | float) and 0 < value <= _MOST_COST else 0.0
