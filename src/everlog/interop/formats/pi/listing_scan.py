"""What a listing shows of a pi session.

Of most lines only what it asks for is decoded, and the rest passed over; all others are read as
when they are followed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from everlog.ids import epoch_ms
from everlog.interop.formats.format_types import Line
from everlog.interop.formats.jsonl import Row, parse, text_of
from everlog.interop.formats.live_format import Glance
from everlog.interop.formats.pi.entries import read_message

_TITLE = 80  # characters


class _Block(msgspec.Struct, gc=False):
    pass


class _Said(msgspec.Struct, gc=False):
    role: Literal["user", "assistant", "toolResult"]
    content: str | list[_Block] | None = None
    model: str = ""


class _Entry(msgspec.Struct, gc=False):
    type: Literal["message"]
    message: _Said
    timestamp: str = ""


_decode = msgspec.json.Decoder(_Entry).decode


def glance(seen: Glance, lines: Iterable[Line], beside: bytes | None) -> Glance:
    """What a listing shows, after some further lines."""
    look = _Look(seen)
    for line in lines:
        look.add(line.data)
    return look.glance()


class _Look:
    def __init__(self, seen: Glance) -> None:
        self.messages, self.title, self.model = seen.messages, seen.title, seen.model
        self.created, self.cwd = seen.created, seen.cwd
        self.times = [seen.last]  # of messages
        self.header = bool(seen.notes.get("header"))  # whether it was seen
        self.named = bool(seen.notes.get("named"))  # whether the title was given

    def glance(self) -> Glance:
        noted = {"header": self.header, "named": self.named}
        return Glance(
            messages=self.messages,
            title=self.title,
            created=self.created,
            last=next((one for one in reversed(self.times) if epoch_ms(one) is not None), ""),
            model=self.model,
            cwd=self.cwd,
            notes={key: True for key, value in noted.items() if value},
        )

    def add(self, data: bytes) -> None:
        try:
            entry = _decode(data)
        except (ValueError, RecursionError):
            self._read(parse(data)[0] or {}, data)
            return
        said = entry.message
        if said.role == "user" and not self.title:
            self._read(parse(data)[0] or {}, data)
            return
        self._said(entry.timestamp, said.model if said.role == "assistant" else "")

    def _read(self, value: dict[str, Any], data: bytes) -> None:
        kind = value.get("type")
        if kind == "session" and not self.header:
            self._began(value)
            return
        if kind == "session_info" and text_of(value, "name"):
            self.title, self.named = value["name"], True
        elif kind == "model_change":
            self.model = text_of(value, "modelId") or self.model
        when = text_of(value, "timestamp")
        message = read_message(Row("", 0, 0, data, True, value), "", when, light=True)
        if message is None:
            return
        self._said(when, message.model or "")
        said = value.get("message")
        if not self.title and isinstance(said, dict) and said.get("role") == "user":
            self.title = message.text.strip().partition("\n")[0][:_TITLE]

    def _began(self, header: Mapping[str, Any]) -> None:
        self.header, self.cwd = True, text_of(header, "cwd")
        if epoch_ms(text_of(header, "timestamp")) is not None:
            self.created = header["timestamp"]

    def _said(self, when: str, model: str) -> None:
        self.messages += 1
        self.model = model or self.model
        self.times.append(when)
