"""Reader of whole sessions from Cersei's files. Records preserve their entry under `cersei`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from everlog.errors import FormatError
from everlog.ids import epoch_ms, timestamp
from everlog.interop.formats.cersei.blocks import NAME, Shape, rebuild_content
from everlog.interop.formats.cersei.entries import member_id, message_object, read_message_fields
from everlog.interop.formats.format_types import (
    DamagedBytes,
    ForeignSession,
    HiddenMessages,
    Item,
    Source,
    Summary,
    derive_id,
)
from everlog.interop.formats.jsonl import (
    Row,
    build_record,
    event_kind,
    line_position,
    parse_lines,
    preserved_data,
    record_event,
    report_damage,
    text_of,
    unreadable_event,
)
from everlog.model import Message

_PART = re.compile(r"_part([0-9]{1,9})\.jsonl$")
_encoder = msgspec.json.Encoder()


def read(source: Source) -> ForeignSession:
    """Read a session from all its parts."""
    return _Reader(source).read()


class _Reader:
    def __init__(self, source: Source) -> None:
        self.session_id, self.modified_ms = source.name, source.modified_ms
        self.damage: list[DamagedBytes] = []
        self.transcript_path = source.paths()[0]
        self.rows = [row for path in self._parts(source) for row in parse_lines(source.lines(path), path)]
        self.items: list[Item] = []
        self.used_ids: set[str] = set()
        self.message_ids: dict[str, list[str]] = {}  # uuid → ids of its messages
        self.late_ids: list[str] = []  # ids whose tombstone came first
        self.last_positions: dict[str, int] = {}  # uuid → its last position
        self.tombstones: dict[str, int] = {}  # uuid → position of its last tombstone
        for position, row in enumerate(self.rows):
            value = row.value or {}
            if value.get("type") == "tombstone":
                self.tombstones[text_of(value, "deleted_uuid")] = position
            elif text_of(value, "uuid"):
                self.last_positions[text_of(value, "uuid")] = position

    def _parts(self, source: Source) -> Iterator[str]:
        """Yield the transcript and its parts by number. Report missing parts and continue."""
        yield self.transcript_path
        parts = {}
        for path in source.paths()[1:]:
            if match := _PART.search(path):
                parts[int(match[1])] = path
        expected = 2
        for number in sorted(parts):
            if number > expected:
                missing = f"_part{expected}" + (f" to _part{number - 1}" * (number > expected + 1))
                problem = f"missing before it: {missing}"
                self.damage.append(DamagedBytes(parts[number], 0, 0, problem))
            yield parts[number]
            expected = number + 1

    def read(self) -> ForeignSession:
        metadata: dict[str, Any] = {}
        created = ""
        for position, row in enumerate(self.rows):
            if row.value is None:
                now = timestamp(self.modified_ms / 1000)
                self.items.append(unreadable_event(NAME, self.session_id, row, self.transcript_path, now))
                continue
            self._add_row(position, row, row.value)
            created = created or text_of(row.value, "timestamp")
            if "cwd" not in metadata and text_of(row.value, "cwd"):
                metadata["cwd"] = row.value["cwd"]
        models = [item.model for item in self.items if isinstance(item, Message) and item.model]
        if models:
            metadata["model"] = models[-1]
        if self.late_ids:
            marker_id = derive_id(self.session_id, f"hidden {' '.join(self.late_ids)}")
            self.items.append(HiddenMessages(id=marker_id, ids=tuple(self.late_ids), timestamp=created))
        return ForeignSession(
            session_id=self.session_id,
            metadata=metadata,
            created_ms=max(epoch_ms(created) or self.modified_ms, 0),
            items=tuple(self.items),
            line_count=sum(not row.is_blank for row in self.rows),
            damage=(*self.damage, *report_damage(self.rows)),
        )

    def _add_row(self, position: int, row: Row, value: dict[str, Any]) -> None:
        time = text_of(value, "timestamp") or timestamp(self.modified_ms / 1000)
        uuid, kind = text_of(value, "uuid"), value.get("type")
        if kind == "tombstone":
            target = text_of(value, "deleted_uuid")
            if target and target in self.message_ids and self.last_positions[target] < position:
                extra = {NAME: preserved_data(row, is_lossless=True, entry=value)}
                ids, item_id = tuple(self.message_ids[target]), self._unique_id("", row)
                self.items.append(HiddenMessages(id=item_id, ids=ids, timestamp=time, extra=extra))
                return
        elif kind == "summary" and uuid not in self.tombstones and text_of(value, "summary"):
            preserved = preserved_data(row, is_lossless=True, entry={**value, "summary": ""})
            self.items.append(
                Summary(id=self._unique_id(uuid, row), text=value["summary"], timestamp=time, extra={NAME: preserved})
            )
            return
        elif message_object(value) is not None:
            messages = self._read_messages(row, value, time)
            if messages:
                message_ids = [message.id for message in messages]
                self.message_ids.setdefault(uuid, []).extend(message_ids)
                if uuid and -1 < self.tombstones.get(uuid, -1) < self.last_positions[uuid]:
                    self.late_ids += message_ids  # no tombstone follows it
                self.items += messages
                return
        event_type = event_kind(NAME, kind if "type" in value else value.get("role"))
        self.items.append(record_event(row, event_type, self._unique_id(uuid, row), time, _encoder.encode(value)))

    def _unique_id(self, uuid: str, row: Row) -> str:
        """Return the entry's own id, unless it has none or the id is in use."""
        derived_id = derive_id(self.session_id, line_position(row, self.transcript_path))
        item_id = uuid if uuid and uuid not in self.used_ids else derived_id
        self.used_ids.add(item_id)
        return item_id

    def _read_messages(self, row: Row, value: dict[str, Any], timestamp: str) -> list[Message]:
        """Return the messages in an entry; none if it is something else."""
        content = read_message_fields(value, timestamp)
        if content is None:
            return []
        field_lists, shape = content
        entry_id = self._unique_id(text_of(value, "uuid"), row)
        messages: list[Message] = []
        try:
            for number, fields in enumerate(field_lists):
                message_id = member_id(entry_id, number)
                preserved: dict[str, Any] = {"of": entry_id}
                if not number:
                    preserved = _preserve_message(row, fields, shape, is_single=len(field_lists) == 1)
                record = build_record({"recordType": "message", "id": message_id, **fields, NAME: preserved})
                if isinstance(record, Message):
                    messages.append(record)
                    self.used_ids.add(message_id)
        except FormatError:
            self.used_ids.discard(entry_id)
            return []
        return messages


def _preserve_message(row: Row, fields: dict[str, Any], shape: Shape, *, is_single: bool) -> dict[str, Any]:
    value = row.value or {}
    record = build_record({"recordType": "message", **fields})
    message = message_object(value) or {}
    is_lossless = (
        is_single
        and isinstance(record, Message)
        and is_same_json(rebuild_content(record, shape), message.get("content"))
    )
    skeleton: dict[str, Any] = {**message, "content": None}
    entry = skeleton if "type" not in value else {**value, "message": skeleton}
    return preserved_data(row, is_lossless=is_lossless, entry=entry, shape=shape)


def is_same_json(first: Any, second: Any) -> bool:
    """Return whether two values are the same JSON; 1, 1.0 and true are different."""
    return _encoder.encode(first) == _encoder.encode(second) or (
        first == second and _sorted.encode(first) == _sorted.encode(second)
    )


_sorted = msgspec.json.Encoder(order="sorted")
