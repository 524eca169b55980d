"""pi's sessions: a tree of entries in one file, versions 1 to 3.

    {"type":"session","version":3,"id":"…","timestamp":"…","cwd":"…"}
    {"type":"message","id":"0a1b2c3d","parentId":null,"timestamp":"…","message":{…}}

The last entry is the leaf, and the way from it to the root is the conversation; messages on other
branches are hidden. A parent always stands before its children, as it must in a file that only
grows: one that does not, or that is missing, is replaced by the entry before. So no cycle can be
walked, and a damaged line does not take what was said before it along. An entry stays with its
record under `pi`, without the content that the record has itself.
"""

from __future__ import annotations

from everlog.interop.formats.jsonl import head_objects
from everlog.interop.formats.pi.entries import NAME
from everlog.interop.formats.pi.entry_builder import change, extend
from everlog.interop.formats.pi.listing_scan import glance
from everlog.interop.formats.pi.reader import read
from everlog.interop.formats.pi.tail_reader import (
    BESIDE,
    LINE_BYTES,
    PART_BYTES,
    TOTAL_BYTES,
    begin,
    follow,
    is_id,
    name_of,
    whole,
)
from everlog.interop.formats.pi.writer import write

__all__ = [
    "BESIDE",
    "LINE_BYTES",
    "NAME",
    "PART_BYTES",
    "TOTAL_BYTES",
    "begin",
    "change",
    "extend",
    "follow",
    "glance",
    "is_id",
    "name_of",
    "read",
    "recognises",
    "whole",
    "write",
]


def recognises(path: str, head: bytes) -> bool:
    """Whether a file begins with pi's header."""
    first = next(head_objects(head), {})
    return (
        path.endswith(".jsonl")
        and first.get("type") == "session"
        and isinstance(first.get("id"), str)
        and isinstance(first.get("timestamp"), str)
    )
