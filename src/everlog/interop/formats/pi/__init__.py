"""pi's session format: a tree of entries in one file, versions 1 to 3.

    {"type":"session","version":3,"id":"…","timestamp":"…","cwd":"…"}
    {"type":"message","id":"0a1b2c3d","parentId":null,"timestamp":"…","message":{…}}

The last entry is the leaf, and the path from it to the root is the conversation; messages on other
branches are hidden. A parent always precedes its children, as it must in a file that only grows; a
parent that does not, or that is missing, is replaced by the previous entry. So there are no cycles,
and a damaged line does not detach the messages before it. An entry is preserved with its record
under `pi`, without the content that the record has itself.
"""

from __future__ import annotations

from everlog.interop.formats.format_types import content_fingerprint
from everlog.interop.formats.jsonl import head_objects
from everlog.interop.formats.live_format import ListingScan
from everlog.interop.formats.pi.entries import NAME
from everlog.interop.formats.pi.entry_builder import encode_metadata, encode_record
from everlog.interop.formats.pi.listing_scan import scan_listing
from everlog.interop.formats.pi.reader import read
from everlog.interop.formats.pi.tail_reader import (
    LINE_BYTES,
    METADATA_LOCATION,
    PART_BYTES,
    TOTAL_BYTES,
    build_session,
    is_id,
    name_fields,
    read_all,
    read_tail,
    session_id_of,
)
from everlog.interop.formats.pi.writer import write
from everlog.model import Message

__all__ = [
    "ANCESTOR_FILE",
    "IS_REWRITTEN",
    "LINE_BYTES",
    "METADATA_LOCATION",
    "NAME",
    "PART_BYTES",
    "TOTAL_BYTES",
    "build_session",
    "encode_metadata",
    "encode_record",
    "fingerprint",
    "is_id",
    "name_fields",
    "read",
    "read_all",
    "read_tail",
    "recognises",
    "resume_command",
    "scan_listing",
    "session_id_of",
    "write",
]


def recognises(path: str, head: bytes) -> bool:
    """Return whether a file begins with pi's header."""
    first = next(head_objects(head), {})
    return (
        path.endswith(".jsonl")
        and first.get("type") == "session"
        and isinstance(first.get("id"), str)
        and isinstance(first.get("timestamp"), str)
    )


KEYS: frozenset[str] = frozenset()
ANCESTOR_FILE = ""
IS_REWRITTEN = False


def fingerprint(message: Message) -> str:
    """Return what identifies a message in every copy of its session."""
    return content_fingerprint(message)


def resume_command(facts: ListingScan, path: str) -> tuple[str, ...]:
    """Return the command that continues the session in its own program."""
    return ("pi", "--session", path)
