"""Origin marks: what the records of a mirror note about their foreign file, under the key `live`.

The last record of a batch has the position that the mirror has reached (`Checkpoint`). A record
whose id in the file differs from its id in the mirror has the former (`as`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from everlog.interop.foreign.transcript_files import ReadPosition
from everlog.interop.formats.format_types import Summary, TailState, extra_field
from everlog.log.line_codec import is_same_record, with_keys, without_keys
from everlog.model import AnyRecord, Compaction, Damaged, Entry, Image, Message

MARK_KEY = "live"
_MARK_BYTES = b'"live":{'


class Checkpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """The position in its file that a mirror has reached."""

    position: ReadPosition = msgspec.field(default=ReadPosition(), name="trail")
    state: TailState = msgspec.field(default_factory=dict, name="notes")
    generation: int = 0  # how often the mirror was begun anew
    rewrites: int = 0  # how often the file was found rewritten


_CHECKPOINT_KEYS = set(Checkpoint.__struct_encode_fields__)


def strip_mark(record: AnyRecord) -> AnyRecord:
    """Return a record of a mirror without its origin mark, as its writer made it."""
    if _MARK_BYTES not in record.line:
        return record
    return without_keys(record)


def mark_of(record: AnyRecord) -> dict[str, Any]:
    """Return the origin mark of a record; empty if it has none."""
    mark = extra_field(record, MARK_KEY) if _MARK_BYTES in record.line else None
    return mark if isinstance(mark, dict) else {}


def checkpoint_of(entry: Entry) -> Checkpoint | None:
    """Return the checkpoint in a record, or None."""
    mark = {} if isinstance(entry, Damaged) else mark_of(entry)
    # Of a checkpoint at the start of a file that was begun anew, only the counts are written.
    return msgspec.convert(mark, Checkpoint) if mark.keys() & _CHECKPOINT_KEYS else None


def id_in_file(record: AnyRecord) -> str:
    """Return the id that a record has in the file, if it differs from its id here; else empty."""
    return str(mark_of(record).get("as", ""))


def has_same_content(record: AnyRecord, stored: AnyRecord) -> bool:
    """Return whether two records are the same, messages as far as foreign formats can hold them."""
    if not isinstance(record, Message) or not isinstance(stored, Message):
        return is_same_record(record, stored)
    content, stored_content = (
        (
            message.role,
            message.text,
            [(call.name, call.arguments) for call in message.tool_calls],
            [(block.data, block.url) for block in message.content if isinstance(block, Image)],
        )
        for message in (record, stored)
    )
    return content == stored_content


def with_file_id(record: AnyRecord, file_id: str) -> AnyRecord:
    """Return a record with a mark that has its id in the file, if that is another."""
    if record.id == file_id:
        return record
    return with_keys(record, {MARK_KEY: {"as": file_id}})


def merge_record(record: AnyRecord, read_records: Sequence[AnyRecord]) -> tuple[list[AnyRecord], int]:
    """Put our record in the place of its counterpart read from the file.

    Return the records for the mirror, and the index of `record` among them.
    """
    for index in range(len(read_records) - 1, -1, -1):
        read = read_records[index]
        if isinstance(record, Message) and isinstance(read, Message):
            merged_record: AnyRecord = record
        elif isinstance(record, Compaction) and isinstance(read, Compaction):
            merged_record = replace(record, first_kept_seq=read.first_kept_seq, line=b"")
        else:
            continue
        return [
            *read_records[:index],
            with_file_id(merged_record, id_in_file(read) or read.id),
            *read_records[index + 1 :],
        ], index
    return [record], 0  # it stands for everything that was read


def compaction_record(item: Summary, first: int) -> Compaction:
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
