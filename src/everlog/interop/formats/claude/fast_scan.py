"""The chain records of some lines, with no more of each than a conversation needs.

The decoder passes over the other keys as fast as a search for bytes would, so the bulk of a
transcript (snapshots, requests, results in the form of their tool) costs nothing else, and no line
is judged by how it begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypedDict, cast

import msgspec

from everlog.interop.formats.claude.chain import SAID, is_chain
from everlog.interop.formats.format_types import LONGEST, Line
from everlog.interop.formats.jsonl import records, too_deep


class _Light(TypedDict, total=False):
    """The keys that are read. Of any type: what is wrong with one must not cost the record."""

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


_KEYS = frozenset(_Light.__annotations__)
_decode = cast("Callable[[bytes], dict[str, Any]]", msgspec.json.Decoder(_Light).decode)


def chain_records(lines: Iterable[Line]) -> Iterator[dict[str, Any]]:
    """The chain records in some lines; what is damaged or none is passed over."""
    for line in lines:
        data = line.data
        try:
            value = _decode(data)
        except (ValueError, RecursionError):
            yield from _slowly(line)
            continue
        if is_chain(value) and not (value["type"] in SAID and _is_unfit(data, value)):
            yield value


def _slowly(line: Line) -> Iterator[dict[str, Any]]:
    """The same for a line that is no strict JSON, or several records in one line."""
    for row in records([line]):
        value = row.value
        if value is not None and is_chain(value):
            yield {key: value[key] for key in value.keys() & _KEYS}


def _is_unfit(data: bytes, value: dict[str, Any]) -> bool:
    """Whether no record of ours could hold what it says."""
    return len(data) > LONGEST or too_deep(data, value)
