"""The reader of transcripts: for imports, live views and listings.

New lines are read from the end of the conversation alone (`conversation_tail`) as long as they
simply continue it. Otherwise, and for an import, the conversation is found in all lines (`chain`):
the items of each line are made at once, and the end of the file decides which of them are hidden.
In an import a record preserves its line under `claude`, without the content where our blocks are
exact. If a line makes several items, the first one preserves it; the others have `{"of": uuid}`.

The side chains in a main transcript are transcripts of their own: a reader whose transcript has a
`branch` reads only that one, and an import returns them as children.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import msgspec
from msgspec.structs import replace

from everlog.interop.formats.claude.blocks import read_content
from everlog.interop.formats.claude.chain import Conversation, find_conversation, follow_straight, preserved_uuids
from everlog.interop.formats.claude.conversation_tail import ConversationTail, replay_end
from everlog.interop.formats.claude.facts import FOLDED_TYPES, FactsFold
from everlog.interop.formats.claude.messages import (
    Boundary,
    UsageCounts,
    count_usage,
    messages_of,
    read_boundary,
    summary_of,
)
from everlog.interop.formats.claude.records import (
    MESSAGE_TYPES,
    Entry,
    JsonObject,
    Link,
    Record,
    decode_listed,
    is_api_error,
    is_chain_record,
    iter_entries,
    link_of,
    record_of,
)
from everlog.interop.formats.format_types import (
    MAX_LINE_BYTES,
    DamagedBytes,
    HiddenMessages,
    Item,
    Line,
    TailState,
    derive_id,
)
from everlog.interop.formats.jsonl import Row, as_text, parse_object, parse_records
from everlog.interop.formats.session_reader import Detail, NeedsWholeFileError, SessionReader
from everlog.log.line_codec import with_key
from everlog.model import Event, Message, Usage

NAME = "claude"
_NO_RECORD = Record()  # in the place of damage


class _Place(msgspec.Struct, gc=False):
    """A record in the file, and its items as far as they are known before the end of the file."""

    start: int
    value: dict[str, Any] | None  # an import forgets it once it has made the items
    data: bytes
    row: Row | None
    record: Record
    is_chained: bool
    is_error: bool = False  # in the place of an answer
    is_undecided: bool = False
    timestamp: str = ""
    items: Sequence[Item] = ()

    @property
    def messages(self) -> Sequence[Message]:
        """The messages of a chain record."""
        return [item for item in self.items if isinstance(item, Message)] if self.is_chained else ()

    @property
    def link(self) -> Link:
        """The link of a chain record."""
        first = self.items[0] if self.items else None
        return link_of(self.record, first.content if isinstance(first, Message) else None, is_error=self.is_error)

    @property
    def preserved(self) -> dict[str, Any]:
        """What restores the line: its value, or its bytes if the value does not represent them."""
        if self.value is not None and (self.row is None or self.row.exact):
            return self.value
        return {"raw": as_text(self.data)}


class TranscriptReader(SessionReader):
    """The reader of one transcript, or of one side chain in it."""

    def _load_state(self, state: TailState) -> None:
        is_listing = self.detail is Detail.LISTING
        self._is_full = self.detail is Detail.FULL
        self._fold = FactsFold(self.transcript.stem, self.facts, state if is_listing else {})
        self._tail = ConversationTail()
        self._is_lost = False  # the state is of another kind
        try:
            self._tail = self._tail if is_listing else msgspec.convert(state, ConversationTail)
        except msgspec.ValidationError:
            self._is_lost = True
        self._sides = self._tail.sides or self._fold.sides
        self.side_entries: dict[str, list[Entry]] = {}  # branch → its records
        self.known_uuids: Container[str] = ()  # possible parents in another file
        self._path = ""
        self._superseded: set[int] = set()  # starts of records of which a later one has the uuid
        self._hidden_ids: list[str] = []
        self._has_main = self._has_side = False  # messages of a main transcript, and messages of a side chain as such
        self._restart()
        self._tool_names.update({call: tool for call, (tool, _) in self._tail.open_calls.items()})

    def _restart(self) -> None:
        self._places: list[_Place] = []
        self.last_places: dict[str, _Place] = {}  # by uuid
        self._tool_names: dict[str, str] = {}  # by call
        self._usage_counts: dict[str, UsageCounts] = {}
        self._used_ids: set[str] = set()
        self._timestamp = ""  # of the last chain record

    # --- lines

    def feed(self, lines: Iterable[Line], path: str = "") -> Iterator[Item]:
        """Read further lines. All items of a whole file are returned by `finish`."""
        self._path = path
        if self.detail is Detail.LISTING:
            self._scan(lines)
            return
        entries: Iterable[Entry] = iter_entries(lines, path, whole=self._is_full)
        if self.transcript.branch:
            entries = (entry for entry in entries if self._is_selected(entry[1] or {}))
        if self.whole:
            self.load(entries)
            return
        if self._is_lost:
            raise NeedsWholeFileError
        for _, value, _, _ in entries:
            if value is not None and is_chain_record(value):
                yield from self._follow(value)

    def _scan(self, lines: Iterable[Line]) -> None:
        """Read what a listing shows."""
        fold, branch = self._fold, self.transcript.branch
        is_settled = fold.is_settled
        for line in lines:
            data = line.data
            try:
                record = decode_listed(data)
            except (ValueError, RecursionError):
                for row in parse_records((line,)):
                    if row.value is not None and self._is_selected(row.value):
                        fold.add(record_of(row.value), row.value)
                continue
            if record.isSidechain or branch:
                value = parse_object(data)[0]
                if value is not None and self._is_selected(value):
                    fold.add(record, value)
            elif is_settled and type(record.type) is str and record.type not in FOLDED_TYPES:
                continue
            elif len(data) <= MAX_LINE_BYTES:
                fold.add(record, data)
                is_settled = is_settled or fold.is_settled
        self.facts = fold.result(branch)

    def _is_selected(self, value: JsonObject) -> bool:
        """Return whether a record is read: with a branch, only its own. Finds the branches."""
        branch = self.transcript.branch
        if not value.get("isSidechain") or not is_chain_record(value):
            return not branch
        return self._sides.add(value) == branch or not branch

    # --- new lines

    def _follow(self, value: dict[str, Any]) -> Sequence[Item]:
        """Return the items of the next record of the conversation."""
        tail = self._tail
        boundary = tail.boundary
        is_visible = tail.add(value)
        if is_visible is None:
            raise NeedsWholeFileError
        self._timestamp = tail.timestamp
        if not is_visible:
            return ()
        record = record_of(value)
        if not record.isCompactSummary:
            return self._read_messages(record, tail.count_usage(record))
        is_summarized = boundary is not None and value.get("parentUuid") == boundary.uuid
        summary = summary_of(record, self._load_text, self._timestamp, (is_summarized and boundary) or Boundary())
        return () if summary is None else (summary,)

    def _load_text(self, name: str) -> str | None:
        data = self.transcript.read_file(f"tool-results/{name}")
        return None if data is None else data.decode("utf-8", "replace")

    def _read_messages(self, record: Record, usage: Usage | None, place: _Place | None = None) -> Sequence[Message]:
        """Return the messages of a record; none if it is unreadable. In an import, they preserve the line."""
        content = None if record.message is None else record.message.content
        if content is None:
            return ()
        parsed = read_content(content, self._load_text)
        messages = messages_of(record, parsed, self._timestamp, self._tool_names, usage)
        if place is None or not self._is_full:
            return messages
        for number, message in enumerate(messages):
            if message.id in self._used_ids:
                message = replace(message, id=self._derive_id(f"{place.start}:{number}" if number else place.start))
            self._used_ids.add(message.id)
            if number:
                messages[number] = with_key(message, NAME, {"of": record.uuid}, is_shallow=True)
            else:
                messages[0] = _with_line(message, place, is_exact=parsed.exact)
        return tuple(messages)

    # --- the whole file

    def load(self, entries: Iterable[Entry]) -> None:
        """Read all records of a file."""
        is_full, fold, places = self._is_full, self._fold, self._places
        for entry in entries:
            start, value, data, row = entry
            record = _NO_RECORD if value is None else record_of(value)
            place = _Place(start, value, data, row, record, record.is_in_chain)
            if is_full:
                if row is not None and row.problem:
                    self.damage.append(DamagedBytes(row.path, row.start, row.end, row.problem))
                if value is not None:
                    fold.add(record, value)
                    if place.is_chained and record.isSidechain:
                        self.side_entries.setdefault(self._sides.add(value), []).append(entry)
            if is_full or place.is_chained:
                self._add(place)
        if is_full:
            self.line_count = sum(place.row is None or place.row.starts_line for place in places)
            self.facts = fold.result(self.transcript.branch)

    def _add(self, place: _Place) -> None:
        """Add a record of a whole file, and make its items unless the end of the file decides what they are."""
        self._places.append(place)
        if place.is_chained:
            place.items = self._read_chained(place, place.record)
        elif place.value is None:
            place.items = (self._damage_event(place),)
        elif isinstance(place.record.uuid, str):  # a message keeps its uuid, whatever else has it
            place.is_undecided, place.timestamp = True, self._timestamp
        else:
            place.items = (self._event(place, None),)
        if self._is_full and not place.is_undecided:
            place.value = None

    def _read_chained(self, place: _Place, record: Record) -> Sequence[Item]:
        """Return the items of a chain record, as far as they are decided."""
        uuid, is_full = record.uuid, self._is_full
        if isinstance(record.timestamp, str):
            self._timestamp = record.timestamp
        if uuid in self.last_places:
            self._superseded.add(self.last_places[uuid].start)
        self.last_places[uuid] = place
        if self._superseded and place.start in self._superseded:
            return (self._event(place, None, "duplicate"),) if is_full else ()
        items: Sequence[Item] = ()
        if record.type in MESSAGE_TYPES:
            is_side = bool(record.isSidechain)
            self._has_main = self._has_main or not is_side
            if record.may_be_error:
                place.is_error = is_api_error(place.value or {})
            if not (place.is_error or record.teamName or (is_side and self._has_main)):
                self._has_side = self._has_side or is_side
                if record.isCompactSummary:
                    place.is_undecided, place.timestamp = True, self._timestamp
                    return ()
                items = self._read_messages(record, count_usage(record, self._usage_counts), place)
        return items or ((self._event(place, uuid),) if is_full else ())

    def finish(self) -> Iterator[Item]:
        """Yield the items of a whole file, and hide those outside the conversation."""
        if not self.whole:
            return
        if self._superseded or (self._has_main and self._has_side):
            self._add_again()
        chained = [place for place in self._places if place.is_chained]
        conversation = follow_straight([place.record for place in chained])
        if conversation is None:
            conversation = find_conversation(place.link for place in chained)
        for place in self._places:
            if place.is_undecided:
                place.items = self._decide(place, place.record, conversation)
        yield from chain.from_iterable(place.items for place in self._places)
        if len(conversation.visible) < len(self.last_places):
            self._hidden_ids += [
                item.id for place in chained if place.record.uuid not in conversation.visible for item in place.messages
            ]
        if self._hidden_ids:
            ids = tuple(self._hidden_ids)
            yield HiddenMessages(id=self._derive_id(f"hidden {' '.join(ids)}"), ids=ids, timestamp=self._timestamp)
        for uuid, parent, problem in conversation.gaps:
            if parent not in self.known_uuids:
                place = self.last_places[uuid]
                self.damage.append(DamagedBytes(self._path, place.start, place.start + len(place.data), problem))
        if not self._is_full:
            values = [place.value for place in chained if place.value is not None]
            self._tail = replay_end(values, conversation)

    def _add_again(self) -> None:
        """Make all items again: later records changed what earlier ones are."""
        records = [place.record for place in self.last_places.values()]
        self._has_main = any(record.type in MESSAGE_TYPES and not record.isSidechain for record in records)
        self._has_side = False
        places = self._places
        self._restart()
        for place in places:
            value, row = place.value, place.row
            if value is None:
                value = parse_object(place.data)[0] if row is None else row.value
            self._add(_Place(place.start, value, place.data, row, place.record, place.is_chained))

    def _decide(self, place: _Place, record: Record, conversation: Conversation) -> Sequence[Item]:
        """Return the items of a record that depend on the rest of the file."""
        latest, self._timestamp = self._timestamp, place.timestamp
        items: Sequence[Item] = ()
        if place.is_chained and record.uuid in conversation.visible:
            items = self._read_summary(place, record)
        if not items and self._is_full:
            is_free = place.is_chained or record.uuid not in self.last_places
            items = (self._event(place, record.uuid if is_free else None),)
        self._timestamp = latest
        return items

    def _read_summary(self, place: _Place, record: Record) -> Sequence[Item]:
        parent = self.last_places.get(record.parentUuid) if isinstance(record.parentUuid, str) else None
        details = parent.record.boundary_details if parent is not None else None
        starts = [self.last_places[uuid].start for uuid in preserved_uuids(details) if uuid in self.last_places]
        earlier = (other for other in self._places if starts and min(starts) <= other.start < place.start)
        kept = (other.messages[0].id for other in earlier if other.messages)
        boundary = read_boundary("", details, next(kept, None))
        summary = summary_of(record, self._load_text, self._timestamp, boundary)
        if summary is None or not self._is_full:
            return () if summary is None else (summary,)
        return (replace(summary, id=self._unique_id(summary.id, place.start), extra={NAME: place.preserved}),)

    # --- events

    def _damage_event(self, place: _Place) -> Event:
        row = place.row
        assert row is not None
        event_id = self._unique_id(None, f"{row.start}+{row.end - row.start}")
        event = Event(id=event_id, kind="claude.damaged", data=row.event_data, timestamp=self._timestamp)
        return with_key(event, NAME, {"damaged": True})

    def _event(self, place: _Place, uuid: str | None, kind: str = "") -> Event:
        record, row = place.record, place.row
        event_type = kind or record.type
        event = Event(
            id=self._unique_id(uuid, place.start),
            kind=f"claude.{event_type if isinstance(event_type, str) else 'object'}",
            data=place.value or {},
            timestamp=record.timestamp if isinstance(record.timestamp, str) else self._timestamp,
        )
        return event if row is None or row.exact else with_key(event, NAME, place.preserved)

    def _derive_id(self, position: str | int) -> str:
        return derive_id(self._fold.session_id or self.transcript.session_id, position)

    def _unique_id(self, uuid: str | None, position: str | int) -> str:
        """Return an id that no other item has."""
        item_id = self._derive_id(position) if not uuid or uuid in self._used_ids else uuid
        self._used_ids.add(item_id)
        return item_id

    @property
    def state(self) -> TailState:
        """The state after the lines so far."""
        if self.detail is Detail.LISTING:
            return self._fold.state
        self._tail.sides = self._sides if self.transcript.branch else None
        state: TailState = msgspec.json.decode(msgspec.json.encode(self._tail))
        return state


def _with_line(message: Message, place: _Place, *, is_exact: bool) -> Message:
    """Return a message that preserves its line, without the content if our blocks are exact."""
    value, row = place.value, place.row
    if not is_exact or value is None or not (row is None or row.exact):
        return with_key(message, NAME, place.preserved, is_shallow=True)  # `iter_entries` checked the depth
    fields = value["message"]
    content = fields["content"]
    fields["content"] = "" if isinstance(content, str) else None  # for a string and for a list
    made = with_key(message, NAME, value, is_shallow=True)
    fields["content"] = content
    return made
