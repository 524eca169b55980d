"""The in-memory store, with the semantics of the file store: for tests and for subagents.

Lines are kept as they would be in a file, parts included, so that both stores hold the same
records byte for byte.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

from msgspec.structs import replace

from everlog.errors import ConflictError, FormatError, NotFoundError
from everlog.ids import TimestampSource, UlidGenerator, UuidGenerator, ulid_at
from everlog.log import append_rules, line_codec
from everlog.log.append_rules import RETRY_WINDOW, PreparedRecord, drop_injected, prepare_records
from everlog.log.fold import MetadataFold, apply_changes, settable_fields
from everlog.log.metadata_changes import check_metadata
from everlog.log.parts import part_name, split_at_boundary
from everlog.model import MARKERS, AnyRecord, Damaged, Entry, Meta, Metadata, Part, pair
from everlog.ports import (
    Chats,
    Filter,
    Lease,
    Order,
    Page,
    Progress,
    Query,
    Results,
    SessionRow,
    UsageReport,
    days_of,
    matcher,
    parse_cursor,
)
from everlog.settings import SessionSettings, Settings
from everlog.stores import session_names, usage_query
from everlog.stores.file.layout import check_id
from everlog.stores.file.log_reader import is_birth_record
from everlog.stores.file.turn_lock import busy_error

if TYPE_CHECKING:
    from everlog.index.search.search_index import SearchIndex


class InMemoryLog:
    """The log of one session."""

    def __init__(self, metadata: Metadata, settings: SessionSettings) -> None:
        self.settings = settings
        self.fold = MetadataFold(metadata)
        self.records: list[AnyRecord] = []  # the birth record included
        self.counts = [0]  # records of each part
        self.sizes = [0]  # bytes of each part
        self.last_marker = 0
        self.ids: dict[str, AnyRecord] = {}
        self.leased = False
        self._metadata: Metadata | None = None  # a cache, for listings and lookups

    @property
    def metadata(self) -> Metadata:
        """Return the metadata up to the last record."""
        if self._metadata is None:
            self._metadata = self.fold.metadata(len(self.sizes), self.sizes[-1])
        return self._metadata

    def append(
        self, prepared: Sequence[PreparedRecord], expected_seq: int | None, no_marker_after: int | None
    ) -> list[AnyRecord]:
        """Assign seqs and store, by the append rules of every store."""
        session = self.metadata.id
        head = self.fold.seq
        retried: dict[int, AnyRecord] = {}
        for index, item in enumerate(prepared):
            stored = self.ids.get(item.record.id) if item.retriable else None
            if stored is not None and stored.seq > head - RETRY_WINDOW:
                retried[index] = append_rules.check_retry(session, item.record, stored, stored.seq)
        new = [item for index, item in enumerate(prepared) if index not in retried]
        if not new:
            return [retried[index] for index in range(len(prepared))]
        if expected_seq is not None:
            append_rules.check_expected_seq(session, head, expected_seq, len(retried))
        if no_marker_after is not None:
            append_rules.check_no_marker_after(session, self.last_marker, no_marker_after)
        lines = [] if self.records else [append_rules.birth_line(self.fold)]
        first = len(lines)
        for number, item in enumerate(new, head + 1):
            lines.append(line_codec.build_line(item.body, item.record.record_type, number))
        append_rules.check_limits(session, lines, new, sum(self.sizes), self.settings)
        records = [_decode(line) for line in lines]
        self.add_records(records)
        del records[:first]
        return [retried[i] if i in retried else records.pop(0) for i in range(len(prepared))]

    def add_records(self, records: Sequence[AnyRecord]) -> None:
        """Add records at the end, split into parts as by the file store."""
        lines = [record.line for record in records]
        groups = split_at_boundary(lines, self.sizes[-1], self.settings.part_bytes)
        for number, group in enumerate(groups):
            if number:
                self.counts.append(0)
                self.sizes.append(0)
            self.counts[-1] += len(group)
            self.sizes[-1] += sum(map(len, group)) + len(group)
        self._metadata = None
        for record in records:
            self.records.append(record)
            self.fold.add(record)
            if isinstance(record, MARKERS):
                self.last_marker = record.seq
            if record.id:
                self.ids[record.id] = record


def _decode(line: bytes) -> AnyRecord:
    record = line_codec.decode(line).record
    if record is None:
        raise FormatError("the record could not be read back")
    return record


class InMemoryLease:
    """A lease to run a turn on a session of the in-memory store."""

    def __init__(self, session: str, log: InMemoryLog) -> None:
        self.session = session
        self._log: InMemoryLog | None = log

    @property
    def held(self) -> bool:
        """Return whether it is not released yet."""
        return self._log is not None

    def release(self) -> None:
        """Release the lease; doing so twice is harmless."""
        if self._log is not None:
            self._log.leased = False
            self._log = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


class InMemoryStore:
    """The store port in RAM."""

    def __init__(self, settings: Settings | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self._settings = (settings or Settings()).session
        self._search = (settings or Settings()).search
        self._now = TimestampSource(clock)
        self._new_uuid = UuidGenerator()
        self._new_ulid = UlidGenerator(clock)
        self._lock = threading.RLock()
        self._logs: dict[str, InMemoryLog] = {}

    def create(
        self, facts: Mapping[str, Any] | None = None, *, unless_held: bool = False, at: int | None = None
    ) -> Metadata:
        """Create an empty session."""
        checked = check_metadata(facts or {})
        fields = {key: value for key, value in checked.items() if value is not None}
        with self._lock:
            if unless_held and (holding := self._holder(session_names.exclusive_name(fields))):
                return self.metadata(holding[0])
            session = self._new_ulid() if at is None else ulid_at(at, os.urandom(10))
            blank = MetadataFold.empty(session).metadata(1, 0)
            if session_names.changes_names(fields):
                fields = session_names.with_name_claims(fields, blank, self._holder)
            holder, highest = self._holder, self._highest_chat
            fields = session_names.with_chat_number(fields, blank, holder, highest)
            return self._create(blank, fields)

    def chats(self, thread: str) -> Chats | None:
        """Return the chats of a key or pair."""
        with self._lock:
            current = self._holder(thread)
            numbered = [
                (log.metadata.chat or 0, session)
                for session, log in self._logs.items()
                if log.metadata.thread == thread
            ]
        if current is None or not numbered:
            return None
        highest, newest = max(numbered)
        return Chats(current[0], newest, highest)

    def resume(self, session: str) -> Metadata:
        """Make a session the current chat of its key or pair, by a `meta` record."""
        with self._lock:
            log = self._log(session)
            changes = session_names.resume_changes(log.metadata, self._holder)
            if changes:
                meta = prepare_records([Meta(set=changes)], self._now, self._new_uuid)
                log.append(meta, None, None)
            return log.metadata

    def _create(self, blank: Metadata, fields: dict[str, Any]) -> Metadata:
        metadata = apply_changes(blank, fields)
        self._logs[metadata.id] = InMemoryLog(metadata, self._settings)
        return metadata

    def append(
        self,
        session: str,
        records: Sequence[AnyRecord],
        *,
        expected_seq: int | None = None,
        no_marker_after: int | None = None,
        lease: Lease | None = None,
    ) -> list[AnyRecord]:
        """Append records."""
        if lease is not None and not (isinstance(lease, InMemoryLease) and lease.held and lease.session == session):
            raise ConflictError(f"the turn lease of session {session} is not held", session=session)
        lasting = drop_injected(records)
        if not lasting:
            self.resolve(session)
            return []
        prepared = prepare_records(lasting, self._now, self._new_uuid)
        with self._lock:
            return self._log(session).append(prepared, expected_seq, no_marker_after)

    def promote(self, session: str, to: str, *, seq: int) -> bool:
        """Record which session takes over the history, unless one has."""
        with self._lock:
            log = self._log(session)
            promoted_to = log.metadata.promoted_to
            if promoted_to is None:
                meta = Meta(set={"promotedTo": {"id": to, "seq": seq}})
                log.append(prepare_records([meta], self._now, self._new_uuid), None, None)
            return promoted_to is None or promoted_to.get("id") == to

    def update(self, session: str, changes: Mapping[str, Any], *, unless_held: bool = False) -> Metadata:
        """Change metadata by a `meta` record."""
        fields = check_metadata(changes)
        with self._lock:
            log = self._log(session)
            if session_names.changes_names(fields):
                fields = session_names.with_name_claims(fields, log.metadata, self._holder, unless_held=unless_held)
            if fields:
                meta = prepare_records([Meta(set=fields)], self._now, self._new_uuid)
                log.append(meta, None, None)
            return log.metadata

    def fork(self, session: str, at: int | None = None) -> Metadata:
        """Create a session with the records up to one, byte for byte."""
        with self._lock:
            log = self._log(session)
            seq = log.fold.seq if at is None else at
            if at is not None and not any(record.seq == at for record in log.records):
                raise NotFoundError(f"session {session} has no record {at}", session=session, seq=at)
            changes: dict[str, Any] = dict.fromkeys(
                ("key", "aliases", "generations", "current", "promotedFrom", "promotedTo")
            )
            changes["chat"] = self._highest_chat(pair(log.metadata.agent, log.metadata.sender)) + 1
            changes["forkedFrom"] = {"id": session, "seq": seq}
            fields = settable_fields(log.metadata)
            blank = MetadataFold.empty(self._new_ulid()).metadata(1, 0)
            if not log.records:
                return self._create(blank, fields | changes)
            self._create(blank, {})
            copy = self._logs[blank.id]
            copy.add_records([record for record in log.records if record.seq <= seq])
            copy.append(prepare_records([Meta(set=changes)], self._now, self._new_uuid), None, None)
            return copy.metadata

    def delete(self, session: str) -> int:
        """Delete a session."""
        with self.lease(session), self._lock:
            return len(self._logs.pop(session).sizes)

    def read(self, session: str, *, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
        """Yield records above a seq, in order."""
        with self._lock:
            records = list(self._log(session).records)
        above = (
            record
            for record in records
            if (record.seq > after if after > 0 else after < 0 or not is_birth_record(record))
        )
        return above if limit is None else islice(above, max(limit, 0))

    def tail(self, session: str) -> Iterator[Entry]:
        """Yield all records, newest first."""
        with self._lock:
            records = list(self._log(session).records)
        return (record for record in reversed(records) if not is_birth_record(record))

    def metadata(self, session: str) -> Metadata:
        """Return the metadata of a session."""
        with self._lock:
            return self._log(session).metadata

    def list(
        self,
        criteria: Filter = Filter(),  # noqa: B008 - frozen
        *,
        limit: int = 50,
        cursor: str | None = None,
        order: Order = "active",
    ) -> Page:
        """Return a page of sessions, newest first."""
        if limit < 1:
            raise FormatError(f"a listing needs a limit of at least 1, not {limit}")
        with self._lock:
            rows = [SessionRow(log.metadata, sum(log.sizes), len(log.sizes)) for log in self._logs.values()]
        matches = matcher(criteria)

        def sort_key(row: SessionRow) -> tuple[int, str]:
            return (row.active if order == "active" else 0), row.id

        rows = sorted((row for row in rows if matches(row)), key=sort_key, reverse=True)
        total = len(rows)
        if cursor is not None:
            active, last = parse_cursor(cursor)
            start = (active if order == "active" else 0), last
            rows = [row for row in rows if sort_key(row) < start]
        return Page(rows[:limit], rows[limit - 1].cursor if len(rows) > limit else None, total)

    def search(self, query: Query, *, progress: Progress | None = None) -> Results:
        """Search all sessions; every call indexes them all."""
        return self._build_search_index().search(query)

    def recall(self, query: Query, now: int) -> Results:
        """Return the sessions that a message is about; every call indexes them all."""
        return self._build_search_index().recall(query.text, now, query)

    def catch_up(self, progress: Progress | None = None) -> int:
        """Do nothing: there is no lasting index."""
        return 0

    def usage(
        self,
        criteria: Filter = Filter(),  # noqa: B008 - frozen
        *,
        until: str | None = None,
        spenders: int = 10,
        fresh: bool = True,
        progress: Progress | None = None,
    ) -> UsageReport:
        """Return the usage of sessions, by day and model."""
        matches, days = matcher(replace(criteria, since=None)), days_of(criteria, until)
        with self._lock:
            rows = [SessionRow(log.metadata, sum(log.sizes), len(log.sizes)) for log in self._logs.values()]
        selected = [row.metadata for row in rows if matches(row)]
        return usage_query.query_usage(selected, days, spenders)

    def _build_search_index(self) -> SearchIndex:
        from everlog.index.listing_rows import SessionIndex  # noqa: PLC0415 - loads SQLite; few search here
        from everlog.index.search.search_index import open_search_index  # noqa: PLC0415

        with self._lock:
            rows = [SessionRow(log.metadata, sum(log.sizes), len(log.sizes)) for log in self._logs.values()]
        index = SessionIndex(None, lambda _: None)
        index.put(rows, new=True)
        search = open_search_index(
            index,
            lambda session, after: self.read(session, after=after),
            lambda _: None,
            include_tools=self._search.tool_output,
        )
        search.catch_up()
        return search

    def resolve(self, name: str, *, prefix: bool = False) -> str:
        """Return the id for an id, key or alias; with `prefix`, also for its first characters."""
        with self._lock:
            if name in self._logs:
                return name
            return session_names.resolve_name(name, self._holder, self._ids_with_prefix if prefix else None)

    def _ids_with_prefix(self, prefix: str) -> Sequence[str]:
        return [session for session in self._logs if session.startswith(prefix)][:2]

    def lease(self, session: str) -> InMemoryLease:
        """Acquire the turn lease. Raises SessionBusyError if it is held; never waits."""
        with self._lock:
            log = self._log(session)
            if log.leased:
                raise busy_error(session)
            log.leased = True
            return InMemoryLease(session, log)

    def parts(self, session: str) -> tuple[Part, ...]:
        """Return the parts that the log would have as files."""
        with self._lock:
            log = self._log(session)
            records = iter(log.records)
            result = []
            for number, (count, size) in enumerate(zip(log.counts, log.sizes, strict=True), 1):
                seqs = [record.seq for record in islice(records, count) if record.seq]
                first, last = (seqs[0], seqs[-1]) if seqs else (None, None)
                result.append(Part(part_name(number), size, first, last))
            return tuple(result)

    def verify(self, session: str) -> tuple[Damaged, ...]:
        """Return no problems: the bytes never left memory."""
        self.metadata(session)
        return ()

    def repair(self, session: str) -> tuple[str, ...]:
        """Do nothing: there is nothing to repair."""
        self.metadata(session)
        return ()

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def _log(self, session: str) -> InMemoryLog:
        check_id(session)
        if session not in self._logs:
            raise NotFoundError(f"there is no session {session}", session=session)
        return self._logs[session]

    def _highest_chat(self, thread: str) -> int:
        chats = self.chats(thread)
        return chats.highest if chats else 0

    def _holder(self, name: str) -> tuple[str, int] | None:
        claims = [
            (log.metadata.generations.get(name, log.metadata.current or 0), session)
            for session, log in self._logs.items()
            if name in log.metadata.names or name == log.metadata.thread
        ]
        if not claims:
            return None
        generation, session = max(claims)
        return session, generation
