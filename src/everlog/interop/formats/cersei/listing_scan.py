"""Scan of a Cersei session for what a listing shows.

Only the relevant keys of most lines are decoded; a line that is not as Cersei writes it is parsed
as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from everlog.ids import epoch_ms
from everlog.interop.formats.cersei.entries import read_messages
from everlog.interop.formats.format_types import Line
from everlog.interop.formats.jsonl import parse_object, text_of
from everlog.interop.formats.live_format import ListingScan, TranscriptInfo

_MAX_TITLE = 80  # characters


class _Block(msgspec.Struct, gc=False):
    type: str = ""


class _Metadata(msgspec.Struct, gc=False):
    model: str = ""


class _Message(msgspec.Struct, gc=False):
    role: Literal["user", "assistant"]
    content: str | list[_Block]
    metadata: _Metadata | None = None

    @property
    def messages(self) -> int:
        """Return how many of our messages it makes: one for each result."""
        if self.role == "assistant" or isinstance(self.content, str):
            return 1
        results = sum(block.type == "tool_result" for block in self.content)
        return results + (results < len(self.content) or not results)


class _Entry(msgspec.Struct, gc=False):
    type: Literal["user", "assistant"]
    message: _Message
    timestamp: str = ""
    cwd: str = ""


_decode = msgspec.json.Decoder(_Entry).decode


def scan_listing(scan: ListingScan, lines: Iterable[Line], transcript: TranscriptInfo) -> ListingScan:
    """Continue a listing scan over further lines."""
    scanner = _ListingScanner(scan)
    for line in lines:
        scanner.add(line.data)
    return scanner.result()


class _ListingScanner:
    def __init__(self, previous: ListingScan) -> None:
        self.messages, self.title, self.model = previous.messages, previous.title, previous.model
        self.created, self.cwd = previous.created, previous.cwd
        self.message_times = [previous.last]

    def result(self) -> ListingScan:
        return ListingScan(
            messages=self.messages,
            title=self.title,
            created=self.created,
            last=next((time for time in reversed(self.message_times) if epoch_ms(time) is not None), ""),
            model=self.model,
            cwd=self.cwd,
        )

    def add(self, data: bytes) -> None:
        try:
            entry = _decode(data)
        except (ValueError, RecursionError):
            self._add_object(parse_object(data)[0] or {})
            return
        message = entry.message
        if message.role != entry.type or (message.role == "user" and not self.title):
            self._add_object(parse_object(data)[0] or {})
            return
        self._note_start(entry.timestamp, entry.cwd)
        model = message.metadata.model if message.metadata is not None else ""
        self._count(message.messages, entry.timestamp, model)

    def _add_object(self, value: Mapping[str, Any]) -> None:
        timestamp = text_of(value, "timestamp")
        self._note_start(timestamp, text_of(value, "cwd"))
        messages = read_messages(value, "", timestamp)
        if messages:
            self._count(len(messages), timestamp, messages[0].model or "")
        for message in messages:
            if message.role == "user" and not self.title:
                self.title = message.text.strip().partition("\n")[0][:_MAX_TITLE]

    def _note_start(self, timestamp: str, cwd: str) -> None:
        if not self.created and epoch_ms(timestamp) is not None:
            self.created = timestamp
        self.cwd = self.cwd or cwd

    def _count(self, count: int, timestamp: str, model: str) -> None:
        self.messages += count
        self.model = model or self.model
        self.message_times.append(timestamp)
