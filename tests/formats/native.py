"""What a store makes of the items of a dialect, without one."""

from __future__ import annotations

from typing import Any

from everlog.interop.formats.format_types import DERIVED_KEY, ForeignSession, HiddenMessages, Item, Summary
from everlog.log.line_codec import build_line, decode, encode, from_object
from everlog.model import AnyRecord


def through_native(read: ForeignSession) -> list[AnyRecord]:
    """The items as records of a log, each encoded and decoded again."""
    seqs = {item.id: seq for seq, item in enumerate(read.items, 1)}
    return [_stored(item, seq, seqs) for seq, item in enumerate(read.items, 1)]


def _stored(item: Item, seq: int, seqs: dict[str, int]) -> AnyRecord:
    data: dict[str, Any]
    record: AnyRecord
    if isinstance(item, Summary):
        kept = seq + 1 if item.first_kept is None else seqs[item.first_kept]
        data = {
            "recordType": "compaction",
            "id": item.id,
            "strategy": item.strategy,
            "firstKeptSeq": kept,
            "summary": item.text,
            "tokensBefore": item.tokens_before,
            "readFiles": list(item.read_files),
            "modifiedFiles": list(item.modified_files),
            "timestamp": item.timestamp,
        }
        record = from_object({**data, **item.extra})
    elif isinstance(item, HiddenMessages):
        deletes = [seqs[one] for one in item.ids]
        data = {"recordType": "tombstone", "id": item.id, "deletes": deletes}
        record = from_object({**data, "timestamp": item.timestamp, **(item.extra or {DERIVED_KEY: True})})
    else:
        record = item
    record, body = encode(record)
    stored = decode(build_line(body, record.record_type, seq)).record
    assert stored is not None
    return stored
