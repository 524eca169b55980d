"""The lines of a foreign file that the records of an import preserve."""

from __future__ import annotations

from typing import Any, NamedTuple

from everlog.interop.formats.format_types import DERIVED_KEY, extra_field
from everlog.interop.formats.jsonl import as_bytes
from everlog.model import AnyRecord, Event, Tombstone


class RawLine(NamedTuple):
    """The original bytes of a record."""

    data: bytes
    ended: bool = True


def read_preserved(record: AnyRecord, format_name: str) -> dict[str, Any] | None:
    """Return what a record stores under the format's name; None if it came from elsewhere."""
    if b'"%b"' % format_name.encode() not in record.line:
        return None
    preserved = extra_field(record, format_name)
    return preserved if isinstance(preserved, dict) else None


def read_preserved_line(record: AnyRecord, format_name: str) -> RawLine | None:
    """Return the original line that a record stores, if any."""
    if isinstance(record, Event) and record.kind in (f"{format_name}.damaged", f"{format_name}.blank"):
        preserved, data = record.data, as_bytes(record.data)
    else:
        preserved = read_preserved(record, format_name) or {}
        data = as_bytes(preserved, "line")
    return None if data is None else RawLine(data, is_ended(preserved))


def is_ended(preserved: dict[str, Any] | None) -> bool:
    """Return whether the line that a record came from ended with a newline."""
    return preserved is None or preserved.get("ended") is not False


def is_derived(record: AnyRecord) -> bool:
    """Return whether a record was made by an import, and stands for no line."""
    return isinstance(record, Tombstone) and extra_field(record, DERIVED_KEY) is not None
