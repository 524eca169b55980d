"""The append rules that every store applies before it writes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

import msgspec
from msgspec.structs import replace

from everlog.errors import ConflictError, FormatError, StoreFullError
from everlog.log.fold import MetadataFold, settable_fields
from everlog.log.line_codec import build_line, encode, encode_and_read_back, encode_plain, is_same_record, read_back
from everlog.log.parts import MARKER_BYTES
from everlog.model import AnyRecord, Message, Meta
from everlog.settings import SessionSettings

RETRY_WINDOW = 1024  # records whose ids are compared to detect a retry


class PreparedRecord(msgspec.Struct, frozen=True, gc=False):
    """A record that only lacks its seq; encoding needs no lock."""

    record: AnyRecord
    body: bytes
    retriable: bool  # the caller gave the id, so the record may be stored already
    plain: bool  # `record` is as a later reader will see it, and a private copy


def prepare_records(
    records: Sequence[AnyRecord], now: Callable[[], str], new_id: Callable[[], str]
) -> list[PreparedRecord]:
    """Encode records; those without a time get one, messages without an id too."""
    prepared = []
    for record in records:
        caller_id = record.id
        if record.line and caller_id and record.timestamp:
            unchanged = read_back(record)
            if unchanged is not None:
                prepared.append(PreparedRecord(unchanged, unchanged.line, True, True))
                continue
        copy = replace(  # always a copy: it gets its seq when it is stored
            record,
            timestamp=record.timestamp or now(),
            id=caller_id or (new_id() if isinstance(record, Message) else ""),
        )
        body = encode_plain(copy)
        if body is not None:
            prepared.append(PreparedRecord(copy, body, caller_id != "", True))
        else:
            encoded, body, decoded = encode_and_read_back(copy)
            plain = decoded is not None
            prepared.append(PreparedRecord(decoded or encoded, body, caller_id != "", plain))
    return prepared


def drop_injected(records: Sequence[AnyRecord]) -> Sequence[AnyRecord]:
    """Return the records without messages injected for one run, which are never stored."""
    for record in records:
        if isinstance(record, Message) and record.auto_injected:
            return [r for r in records if not (isinstance(r, Message) and r.auto_injected)]
    return records


def birth_line(fold: MetadataFold) -> bytes:
    """Return the line with seq 0, written with the first record: the initial metadata."""
    metadata = fold.metadata(1, 0)
    _, body = encode(Meta(set=settable_fields(metadata), timestamp=metadata.created_at))
    return build_line(body, "meta", 0)


def refuse_newer_schema(session: str, newest: int) -> NoReturn:
    """Raise FormatError: a newer version has written to the log, so it is read-only."""
    raise FormatError(
        f"session {session} was written by a newer everlog (schema version {newest})",
        hint="upgrade everlog; until then it is read-only",
        session=session,
    )


def check_retry(session: str, candidate: AnyRecord, stored: AnyRecord | None, seq: int) -> AnyRecord:
    """Return the stored record of a retry; ConflictError if the id belongs to another record."""
    if stored is None or not is_same_record(candidate, stored):
        raise ConflictError(
            f"another record with id {candidate.id} is stored as seq {seq}", session=session, seq=seq, id=candidate.id
        )
    return stored


def check_expected_seq(session: str, head: int, expected_seq: int, retried_count: int) -> None:
    """Raise ConflictError unless the log ends at `expected_seq`; retried records are allowed."""
    if head != expected_seq + retried_count:
        raise ConflictError(
            f"session {session} is at seq {head}, not {expected_seq}",
            hint="read the new records and decide again",
            session=session,
            seq=head,
        )


def check_no_marker_after(session: str, marker: int, no_marker_after: int) -> None:
    """Raise ConflictError if a rewind, tombstone or compaction is after `no_marker_after`."""
    if marker > no_marker_after:
        raise ConflictError(
            f"session {session} was changed by record {marker}, after {no_marker_after}",
            hint="plan again from the new state",
            session=session,
            seq=marker,
        )


def check_limits(
    session: str, lines: Sequence[bytes], records: Sequence[PreparedRecord], size: int, limits: SessionSettings
) -> None:
    """Raise StoreFullError if a line or the log would be too large.

    `lines` are the lines to add, `size` is that of the log. Markers and error results have a
    little more room: a full session can still be closed properly.
    """
    longest = max(map(len, lines)) + 1
    if longest > limits.line_bytes:
        raise StoreFullError(
            f"a record of {longest} bytes is over the limit of {limits.line_bytes}",
            hint="store it elsewhere and refer to it, or raise session.line_bytes",
            session=session,
        )
    total = size + sum(map(len, lines)) + len(lines)
    messages = any(isinstance(r.record, Message) and not r.record.is_error for r in records)
    limit = limits.total_bytes + (0 if messages else MARKER_BYTES)
    if limits.total_bytes and total > limit:
        raise StoreFullError(
            f"session {session} would have {total} bytes, over the limit of {limit}",
            hint="fork it at an earlier record, or raise session.total_bytes",
            session=session,
        )
