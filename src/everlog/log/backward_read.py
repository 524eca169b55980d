"""A backward read of a log for its live messages, the input of contexts and compactions.

It goes back, tracking tombstones and the smallest `toSeq` of any rewind, to the newest compaction
that still stands and on to the first message it kept. Nothing older is read, so the cost depends
on the context and not on the history.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from everlog.log.tool_pairs import arrange_results, make_missing_result, pair_results
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
    """An entry among the live messages that is not in the context."""

    seq: int | None
    why: str


class LiveMessages(msgspec.Struct, frozen=True, kw_only=True):
    """The live messages after the latest standing summary."""

    messages: tuple[Message, ...] = ()  # in the order of the log
    summary: Compaction | None = None
    unreadable: tuple[LeftOut, ...] = ()
    # Messages deleted or restored after the summary that covers them was written.
    stale_seqs: tuple[int, ...] = ()
    last_seq: int = 0  # of the log
    last_marker_seq: int = 0  # of any rewind, tombstone or compaction
    last_edit_seq: int = 0  # of a tombstone or compaction: usage before it is outdated
    first_trimmed_seq: int = 0  # the first call since the summary that was sent trimmed
    breaker: dict[str, int] = {}  # data of the last such event


def read_live(newest_first: Iterable[Entry], *, accept_stale: bool = True) -> LiveMessages:
    """Return the live messages of a log, whose entries are given newest first.

    With `accept_stale=False` a stale summary does not count: reading goes on to the newest one that
    covers no deleted message and misses no restored one. A compaction starts from there.
    """
    messages: list[Message] = []
    unreadable: list[LeftOut] = []
    visible: dict[int, bool] = {}  # by the newest tombstone on each seq
    visible_before: dict[int, bool] = {}  # as it was before the oldest tombstone seen on each seq
    summary: Compaction | None = None
    stale_seqs: tuple[int, ...] = ()
    floor: int | None = None  # the smallest toSeq of the rewinds seen
    last_seq = last_marker = last_edit = first_trimmed = 0
    breaker: dict[str, int] | None = None
    for entry in newest_first:
        seq = entry.seq
        if seq is not None:
            if summary is not None and seq < summary.first_kept_seq:
                break
            last_seq = max(last_seq, seq)
        if isinstance(entry, Message):
            if (floor is None or entry.seq <= floor) and visible.get(entry.seq, True):
                if entry.auto_injected:  # not written by a native store
                    unreadable.append(LeftOut(entry.seq, "injected into an earlier run"))
                else:
                    messages.append(entry)
        elif isinstance(entry, MARKERS):
            last_marker = max(last_marker, entry.seq)
            if isinstance(entry, Rewind):
                floor = entry.to_seq if floor is None else min(floor, entry.to_seq)
                continue
            last_edit = max(last_edit, entry.seq)
            if isinstance(entry, Tombstone):
                for target in entry.restores:
                    visible.setdefault(target, True)
                    visible_before[target] = False
                for target in entry.deletes:
                    visible.setdefault(target, False)
                    visible_before[target] = True
            elif summary is None and is_standing(entry, floor):
                first = entry.first_kept_seq
                edits = (s for s in visible if s < first and visible[s] != visible_before[s])
                stale_seqs = tuple(sorted(edits))
                if accept_stale or not stale_seqs:
                    summary = entry
        elif isinstance(entry, Event):
            if entry.kind == BREAKER and breaker is None:
                breaker = parse_counts(entry.data)
            elif entry.kind == TRIMMED and summary is None:
                first_trimmed = entry.seq
        elif isinstance(entry, Damaged):
            unreadable.append(LeftOut(entry.seq, f"damaged: {entry.problem}"))
        elif isinstance(entry, Unknown) and entry.schema_version > SCHEMA_VERSION:
            unreadable.append(LeftOut(entry.seq, f"schema version {entry.schema_version}"))
    messages.reverse()
    unreadable.reverse()
    return LiveMessages(
        messages=tuple(messages),
        summary=summary,
        unreadable=tuple(unreadable),
        stale_seqs=stale_seqs if summary is not None else (),
        last_seq=last_seq,
        last_marker_seq=last_marker,
        last_edit_seq=last_edit,
        first_trimmed_seq=first_trimmed,
        breaker=breaker or {},
    )


class ArrangedMessages(NamedTuple):
    """The live messages in the order of a context, every result after its call."""

    messages: list[Message]
    left_out: list[LeftOut]  # results that belong to no call
    open_seqs: list[int]  # seqs of the messages with calls that have no result yet


def arrange_live(live: LiveMessages) -> ArrangedMessages:
    """Return the live messages in the order of a context."""
    messages = live.messages
    pairs = pair_results(messages)
    if not pairs.caller and not pairs.open_calls and not pairs.strays:
        return ArrangedMessages(list(messages), [], [])
    left_out = []
    for stray in (messages[index] for index in pairs.strays):
        covered = live.summary is not None and stray.seq < live.summary.seq
        why = "its call was summarised" if covered else "a result without its call"
        left_out.append(LeftOut(stray.seq or None, f"{why} ({stray.tool_call_id})"))
    open_seqs = [messages[index].seq for index, _ in pairs.open_calls]
    return ArrangedMessages(arrange_results(messages, pairs), left_out, open_seqs)


def close_calls(live: LiveMessages) -> LiveMessages:
    """Return the state after appending error results for all calls without a result."""
    calls = [call for _, call in pair_results(live.messages).open_calls]
    missing = [make_missing_result(call) for call in calls]
    results = [replace(result, seq=seq) for seq, result in enumerate(missing, live.last_seq + 1)]
    return replace(live, messages=(*live.messages, *results), last_seq=live.last_seq + len(calls))


def apply_compaction(live: LiveMessages, record: Compaction) -> LiveMessages:
    """Return the state after appending a compaction."""
    messages = tuple(message for message in live.messages if message.seq >= record.first_kept_seq)
    next_seq = live.last_seq + 1
    return replace(
        live,
        summary=replace(record, seq=next_seq),
        messages=messages,
        stale_seqs=(),
        last_seq=next_seq,
        last_marker_seq=next_seq,
        last_edit_seq=next_seq,
        first_trimmed_seq=0,
    )


def is_standing(compaction: Compaction, floor: int | None) -> bool:
    """Return whether no later rewind undid it; `floor` is the smallest `toSeq` of them."""
    return floor is None or floor >= compaction.first_kept_seq - 1


def parse_counts(data: dict[str, object]) -> dict[str, int]:
    """Return the valid counts in an event, which may hold anything."""
    return {key: value for key, value in data.items() if isinstance(value, int) and value >= 0}
