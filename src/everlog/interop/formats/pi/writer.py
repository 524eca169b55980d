"""Sessions as pi's files.

Entries that came from pi go back as they were. What is new is chained to the leaf as entries of
version 3; for that a file of version 1, whose entries have no ids, is first brought to version 3
as pi itself would do it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everlog.interop.formats.format_types import Written, made_id
from everlog.interop.formats.jsonl import parse, text_of
from everlog.interop.formats.pi.entries import NAME, compact, entry_of
from everlog.interop.formats.pi.new_entries import block_of, compaction_of, head_of, said_of
from everlog.interop.formats.writer import (
    Losses,
    Raw,
    Sheet,
    came_from,
    dropped,
    is_ended,
    origin,
    original,
)
from everlog.model import (
    AnyRecord,
    Compaction,
    Event,
    File,
    Image,
    Message,
    Metadata,
    OtherBlock,
    Rewind,
    Tombstone,
)

_WORDS: dict[type, str] = {
    Image: "image at an address",
    File: "file",
    OtherBlock: "block of another kind",
}


def write(metadata: Metadata, records: Sequence[AnyRecord]) -> Written:
    """A session as pi's file."""
    return _Writer(metadata, records).write()


class _Writer:
    def __init__(self, metadata: Metadata, records: Sequence[AnyRecord]) -> None:
        self.metadata, self.records = metadata, records
        self.losses, self.sheet = Losses(), Sheet()
        self.gone = dropped(records, NAME)
        self.used: set[str] = set()
        self.ids: dict[int, str] = {}  # seq → id of its entry
        self.live: list[int] = []  # seqs of the messages on the way to the leaf
        self.standing: list[Compaction] = []
        self.leaf: str | None = None
        self.header: dict[str, Any] = {}
        self.title = ""
        self.entries: list[str] = []  # ids in the order of the file, as version 1 counts
        own = came_from(records, NAME)
        self.olds = {one.seq: old for one in records if own and (old := _old(one)) is not None}
        for old in self.olds.values():
            value = old if isinstance(old, dict) else {}
            if value.get("type") == "session" and not self.header:
                self.header = value
            if text_of(value, "id"):
                self.used.add(value["id"])
        news = (Message, Compaction, Tombstone, Rewind)
        self.derived = self._derived()
        self.grows = any(
            isinstance(one, news) and one.seq not in self.olds and one.seq not in self.derived
            for one in records
        )
        # Version 1 has no ids: nothing could be chained to its entries.
        first = not isinstance(self.header.get("version"), int) or self.header["version"] < 2
        self.upgrades = bool(self.header) and self.grows and first

    def _derived(self) -> set[int]:
        if not self.olds:
            return set()
        return {
            one.seq
            for one in self.records
            if isinstance(one, Tombstone) and b'"derived"' in one.line
        }

    def write(self) -> Written:
        if not self.header:
            self._header()
        for record in self.records:
            if record.seq in self.olds:
                self._again(record)
            elif record.seq in self.derived:
                continue  # it follows from the tree
            elif isinstance(record, Message):
                self._message(record)
            elif isinstance(record, Compaction):
                self._compaction(record)
            elif isinstance(record, Tombstone):
                self._hide(record)
            elif isinstance(record, Rewind):
                self._rewind(record)
            else:
                self.losses.record(record)
        name = self.metadata.name
        if name and name != self.title:
            when = self.metadata.last_message_at or self.metadata.created_at
            self._entry("session_info", f"name {name}", when, name=name)
        started = text_of(self.header, "timestamp").replace(":", "-").replace(".", "-")
        path = f"{started}_{text_of(self.header, 'id')}.jsonl".replace("/", "-").replace("\0", "-")
        return Written({path: self.sheet.content()}, self.losses.words())

    def _header(self) -> None:
        cwds = (one.cwd for one in self.records if isinstance(one, Message) and one.cwd)
        given = self.metadata.extra.get("cwd")
        self.header = {
            "type": "session",
            "version": 3,
            "id": self.metadata.id,
            "timestamp": self.metadata.created_at,
            "cwd": given if isinstance(given, str) else next(cwds, ""),
        }
        self.entries.append(self.metadata.id)
        self.sheet.add(compact(self.header))

    # --- what came from pi

    def _again(self, record: AnyRecord) -> None:
        old = self.olds[record.seq]
        if isinstance(old, Raw):
            self.sheet.add(old.data, ended=old.ended)
            return
        raw = original(record, NAME)
        if text_of(old, "name") and old.get("type") == "session_info":
            self.title = old["name"]
        if self.upgrades:
            old = self._upgraded(record, old)
            raw = None
        if raw is not None:
            self.sheet.add(raw.data, ended=raw.ended)
        else:
            self.sheet.add(compact(old), ended=is_ended(record, NAME))
        if old.get("type") == "session":
            self.entries.append(text_of(old, "id"))
            return
        name = text_of(old, "id")
        self.entries.append(name)
        if name:
            self.leaf = name
            if isinstance(record, Message):
                self._said(record, name)
            elif isinstance(record, Compaction):
                self.standing.append(record)

    def _upgraded(self, record: AnyRecord, old: dict[str, Any]) -> dict[str, Any]:
        if old.get("type") == "session":
            return {**old, "version": 3}
        name = text_of(old, "id") or self._new_id(record.id or f"{record.seq}")
        made = {"type": old.get("type"), "id": name, "parentId": self.leaf, **old}
        index = made.pop("firstKeptEntryIndex", None)
        if type(index) is int and 0 <= index < len(self.entries):
            made["firstKeptEntryId"] = self.entries[index]
        said = made.get("message")
        if isinstance(said, dict) and said.get("role") == "hookMessage":
            made["message"] = {**said, "role": "custom"}
        return made

    # --- what is new

    def _new_id(self, place: str) -> str:
        number = 0
        while True:
            name = made_id(self.metadata.id, f"{place} {number}")[:8]
            if name not in self.used:
                self.used.add(name)
                return name
            number += 1

    def _entry(self, kind: str, place: str, when: str, **fields: Any) -> str:
        name = self._new_id(place)
        self.sheet.add(compact({**head_of(kind, name, self.leaf, when), **fields}))
        self.leaf = name
        self.entries.append(name)
        return name

    def _message(self, message: Message) -> None:
        for block in message.content:
            if block_of(block) is None:
                self.losses.add(_WORDS[type(block)])
        place = message.id or f"{message.seq}"
        name = self._entry("message", place, message.timestamp, message=said_of(message))
        self._said(message, name)

    def _said(self, message: Message, name: str) -> None:
        self.ids[message.seq] = name
        self.live.append(message.seq)

    def _rewind(self, record: Rewind) -> None:
        """Go back to an entry; what is dropped stays, as a branch that was left."""
        to = record.to_seq
        self.live = [seq for seq in self.live if seq <= to]
        self.leaf = self.ids[self.live[-1]] if self.live else None
        self.standing = [one for one in self.standing if to >= one.first_kept_seq - 1]
        if self.standing and self.standing[-1].seq > to:
            self._compaction(self.standing.pop(), f"again {record.seq}")

    def _compaction(self, record: Compaction, again: str = "") -> None:
        kept = [seq for seq in self.live if seq >= record.first_kept_seq]
        self.standing.append(record)
        self._entry(
            "compaction",
            f"{record.id or record.seq}{again}",
            record.timestamp,
            **compaction_of(record, self.ids[kept[0]] if kept else ""),
        )

    def _hide(self, record: Tombstone) -> None:
        """What came from pi stays in the file: an edit leaves it out of the context."""
        for seq in record.deletes:
            if seq in self.gone and seq in self.ids:
                place = f"{record.id or record.seq} {seq}"
                target = self.ids[seq]
                fields = {"targetId": target, "replacement": None}
                self._entry("context_edit", place, record.timestamp, **fields)


def _old(record: AnyRecord) -> dict[str, Any] | Raw | None:
    """The entry that a record came from, or the bytes that are none."""
    raw = original(record, NAME)
    if isinstance(record, Event):
        if not record.kind.startswith(f"{NAME}."):
            return None
        damaged = record.kind in (f"{NAME}.damaged", f"{NAME}.blank")
        return raw if damaged else record.data
    if raw is not None:
        return parse(raw.data)[0] or raw
    keep = origin(record, NAME)
    if keep is None or not isinstance(keep.get("entry"), dict):
        return None
    if isinstance(record, Message):
        return entry_of(record, keep)
    if isinstance(record, Compaction):
        return {**keep["entry"], "summary": record.summary}
    return dict(keep["entry"])
