"""A backward read of a log for its live messages, the input of contexts and compactions.

It goes back to the newest compaction that still stands and on to the first message it kept. Nothing
older is read, so the cost depends on the context and not on the history.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from everlog.log.markers import Markers, read_since_summary
from everlog.log.tool_pairs import arrange_results, make_missing_result, pair_results
from everlog.model import MARKERS, SCHEMA_VERSION, Compaction, Damaged, Entry, Event, Message, Rewind, Unknown

BREAKER = "breaker"  # event: failed summary calls in a row, and compactions without progress
TRIMMED = "trimmed"  # event: a call was sent without the oldest rounds


class LeftOut(msgspec.Struct, frozen=True, rename="camel"):
    """An entry among the live messages that is not in the context, or not whole."""

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
    markers = Markers()
    last_seq = last_marker = last_edit = 0
    trimmed_seqs: list[int] = []
    breaker: dict[str, int] | None = None
    for entry in read_since_summary(newest_first, markers, accept_stale=accept_stale):
        if entry.seq is not None and entry.seq > last_seq:
            last_seq = entry.seq
        if isinstance(entry, Message):
            if not entry.auto_injected:
                messages.append(entry)
            elif markers.is_live(entry.seq):  # not written by a native store
                unreadable.append(LeftOut(entry.seq, "injected into an earlier run"))
        elif isinstance(entry, MARKERS):
            last_marker = max(last_marker, entry.seq)
            if not isinstance(entry, Rewind):
                last_edit = max(last_edit, entry.seq)
        elif isinstance(entry, Event):
            if entry.kind == BREAKER and breaker is None:
                breaker = parse_counts(entry.data)
            elif entry.kind == TRIMMED:
                trimmed_seqs.append(entry.seq)
        elif isinstance(entry, Damaged):
            unreadable.append(LeftOut(entry.seq, f"damaged: {entry.problem}"))
        elif isinstance(entry, Unknown) and entry.schema_version > SCHEMA_VERSION:
            unreadable.append(LeftOut(entry.seq, f"schema version {entry.schema_version}"))
    messages.reverse()
    unreadable.reverse()
    summary = markers.summary(accept_stale=accept_stale)
    since = 0 if summary is None else summary.seq
    return LiveMessages(
        messages=tuple(markers.live(messages)),
        summary=summary,
        unreadable=tuple(unreadable),
        stale_seqs=() if summary is None else markers.stale_seqs(summary),
        last_seq=last_seq,
        last_marker_seq=last_marker,
        last_edit_seq=last_edit,
        first_trimmed_seq=min((seq for seq in trimmed_seqs if seq > since), default=0),
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


def parse_counts(data: dict[str, object]) -> dict[str, int]:
    """Return the valid counts in an event, which may hold anything."""
    return {key: value for key, value in data.items() if isinstance(value, int) and value >= 0}
