"""Chats in one JSON document: read as if each message were a line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from everlog.interop.formats.format_types import Item, Line, Match
from everlog.interop.formats.gemini.reader import GeminiReader
from everlog.interop.formats.jsonl import Row, is_too_deep, parse_object
from everlog.log.line_codec import replace_surrogates

_RECORD_START = re.compile(r'\{\s*"(?:id|timestamp|type|role|parts)"')
_FIRST_TURN = re.compile(rb'\s*(?:\{[^\[\]{}]*"history"\s*:\s*)?\[\s*(?=\{\s*"(role|parts)")')
_MAX_FAILURES = 1000  # failed attempts in a damaged document
_raw_decode = json.JSONDecoder(parse_constant=lambda _: None).raw_decode


def match_document(head: bytes) -> Match:
    """Return whether a document is a chat or a checkpoint, by its beginning.

    Exports of ChatGPT, Claude.ai, Takeout and AI Studio have roles and parts too, further inside.
    """
    start = head[:4000]
    if b'"sessionId"' in start and b'"projectHash"' in start:
        return Match.SURE
    first = _FIRST_TURN.match(head)
    if first is None:
        return Match.NO
    try:
        turn, _ = _raw_decode(head[first.end() :].decode("utf-8", "replace"))
    except (ValueError, RecursionError):  # its first turn is longer than the beginning
        return Match.POSSIBLE if b'"role"' in start and b'"parts"' in start else Match.NO
    return Match.SURE if turn.get("role") in ("user", "model") and "parts" in turn else Match.NO


class DocumentReader(GeminiReader):
    """Reads a document; all its lines are fed at once."""

    def feed(self, lines: Iterable[Line], path: str = "") -> Iterator[Item]:
        """Read the messages of the document and yield their items."""
        data = b"".join(line.data + b"\n" * line.ended for line in lines)
        return self.read_rows(_document_rows(data, path))


def _document_rows(data: bytes, path: str) -> Iterator[Row]:
    value: Any = None
    try:
        value = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        value = parse_object(data)[0]  # it may contain damaged Unicode
    if value is not None and is_too_deep(data, value):
        value = None
    is_chat = isinstance(value, dict) and isinstance(value.get("messages"), list)
    records = value["messages"] if is_chat else value.get("history") if isinstance(value, dict) else value
    if is_chat:
        head = {key: item for key, item in value.items() if key != "messages"}
        yield Row(path, 0, 0, b"", True, head, starts_line=False)
    if isinstance(records, list):
        for number, record in enumerate(records, 1):
            yield Row(path, number, number, b"", True, _as_record(record))
        return
    yield Row(path, 0, 0, data, True, None, "not a complete chat")
    for offset, record in _salvage(data.decode("utf-8", "replace")):
        yield Row(path, 0, offset, b"", True, _as_record(record))


def _as_record(value: Any) -> dict[str, Any]:
    """Return a message or a turn of a checkpoint as a record of a chat."""
    if not isinstance(value, dict):
        return {"type": "object", "value": value}
    if "role" not in value:
        return {"type": "object"} | value
    kind = {"user": "user", "model": "gemini"}.get(f"{value['role']}")
    if kind is None:
        return {"type": "object"} | value
    rest = {key: item for key, item in value.items() if key not in ("role", "parts")}
    return {**rest, "type": kind, "content": value.get("parts")}


def _salvage(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the complete records in a damaged document."""
    end = failures = 0
    for match in _RECORD_START.finditer(text):
        if match.start() < end or failures > _MAX_FAILURES:
            continue
        try:
            value, record_end = _raw_decode(text, match.start())
        except (ValueError, RecursionError):
            failures += 1
            continue
        is_message = isinstance(value.get("type"), str) and "content" in value
        is_turn = isinstance(value.get("role"), str) and "parts" in value
        if (is_message or is_turn) and not is_too_deep(text[match.start() : record_end].encode(), value):
            end = record_end
            yield match.start(), replace_surrogates(value)
