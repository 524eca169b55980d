"""The reader of a session whose items are decided by all lines that are fed at once.

A subclass says what a listing needs of a line, and what a parsed line adds; everything else that
readers of JSONL have in common is here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace

from everlog.ids import epoch_ms
from everlog.interop.formats.format_types import DamagedBytes, Line, TailState, derive_id
from everlog.interop.formats.jsonl import (
    Row,
    parse_lines,
    parse_object,
    preserved_data,
    record_event,
    text_of,
    unreadable_event,
)
from everlog.interop.formats.session_reader import Detail, SessionReader
from everlog.model import Event

MAX_STATE_TEXT = 128  # characters of a text in the state
_encode = msgspec.json.Encoder().encode


class LineReader(SessionReader):
    """A reader of parsed lines. `lines` and `session` are keys of its state.

    Its items are returned by `finish`, from `_queue`.
    """

    NAME: ClassVar[str]  # of the format

    def _load_state(self, state: TailState) -> None:
        self._state = dict(state)
        self._queue: list[Any] = []
        self._used_ids: set[str] = set()
        self._timestamp = ""  # the last one so far
        self._count, self._model = self.facts.messages, self.facts.model
        self._times = [self.facts.last]  # of messages
        self._load_facts()

    @abstractmethod
    def _load_facts(self) -> None:
        """Continue with the facts and the state of earlier lines."""

    @abstractmethod
    def _scan_line(self, data: bytes) -> None:
        """Note what a listing shows of a line; call `_scan_value` if a fast decoder does not do."""

    @abstractmethod
    def _scan_value(self, value: dict[str, Any]) -> None:
        """Note what a listing shows of a parsed line."""

    @abstractmethod
    def _add_value(self, row: Row, value: dict[str, Any]) -> None:
        """Add what a parsed line is to the queue; its number counts from the beginning of the file."""

    @property
    def state(self) -> TailState:
        """The state after the lines so far."""
        return self._state

    @property
    def _is_full(self) -> bool:
        return self.detail is Detail.FULL

    @property
    def _session(self) -> str:
        """The id from which those of items are derived."""
        return self._state.get("session") or self.transcript.session_id

    def feed(self, lines: Iterable[Line], path: str = "") -> Iterator[Any]:
        """Read further lines; their items are returned by `finish`."""
        if self.detail is Detail.LISTING:
            for line in lines:
                self._scan_line(line.data)
        else:
            before = self._state.get("lines", 0)
            for row in parse_lines(self._counted(lines), path):
                self._add_row(replace(row, number=before + row.number) if before else row)
        last = next((time for time in reversed(self._times) if epoch_ms(time) is not None), "")
        self._times = [last]
        self.facts = replace(self.facts, messages=self._count, model=self._model, last=last, **self._facts())
        return iter(())

    def _facts(self) -> dict[str, Any]:
        """Return further facts."""
        return {}

    def _counted(self, lines: Iterable[Line]) -> Iterator[Line]:
        count = 0
        for line in lines:
            count += 1
            yield line
        self._state["lines"] = self._state.get("lines", 0) + count

    def _scan_parsed(self, data: bytes) -> None:
        value = parse_object(data)[0]
        if value is not None:
            self._scan_value(value)

    def _add_row(self, row: Row) -> None:
        self.line_count += not row.is_blank
        if row.problem:
            self.damage.append(DamagedBytes(row.path, row.start, row.end, row.problem))
        if row.value is not None:
            self._timestamp = text_of(row.value, "timestamp") or self._timestamp
            self._add_value(row, row.value)
        elif self._is_full:
            self._queue.append(unreadable_event(self.NAME, self._session, row, row.path, self._timestamp))

    def _count_messages(self, count: int, timestamp: str, model: str) -> None:
        self._count += count
        self._model = model or self._model
        self._times.append(timestamp)

    def _note(self, key: str, value: Any) -> None:
        """Set a key of the state; None removes it."""
        if value is None:
            self._state.pop(key, None)
        else:
            self._state[key] = value

    def _unique_id(self, own_id: str, row: Row) -> str:
        """Return the entry's own id, unless it has none or the id is in use."""
        item_id = own_id if own_id and own_id not in self._used_ids else derive_id(self._session, row.number)
        self._used_ids.add(item_id)
        return item_id

    def _extra(self, row: Row, entry: dict[str, Any], minimal: dict[str, Any]) -> dict[str, Any]:
        """Return the extra keys of an item that is written back as this entry."""
        return {self.NAME: preserved_data(row, is_lossless=True, entry=entry)} if self._is_full else minimal

    def _event(self, row: Row, item_id: str, kind: str) -> Event:
        value = row.value or {}
        return record_event(row, kind, item_id, text_of(value, "timestamp") or self._timestamp, _encode(value))
