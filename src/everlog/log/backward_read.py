"""Read the live part of a log backwards: what a context and a compaction are made of.

Going back, tombstones and the smallest `toSeq` of any rewind are kept in mind, up to the first
compaction that still stands and on to the first message it kept. Nothing older is read, so the
cost depends on the context and not on the history.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from everlog.log.tool_pairs import arrange, closing, pair
from everlog.model import (
    MARKERS,
    SCHEMA_VERSION,
    Compaction,
    Damaged,
    Entry,
    Event,
    Message,
    Rewind,
    Tombstone,
    Unknown,
)

BREAKER = "breaker"  # event: failed summary calls in a row, and compactions without progress
TRIMMED = "trimmed"  # event: a call was sent without the oldest rounds


class LeftOut(msgspec.Struct, frozen=True, rename="camel"):
    """Something that is in the log's live part and not in the context."""

    seq: int | None
    why: str


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """The live messages behind the latest standing summary."""

    messages: tuple[Message, ...] = ()  # in the order of the log
    summary: Compaction | None = None
    unreadable: tuple[LeftOut, ...] = ()
    # Messages that were deleted or restored since the summary that covers them was made.
    stale: tuple[int, ...] = ()
    head: int = 0  # the last seq
    marker: int = 0  # the last rewind, tombstone or compaction
    edited: int = 0  # the last tombstone or compaction: usage counted before it says nothing
    trimmed: int = 0  # the first call since the summary that was not sent everything
    breaker: dict[str, int] = {}  # data of the last such event


def read(newest_first: Iterable[Entry], *, accept_stale: bool = True) -> Live:
    """The live part of a log, whose entries are given newest first.

    With `accept_stale=False` a stale summary does not count: reading goes on to the newest one that
    tells nothing of deleted messages and misses no restored one. A compaction starts from there.
    """
    messages: list[Message] = []
    unreadable: list[LeftOut] = []
    shown: dict[int, bool] = {}  # by the newest tombstone on each seq
    before: dict[int, bool] = {}  # as it was before the oldest tombstone seen on each seq
    summary: Compaction | None = None
    stale: tuple[int, ...] = ()
    floor: int | None = None  # the smallest toSeq of the rewinds seen
    head = marker = edited = trimmed = 0
    breaker: dict[str, int] | None = None
    for entry in newest_first:
        seq = entry.seq
        if seq is not None:
            if summary is not None and seq < summary.first_kept_seq:
                break
            head = max(head, seq)
        if isinstance(entry, Message):
            if (floor is None or entry.seq <= floor) and shown.get(entry.seq, True):
                if entry.auto_injected:  # no store of ours wrote that
                    unreadable.append(LeftOut(entry.seq, "injected into an earlier run"))
                else:
                    messages.append(entry)
        elif isinstance(entry, MARKERS):
            marker = max(marker, entry.seq)
            if isinstance(entry, Rewind):
                floor = entry.to_seq if floor is None else min(floor, entry.to_seq)
                continue
            edited = max(edited, entry.seq)
            if isinstance(entry, Tombstone):
                for one in entry.restores:
                    shown.setdefault(one, True)
                    before[one] = False
                for one in entry.deletes:
                    shown.setdefault(one, False)
                    before[one] = True
            elif summary is None and stands(entry, floor):
                first = entry.first_kept_seq
                stale = tuple(sorted(s for s in shown if s < first and shown[s] != before[s]))
                if accept_stale or not stale:
                    summary = entry
        elif isinstance(entry, Event):
            if entry.kind == BREAKER and breaker is None:
                breaker = whole_numbers(entry.data)
            elif entry.kind == TRIMMED and summary is None:
                trimmed = entry.seq
        elif isinstance(entry, Damaged):
            unreadable.append(LeftOut(entry.seq, f"damaged: {entry.problem}"))
        elif isinstance(entry, Unknown) and entry.schema_version > SCHEMA_VERSION:
            unreadable.append(LeftOut(entry.seq, f"schema version {entry.schema_version}"))
    messages.reverse()
    unreadable.reverse()
    return Live(
        messages=tuple(messages),
        summary=summary,
        unreadable=tuple(unreadable),
        stale=stale if summary is not None else (),
        head=head,
        marker=marker,
        edited=edited,
        trimmed=trimmed,
        breaker=breaker or {},
    )


class Arranged(NamedTuple):
    """The live messages as a model may be sent them, every result behind its call."""

    messages: list[Message]
    left_out: list[LeftOut]  # results that belong to no call
    open: list[int]  # seqs of the messages with calls that have no result yet


def arranged(live: Live) -> Arranged:
    """Put the live messages in the order of a context."""
    said = live.messages
    pairs = pair(said)
    if not pairs.caller and not pairs.open and not pairs.strays:
        return Arranged(list(said), [], [])
    left_out = []
    for place in pairs.strays:
        covered = live.summary is not None and said[place].seq < live.summary.seq
        why = "its call was summarised" if covered else "a result without its call"
        left_out.append(LeftOut(said[place].seq or None, f"{why} ({said[place].tool_call_id})"))
    return Arranged(arrange(said, pairs), left_out, [said[place].seq for place, _ in pairs.open])


def closed(live: Live) -> Live:
    """As it will be when the calls without a result are closed by errors at the end of the log."""
    calls = [call for _, call in pair(live.messages).open]
    results = [replace(closing(call), seq=live.head + at) for at, call in enumerate(calls, 1)]
    return replace(live, messages=(*live.messages, *results), head=live.head + len(calls))


def compacted(live: Live, record: Compaction) -> Live:
    """As it will be when a compaction is recorded."""
    kept = tuple(message for message in live.messages if message.seq >= record.first_kept_seq)
    after = live.head + 1
    return replace(
        live,
        summary=replace(record, seq=after),
        messages=kept,
        stale=(),
        head=after,
        marker=after,
        edited=after,
        trimmed=0,
    )


def stands(compaction: Compaction, floor: int | None) -> bool:
    """Whether no later rewind, the smallest of which went to `floor`, took it back."""
    return floor is None or floor >= compaction.first_kept_seq - 1


def whole_numbers(data: dict[str, object]) -> dict[str, int]:
    """The counts in an event; what others wrote there may be anything."""
    return {key: value for key, value in data.items() if isinstance(value, int) and value >= 0}
