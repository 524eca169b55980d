"""Fast decoding of the chain records in some lines, with only the keys a conversation needs.

The decoder skips the other keys as fast as a byte search would, so the bulk of a transcript
(snapshots, requests, raw tool results) costs nothing more, and no line is judged by its start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypedDict, cast

import msgspec

from everlog.interop.formats.claude.chain import MESSAGE_TYPES, is_chain_record
from everlog.interop.formats.format_types import MAX_LINE_BYTES, Line
from everlog.interop.formats.jsonl import is_too_deep, parse_records


class _ChainRecord(TypedDict, total=False):
    """The keys that are read. Of any type: a wrong type in one must not cost the record."""

    type: Any
    uuid: Any
    parentUuid: Any
    logicalParentUuid: Any
    isSidechain: Any
    teamName: Any
    isMeta: Any
    isCompactSummary: Any
    subtype: Any
    compactMetadata: Any
    timestamp: Any
    cwd: Any
    version: Any
    gitBranch: Any
    agentId: Any
    requestId: Any
    message: Any


_KEYS = frozenset(_ChainRecord.__annotations__)
_decode = cast("Callable[[bytes], dict[str, Any]]", msgspec.json.Decoder(_ChainRecord).decode)


def iter_chain_records(lines: Iterable[Line]) -> Iterator[dict[str, Any]]:
    """Yield the chain records in some lines; skip damaged and other lines."""
    for line in lines:
        data = line.data
        try:
            value = _decode(data)
        except (ValueError, RecursionError):
            yield from _parse_leniently(line)
            continue
        if is_chain_record(value) and not (value["type"] in MESSAGE_TYPES and _is_unstorable(data, value)):
            yield value


def _parse_leniently(line: Line) -> Iterator[dict[str, Any]]:
    """Yield the chain records of a line that is not strict JSON or has several records."""
    for row in parse_records([line]):
        value = row.value
        if value is not None and is_chain_record(value):
            yield {key: value[key] for key in value.keys() & _KEYS}


def _is_unstorable(data: bytes, value: dict[str, Any]) -> bool:
    """Return whether our records cannot hold the value."""
    return len(data) > MAX_LINE_BYTES or is_too_deep(data, value)
