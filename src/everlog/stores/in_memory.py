"""The in-memory store, with the semantics of the file store: for tests and for subagents.

Lines are kept as they would be in a file, parts included, so that both stores hold the same
records byte for byte.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from everlog.errors import FormatError
from everlog.log import line_codec, usage_query
from everlog.log.fold import MetadataFold, apply_changes
from everlog.log.parts import part_name, split_at_boundary
from everlog.model import MARKERS, AnyRecord, Damaged, Entry, Metadata, Part
from everlog.ports import Filter, Lease, Order, Page, Progress, SessionRow, UsageReport
from everlog.ports.listing import make_page, matcher
from everlog.settings import SessionSettings, Settings
from everlog.stores import rules
from everlog.stores.file.log_reader import is_birth_record
from everlog.stores.rules import AppendCall
from everlog.stores.store_verbs import StoreVerbs

if TYPE_CHECKING:
    from everlog.index.search.search_index import SearchIndex

T = TypeVar("T")


class InMemoryLog:
    """The log of one session."""

    def __init__(self, metadata: Metadata, settings: SessionSettings) -> None:
        self.settings = settings
        self.fold = MetadataFold(metadata)
        self.records: list[AnyRecord] = []  # the birth record included
        self.counts = [0]  # records of each part
        self.sizes = [0]  # bytes of each part
        self.last_marker = 0
        self.ids: dict[str, int] = {}  # id → seq
        self.leased = False
        self._metadata: Metadata | None = None  # a cache, for listings and lookups

    @property
    def metadata(self) -> Metadata:
        """Return the metadata up to the last record."""
        if self._metadata is None:
            self._metadata = self.fold.metadata(len(self.sizes), self.sizes[-1])
        return self._metadata

    def append(self, call: AppendCall) -> list[AnyRecord]:
        """Assign seqs and store, by the append rules of every store."""
        session, head = self.metadata.id, self.fold.seq
        retried = rules.find_retried(session, call, head, self.ids.get, self._record_at)
        new = rules.without_retried(call, retried)
        if not new:
            return rules.in_order(retried, [])
        rules.check_conditions(session, call, head, len(retried), lambda _: self.last_marker)
        lines = [] if self.records else [rules.birth_line(self.fold)]
        first = len(lines)
        for number, item in enumerate(new, head + 1):
            lines.append(line_codec.build_line(item.body, item.record.record_type, number))
        rules.check_limits(session, lines, new, sum(self.sizes), self.settings)
        records = [_decode(line) for line in lines]
        self.add_records(records)
        return rules.in_order(retried, records[first:])

    def _record_at(self, seq: int) -> AnyRecord:
        return self.records[seq - self.records[0].seq]  # seqs are dense

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
                self.ids[record.id] = record.seq


def _decode(line: bytes) -> AnyRecord:
    record = line_codec.decode(line).record
    if record is None:
        raise FormatError("the record could not be read back")
    return record


class InMemoryLease(Lease):
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


class InMemoryStore(StoreVerbs):
    """The store port in RAM."""

    lease_type = InMemoryLease

    def __init__(self, settings: Settings | None = None, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(settings, clock)
        self._lock = threading.RLock()
        self._logs: dict[str, InMemoryLog] = {}

    # --- writing

    def _lock_names(self) -> AbstractContextManager[object]:
        return self._lock

    def _add(self, metadata: Metadata) -> None:
        self._logs[metadata.id] = InMemoryLog(metadata, self.limits)

    def _append(self, session: str, call: AppendCall) -> list[AnyRecord]:
        with self._lock:
            return self._log(session).append(call)

    def _append_meta(self, session: str, changes: dict[str, Any]) -> Metadata:
        with self._lock:
            log = self._log(session)
            log.append(self._meta_call(changes))
            return log.metadata

    def fork(self, session: str, at: int | None = None) -> Metadata:
        """Create a session with the records up to one, byte for byte."""
        with self._lock:
            log = self._log(session)
            seq = log.fold.seq if at is None else at
            if at is not None and not any(record.seq == at for record in log.records):
                raise rules.no_record(session, at)
            changes = rules.fork_changes(log.metadata, seq, self._highest_chat, has_birth=bool(log.records))
            blank = rules.blank_metadata(self._new_ulid())
            if not log.records:
                blank = apply_changes(blank, changes)
            self._add(blank)
            if log.records:
                copy = self._logs[blank.id]
                copy.add_records([record for record in log.records if record.seq <= seq])
                copy.append(self._meta_call(changes))
            return self.metadata(blank.id)

    def delete(self, session: str) -> int:
        """Delete a session."""
        with self.lease(session), self._lock:
            return len(self._logs.pop(session).sizes)

    def lease(self, session: str) -> InMemoryLease:
        """Acquire the turn lease. Raises SessionBusyError if it is held; never waits."""
        with self._lock:
            log = self._log(session)
            if log.leased:
                raise rules.busy_error(session)
            log.leased = True
            return InMemoryLease(session, log)

    # --- reading

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
        rules.check_id(session)
        if session not in self._logs:
            raise rules.no_session(session)
        return self._logs[session]

    # --- finding

    def _page(self, criteria: Filter, limit: int, cursor: str | None, order: Order) -> Page:
        return make_page(filter(matcher(criteria), self._rows()), limit, cursor, order)

    def _usage(self, criteria: Filter, days: tuple[str, str], spenders: int) -> UsageReport:
        matches = matcher(criteria)
        return usage_query.query_usage((row.metadata for row in self._rows() if matches(row)), days, spenders)

    def catch_up(self, progress: Progress | None = None) -> int:
        """Do nothing: there is no lasting index."""
        return 0

    def query_index(self, ask: Callable[[SearchIndex], T], default: T) -> T:
        """Run a query on an index of all sessions, made for it."""
        from everlog.index.listing_rows import SessionIndex  # noqa: PLC0415 - loads SQLite; few search here
        from everlog.index.search.search_index import open_search_index  # noqa: PLC0415

        index = SessionIndex(None, lambda _: None)
        index.put(self._rows(), new=True)
        search = open_search_index(
            index,
            lambda session, after: self.read(session, after=after),
            lambda _: None,
            include_tools=self._tool_output,
        )
        search.catch_up()
        return ask(search)

    def _rows(self) -> list[SessionRow]:
        with self._lock:
            return [SessionRow(log.metadata, sum(log.sizes), len(log.sizes)) for log in self._logs.values()]

    def _exists(self, session: str) -> bool:
        return session in self._logs

    def _ids_with_prefix(self, prefix: str) -> Sequence[str]:
        with self._lock:
            logs = self._logs.items()
            named = (
                session for session, log in logs if any(n.startswith(prefix) for n in (session, *log.metadata.names))
            )
            return list(islice(named, 2))

    def _newest_chat(self, thread: str) -> tuple[str, int] | None:
        with self._lock:
            logs = [log.metadata for log in self._logs.values() if log.metadata.thread == thread]
        return max(((data.id, data.chat or 0) for data in logs), key=lambda chat: chat[::-1], default=None)

    def _holder(self, name: str) -> tuple[str, int] | None:
        with self._lock:
            logs = [log.metadata for log in self._logs.values() if name in (*log.metadata.names, log.metadata.thread)]
        claims = ((data.id, data.generations.get(name, data.current or 0)) for data in logs)
        return max(claims, key=lambda claim: claim[::-1], default=None)

    _named = _holder
