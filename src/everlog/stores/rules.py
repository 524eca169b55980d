"""The rules that every store applies before it writes or answers. Pure.

    records     prepared, deduplicated by their ids, under `expected_seq` and `no_marker_after`, within limits
    leases      an append under a lease needs that lease to be held
    metadata    what a caller may set
    names       how a session is found by name, and how a key or alias moves to another
    chats       numbers of the sessions of one key, and which of them is current
    forks       what a copy keeps of its source

A key has numbered chats: sessions created with it, of which the newest or last resumed one holds
it. A session without a key is a chat of its agent and sender, whose pair is held in the same way,
as a name that nobody can type. Filters, cursors and pages are in `ports.listing`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import msgspec
from msgspec.structs import replace

from everlog.errors import ConflictError, FormatError, InvalidIdError, NotFoundError, SessionBusyError, StoreFullError
from everlog.ids import is_name, is_ulid
from everlog.log.fold import ADOPTION_KEY, MetadataFold, apply_changes, from_builtins, initial_fields, settable_fields
from everlog.log.line_codec import (
    SEAL,
    build_line,
    encode,
    encode_and_read_back,
    encode_plain,
    is_same_record,
    read_back,
    replace_surrogates,
)
from everlog.log.parts import MARKER_BYTES
from everlog.model import SETTABLE, AnyRecord, Message, Meta, Metadata, pair
from everlog.ports import Lease
from everlog.settings import SessionSettings

RETRY_WINDOW = 1024  # records whose ids are compared to detect a retry
MIN_PREFIX = 6  # characters of an id that are enough to find it
RUNNING = "a turn of this session is running"
# The others are set by the store.
_CALLER_KEYS = SETTABLE - {"generations", "current", "promotedFrom", "promotedTo"}

HolderLookup = Callable[[str], tuple[str, int] | None]  # session and generation


# --- records


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
                prepared.append(PreparedRecord(unchanged, unchanged.line[: -len(SEAL)], True, True))
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


class AppendCall(msgspec.Struct, frozen=True, gc=False):
    """The arguments of an append, prepared."""

    prepared: Sequence[PreparedRecord]
    expected_seq: int | None = None
    no_marker_after: int | None = None
    lease: Lease | None = None


def drop_injected(records: Sequence[AnyRecord]) -> Sequence[AnyRecord]:
    """Return the records without messages injected for one run, which are never stored."""
    for record in records:
        if isinstance(record, Message) and record.auto_injected:
            return [r for r in records if not (isinstance(r, Message) and r.auto_injected)]
    return records


def birth_line(fold: MetadataFold) -> bytes:
    """Return the line with seq 0, written with the first record: the initial metadata."""
    metadata = fold.metadata(1, 0)
    _, body = encode(Meta(set=initial_fields(metadata), timestamp=metadata.created_at))
    return build_line(body, "meta", 0)


def adoption_line(fold: MetadataFold, seq: int, timestamp: str) -> bytes | None:
    """Return the line that adopts metadata which no record holds into the log; None if there are none.

    It precedes the first record that we append to a log which another program began.
    """
    metadata = fold.metadata(1, 0)
    fields = initial_fields(metadata)
    if not fields:
        return None
    _, body = encode(Meta(set={ADOPTION_KEY: metadata.created_at, **fields}, timestamp=timestamp))
    return build_line(body, "meta", seq)


def refuse_newer_schema(session: str, newest: int) -> NoReturn:
    """Raise FormatError: a newer version has written to the log, so it is read-only."""
    raise FormatError(
        f"session {session} was written by a newer everlog (schema version {newest})",
        hint="upgrade everlog; until then it is read-only",
        session=session,
    )


def find_retried(
    session: str,
    call: AppendCall,
    head: int,
    seq_of: Callable[[str], int | None],
    read: Callable[[int], AnyRecord | None],
    *,
    is_same: Callable[[AnyRecord, AnyRecord], bool] = is_same_record,
) -> dict[int, AnyRecord]:
    """Return the records that are stored already, by their index in the batch.

    `seq_of` finds an id among the last records, `read` reads a record by its seq. ConflictError if
    the id belongs to another record.
    """
    retried: dict[int, AnyRecord] = {}
    for index, item in enumerate(call.prepared):
        seq = seq_of(item.record.id) if item.retriable else None
        if seq is not None and seq > head - RETRY_WINDOW:
            retried[index] = check_retry(session, item.record, read(seq), seq, is_same)
    return retried


def check_retry(
    session: str,
    candidate: AnyRecord,
    stored: AnyRecord | None,
    seq: int,
    is_same: Callable[[AnyRecord, AnyRecord], bool] = is_same_record,
) -> AnyRecord:
    """Return the stored record of a retry; ConflictError if the id belongs to another record."""
    if stored is None or not is_same(candidate, stored):
        raise ConflictError(
            f"another record with id {candidate.id} is stored as seq {seq}", session=session, seq=seq, id=candidate.id
        )
    return stored


def without_retried(call: AppendCall, retried: Mapping[int, object]) -> list[PreparedRecord]:
    """Return the records of a batch that are still to be stored."""
    return [item for index, item in enumerate(call.prepared) if index not in retried]


def in_order(retried: Mapping[int, AnyRecord], stored: Sequence[AnyRecord]) -> list[AnyRecord]:
    """Return a whole batch: the retried records at their index, those just stored between them."""
    rest = iter(stored)
    return [retried[at] if at in retried else next(rest) for at in range(len(retried) + len(stored))]


def check_conditions(
    session: str, call: AppendCall, head: int, retried_count: int, last_marker: Callable[[int], int]
) -> None:
    """Raise ConflictError unless the log is as the caller of an append expects it.

    It must end at `expected_seq`, retried records aside, and no rewind, tombstone or compaction may
    be after `no_marker_after`; `last_marker` finds the last one above a seq.
    """
    expected_seq, no_marker_after = call.expected_seq, call.no_marker_after
    if expected_seq is not None and head != expected_seq + retried_count:
        raise ConflictError(
            f"session {session} is at seq {head}, not {expected_seq}",
            hint="read the new records and decide again",
            session=session,
            seq=head,
        )
    if no_marker_after is not None and (marker := last_marker(no_marker_after)) > no_marker_after:
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


# --- leases


def check_lease(session: str, lease: Lease, kind: type[Lease]) -> None:
    """Raise ConflictError unless a lease is one of this kind of store, for this session, and held."""
    if not (isinstance(lease, kind) and lease.held and lease.session == session):
        raise lease_error(session)


def lease_error(session: str, hint: str = "") -> ConflictError:
    """Return the error for an append under a lease that is not held."""
    return ConflictError(f"the turn lease of session {session} is not held", hint=hint, session=session)


def busy_error(
    session: str, holder: str = "", *, hint: str = "wait until it ends, or stop it", **fields: object
) -> SessionBusyError:
    """Return the error for a lease that is held; `holder` describes another process."""
    text = f"a turn of session {session} is running in {holder}" if holder else RUNNING
    return SessionBusyError(text, hint=hint, session=session, **fields)


# --- ids and metadata


def check_id(session: str) -> None:
    """Raise InvalidIdError unless the text is a session id."""
    if not is_ulid(session):
        raise InvalidIdError(f"not a session id: {session[:60]!r}", hint="ids are 26 characters, 0-9 and A-Z")


def check_name(name: str) -> None:
    """Raise InvalidIdError unless the text may be the id, key or alias of a session."""
    if not is_name(name):
        raise InvalidIdError(f"not a session id or name: {name[:60]!r}", hint="1 to 500 printable characters")


def no_session(session: str) -> NotFoundError:
    """Return the error for an id without a session."""
    return NotFoundError(f"there is no session {session}", session=session)


def no_record(session: str, seq: int) -> NotFoundError:
    """Return the error for a seq without a record."""
    return NotFoundError(f"session {session} has no record {seq}", session=session, seq=seq)


def blank_metadata(session: str) -> Metadata:
    """Return the metadata of a new session of which nothing is known but its id."""
    return MetadataFold.empty(session).metadata(1, 0)


def check_metadata(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields in a form that every reader accepts; FormatError names the invalid one."""
    for key in fields:
        if key not in _CALLER_KEYS:
            raise FormatError(f"unknown metadata key {key!r}", hint=f"one of {sorted(_CALLER_KEYS)}")
    cleaned = {key: replace_surrogates(value) for key, value in fields.items()}
    values = {key: value for key, value in cleaned.items() if value is not None}
    try:
        from_builtins({"id": "", **values})
        msgspec.json.encode(values)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise FormatError(f"not valid metadata: {error}") from error
    for name in (cleaned.get("key"), *(cleaned.get("aliases") or ())):
        if name is not None and not is_name(name):
            raise FormatError(f"not a valid name: {name[:60]!r}", hint="1 to 500 printable characters")
    if "aliases" in values:
        cleaned["aliases"] = list(dict.fromkeys(values["aliases"]))
    return cleaned


# --- names and chats


def resolve_name(name: str, holder: HolderLookup, ids_with_prefix: Callable[[str], Sequence[str]] | None = None) -> str:
    """Return the id behind a key or an alias or, if prefixes serve, the first letters of an id."""
    check_name(name)
    claim = holder(name)
    if claim is not None:
        return claim[0]
    if ids_with_prefix is not None and len(name) >= MIN_PREFIX:
        ids = ids_with_prefix(name)
        if len(ids) == 1:
            return ids[0]
        if ids:
            raise ConflictError(f"several sessions begin with {name}", hint="give more characters")
    raise no_session(name)


def exclusive_name(fields: Mapping[str, Any]) -> str:
    """Return the name by which `create(unless_held=True)` finds a session: key or first alias."""
    return fields.get("key") or next(iter(fields.get("aliases") or ()), "")


def changes_names(fields: Mapping[str, Any]) -> bool:
    """Return whether fields set or remove a key or aliases."""
    return "key" in fields or "aliases" in fields


def new_session_fields(
    fields: Mapping[str, Any], blank: Metadata, holder: HolderLookup, highest_chat: Callable[[str], int]
) -> dict[str, Any]:
    """Return the fields of a new session with its names, its chat number and its claim to be current."""
    result = with_name_claims(fields, blank, holder) if changes_names(fields) else dict(fields)
    metadata = apply_changes(blank, result)
    if metadata.chat is None:
        result["chat"] = highest_chat(metadata.thread) + 1
    if not metadata.key:
        result["current"] = _next_generation(holder(metadata.thread))
    return result


def resume_changes(metadata: Metadata, holder: HolderLookup) -> dict[str, Any]:
    """Return the changes that make a session the current chat of its key or pair, if any.

    They include the aliases that the current chat has taken from this session.
    """
    current = holder(metadata.thread)
    if current is not None and current[0] == metadata.id:
        return {}
    if not metadata.key:
        return {"current": _next_generation(current)}
    generations = dict(metadata.generations)
    for name in metadata.names:
        claim = holder(name)
        if claim is None or current is None or claim[0] == current[0]:
            generations[name] = _next_generation(claim)
    return {"generations": generations}


def _next_generation(claim: tuple[str, int] | None) -> int:
    return 1 + (claim[1] if claim else 0)


def with_name_claims(
    fields: Mapping[str, Any], metadata: Metadata, holder: HolderLookup, *, unless_held: bool = False
) -> dict[str, Any]:
    """Return the fields and a generation for each name that the session has with them.

    A generation is kept if the session holds the name already, else it is above the holder's.
    With `unless_held`, aliases that another session holds are left out.
    """
    key, aliases = fields.get("key", metadata.key), fields.get("aliases", metadata.aliases) or ()
    generations = {}
    kept_aliases = []
    for name in filter(None, (key, *aliases)):
        claim = holder(name)
        generation = metadata.generations.get(name, 0)
        if claim is not None and claim[0] != metadata.id and unless_held and name != key:
            continue
        is_holder = claim is not None and claim[0] == metadata.id and generation
        highest = max(claim[1] if claim else 0, generation)
        generations[name] = generation if is_holder else 1 + highest
        if name in aliases:
            kept_aliases.append(name)
    result = {**fields, "generations": generations}
    return result | {"aliases": kept_aliases} if "aliases" in fields else result


# --- forks


def fork_changes(
    source: Metadata, seq: int | None, highest_chat: Callable[[str], int], *, has_birth: bool
) -> dict[str, Any]:
    """Return what the metadata of a fork changes in those that the copied records make.

    Names stay with the original; a copy is one more chat of its agent and sender. Without a birth
    record, no record holds the initial metadata.
    """
    changes: dict[str, Any] = {} if has_birth else settable_fields(source)
    changes["forkedFrom"] = {"id": source.id, "seq": seq}
    changes |= dict.fromkeys(("key", "aliases", "generations", "current", "promotedFrom", "promotedTo"))
    changes["chat"] = highest_chat(pair(source.agent, source.sender)) + 1
    return changes
