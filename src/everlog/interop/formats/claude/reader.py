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
from typing import Any

import msgspec
from msgspec.structs import replace

from everlog.interop.formats.claude.blocks import read_content
from everlog.interop.formats.claude.chain import Conversation, find_conversation, preserved_uuids
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
    Entry,
    JsonObject,
    Link,
    content_of,
    decode_listed,
    is_chain_record,
    iter_entries,
    link_of,
    listed,
)
from everlog.interop.formats.format_types import MAX_LINE_BYTES, DamagedBytes, HiddenMessages, Item, Line, derive_id
from everlog.interop.formats.jsonl import as_text, attach_preserved, parse_object, parse_records
from everlog.interop.formats.live_format import TailState
from everlog.interop.formats.session_reader import Detail, NeedsWholeFileError, SessionReader, make_reading
from everlog.model import Event, Message, Usage

NAME = "claude"


class _Place(msgspec.Struct, gc=False):
    """A record in the file, and its items as far as they are known before the end of the file."""

    start: int
    end: int
    link: Link | None
    items: Sequence[Item] = ()
    undecided: Entry | None = None
    timestamp: str = ""


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
        self._read_entries: list[tuple[int, Any, bytes, Any]] = []  # of a whole file; without values in an import
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
                        fold.add(listed(row.value), row.value)
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
        if not value.get("isCompactSummary"):
            return self._read_messages((0, value, b"", None), tail.count_usage(value))
        is_summarized = boundary is not None and value.get("parentUuid") == boundary.uuid
        summary = summary_of(value, self._load_text, self._timestamp, (is_summarized and boundary) or Boundary())
        return () if summary is None else (summary,)

    def _load_text(self, name: str) -> str | None:
        data = self.transcript.read_file(f"tool-results/{name}")
        return None if data is None else data.decode("utf-8", "replace")

    def _read_messages(self, entry: Entry, usage: Usage | None) -> Sequence[Message]:
        """Return the messages of a record; none if it is unreadable."""
        start, value, _, _ = entry
        content = content_of(value) if value else None
        if value is None or content is None:
            return ()
        parsed = read_content(content, self._load_text)
        messages = messages_of(value, parsed, self._timestamp, self._tool_names, usage)
        if not self._is_full:
            return messages
        preserved: Any = _preserve(entry)
        if parsed.exact and preserved is value:
            # An empty string stands for a string, null for a list.
            placeholder = "" if isinstance(content, str) else None
            preserved = {**value, "message": {**value["message"], "content": placeholder}}
        for number, message in enumerate(messages):
            if message.id in self._used_ids:
                message = replace(message, id=self._derive_id(f"{start}:{number}" if number else start))
            self._used_ids.add(message.id)
            kept = {"of": value["uuid"]} if number else preserved
            messages[number] = attach_preserved(message, NAME, kept, is_shallow=True)  # `iter_entries` checked it
        return tuple(messages)

    # --- the whole file

    def load(self, entries: Iterable[Entry]) -> None:
        """Read all records of a file."""
        is_full, fold = self._is_full, self._fold
        for entry in entries:
            start, value, data, row = entry
            if is_full:
                self._read_entries.append((start, None, data, row))
                self.line_count += row is None or row.starts_line
                if row is not None and row.problem:
                    self.damage.append(DamagedBytes(row.path, row.start, row.end, row.problem))
                if value is not None:
                    fold.add(listed(value), value)
                    if value.get("isSidechain") and is_chain_record(value):
                        self.side_entries.setdefault(self._sides.add(value), []).append(entry)
                self._add(entry)
            elif self._add(entry):
                self._read_entries.append(entry)
        if is_full:
            self.facts = fold.result(self.transcript.branch)

    def _add(self, entry: Entry) -> bool:
        """Make the items of a record of a whole file; return whether it is a chain record."""
        start, value, data, _ = entry
        if value is None or not is_chain_record(value):
            if self._is_full:
                self._add_other(entry)
            return False
        uuid, timestamp = value["uuid"], value.get("timestamp")
        if isinstance(timestamp, str):
            self._timestamp = timestamp
        link = link_of(value)
        place = _Place(start, start + len(data), link)
        self._places.append(place)
        if uuid in self.last_places:
            self._superseded.add(self.last_places[uuid].start)
        self.last_places[uuid] = place
        if self._superseded and start in self._superseded:
            place.items = (self._event(entry, None, "duplicate"),) if self._is_full else ()
            return True
        self._has_main = self._has_main or (link.is_message and not link.is_side)
        if link.is_main(is_subagent=not self._has_main) and not link.is_error:
            self._has_side = self._has_side or link.is_side
            if link.is_summary:
                place.undecided, place.timestamp = entry, self._timestamp
                return True
            place.items = items = self._read_messages(entry, count_usage(value, self._usage_counts))
            link.content = items[0].content if items else None
        if self._is_full and not place.items:
            place.items = (self._event(entry, uuid),)
        return True

    def _add_other(self, entry: Entry) -> None:
        """Make the event for a record outside the chain, or for damage."""
        start, value, data, _ = entry
        place = _Place(start, start + len(data), None)
        self._places.append(place)
        if value is None:
            place.items = (self._damage_event(entry),)
        elif isinstance(value.get("uuid"), str):  # a message keeps its uuid, whatever else has it
            place.undecided, place.timestamp = entry, self._timestamp
        else:
            place.items = (self._event(entry, None),)

    def finish(self) -> Iterator[Item]:
        """Yield the items of a whole file, and hide those outside the conversation."""
        if not self.whole:
            return
        if self._superseded or (self._has_main and self._has_side):
            self._add_again()
        conversation = find_conversation(place.link for place in self._places if place.link is not None)
        message_ids: dict[str, str] = {}  # uuid → id of its first message
        for place in self._places:
            if place.undecided is not None:
                place.items = self._decide(place, place.undecided, conversation, message_ids)
            link, items = place.link, place.items
            if link is not None and items and isinstance(items[0], Message):
                message_ids[link.uuid] = items[0].id
                if link.uuid not in conversation.visible:
                    self._hidden_ids += [item.id for item in items]
            yield from items
        if self._hidden_ids:
            ids = tuple(self._hidden_ids)
            yield HiddenMessages(id=self._derive_id(f"hidden {' '.join(ids)}"), ids=ids, timestamp=self._timestamp)
        for uuid, parent, problem in conversation.gaps:
            if parent not in self.known_uuids:
                place = self.last_places[uuid]
                self.damage.append(DamagedBytes(self._path, place.start, place.end, problem))
        if not self._is_full:
            values = [value for _, value, _, _ in self._read_entries if value is not None]
            self._tail = replay_end(values, conversation)

    def _add_again(self) -> None:
        """Make all items again: later records changed what earlier ones are."""
        links = [place.link for place in self.last_places.values() if place.link is not None]
        self._has_main, self._has_side = any(link.is_message and not link.is_side for link in links), False
        self._restart()
        for start, value, data, row in self._read_entries:
            if self._is_full:
                value = parse_object(data)[0] if row is None else row.value
            self._add((start, value, data, row))

    def _decide(
        self, place: _Place, entry: Entry, conversation: Conversation, message_ids: dict[str, str]
    ) -> Sequence[Item]:
        """Return the items of a record that depend on the rest of the file."""
        value, link = entry[1] or {}, place.link
        latest, self._timestamp = self._timestamp, place.timestamp
        items: Sequence[Item] = ()
        if link is not None and link.uuid in conversation.visible:
            items = self._read_summary(entry, link, message_ids)
        elif link is not None:
            items = self._read_messages(entry, None)
        if not items and self._is_full:
            is_free = link is not None or value["uuid"] not in self.last_places
            items = (self._event(entry, value["uuid"] if is_free else None),)
        self._timestamp = latest
        return items

    def _read_summary(self, entry: Entry, link: Link, message_ids: dict[str, str]) -> Sequence[Item]:
        parent = self.last_places.get(link.parent) if isinstance(link.parent, str) else None
        boundary = parent.link if parent is not None and parent.link is not None else None
        details = boundary.details if boundary is not None and boundary.is_boundary else None
        starts = [self.last_places[uuid].start for uuid in preserved_uuids(details) if uuid in self.last_places]
        kept = (
            message_id
            for uuid, message_id in message_ids.items()
            if starts and self.last_places[uuid].start >= min(starts)
        )
        summary = summary_of(
            entry[1] or {}, self._load_text, self._timestamp, read_boundary("", details, next(kept, None))
        )
        if summary is None or not self._is_full:
            return () if summary is None else (summary,)
        return (replace(summary, id=self._unique_id(summary.id, entry[0]), extra={NAME: _preserve(entry)}),)

    # --- events

    def _damage_event(self, entry: Entry) -> Event:
        row = entry[3]
        assert row is not None
        event_id = self._unique_id(None, f"{row.start}+{row.end - row.start}")
        event = Event(id=event_id, kind="claude.damaged", data=row.event_data, timestamp=self._timestamp)
        return attach_preserved(event, NAME, {"damaged": True})

    def _event(self, entry: Entry, uuid: str | None, kind: str = "") -> Event:
        start, value, _, row = entry
        value = value or {}
        event_type, timestamp = kind or value.get("type"), value.get("timestamp")
        event = Event(
            id=self._unique_id(uuid, start),
            kind=f"claude.{event_type if isinstance(event_type, str) else 'object'}",
            data=value,
            timestamp=timestamp if isinstance(timestamp, str) else self._timestamp,
        )
        return event if row is None or row.exact else attach_preserved(event, NAME, _preserve(entry))

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


def _preserve(entry: Entry) -> dict[str, Any]:
    """Return what restores a line: its value, or its bytes if the value does not represent them."""
    _, value, _, row = entry
    if value is not None and (row is None or row.exact):
        return value
    return {"raw": as_text(entry[2])}


READING = make_reading(TranscriptReader)
