"""The reader of CrabTalk's sessions. Lines have no ids and no times: their numbers are the ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any

from msgspec.structs import replace

from everlog.errors import FormatError
from everlog.ids import timestamp
from everlog.interop.formats.crabtalk.head_line import DEFAULT_SENDER, created_time, is_meta, name_of, parse_meta
from everlog.interop.formats.crabtalk.lines import NAME, ROLES, encode_json, read_message, write_message
from everlog.interop.formats.format_types import Item, Line, Summary, TailState, derive_id
from everlog.interop.formats.jsonl import (
    Row,
    attach_preserved,
    parse_lines,
    parse_object,
    preserved_data,
    record_event,
    report_damage,
    text_of,
    unreadable_event,
)
from everlog.interop.formats.plain_lines import decode_plain
from everlog.interop.formats.session_reader import Detail, SessionReader
from everlog.model import Message

META_EVENT = f"{NAME}.meta"


class CrabTalkReader(SessionReader):
    """The reader of one session. Its state is the number of lines behind the head."""

    def _load_state(self, state: TailState) -> None:
        self._number = state.get("lines", 0)
        transcript, meta = self.transcript, parse_meta(self.transcript.meta_bytes)
        name = name_of(transcript.stem or transcript.session_id, meta)
        created = created_time(meta)
        self._time = created or (timestamp(transcript.modified_ms / 1000) if transcript.modified_ms else "")
        if meta:
            sender, title = text_of(meta, "created_by") or DEFAULT_SENDER, text_of(meta, "title")
            self.facts = replace(
                self.facts, title=title, created=created, agent=text_of(meta, "agent"), sender=sender, chat=name.chat
            )
        elif not self.facts.agent:  # else an earlier metadata line said more
            self.facts = replace(self.facts, title=name.title, agent=name.agent, sender=name.sender, chat=name.chat)

    @property
    def state(self) -> TailState:
        """The state after the lines so far."""
        return {"lines": self._number} if self.detail else {}

    def feed(self, lines: Iterable[Line], path: str = "") -> Iterator[Item]:
        """Read further lines."""
        if self.detail == Detail.FULL and not self._number:
            # Whatever is in its place, the head counts as one line.
            for row in parse_lines(self.transcript.head, path):
                yield self._preserve_row(replace(row, number=2 - row.number), path)
        if not self.detail:
            self.facts = replace(self.facts, messages=self.facts.messages + sum(map(self._has_message, lines)))
            return
        before = self._number + 1
        for row in parse_lines(lines, path):
            number = before + row.number
            self._number = number - 1 + (row.data.count(b"\n") if row.is_blank else 0)
            read = self._read_value(row.value, derive_id(self.transcript.session_id, number))
            if isinstance(read, Message):
                self.facts = replace(self.facts, messages=self.facts.messages + 1)
            if self.detail == Detail.FULL:
                yield self._preserve_row(replace(row, number=number), path, read)
            elif read is not None:
                yield read

    def _has_message(self, line: Line) -> bool:
        plain = decode_plain(line.data)
        if plain is not None:
            return plain.role in ROLES
        return isinstance(self._read_value(parse_object(line.data)[0], ""), Message)

    def _read_value(self, value: dict[str, Any] | None, item_id: str) -> Message | Summary | None:
        """Return the item of a line; None for a system prompt, an unknown type, or damage."""
        if value is None:
            return None
        if isinstance(value.get("compact"), str):
            return Summary(id=item_id, text=value["compact"], timestamp=self._time)
        role = value.get("role")
        if not isinstance(role, str) or role not in ROLES:
            return None
        try:
            return read_message(value, item_id, self._time)
        except FormatError:
            return None

    def _preserve_row(self, row: Row, path: str, item: Message | Summary | None = None) -> Item:
        """Return the item of a row with the bytes of its line, or an event that has them."""
        session_id, value = self.transcript.session_id, row.value
        self.line_count += not row.is_blank
        self.damage += report_damage((row,))
        if value is None:
            return unreadable_event(NAME, session_id, row, path, self._time)
        if isinstance(item, Message):
            preserved = preserved_data(row, is_lossless=encode_json(write_message(item)) == row.data)
            return attach_preserved(item, NAME, preserved) if preserved else item
        if item is not None:
            preserved = preserved_data(row, is_lossless=encode_json({"compact": item.text}) == row.data)
            return replace(item, extra={NAME: preserved}) if preserved else item
        kind, position = "system" if value.get("role") == "system" else "record", f"{row.number}"
        if row.number < 2 and is_meta(value):
            # It is rewritten with each turn: another content is another event.
            kind, position = "meta", sha256(row.data).hexdigest()
        return record_event(row, f"{NAME}.{kind}", derive_id(session_id, position), self._time, encode_json(value))
