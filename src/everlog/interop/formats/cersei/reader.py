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
from everlog.interop.formats.format_types import DamagedBytes, HiddenMessages, Item, Line, Summary, derive_id
from everlog.interop.formats.jsonl import (
    Row,
    event_kind,
    parse_lines,
    parse_object,
    preserved_data,
    record_event,
    text_of,
    unreadable_event,
)
from everlog.interop.formats.live_format import TailState
from everlog.interop.formats.session_reader import Detail, SessionReader
from everlog.model import Message

_PART = re.compile(r"_part([0-9]{1,9})\.jsonl\Z")
_MAX_TITLE = 80  # characters
_MAX_TEXT = 1024  # characters of a text in the state
_MAX_PENDING = 200  # tombstones in the state; entries of older ones have been read
_HASH_LENGTH = 8  # characters
_encoder = msgspec.json.Encoder()


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


class CerseiReader(SessionReader):
    """The reader of one session. Keys of its state:

    lines, messages   their counts so far
    widest            largest number of messages in one entry
    session, cwd      of the first entry that has it; of the last
    user              uuid of the last user entry
    bare              whether the first message was a bare one
    gone              hashes of deleted uuids whose entry may not have been read yet
    """

    def _load_state(self, state: TailState) -> None:
        self._state = dict(state)
        hashes = text_of(state, "gone")
        # An ordered set.
        self._pending = {hashes[at : at + _HASH_LENGTH]: None for at in range(0, len(hashes), _HASH_LENGTH)}
        # Summaries with their rows: a tombstone that follows makes an event of them.
        self._queue: list[Item | tuple[Summary, Row]] = []
        self._ids: dict[str, list[str]] = {}  # uuid → ids of its messages, in these lines
        self._used_ids: set[str] = set()
        self._deleted: set[str] = set()  # uuids, by tombstones in these lines
        self._timestamp = ""  # the last one so far
        self._next_part = 2
        facts = self.facts
        self._count, self._title, self._model = facts.messages, facts.title, facts.model
        self._created, self._cwd, self._program_id = facts.created, facts.cwd, facts.program_id
        self._times = [facts.last]  # of messages

    @property
    def state(self) -> TailState:
        """The state after the lines so far."""
        state = {key: value for key, value in self._state.items() if key != "gone"}
        if self._pending:
            state["gone"] = "".join(list(self._pending)[-_MAX_PENDING:])
        return state

    def feed(self, lines: Iterable[Line], path: str = "") -> Iterator[Item]:
        """Read further lines; their items are returned by `finish`."""
        if self.detail is Detail.LISTING:
            for line in lines:
                self._scan_line(line.data)
        else:
            self._check_part(path)
            before = self._state.get("lines", 0)
            for row in parse_lines(self._counted(lines), path):
                self._add_row(replace(row, number=before + row.number))
        last = next((time for time in reversed(self._times) if epoch_ms(time) is not None), "")
        self._times = [last]
        self.facts = replace(
            self.facts,
            messages=self._count,
            title=self._title,
            model=self._model,
            created=self._created,
            last=last,
            cwd=self._cwd,
            program_id=self._program_id,
        )
        return iter(())

    def _counted(self, lines: Iterable[Line]) -> Iterator[Line]:
        for line in lines:
            self._state["lines"] = self._state.get("lines", 0) + 1
            yield line

    def _check_part(self, path: str) -> None:
        """Report parts that are missing before this one."""
        if match := _PART.search(path):
            number = int(match[1])
            if number > self._next_part:
                missing = f"_part{self._next_part}" + (f" to _part{number - 1}" * (number > self._next_part + 1))
                self.damage.append(DamagedBytes(path, 0, 0, f"missing before it: {missing}"))
            self._next_part = number + 1

    def finish(self) -> Iterator[Item]:
        """Yield the items of all lines."""
        for element in self._queue:
            if not isinstance(element, tuple):
                yield element
            elif element[0].id not in self._deleted:
                yield element[0]
            elif self.detail is Detail.FULL:
                yield self._event(element[1], element[0].id)
        self._queue = []

    # --- facts

    def _scan_line(self, data: bytes) -> None:
        try:
            entry = _decode_head(data)
        except (ValueError, RecursionError):
            entry = None
        if entry is not None and entry.message.role == entry.type and (self._title or entry.type != "user"):
            self._note_entry(entry.timestamp, entry.cwd, entry.session_id)
            model = entry.message.metadata.model if entry.message.metadata is not None else ""
            self._count_messages(entry.message.count, entry.timestamp, model)
        elif (value := parse_object(data)[0]) is not None:
            self._note_entry(*(text_of(value, key) for key in ("timestamp", "cwd", "session_id")))
            self._note_messages(read_messages(value, "", text_of(value, "timestamp")))

    def _note_entry(self, timestamp: str, cwd: str, session: str) -> None:
        if not self._created and epoch_ms(timestamp) is not None:
            self._created = timestamp
        self._cwd = self._cwd or cwd
        self._program_id = self._program_id or session

    def _note_messages(self, messages: list[Message]) -> None:
        if messages:
            self._count_messages(len(messages), messages[0].timestamp, messages[0].model or "")
        for message in messages:
            if message.role == "user" and message.sender is None and not self._title:
                self._title = title_from(message)

    def _count_messages(self, count: int, timestamp: str, model: str) -> None:
        self._count += count
        self._model = model or self._model
        self._times.append(timestamp)

    # --- lines

    def _add_row(self, row: Row) -> None:
        value, is_full = row.value, self.detail is Detail.FULL
        self.line_count += not row.is_blank
        if row.problem:
            self.damage.append(DamagedBytes(row.path, row.start, row.end, row.problem))
        if value is None:
            if is_full:
                self._queue.append(unreadable_event(NAME, self._session, row, row.path, self._timestamp))
            return
        timestamp, uuid, kind = text_of(value, "timestamp"), text_of(value, "uuid"), value.get("type")
        self._timestamp = timestamp or self._timestamp
        self._note_entry(timestamp, text_of(value, "cwd"), text_of(value, "session_id"))
        self._set_text("session", text_of(value, "session_id"), first=True)
        self._set_text("cwd", text_of(value, "cwd"))
        if kind == "tombstone":
            self._delete(row, value)
            return
        item_id = self._unique_id(uuid, row)
        if kind == "summary":
            if text_of(value, "summary") and not self._is_deleted(uuid):
                extra = {}
                if is_full:
                    extra = {NAME: preserved_data(row, is_lossless=True, entry={**value, "summary": ""})}
                summary = Summary(id=item_id, text=value["summary"], timestamp=timestamp, extra=extra)
                self._queue.append((summary, row))
                self._ids.setdefault(uuid, [])
                return
        elif messages := read_messages(value, item_id, timestamp):
            self._note_messages(messages)
            self._add_messages(row, value, uuid, messages)
            return
        if is_full:
            self._queue.append(self._event(row, item_id))

    @property
    def _session(self) -> str:
        return self._state.get("session") or self.transcript.session_id

    def _set_text(self, key: str, text: str, *, first: bool = False) -> None:
        if text and len(text) <= _MAX_TEXT and not (first and key in self._state):
            self._state[key] = text

    def _unique_id(self, uuid: str, row: Row) -> str:
        """Return the entry's own id, unless it has none or the id is in use."""
        item_id = uuid if uuid and uuid not in self._used_ids else derive_id(self._session, row.number)
        self._used_ids.add(item_id)
        return item_id

    def _event(self, row: Row, item_id: str) -> Item:
        value = row.value or {}
        kind = event_kind(NAME, value.get("type") if "type" in value else value.get("role"))
        timestamp = text_of(value, "timestamp") or self._timestamp
        return record_event(row, kind, item_id, timestamp, _encoder.encode(value))

    # --- messages and tombstones

    def _add_messages(self, row: Row, value: Mapping[str, Any], uuid: str, messages: list[Message]) -> None:
        state, count = self._state, len(messages)
        state.setdefault("bare", "type" not in value)
        state["messages"] = state.get("messages", 0) + count
        if count > state.get("widest", 1):
            state["widest"] = count
        if messages[0].role != "assistant":
            self._set_text("user", uuid)
        ids = [message.id for message in messages]
        self._used_ids.update(ids)
        self._queue += preserve_message(row, messages) if self.detail is Detail.FULL else messages
        if uuid:
            self._ids.setdefault(uuid, []).extend(ids)
            if self._is_deleted(uuid):
                self._pending.pop(_short_hash(uuid), None)
                # The tombstone is an item of its own: this one is not written back.
                extra: dict[str, Any] = {NAME: {"of": uuid}} if self.detail is Detail.FULL else {"target": uuid}
                self._hide(f"late {ids[0]}", ids, messages[0].timestamp, extra)

    def _is_deleted(self, uuid: str) -> bool:
        return uuid in self._deleted or (bool(self._pending) and _short_hash(uuid) in self._pending)

    def _delete(self, row: Row, value: dict[str, Any]) -> None:
        target, is_full = text_of(value, "deleted_uuid"), self.detail is Detail.FULL
        known_ids = self._ids.get(target, [])
        self._deleted.add(target)
        if target and target not in self._ids:
            self._pending[_short_hash(target)] = None
        if is_full and not known_ids:
            self._queue.append(self._event(row, self._unique_id("", row)))
        elif target:
            # If its number of messages is unknown, it is at most that of the widest entry.
            ids = known_ids or [member_id(target, number) for number in range(self._state.get("widest", 1))]
            extra = {NAME: preserved_data(row, is_lossless=True, entry=value)} if is_full else {"target": target}
            self._hide(row.number, ids, text_of(value, "timestamp"), extra)

    def _hide(self, seed: str | int, ids: list[str], timestamp: str, extra: dict[str, Any]) -> None:
        marker_id = derive_id(self._session, seed)
        self._queue.append(HiddenMessages(id=marker_id, ids=tuple(ids), timestamp=timestamp, extra=extra))


def title_from(message: Message) -> str:
    """Return the title of a session that begins with a message."""
    return message.text.strip().partition("\n")[0][:_MAX_TITLE]


def _short_hash(uuid: str) -> str:
    return b64encode(sha256(uuid.encode()).digest()[: _HASH_LENGTH * 3 // 4]).decode()
