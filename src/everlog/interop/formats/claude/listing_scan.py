"""Scan of a transcript for what a listing shows.

Only the relevant keys of each line are decoded. The message count equals the number of messages
that `read_tail` returns, except for records of which only the last with their uuid counts, and for
summaries on an abandoned branch, which are messages there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from everlog.interop.formats.claude.chain import CHAIN_TYPES, MESSAGE_TYPES
from everlog.interop.formats.claude.session_titles import TITLE_KEYS, Titles
from everlog.interop.formats.format_types import MAX_LINE_BYTES, Line
from everlog.interop.formats.jsonl import parse_object, parse_records
from everlog.interop.formats.live_format import ListingScan, TranscriptInfo


class _Block(msgspec.Struct, gc=False):
    type: Any = None


class _Message(msgspec.Struct, gc=False):
    content: str | list[_Block] | None = None
    model: Any = None


class _ScannedRecord(msgspec.Struct, gc=False):
    """The keys of a record that are read."""

    type: Any = None
    uuid: Any = None
    isSidechain: Any = None
    teamName: Any = None
    isMeta: Any = None
    isCompactSummary: Any = None
    timestamp: Any = None
    cwd: Any = None
    message: _Message | None = None


class _ScanState(msgspec.Struct, omit_defaults=True, rename={"is_subagent": "inner"}):
    titles: Titles = msgspec.field(default_factory=Titles)
    is_subagent: bool | None = None  # whether the first chain record is on a side chain


_decode = msgspec.json.Decoder(_ScannedRecord).decode


def scan_listing(scan: ListingScan, lines: Iterable[Line], transcript: TranscriptInfo) -> ListingScan:
    """Continue a listing scan over further lines."""
    return _ListingScanner(scan).scan(lines)


class _ListingScanner:
    def __init__(self, previous: ListingScan) -> None:
        self.previous = previous
        self.state = msgspec.convert(previous.state, _ScanState)
        self.messages = previous.messages
        self.created = previous.created
        self.last = previous.last
        self.model = previous.model
        self.cwd = previous.cwd

    def scan(self, lines: Iterable[Line]) -> ListingScan:
        for line in lines:
            try:
                record = _decode(line.data)
            except (ValueError, RecursionError):
                for value in _parse_leniently(line):
                    self._add(_to_scanned(value), value)
                continue
            if len(line.data) <= MAX_LINE_BYTES:
                self._add(record, line.data)
        title = self.state.titles.best()
        return msgspec.structs.replace(
            self.previous,
            messages=self.messages,
            title=title,
            created=self.created,
            last=self.last,
            model=self.model,
            cwd=self.cwd,
            skip=self.state.is_subagent is True,
            state=msgspec.to_builtins(self.state),
        )

    def _add(self, record: _ScannedRecord, source: bytes | Mapping[str, Any]) -> None:
        if not self.created and isinstance(record.timestamp, str):
            self.created = record.timestamp
        if not self.cwd and isinstance(record.cwd, str):
            self.cwd = record.cwd
        kind = record.type
        if not isinstance(kind, str):
            return
        state = self.state
        is_chain = kind in CHAIN_TYPES and isinstance(record.uuid, str)
        if is_chain and state.is_subagent is None:
            state.is_subagent = bool(record.isSidechain)
        if kind in TITLE_KEYS or (kind == "user" and not state.titles.prompt):
            value = parse_object(source)[0] if isinstance(source, bytes) else source
            state.titles.add(value or {}, is_subagent=state.is_subagent is True)
        if is_chain and kind in MESSAGE_TYPES:
            self._add_message(record)

    def _add_message(self, record: _ScannedRecord) -> None:
        message = record.message
        if message is None or message.content is None or record.isMeta or record.teamName:
            return
        if (record.isSidechain and not self.state.is_subagent) or record.isCompactSummary:
            return
        self.messages += _count_messages(message.content)
        if isinstance(record.timestamp, str):
            self.last = record.timestamp
        model = message.model
        if record.type == "assistant" and isinstance(model, str) and model != "<synthetic>":
            self.model = model or self.model


def _count_messages(content: str | list[_Block]) -> int:
    """Return how many messages a record makes: one per result, and one for the remainder."""
    if isinstance(content, str):
        return 1
    results = [block for block in content if block.type == "tool_result"]
    return len(results) + (len(results) < len(content) or not content)


def _parse_leniently(line: Line) -> Iterator[Mapping[str, Any]]:
    """Yield the records of a line that is not strict JSON or has unexpected types."""
    return (row.value for row in parse_records([line]) if row.value is not None)


def _to_scanned(value: Mapping[str, Any]) -> _ScannedRecord:
    message = value.get("message")
    scanned_message = None
    if isinstance(message, dict):
        content = message.get("content")
        if isinstance(content, list):
            kinds = [block.get("type") if isinstance(block, dict) else None for block in content]
            content = [_Block(kind) for kind in kinds]
        scanned_message = _Message(content if isinstance(content, str | list) else None, message.get("model"))
    fields = {key: value.get(key) for key in _ScannedRecord.__struct_fields__}
    return _ScannedRecord(**{**fields, "message": scanned_message})
