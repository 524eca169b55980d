"""Records of ours as lines of a Cersei transcript that goes on.

Its summary stands for everything before it. So what a compaction keeps is deleted, and said again
behind the summary: nothing is there twice, whoever reads it. An entry is deleted as a whole, with
all the messages that it holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from uuid import UUID

import msgspec

from everlog.errors import UnsupportedError
from everlog.interop.formats.cersei.blocks import message_of
from everlog.interop.formats.cersei.entries import (
    member_id,
    message_entry,
    summary_entry,
    tombstone_entry,
)
from everlog.interop.formats.cersei.tail_reader import IMPORT, change
from everlog.interop.formats.format_types import made_id
from everlog.interop.formats.live_format import Added, Log, Notes
from everlog.log.fold import fold
from everlog.model import (
    AnyRecord,
    Compaction,
    Event,
    Message,
    Meta,
    OtherBlock,
    Rewind,
    Tombstone,
)

_KINDS = ("redacted_thinking", "document")  # blocks of theirs that ours have no kind for
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\Z")
_encoder = msgspec.json.Encoder()


def extend(notes: Notes, log: Log, record: AnyRecord) -> Added:
    """The lines for a record."""
    if isinstance(record, Event):
        return Added()
    if isinstance(record, Meta):
        return change(notes, log, record.set)
    if isinstance(record, Message):
        _check(record)
    if notes.get("bare"):
        return Added(lines=(_bare(record),))
    adding = _Adding(notes, log, record)
    return Added(lines=tuple(_encoder.encode(one) for one in adding.entries()))


def _check(message: Message) -> None:
    for block in message.content:
        if isinstance(block, OtherBlock) and block.type not in _KINDS:
            what = f"a block of the kind {block.type!r}"
            raise UnsupportedError(f"a transcript of Cersei's has no place for {what}", hint=IMPORT)


def _bare(record: AnyRecord) -> bytes:
    if not isinstance(record, Message):
        what = f"a {record.record_type}"
        raise UnsupportedError(f"a file of bare messages has no place for {what}", hint=IMPORT)
    return _encoder.encode(message_of(record))


class _Adding:
    def __init__(self, notes: Notes, log: Log, record: AnyRecord) -> None:
        self.notes, self.log, self.record = notes, log, record
        self.session: str = notes.get("session") or log.where.name
        self.user: str | None = notes.get("user")
        self.place = record.id or f"line {notes.get('lines', 0)}"

    def entries(self) -> Iterator[dict[str, Any]]:
        record = self.record
        if isinstance(record, Message):
            uuid = record.id if _UUID.match(record.id) else self._uuid("message")
            yield self._message(record, uuid)
        elif isinstance(record, Compaction):
            yield from self._compaction(record)
        elif isinstance(record, Tombstone):
            yield from self._tombstone(record)
        elif isinstance(record, Rewind):
            yield from self._rewind(record)
        else:
            what = f"a record {record.record_type!r}"
            raise UnsupportedError(f"a transcript of Cersei's has no place for {what}", hint=IMPORT)

    def _uuid(self, word: str) -> str:
        """A uuid that follows from the record; the same when it is tried again."""
        return str(UUID(made_id(self.session, f"{self.place} {word}"), version=4))

    def _message(self, message: Message, uuid: str) -> dict[str, Any]:
        cwd = self.notes.get("cwd", "")
        entry = message_entry(message, uuid, self.user, self.session, cwd)
        if message.role != "assistant":
            self.user = uuid
        return entry

    def _again(self, messages: Iterable[Message]) -> Iterator[dict[str, Any]]:
        for one in messages:
            yield self._message(one, self._uuid(f"again {self.log.theirs(one)}"))

    def _compaction(self, record: Compaction) -> Iterator[dict[str, Any]]:
        if not record.summary:
            raise UnsupportedError("an empty summary is none to Cersei", hint=IMPORT)
        first = record.first_kept_seq
        groups, live = self._grouped(first)
        kept: list[Message] = []
        rest: list[Message] = []  # in one entry with something that is kept, and not kept itself
        for group in groups:
            shown = [one for one in group if one.seq in live]
            if shown and shown[-1].seq >= first:
                yield tombstone_entry(self.log.theirs(group[0]), record.timestamp)
                kept += (one for one in shown if one.seq >= first)
                rest += (one for one in shown if one.seq < first)
        yield from self._again(rest)
        uuid = record.id if _UUID.match(record.id) else self._uuid("summary")
        count = max(self.notes.get("messages", 0) - len(kept), 0)
        yield summary_entry(uuid, record.timestamp, self.session, record.summary, count)
        yield from self._again(kept)

    def _tombstone(self, record: Tombstone) -> Iterator[dict[str, Any]]:
        if record.restores:
            raise UnsupportedError("Cersei does not show again what was deleted", hint=IMPORT)
        if record.deletes:
            groups, live = self._grouped(min(record.deletes))
            yield from self._delete(groups, live, set(record.deletes))

    def _rewind(self, record: Rewind) -> Iterator[dict[str, Any]]:
        after = record.to_seq + 1
        groups, live = self._grouped(after)
        yield from self._delete(groups, live, {seq for seq in live if seq >= after})
        for one in self.log.since(after):
            if isinstance(one, Compaction) and one.first_kept_seq > after:
                yield tombstone_entry(self.log.theirs(one), record.timestamp)

    def _delete(
        self, groups: Sequence[Sequence[Message]], live: set[int], seqs: set[int]
    ) -> Iterator[dict[str, Any]]:
        for group in groups:
            if seqs.isdisjoint(one.seq for one in group):
                continue
            if any(one.seq in live and one.seq not in seqs for one in group):
                told = "only some of the messages that one entry of Cersei's holds"
                raise UnsupportedError(f"this would delete {told}", hint=f"delete all, or {IMPORT}")
            yield tombstone_entry(self.log.theirs(group[0]), self.record.timestamp)

    def _grouped(self, first: int) -> tuple[list[list[Message]], set[int]]:
        """The messages from a number on, those of one entry together, and which are shown.

        An entry may begin before that number: its messages stand directly behind each other.
        """
        begin = max(first - self.notes.get("widest", 1) + 1, 1)
        records = self.log.since(begin)
        groups: list[list[Message]] = []
        for one in records:
            if not isinstance(one, Message):
                continue
            last = groups[-1] if groups else []
            if last and self.log.theirs(one) == member_id(self.log.theirs(last[0]), len(last)):
                last.append(one)
            else:
                groups.append([one])
        live = {one.seq for one in fold(records).messages}
        return [group for group in groups if group[-1].seq >= first], live
