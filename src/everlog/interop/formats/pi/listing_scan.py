"""The listing scan of pi's sessions.

Of most lines only the few fields that a listing shows are decoded; the others are read in full.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from everlog.ids import epoch_ms
from everlog.interop.formats.format_types import Line
from everlog.interop.formats.jsonl import Row, parse_object, text_of
from everlog.interop.formats.live_format import ListingScan, TranscriptInfo
from everlog.interop.formats.pi.entries import read_message

_MAX_TITLE = 80  # characters


class _Block(msgspec.Struct, gc=False):
    pass


class _Message(msgspec.Struct, gc=False):
    role: Literal["user", "assistant", "toolResult"]
    content: str | list[_Block] | None = None
    model: str = ""


class _Entry(msgspec.Struct, gc=False):
    type: Literal["message"]
    message: _Message
    timestamp: str = ""


_decode = msgspec.json.Decoder(_Entry).decode


def scan_listing(scan: ListingScan, lines: Iterable[Line], transcript: TranscriptInfo) -> ListingScan:
    """Continue a listing scan over further lines."""
    listing = _ListingFold(scan)
    for line in lines:
        listing.add(line.data)
    return listing.result()


class _ListingFold:
    def __init__(self, scan: ListingScan) -> None:
        self.messages, self.title, self.model = scan.messages, scan.title, scan.model
        self.created, self.cwd = scan.created, scan.cwd
        self.times = [scan.last]  # of messages
        self.has_header = bool(scan.state.get("header"))
        self.is_named = bool(scan.state.get("named"))  # whether the title was set explicitly

    def result(self) -> ListingScan:
        flags = {"header": self.has_header, "named": self.is_named}
        return ListingScan(
            messages=self.messages,
            title=self.title,
            created=self.created,
            last=next((time for time in reversed(self.times) if epoch_ms(time) is not None), ""),
            model=self.model,
            cwd=self.cwd,
            state={key: True for key, value in flags.items() if value},
        )

    def add(self, data: bytes) -> None:
        try:
            entry = _decode(data)
        except (ValueError, RecursionError):
            self._add_entry(parse_object(data)[0] or {}, data)
            return
        message = entry.message
        if message.role == "user" and not self.title:
            self._add_entry(parse_object(data)[0] or {}, data)
            return
        self._count_message(entry.timestamp, message.model if message.role == "assistant" else "")

    def _add_entry(self, value: dict[str, Any], data: bytes) -> None:
        kind = value.get("type")
        if kind == "session" and not self.has_header:
            self._add_header(value)
            return
        if kind == "session_info" and text_of(value, "name"):
            self.title, self.is_named = value["name"], True
        elif kind == "model_change":
            self.model = text_of(value, "modelId") or self.model
        timestamp = text_of(value, "timestamp")
        message = read_message(Row("", 0, 0, data, True, value), "", timestamp, without_line=True)
        if message is None:
            return
        self._count_message(timestamp, message.model or "")
        raw_message = value.get("message")
        if not self.title and isinstance(raw_message, dict) and raw_message.get("role") == "user":
            self.title = message.text.strip().partition("\n")[0][:_MAX_TITLE]

    def _add_header(self, header: Mapping[str, Any]) -> None:
        self.has_header, self.cwd = True, text_of(header, "cwd")
        if epoch_ms(text_of(header, "timestamp")) is not None:
            self.created = header["timestamp"]

    def _count_message(self, timestamp: str, model: str) -> None:
        self.messages += 1
        self.model = model or self.model
        self.times.append(timestamp)
