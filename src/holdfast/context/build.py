"""Build the context of a session from its records, newest first.

Nothing older than the context itself is read: going back, tombstones and the smallest `toSeq` of
any rewind are kept in mind, up to the first compaction that still stands and on to the first
message it kept. So the cost depends on the context and not on the history.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.model import (
    SCHEMA_VERSION,
    Compaction,
    Damaged,
    Entry,
    Message,
    Rewind,
    Text,
    Thinking,
    Tombstone,
    Unknown,
    user,
)

WINDOW = 200_000
SUMMARY_SENTENCE = (
    "The conversation history before this point was compacted into the following summary:"
)


class LeftOut(msgspec.Struct, frozen=True, rename="camel"):
    """Something that is in the log's live part and not in the context."""

    seq: int | None
    why: str


class Context(msgspec.Struct, frozen=True, rename="camel"):
    """Exactly what one model call is sent, apart from the system prompt."""

    messages: tuple[Message, ...]
    tokens: int  # estimated
    window: int  # the model's limit
    left_out: tuple[LeftOut, ...] = ()
    stale: tuple[int, ...] = ()  # deleted messages that the summary still tells of


def build(newest_first: Iterable[Entry], window: int = WINDOW) -> Context:
    """The latest standing summary and the live messages from its firstKeptSeq on."""
    messages: list[Message] = []
    left_out: list[LeftOut] = []
    shown: dict[int, bool] = {}  # by the newest tombstone on each seq
    summary: Compaction | None = None
    stale: tuple[int, ...] = ()
    floor: int | None = None  # the smallest toSeq of the rewinds seen
    for entry in newest_first:
        if summary is not None and _before(entry, summary.first_kept_seq):
            break
        if isinstance(entry, Message):
            if (floor is None or entry.seq <= floor) and shown.get(entry.seq, True):
                messages.append(entry)
        elif isinstance(entry, Tombstone):
            for seq in entry.restores:
                shown.setdefault(seq, True)
            for seq in entry.deletes:
                shown.setdefault(seq, False)
        elif isinstance(entry, Rewind):
            floor = entry.to_seq if floor is None else min(floor, entry.to_seq)
        elif isinstance(entry, Compaction):
            first = entry.first_kept_seq
            if summary is None and (floor is None or floor >= first - 1):
                summary = entry
                stale = tuple(sorted(s for s, live in shown.items() if not live and s < first))
        elif isinstance(entry, Damaged):
            left_out.append(LeftOut(entry.seq, f"damaged: {entry.problem}"))
        elif isinstance(entry, Unknown) and entry.schema_version > SCHEMA_VERSION:
            left_out.append(LeftOut(entry.seq, f"schema version {entry.schema_version}"))
    if summary is not None:
        messages.append(summary_message(summary))
    messages.reverse()
    left_out.reverse()
    return Context(
        messages=tuple(messages),
        tokens=sum(estimate(message) for message in messages),
        window=window,
        left_out=tuple(left_out),
        stale=stale,
    )


def summary_message(compaction: Compaction) -> Message:
    """A compaction as the model reads it."""
    text = f"{SUMMARY_SENTENCE}\n<summary>\n{compaction.summary}\n</summary>"
    return user(text, timestamp=compaction.timestamp)


def estimate(message: Message) -> int:
    """Tokens of a message, roughly: a quarter of its characters, rounded up."""
    characters = 0
    for block in message.content:
        if isinstance(block, Text):
            characters += len(block.text)
        elif isinstance(block, Thinking):
            characters += len(block.thinking)
        else:
            characters += len(msgspec.json.encode(block, enc_hook=lambda other: other.data))
    return -(-characters // 4)


def _before(entry: Entry, first_kept: int) -> bool:
    return entry.seq is not None and entry.seq < first_kept
