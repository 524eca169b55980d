"""What the records of a mirror keep of the file that they came from, under `live`.

The last one says where the mirror is up to date to (`Place`); one that was made of a line under
another id than ours says under which (`as`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from everlog.interop.foreign.transcript_files import Trail
from everlog.interop.formats.format_types import Summary, kept
from everlog.interop.formats.live_format import Notes
from everlog.log.line_codec import extended, from_object, to_object
from everlog.model import AnyRecord, Compaction, Damaged, Entry, Image, Message

LIVE = "live"
_MARK = b'"live":{'


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a mirror is up to date to."""

    trail: Trail = Trail()
    notes: Notes = {}
    generation: int = 0  # how often the file was found rewritten


def without_place(record: AnyRecord) -> AnyRecord:
    """A record of a mirror as its writer gave it."""
    if _MARK not in record.line:
        return record
    return replace(from_object({k: v for k, v in to_object(record).items() if k != LIVE}))


def kept_of(record: AnyRecord) -> dict[str, Any]:
    found = kept(record, LIVE) if _MARK in record.line else None
    return found if isinstance(found, dict) else {}


def place_of(entry: Entry) -> Place | None:
    """Where a record says that its mirror is up to date to."""
    found = {} if isinstance(entry, Damaged) else kept_of(entry)
    return msgspec.convert(found, Place) if "trail" in found or "notes" in found else None


def id_in_file(record: AnyRecord) -> str:
    """The id of a record in the file, where it is another than ours."""
    return str(kept_of(record).get("as", ""))


def is_alike(given: AnyRecord, stored: AnyRecord) -> bool:
    """Whether two messages say the same, in formats that hold less of it than ours."""
    if not isinstance(given, Message) or not isinstance(stored, Message):
        return False
    one, other = (
        (
            message.role,
            message.text,
            [(call.name, call.arguments) for call in message.tool_calls],
            [(block.data, block.url) for block in message.content if isinstance(block, Image)],
        )
        for message in (given, stored)
    )
    return one == other


def renamed(record: AnyRecord, name: str) -> AnyRecord:
    """A record of ours with the id that it has in the file."""
    if record.id == name:
        return record
    return extended(record, {LIVE: {"as": name}})


def merged(record: AnyRecord, made: Sequence[AnyRecord]) -> tuple[list[AnyRecord], int]:
    """What the file says now, with our record in its place; and which one that is."""
    for place in range(len(made) - 1, -1, -1):
        read = made[place]
        if isinstance(record, Message) and isinstance(read, Message):
            own: AnyRecord = record
        elif isinstance(record, Compaction) and isinstance(read, Compaction):
            own = replace(record, first_kept_seq=read.first_kept_seq, line=b"")
        else:
            continue
        return [*made[:place], renamed(own, id_in_file(read) or read.id), *made[place + 1 :]], place
    return [record], 0  # it says all that the file says in other words


def compaction(item: Summary, first: int) -> Compaction:
    return Compaction(
        id=item.id,
        strategy=item.strategy,
        first_kept_seq=first,
        summary=item.text,
        tokens_before=item.tokens_before,
        read_files=item.read_files,
        modified_files=item.modified_files,
        timestamp=item.timestamp,
    )
