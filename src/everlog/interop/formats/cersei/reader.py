"""The reader of Cersei's transcripts.

A tombstone counts wherever it is, even before the entry it deletes. So short hashes of the latest
tombstones whose entry was not among the same lines are kept in the state: reading a file from its
beginning needs none of them. An entry is identified by its uuid.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from everlog.ids import epoch_ms
from everlog.interop.formats.cersei.blocks import NAME
from everlog.interop.formats.cersei.entries import member_id, preserve_message, read_messages
from everlog.interop.formats.format_types import DamagedBytes, HiddenMessages, Item, Line, Summary, TailState, derive_id
from everlog.interop.formats.jsonl import Row, event_kind, text_of
from everlog.interop.formats.line_reader import LineReader
from everlog.model import Message

_PART = re.compile(r"_part([0-9]{1,9})\.jsonl\Z")
_MAX_TITLE = 80  # characters
_MAX_TEXT = 1024  # characters of a text in the state
_MAX_PENDING = 200  # tombstones in the state; entries of older ones have been read
_HASH_LENGTH = 8  # characters


class _Block(msgspec.Struct, gc=False):
    type: str = ""


class _MetadataHead(msgspec.Struct, gc=False):
    model: str = ""


class _MessageHead(msgspec.Struct, gc=False):
    role: Literal["user", "assistant"]
    content: str | list[_Block]
    metadata: _MetadataHead | None = None

    @property
    def count(self) -> int:
        """How many of our messages it is: one for each result, and one for what is not a result."""
        if self.role == "assistant" or isinstance(self.content, str):
            return 1
        results = sum(block.type == "tool_result" for block in self.content)
        return results + (results < len(self.content) or not results)


class _EntryHead(msgspec.Struct, gc=False):
    """What a listing needs of most lines."""

    type: Literal["user", "assistant"]
    message: _MessageHead
    timestamp: str = ""
    cwd: str = ""
    session_id: str = ""


_decode_head = msgspec.json.Decoder(_EntryHead).decode


class CerseiReader(LineReader):
    """The reader of one session. Keys of its state:

    lines, messages   their counts so far
    widest            largest number of messages in one entry
    session, cwd      of the first entry that has it; of the last
    user              uuid of the last user entry
    bare              whether the first message was a bare one
    gone              hashes of deleted uuids whose entry may not have been read yet
    """

    NAME = NAME

    def _load_facts(self) -> None:
        hashes = text_of(self._state, "gone")
        # An ordered set.
        self._pending = {hashes[at : at + _HASH_LENGTH]: None for at in range(0, len(hashes), _HASH_LENGTH)}
        self._ids: dict[str, list[str]] = {}  # uuid → ids of its messages, in these lines
        self._deleted: set[str] = set()  # uuids, by tombstones in these lines
        self._next_part = 2

    @property
    def state(self) -> TailState:
        """The state after the lines so far."""
        self._note("gone", "".join(list(self._pending)[-_MAX_PENDING:]) or None)
        return self._state

    def feed(self, lines: Iterable[Line], path: str = "") -> Iterator[Item]:
        """Read further lines; their items are returned by `finish`."""
        self._check_part(path)
        return super().feed(lines, path)

    def _check_part(self, path: str) -> None:
        """Report parts that are missing before this one."""
        if match := _PART.search(path):
            number = int(match[1])
            if number > self._next_part:
                missing = f"_part{self._next_part}" + (f" to _part{number - 1}" * (number > self._next_part + 1))
                self.damage.append(DamagedBytes(path, 0, 0, f"missing before it: {missing}"))
            self._next_part = number + 1

    def finish(self) -> Iterator[Item]:
        """Yield the items of all lines; a summary that a tombstone follows is an event."""
        for element in self._queue:
            if not isinstance(element, tuple):
                yield element
            elif element[0].id not in self._deleted:
                yield element[0]
            elif self._is_full:
                yield self._event(element[1], element[0].id, f"{NAME}.summary")

    # --- facts

    def _scan_line(self, data: bytes) -> None:
        try:
            entry = _decode_head(data)
        except (ValueError, RecursionError):
            entry = None
        if entry is not None and entry.message.role == entry.type and (self.facts.title or entry.type != "user"):
            self._note_entry(entry.timestamp, entry.cwd, entry.session_id)
            model = entry.message.metadata.model if entry.message.metadata is not None else ""
            self._count_messages(entry.message.count, entry.timestamp, model)
        else:
            self._scan_parsed(data)

    def _scan_value(self, value: dict[str, Any]) -> None:
        timestamp = text_of(value, "timestamp")
        self._note_entry(timestamp, text_of(value, "cwd"), text_of(value, "session_id"))
        self._note_messages(read_messages(value, "", timestamp))

    def _note_entry(self, timestamp: str, cwd: str, session: str) -> None:
        facts = self.facts
        if not (facts.created and facts.cwd and facts.program_id):
            created = facts.created or (timestamp if epoch_ms(timestamp) is not None else "")
            program_id = facts.program_id or session
            self.facts = replace(facts, created=created, cwd=facts.cwd or cwd, program_id=program_id)

    def _note_messages(self, messages: list[Message]) -> None:
        if messages:
            self._count_messages(len(messages), messages[0].timestamp, messages[0].model or "")
        if not self.facts.title:
            typed = (message for message in messages if message.role == "user" and message.sender is None)
            self.facts = replace(self.facts, title=next(filter(None, map(title_from, typed)), ""))

    # --- lines

    def _add_value(self, row: Row, value: dict[str, Any]) -> None:
        timestamp, uuid, kind = text_of(value, "timestamp"), text_of(value, "uuid"), value.get("type")
        self._note_entry(timestamp, text_of(value, "cwd"), text_of(value, "session_id"))
        self._set_text("session", text_of(value, "session_id"), first=True)
        self._set_text("cwd", text_of(value, "cwd"))
        if kind == "tombstone":
            self._delete(row, value)
            return
        item_id = self._unique_id(uuid, row)
        if kind == "summary":
            if text_of(value, "summary") and not self._is_deleted(uuid):
                extra = self._extra(row, {**value, "summary": ""}, {})
                self._queue.append((Summary(id=item_id, text=value["summary"], timestamp=timestamp, extra=extra), row))
                self._ids.setdefault(uuid, [])
                return
        elif messages := read_messages(value, item_id, timestamp):
            self._note_messages(messages)
            self._add_messages(row, uuid, messages)
            return
        if self._is_full:
            self._queue.append(self._event(row, item_id, _kind_of(value)))

    def _set_text(self, key: str, text: str, *, first: bool = False) -> None:
        if text and len(text) <= _MAX_TEXT and not (first and key in self._state):
            self._state[key] = text

    # --- messages and tombstones

    def _add_messages(self, row: Row, uuid: str, messages: list[Message]) -> None:
        state, count = self._state, len(messages)
        state.setdefault("bare", "type" not in (row.value or {}))
        state["messages"] = state.get("messages", 0) + count
        if count > state.get("widest", 1):
            state["widest"] = count
        if messages[0].role != "assistant":
            self._set_text("user", uuid)
        ids = [message.id for message in messages]
        self._used_ids.update(ids)
        self._queue += preserve_message(row, messages) if self._is_full else messages
        if uuid:
            self._ids.setdefault(uuid, []).extend(ids)
            if self._is_deleted(uuid):
                self._pending.pop(_short_hash(uuid), None)
                # The tombstone is an item of its own: this one is not written back.
                extra: dict[str, Any] = {NAME: {"of": uuid}} if self._is_full else {"target": uuid}
                self._hide(f"late {ids[0]}", ids, messages[0].timestamp, extra)

    def _is_deleted(self, uuid: str) -> bool:
        return uuid in self._deleted or (bool(self._pending) and _short_hash(uuid) in self._pending)

    def _delete(self, row: Row, value: dict[str, Any]) -> None:
        target = text_of(value, "deleted_uuid")
        known_ids = self._ids.get(target, [])
        self._deleted.add(target)
        if target and target not in self._ids:
            self._pending[_short_hash(target)] = None
        if self._is_full and not known_ids:
            self._queue.append(self._event(row, self._unique_id("", row), _kind_of(value)))
        elif target:
            # If its number of messages is unknown, it is at most that of the widest entry.
            ids = known_ids or [member_id(target, number) for number in range(self._state.get("widest", 1))]
            extra = self._extra(row, value, {"target": target})
            self._hide(row.number, ids, text_of(value, "timestamp"), extra)

    def _hide(self, seed: str | int, ids: list[str], timestamp: str, extra: dict[str, Any]) -> None:
        marker_id = derive_id(self._session, seed)
        self._queue.append(HiddenMessages(id=marker_id, ids=tuple(ids), timestamp=timestamp, extra=extra))


def _kind_of(value: Mapping[str, Any]) -> str:
    return event_kind(NAME, value.get("type") if "type" in value else value.get("role"))


def title_from(message: Message) -> str:
    """Return the title of a session that begins with a message."""
    return message.text.strip().partition("\n")[0][:_MAX_TITLE]


def _short_hash(uuid: str) -> str:
    return b64encode(sha256(uuid.encode()).digest()[: _HASH_LENGTH * 3 // 4]).decode()
