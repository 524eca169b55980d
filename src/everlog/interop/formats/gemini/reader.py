"""The one reader of Gemini's chats: it replays the edits in a file.

Every version of a record that the file ever had is read, in the order of the file; those that are
not in the chat any more are hidden at the end. What follows an edited record is read again under
other ids, so that the messages stay in the order of the chat. A reader without the earlier lines
knows their records by digests: that is enough to list a chat, and to follow one that grows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from everlog.interop.formats.format_types import HiddenMessages, Item, Line, Summary, TailState, derive_id
from everlog.interop.formats.gemini.messages import NAME, SUMMARY_START, ToolIds, record_messages
from everlog.interop.formats.jsonl import Row, attach_preserved, event_kind, parse_records, report_damage, text_of
from everlog.interop.formats.session_reader import Detail, NeedsWholeFileError, SessionReader
from everlog.log.line_codec import encode_other_block
from everlog.model import PROGRAM, Event, Message

MAX_TITLE = 200  # characters
_MAPPED_KEYS = frozenset({"id", "timestamp", "type", "content", "thoughts", "tokens", "model"})
_encode = msgspec.json.Encoder(enc_hook=encode_other_block).encode


class _Version(msgspec.Struct, array_like=True, frozen=True):
    """One version of a record, as a state has it."""

    record: str  # digest of the record's id
    content: tuple[str, ...]  # digests of its messages
    is_injected: bool  # no person and no model wrote it


class _Record(NamedTuple):
    """One version of a record, with its content if its line was read here."""

    version: _Version
    title: str = ""
    messages: Sequence[Message] | None = None
    value: Mapping[str, Any] | None = None
    summary: str = ""  # of all before it


class _State(msgspec.Struct, omit_defaults=True):
    """What the lines so far say about the lines to come."""

    session_id: str = ""
    created: str = ""
    timestamp: str = ""
    summary: str = ""
    title: str = ""  # the first prompt of the chat
    title_at: int = -1  # its version
    is_compressed: bool = False  # the first prompt is not in the chat any more, and still its title
    model: str = ""
    versions: list[_Version] = []  # in the order in which they were read
    live: list[int] | None = None  # those in the chat, in its order; None: all
    tool_ids: ToolIds = msgspec.field(default_factory=ToolIds)


class GeminiReader(SessionReader):
    """Reads a chat."""

    def _load_state(self, state: TailState) -> None:
        self._state = msgspec.convert(state, _State)
        versions = self._state.versions
        self._live = list(range(len(versions))) if self._state.live is None else list(self._state.live)
        self._places = {versions[at].record: place for place, at in enumerate(self._live)}
        self._counts = Counter(version.record for version in versions)
        self._records: dict[int, _Record] = {}  # by version
        self._ids: dict[int, list[str]] = {}  # of the messages of a version
        self._items: list[Item] = []  # of one line
        self._with_usage: set[str] = set()  # records whose usage is in a message
        self._was_edited = False
        self._summarised: set[int] = set()  # versions that a summary replaced: shown, and not sent
        self._cwd = (self.transcript.ancestor_file or b"").decode(errors="replace").strip()

    @property
    def state(self) -> TailState:
        """The state after the lines so far."""
        is_whole = self._live == list(range(len(self._state.versions)))
        self._state.live = None if is_whole else self._live
        state: TailState = msgspec.to_builtins(self._state)
        return state

    def feed(self, lines: Iterable[Line], path: str = "") -> Iterator[Item]:
        """Read lines and yield their items."""
        return self.read_rows(parse_records(lines, path))

    def read_rows(self, rows: Iterable[Row]) -> Iterator[Item]:
        """Read parsed lines and yield their items."""
        for row in rows:
            self.line_count += row.starts_line
            self.damage += report_damage([row])
            self._items = []
            self._read_row(row)
            yield from self._items

    def finish(self) -> Iterator[Item]:
        """Set the facts, and hide what is not in the chat any more."""
        state = self._state
        self.facts = replace(
            self.facts,
            title=state.summary or state.title,
            created=state.created,
            model=state.model,
            cwd=self._cwd,
            program_id=state.session_id,
            skip=all(state.versions[at].is_injected for at in self._live),
        )
        if self._was_edited and self.whole:
            visible = {*self._live, *self._summarised}
            ids = tuple(item_id for at, ids in self._ids.items() if at not in visible for item_id in ids)
            yield HiddenMessages(id=self._derive_id(f"hidden {self.line_count}"), ids=ids, timestamp=state.timestamp)

    # --- lines ------------------------------------------------------------------------------

    def _read_row(self, row: Row) -> None:
        value = row.value
        if value is None:
            self._add_event(f"{row.start}+{row.end - row.start}", f"{NAME}.damaged", row.event_data)
            return
        change = value.get("$set")
        if isinstance(value.get("$rewindTo"), str):
            self._rewind(value["$rewindTo"])
            self._add_event(row.start, f"{NAME}.rewind", value)
        elif "type" in value and not isinstance(change, dict):
            self._read_record(self._record(value, row.start))
            if not self._items:
                self._add_event(row.start, event_kind(NAME, value["type"]), value)
        else:
            metadata = change if isinstance(change, dict) else value
            self._read_metadata(metadata)
            messages = metadata.get("messages")
            if isinstance(messages, list):
                values = [item if isinstance(item, dict) else {"value": item} for item in messages]
                records = [self._record(item, f"{row.start}.{number}") for number, item in enumerate(values)]
                self._replace_all(records)
                metadata = {**metadata, "messages": [item.get("id") for item in values]}
            self._add_event(row.start, f"{NAME}.session", metadata)

    def _read_metadata(self, metadata: Mapping[str, Any]) -> None:
        state = self._state
        state.session_id = state.session_id or text_of(metadata, "sessionId")
        state.created = state.created or text_of(metadata, "startTime")
        if "summary" in metadata:
            state.summary = " ".join(text_of(metadata, "summary").split())[:MAX_TITLE]

    def _derive_id(self, position: str | int) -> str:
        return derive_id(self._state.session_id or self.transcript.session_id, position)

    def _add_event(self, position: str | int, kind: str, data: dict[str, Any]) -> None:
        if self.detail is Detail.FULL:
            event_id, time = self._derive_id(position), self._state.timestamp
            self._items.append(Event(id=event_id, kind=kind, data=data, timestamp=time))

    # --- records ----------------------------------------------------------------------------

    def _record(self, value: Mapping[str, Any], position: str | int) -> _Record:
        state = self._state
        record_id = text_of(value, "id") or self._derive_id(position)
        state.timestamp = text_of(value, "timestamp") or state.timestamp
        messages = record_messages(value, record_id, state.tool_ids)
        is_injected = all(message.sender == PROGRAM for message in messages)
        summary = messages[0].text if messages and is_injected else ""
        if summary.startswith(SUMMARY_START):
            messages = []
        else:
            summary = ""
        words = next((message.text for message in messages if message.sender == "user"), "").strip()
        version = _Version(
            _digest((record_id + summary).encode(), 12),
            tuple(_digest(_encode(message), 8) for message in messages),
            is_injected,
        )
        time = state.timestamp or state.created  # an import compares times
        messages = [replace(message, timestamp=time, cwd=self._cwd or None) for message in messages]
        title = "" if words.startswith(("/", "?")) else " ".join(words.split())[:MAX_TITLE]
        state.model = next((message.model for message in messages if message.model), state.model)
        return _Record(version, title, messages, value, summary)

    def _read_record(self, record: _Record) -> None:
        """Add a record, or replace the earlier one with its id."""
        state, version = self._state, record.version
        place = self._places.get(version.record)
        if place is None:
            self._places[version.record] = len(self._live)
            self._live.append(self._add_version(record))
            return
        at = self._live[place]
        if state.versions[at] == version:
            return
        is_last = at == len(state.versions) - 1 and place == len(self._live) - 1
        if is_last and version.content[: len(state.versions[at].content)] == state.versions[at].content:
            start = len(state.versions[at].content)
            state.versions[at] = version
            self._add_messages(at, record, start)
        else:
            records = [self._records.get(index) or self._unread_record(index) for index in self._live]
            self._replace_all([*records[:place], record, *records[place + 1 :]])

    def _unread_record(self, at: int) -> _Record:
        return _Record(self._state.versions[at], self._state.title if at == self._state.title_at else "")

    def _rewind(self, target: str) -> None:
        """Drop a record and all after it; all if there is no such record."""
        place = self._places.get(_digest(target.encode(), 12), 0)
        if place < len(self._live):
            self._set_live(self._live[:place], len(self._state.versions))

    def _replace_all(self, records: Sequence[_Record]) -> None:
        """Make these records the chat; read again what would not be in order."""
        records = list({record.version.record: record for record in records}.values())
        state, new_records = self._state, {record.version.record for record in records}
        newest = {(version.record, version.content): at for at, version in enumerate(state.versions)}
        live: list[int] = []
        first, end = len(state.versions), -1  # of the versions added here; the newest one so far
        for record in records:
            version = record.version
            at = newest.get((version.record, version.content), -1)
            if at < 0 or (at <= end and not version.is_injected):
                at = self._add_version(record)
            live.append(at)
            if not version.is_injected:  # what the program renews may be anywhere
                end = at
            self._records.setdefault(at, record)
            if record.summary and at >= first:
                state.is_compressed = bool(state.title)
                self._summarised |= {at for at in self._live if state.versions[at].record not in new_records}
        self._set_live(live, first)

    def _set_live(self, live: list[int], first: int) -> None:
        """Change which versions are the chat; those from the first one on were just added."""
        state = self._state
        if live != [*self._live, *range(first, len(state.versions))]:
            if not self.whole and self.detail is not Detail.LISTING:
                raise NeedsWholeFileError
            self._was_edited = True
        self._live = live
        self._places = {state.versions[at].record: place for place, at in enumerate(live)}
        if not state.is_compressed:
            titles = (((self._records.get(at) or self._unread_record(at)).title, at) for at in live)
            state.title, state.title_at = next((pair for pair in titles if pair[0]), ("", -1))

    def _add_version(self, record: _Record) -> int:
        if record.messages is None and self.detail is not Detail.LISTING:
            raise NeedsWholeFileError
        state, version = self._state, record.version
        at = len(state.versions)
        state.versions.append(version)
        self._counts[version.record] += 1
        self._add_messages(at, record, 0)
        return at

    def _add_messages(self, at: int, record: _Record, start: int) -> None:
        """Add the messages of a version from one on."""
        messages = record.messages or ()
        self._records[at] = record if self.whole else record._replace(messages=None, value=None)
        state = self._state
        if record.title and not state.title:
            state.title, state.title_at = record.title, at
        self.facts = replace(
            self.facts,
            messages=self.facts.messages + len(record.version.content) - start,
            last=messages[-1].timestamp if messages else self.facts.last,
        )
        earlier = self._counts[record.version.record] - 1
        ids = self._ids.setdefault(at, [])
        if record.summary and self.detail is not Detail.LISTING:
            item_id = self._derive_id(f"summary {at}")
            self._items.append(Summary(id=item_id, text=record.summary, timestamp=state.timestamp))
        for message in messages[start:] if self.detail is not Detail.LISTING else ():
            usage = None if record.version.record in self._with_usage else message.usage
            message = replace(message, id=f"{message.id}~{earlier}" if earlier else message.id, usage=usage)
            if self.detail is Detail.FULL:
                rest = {key: item for key, item in (record.value or {}).items() if key not in _MAPPED_KEYS}
                message = attach_preserved(message, NAME, {"of": ids[0]} if len(ids) > start else rest)
            ids.append(message.id)
            self._items.append(message)
            if usage is not None:
                self._with_usage.add(record.version.record)


def _digest(data: bytes, length: int) -> str:
    return sha256(data).hexdigest()[:length]
