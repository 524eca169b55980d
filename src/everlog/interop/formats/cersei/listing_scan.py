"""What a listing shows of a Cersei session.

Of most lines only what it asks for is decoded, and the rest passed over; a line that is not as
Cersei writes it is read as when it is followed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from everlog.ids import epoch_ms
from everlog.interop.formats.cersei.entries import messages_in
from everlog.interop.formats.format_types import Line
from everlog.interop.formats.jsonl import parse, text_of
from everlog.interop.formats.live_format import Glance

_TITLE = 80  # characters


class _Block(msgspec.Struct, gc=False):
    type: str = ""


class _Metadata(msgspec.Struct, gc=False):
    model: str = ""


class _Said(msgspec.Struct, gc=False):
    role: Literal["user", "assistant"]
    content: str | list[_Block]
    metadata: _Metadata | None = None

    @property
    def messages(self) -> int:
        """How many it makes: each result is one."""
        if self.role == "assistant" or isinstance(self.content, str):
            return 1
        results = sum(block.type == "tool_result" for block in self.content)
        return results + (results < len(self.content) or not results)


class _Entry(msgspec.Struct, gc=False):
    type: Literal["user", "assistant"]
    message: _Said
    timestamp: str = ""
    cwd: str = ""


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

    def glance(self) -> Glance:
        return Glance(
            messages=self.messages,
            title=self.title,
            created=self.created,
            last=next((one for one in reversed(self.times) if epoch_ms(one) is not None), ""),
            model=self.model,
            cwd=self.cwd,
        )

    def add(self, data: bytes) -> None:
        try:
            entry = _decode(data)
        except (ValueError, RecursionError):
            self._read(parse(data)[0] or {})
            return
        said = entry.message
        if said.role != entry.type or (said.role == "user" and not self.title):
            self._read(parse(data)[0] or {})
            return
        self._began(entry.timestamp, entry.cwd)
        model = said.metadata.model if said.metadata is not None else ""
        self._said(said.messages, entry.timestamp, model)

    def _read(self, value: Mapping[str, Any]) -> None:
        when = text_of(value, "timestamp")
        self._began(when, text_of(value, "cwd"))
        made = messages_in(value, "", when)
        if made:
            self._said(len(made), when, made[0].model or "")
        for one in made:
            if one.role == "user" and not self.title:
                self.title = one.text.strip().partition("\n")[0][:_TITLE]

    def _began(self, when: str, cwd: str) -> None:
        if not self.created and epoch_ms(when) is not None:
            self.created = when
        self.cwd = self.cwd or cwd

    def _said(self, count: int, when: str, model: str) -> None:
        self.messages += count
        self.model = model or self.model
        self.times.append(when)
