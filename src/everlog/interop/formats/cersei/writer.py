"""Sessions as Cersei's files: what came from there as it was, the rest as Cersei writes it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from everlog.interop.formats.cersei.blocks import NAME, message_of, rebuilt
from everlog.interop.formats.cersei.entries import message_entry, summary_entry, tombstone_entry
from everlog.interop.formats.format_types import Written, made_id
from everlog.interop.formats.jsonl import as_bytes, parse, text_of
from everlog.interop.formats.writer import (
    Losses,
    Sheet,
    came_from,
    dropped,
    is_ended,
    origin,
    original,
    placed,
)
from everlog.model import (
    AnyRecord,
    Compaction,
    Event,
    Message,
    Metadata,
    Rewind,
    Tombstone,
    ToolCall,
)

PART_BYTES = 50_000_000

_encoder = msgspec.json.Encoder()


def write(metadata: Metadata, records: Sequence[AnyRecord]) -> Written:
    """A session as Cersei's files."""
    return _Writer(metadata, records).write()


class _Writer:
    def __init__(self, metadata: Metadata, records: Sequence[AnyRecord]) -> None:
        self.metadata, self.records = metadata, records
        self.losses = Losses()
        self.gone = dropped(records, NAME)
        # One that was imported is named by what it was read from.
        name = (metadata.key or "").partition(f"{NAME}:")
        self.session = name[2] if not name[0] and name[2] else metadata.id
        self.cwd, self.bare = "", False
        self.uuids: dict[int, str] = {}  # seq → uuid of its entry
        self.members: dict[str, list[int]] = {}  # and back
        self._look()
        for seq, uuid in self.uuids.items():
            self.members.setdefault(uuid, []).append(seq)
        self.parts = [Sheet()]
        self.size = 0  # of the last part
        self.user: str | None = None  # uuid of the user entry that is being answered
        self.count = 0  # messages that are written

    def _look(self) -> None:
        """What the file that the records came from was like, and the uuids of all messages."""
        found = False
        own = came_from(self.records, NAME)
        for record in self.records:
            keep = origin(record, NAME) or {} if own else {}
            entry = _entry(record, keep)
            if text_of(entry, "session_id") and not found:
                self.session, found = entry["session_id"], True
            self.cwd = text_of(entry, "cwd") or self.cwd
            if isinstance(record, Message):
                self.bare = self.bare or bool(entry and "type" not in entry)
                name = text_of(keep, "of") or text_of(entry, "uuid") or record.id
                self.uuids[record.seq] = name or made_id(self.metadata.id, record.seq)
        if not found and isinstance(self.metadata.extra.get("cwd"), str):
            self.cwd = self.metadata.extra["cwd"]

    def write(self) -> Written:
        for record in placed(self.records):
            self._add(record)
        name = re.sub(r"[/\\\0]", "_", self.session)
        files = {
            f"{name}.jsonl" if not number else f"{name}_part{number + 1}.jsonl": part.content()
            for number, part in enumerate(self.parts)
        }
        return Written(files, self.losses.words())

    def _add(self, record: AnyRecord) -> None:
        keep = origin(record, NAME)
        raw = original(record, NAME)
        ended = is_ended(record, NAME)
        if keep is not None and "of" in keep:
            return  # written with the first message of its entry
        if isinstance(record, Message) and self.bare and record.seq in self.gone:
            self.losses.add("message that is hidden or was rewound")
        elif raw is not None:
            self._line(raw.data, ended=raw.ended)
            if isinstance(record, Message):
                self._said(record, self.uuids[record.seq])
        elif keep is not None and "entry" in keep:
            entry = _entry(record, keep)
            self._line(_encoder.encode(entry), ended=ended)
            if isinstance(record, Message):
                self._said(record, self.uuids[record.seq])
        elif isinstance(record, Event) and record.kind.startswith(f"{NAME}."):
            self._line(_encoder.encode(record.data), ended=ended)
        elif isinstance(record, Message):
            self._message(record)
        elif self.bare:
            self.losses.record(record)
        elif isinstance(record, Compaction):
            uuid = record.id or made_id(self.metadata.id, record.seq)
            when, text = record.timestamp, record.summary
            self._line(_encoder.encode(summary_entry(uuid, when, self.session, text, self.count)))
        elif isinstance(record, Tombstone | Rewind):
            self._hide(record)
        else:
            self.losses.record(record)

    def _line(self, data: bytes, *, ended: bool = True) -> None:
        if self.size and self.size + len(data) + 1 > PART_BYTES:
            self.parts.append(Sheet())
            self.size = 0
        self.parts[-1].add(data, ended=ended)
        self.size += len(data) + 1

    def _said(self, message: Message, uuid: str) -> None:
        self.count += 1
        if message.role != "assistant":
            self.user = uuid

    def _message(self, message: Message) -> None:
        self.losses.blocks(message, (ToolCall,))
        if self.bare:
            self._line(_encoder.encode(message_of(message)))
            return
        uuid = self.uuids[message.seq]
        entry = message_entry(message, uuid, self.user, self.session, self.cwd)
        self._line(_encoder.encode(entry))
        self._said(message, uuid)

    def _hide(self, record: Tombstone | Rewind) -> None:
        """Tombstones for what a marker of ours takes out, and what nothing shows again."""
        if isinstance(record, Tombstone):
            seqs = [seq for seq in record.deletes if seq in self.gone]
        else:
            seqs = [seq for seq in sorted(self.gone) if record.to_seq < seq < record.seq]
        for uuid in dict.fromkeys(self.uuids[seq] for seq in seqs):
            whole = self.members[uuid]
            if not self.gone.issuperset(whole):
                self.losses.add("hidden message whose entry has others that are shown")
                continue
            self.gone.difference_update(whole)
            self._line(_encoder.encode(tombstone_entry(uuid, record.timestamp)))


def _entry(record: AnyRecord, keep: Mapping[str, Any]) -> dict[str, Any]:
    """The entry that a record came from; empty if it is not kept."""
    if isinstance(record, Event) and record.kind.startswith(f"{NAME}."):
        return record.data
    line = as_bytes(keep, "line")
    if line is not None:
        return parse(line)[0] or {}
    entry = keep.get("entry")
    if not isinstance(entry, dict):
        return {}
    if isinstance(record, Compaction):
        return {**entry, "summary": record.summary}
    if isinstance(record, Message):
        content = rebuilt(record, keep.get("shape", "blocks"))
        if "type" not in entry:
            return {**entry, "content": content}
        said = entry.get("message")
        return {
            **entry,
            "message": {**(said if isinstance(said, dict) else {}), "content": content},
        }
    return entry
