"""What of a log is searched: its messages, its summaries, its title.

Not what tools answered, unless that is asked for; then with secrets covered up. What a tombstone or
a rewind takes out of the conversation is not found any more; what is restored is found again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from everlog.ids import epoch_ms
from everlog.index.words import grams
from everlog.model import (
    AnyRecord,
    Compaction,
    Damaged,
    Entry,
    Message,
    Meta,
    Rewind,
    Tombstone,
)
from everlog.redaction import redact

# In the order of their weight; `grams` stand behind them.
KINDS = ("summary", "title", "user", "assistant", "tool")
TITLE = 0  # the seq of a title: that of the record that a session begins with


class Passage(NamedTuple):
    """Something that was said, as it is searched."""

    seq: int
    kind: str  # one of KINDS
    at: int  # ms
    text: str
    grams: str = ""  # further words by which it is found


class Change(msgspec.Struct):
    """What some new records change."""

    new: dict[int, Passage] = {}
    gone: set[int] = set()  # seqs that are not found any more
    dropped: list[tuple[int, int]] = []  # likewise all messages from one seq to another
    back: set[int] = set()  # and those that are again, whose records stand further up
    through: int = 0  # the last seq
    name: str | UnsetType | None = UNSET  # the title, if they give one


def changes(entries: Iterable[Entry], *, tools: bool = False) -> Change:
    """What records change, in order."""
    made = Change()
    for entry in entries:
        made.through = max(made.through, entry.seq or 0)
        if isinstance(entry, Damaged):
            continue
        if isinstance(entry, Tombstone):
            _take_out(made, set(entry.deletes))
            # One that is still to come has not been taken out.
            before = {seq for seq in entry.restores if seq < entry.seq}
            made.back |= before - made.new.keys()
            made.gone -= set(entry.restores)
        elif isinstance(entry, Rewind):
            made.dropped.append((entry.to_seq + 1, entry.seq))
            said = {seq for seq, one in made.new.items() if one.kind != "summary"}
            _take_out(made, {seq for seq in said | made.back if seq > entry.to_seq})
        elif isinstance(entry, Meta):
            name = entry.set.get("name", UNSET)
            made.name = name if isinstance(name, str | None) else made.name
        elif (one := passage(entry, tools=tools)) is not None:
            made.new[entry.seq] = one
            made.back.discard(entry.seq)  # in a damaged log a number may stand twice
    return made


def _take_out(made: Change, seqs: set[int]) -> None:
    made.gone |= seqs
    made.back -= seqs
    for seq in seqs & made.new.keys():
        del made.new[seq]


def passage(record: AnyRecord, *, tools: bool = False) -> Passage | None:
    """What is searched of a record; None if nothing is."""
    if isinstance(record, Compaction):
        return _passage(record.seq, "summary", record.timestamp, record.summary)
    if not isinstance(record, Message):
        return None
    if record.role == "toolResult":
        if not tools:
            return None
        return _passage(record.seq, "tool", record.timestamp, redact(record.text)[0])
    return _passage(record.seq, record.role, record.timestamp, record.text)


def title(name: str, at: str) -> Passage | None:
    """A session's title."""
    return _passage(TITLE, "title", at, name)


def _passage(seq: int, kind: str, at: str, text: str) -> Passage | None:
    if not text.strip():
        return None
    return Passage(seq, kind, epoch_ms(at) or 0, text, grams(text))
