"""Origin marks: what the records of a mirror note about their foreign file, under the key `live`.

The last record of a batch has the position that the mirror has reached (`Checkpoint`). A record
whose id in the file differs from its id in the mirror has the former (`as`). A record that was
appended here, and may say more than its lines, is marked (`own`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from everlog.interop.foreign.transcript_files import ReadPosition, Signature
from everlog.interop.formats.format_types import (
    ConversationItem,
    HiddenMessages,
    Summary,
    TailState,
    derive_id,
    extra_field,
)
from everlog.interop.formats.jsonl import attach_preserved
from everlog.log.line_codec import is_same_record, with_keys, without_keys
from everlog.model import AnyRecord, Compaction, Damaged, Entry, Event, Image, Message

MARK_KEY = "live"
_MARK_BYTES = b'"live":{'


class Checkpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """The position in its file that a mirror has reached."""

    position: ReadPosition = msgspec.field(default=ReadPosition(), name="trail")
    state: TailState = msgspec.field(default_factory=dict, name="notes")
    generation: int = 0  # how often the mirror was begun anew
    rewrites: int = 0  # how often the file was found rewritten
    stamps: Signature = ()  # of the files before they were read
    companion: int = 0  # seq up to which it has the records of the companion


_CHECKPOINT_KEYS = set(Checkpoint.__struct_encode_fields__)


def with_checkpoint(record: AnyRecord, checkpoint: Checkpoint) -> AnyRecord:
    """Return a record with the position that the mirror has reached with it."""
    return with_keys(record, {MARK_KEY: msgspec.to_builtins(checkpoint) | mark_of(record)})


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


def is_own(record: AnyRecord) -> bool:
    """Return whether a record was appended here, not read from the file."""
    return "own" in mark_of(record)


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


def as_own(record: AnyRecord, file_id: str) -> AnyRecord:
    """Return a record that was appended here with its mark: its id in the file, if that is another."""
    mark: dict[str, Any] = {"own": True} if record.id == file_id else {"own": True, "as": file_id}
    return with_keys(record, {MARK_KEY: mark})


def with_generation(item: ConversationItem, generation: int, ids: Mapping[str, str] | None = None) -> ConversationItem:
    """Give an item of a file that was read again an id that differs from the one it had before.

    `ids` are those of the records in the mirror, by their ids in the file.
    """
    if not generation:
        return item

    def generation_id(item_id: str) -> str:
        return (ids or {}).get(item_id) or derive_id(item_id, f"generation {generation}")

    mark = {"as": item.id}
    if isinstance(item, HiddenMessages):
        extra = {**item.extra, MARK_KEY: mark} if item.extra else {}
        return replace(item, id=generation_id(item.id), ids=tuple(map(generation_id, item.ids)), extra=extra)
    if isinstance(item, Message | Event):
        return attach_preserved(replace(item, id=generation_id(item.id)), MARK_KEY, mark)
    first_kept = None if item.first_kept is None else generation_id(item.first_kept)
    return replace(item, id=generation_id(item.id), first_kept=first_kept, extra={**item.extra, MARK_KEY: mark})


def with_mark_of(item: Summary | HiddenMessages, record: AnyRecord) -> AnyRecord:
    """Return the record of an item with the item's mark, if it has one."""
    mark = item.extra.get(MARK_KEY)
    return record if mark is None else with_keys(record, {MARK_KEY: mark})


class MergedRecord(NamedTuple):
    """A record that was appended here among those that were read from its lines."""

    records: list[AnyRecord]  # for the mirror
    position: int  # of ours among them
    read: AnyRecord | None  # what was read in its place


def merge_record(record: AnyRecord, read_records: Sequence[AnyRecord]) -> MergedRecord:
    """Put our record in the place of its counterpart read from the file."""
    for index in range(len(read_records) - 1, -1, -1):
        read = read_records[index]
        if isinstance(record, Message) and isinstance(read, Message):
            merged_record: AnyRecord = record
        elif isinstance(record, Compaction) and isinstance(read, Compaction):
            merged_record = replace(record, first_kept_seq=read.first_kept_seq, line=b"")
        else:
            continue
        own = as_own(merged_record, id_in_file(read) or read.id)
        return MergedRecord([*read_records[:index], own, *read_records[index + 1 :]], index, read)
    return MergedRecord([record], 0, None)  # it stands for everything that was read


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
