"""What may be appended: the rules that every store applies before it writes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

import msgspec
from msgspec.structs import replace

from everlog.errors import ConflictError, FormatError, StoreFullError
from everlog.log.fold import Tally, given_facts
from everlog.log.line_codec import as_kept, encode, encode_plain, encode_read, same, seal
from everlog.log.parts import MARKER_BYTES
from everlog.model import AnyRecord, Message, Meta
from everlog.settings import SessionSettings

REMEMBERED = 1024  # records whose ids are looked at for a retry


class Prepared(msgspec.Struct, frozen=True, gc=False):
    """A record ready to be numbered: encoding needs no lock."""

    record: AnyRecord
    body: bytes
    retriable: bool  # the caller brought the id, so it may be there already
    plain: bool  # it is as a later reader will see it, and nobody else's


def prepare(
    records: Sequence[AnyRecord], now: Callable[[], str], new_id: Callable[[], str]
) -> list[Prepared]:
    """Give records their time, messages their id, and encode them."""
    made = []
    for record in records:
        brought = record.id
        if record.line and brought and record.timestamp:
            kept = as_kept(record)
            if kept is not None:
                made.append(Prepared(kept, kept.line, True, True))
                continue
        own = replace(  # a copy in any case: it gets its seq when it is stored
            record,
            timestamp=record.timestamp or now(),
            id=brought or (new_id() if isinstance(record, Message) else ""),
        )
        body = encode_plain(own)
        if body is not None:
            made.append(Prepared(own, body, brought != "", True))
        else:
            given, body, read = encode_read(own)
            made.append(Prepared(read or given, body, brought != "", read is not None))
    return made


def lasting(records: Sequence[AnyRecord]) -> Sequence[AnyRecord]:
    """The records without messages that were injected for one run: those are never kept."""
    for record in records:
        if isinstance(record, Message) and record.auto_injected:
            return [one for one in records if not (isinstance(one, Message) and one.auto_injected)]
    return records


def birth(tally: Tally) -> bytes:
    """The line with seq 0, written with the first record: what the session was made with."""
    made = tally.metadata(1, 0)
    _, body = encode(Meta(set=given_facts(made), timestamp=made.created_at))
    return seal(body, "meta", 0)


def refuse_newer(session: str, newest: int) -> NoReturn:
    """Nothing is added to a log that a newer version has written to."""
    raise FormatError(
        f"session {session} was written by a newer everlog (schema version {newest})",
        hint="upgrade everlog; until then it is read-only",
        session=session,
    )


def checked_retry(session: str, given: AnyRecord, stored: AnyRecord | None, seq: int) -> AnyRecord:
    """The stored record that is given again; an id that stands for something else is refused."""
    if stored is None or not same(given, stored):
        raise ConflictError(
            f"another record with id {given.id} is stored as seq {seq}", session=session, seq=seq
        )
    return stored


def check_expected_seq(session: str, head: int, expected_seq: int, retried: int) -> None:
    """Refuse if the log is not where the caller saw it; records of a retry count as seen."""
    if head != expected_seq + retried:
        raise ConflictError(
            f"session {session} is at seq {head}, not {expected_seq}",
            hint="read what is new and decide again",
            session=session,
            seq=head,
        )


def check_no_marker_after(session: str, marker: int, no_marker_after: int) -> None:
    """Refuse if a rewind, tombstone or compaction came after what the caller saw."""
    if marker > no_marker_after:
        raise ConflictError(
            f"session {session} was changed by record {marker}, after {no_marker_after}",
            hint="plan again from the new state",
            session=session,
            seq=marker,
        )


def check_limits(
    session: str, rows: Sequence[bytes], new: Sequence[Prepared], size: int, limits: SessionSettings
) -> None:
    """Refuse a line or a log that would be too large.

    `rows` are the lines to add, `size` is that of the log. Markers, and results that only say
    that a tool failed, have a little more room: a full session can still be closed properly.
    """
    longest = max(map(len, rows)) + 1
    if longest > limits.line_bytes:
        raise StoreFullError(
            f"a record of {longest} bytes is over the limit of {limits.line_bytes}",
            hint="store it elsewhere and refer to it, or raise session.line_bytes",
            session=session,
        )
    total = size + sum(map(len, rows)) + len(rows)
    messages = any(isinstance(one.record, Message) and not one.record.is_error for one in new)
    limit = limits.total_bytes + (0 if messages else MARKER_BYTES)
    if limits.total_bytes and total > limit:
        raise StoreFullError(
            f"session {session} would have {total} bytes, over the limit of {limit}",
            hint="fork it at an earlier record, or raise session.total_bytes",
            session=session,
        )
