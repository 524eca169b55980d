"""The writer of one session's log.

A writer remembers where it left the log. Under the lock one fstat tells whether that still holds;
if not, it reads what is new. It never rewrites acknowledged bytes.

    lock → unchanged? → assign seqs → one write, one sync → unlock
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from functools import partial
from itertools import chain, count

from everlog.errors import EverlogError, SessionBusyError
from everlog.log import line_codec
from everlog.log.fold import MetadataFold
from everlog.log.parts import part_name, split_at_boundary
from everlog.model import MARKERS, SCHEMA_VERSION, AnyRecord, Damaged, Event, Message, Metadata, Through
from everlog.ports import SessionRow
from everlog.settings import SessionSettings
from everlog.stores import rules
from everlog.stores.file import disk, metadata_file
from everlog.stores.file.log_reader import LogReader, holds_metadata, last_marker, part_numbers, recent_ids, record_at
from everlog.stores.file.log_tail import LogTail, Report
from everlog.stores.rules import RETRY_WINDOW, AppendCall, PreparedRecord

_WRITABLE = 0o200
_LOCK_FLAGS = LOCK_EX | LOCK_NB
_LONG_LOG_BYTES = 1_000_000


class LogWriter:
    """A writer that appends to one session, for all threads of this process."""

    def __init__(
        self, session: str, directory: int, settings: SessionSettings, report: Report, is_current: Callable[[int], bool]
    ) -> None:
        """Take over the directory's descriptor; `is_current` tells if it still is the session's."""
        self.session = session
        self._is_current = is_current
        self.is_closed = False
        self.saved_at = self.used_at = time.monotonic()
        self.save_due = False  # metadata.json should be written after the release
        self._settings = settings
        self._report = report
        self._durable = settings.durability == "always"
        self._mutex = threading.Lock()
        self.directory = directory  # its descriptor
        self._lock = -1
        self._tail: LogTail | None = None  # the last part; None until it is needed
        # Invariant: part, size, earlier_bytes and fold describe the log as this writer left it.
        self.part = 1
        self._size = 0
        self._earlier_bytes = 0  # of the parts before the last
        self._fold = MetadataFold.empty(session)
        self._seen_from_seq = 0  # this writer has seen every record above this seq
        self._last_marker = 0  # seq of the last marker among them
        self._ids: dict[str, int] | None = None  # id → seq, once a caller gave an id
        self._is_part_full = False  # the part takes no more lines: it is sealed
        self._holds_metadata = False  # a record holds the initial metadata, so metadata.json is a cache
        try:
            with disk.map_errors(f"opening the lock of session {session}", session=session):
                disk.restrict_mode(directory)
                self._lock = disk.open_file("lock", os.O_RDWR | os.O_CREAT, directory)
        except BaseException:
            self.close()
            raise

    # --- the lock

    def acquire(self) -> bool:
        """Lock the session for this thread and process; False if the writer was closed meanwhile.

        Raises SessionBusyError after `lock_seconds`.
        """
        start = 0.0 if self._mutex.acquire(False) else self._wait_for_threads()
        try:
            if self.is_closed:
                self._mutex.release()
                return False
            flock(self._lock, _LOCK_FLAGS)
        except BlockingIOError:
            self._wait_for_processes(start or time.monotonic())
        except OSError as error:
            self._mutex.release()
            raise disk.map_error(error, f"locking session {self.session}") from error
        except BaseException:
            self._mutex.release()
            raise
        return True

    def _wait_for_threads(self) -> float:
        """Acquire the mutex within `lock_seconds`; returns when the wait began."""
        start = time.monotonic()
        if not self._mutex.acquire(timeout=self._settings.lock_seconds):
            raise SessionBusyError(
                f"session {self.session} is held by another thread of this process",
                hint="try again when it has finished",
                session=self.session,
            )
        return start

    def _wait_for_processes(self, start: float) -> None:
        seconds = self._settings.lock_seconds - (time.monotonic() - start)
        try:
            disk.lock(self._lock, seconds, f"session {self.session}", session=self.session)
        except BaseException:
            self._mutex.release()
            raise

    def release(self) -> None:
        """Unlock the session."""
        try:
            if not self.is_closed:
                flock(self._lock, LOCK_UN)
        finally:
            self._mutex.release()

    # --- appending, under the lock

    def append(self, call: AppendCall) -> list[AnyRecord]:
        """Assign seqs, write and sync; returns the records as stored. Needs `acquire`."""
        if not self._is_unchanged():
            self._reload()
        fold = self._fold
        if fold.newest_schema > SCHEMA_VERSION:
            rules.refuse_newer_schema(self.session, fold.newest_schema)
        prepared = call.prepared
        retried: dict[int, AnyRecord] = {}
        for item in prepared:
            if item.retriable:
                retried = self._find_retried(call)
                break
        if len(retried) == len(prepared):
            return rules.in_order(retried, [])
        if call.expected_seq is not None or call.no_marker_after is not None:
            rules.check_conditions(self.session, call, fold.seq, len(retried), self._find_marker)
        if not retried:
            return self._commit(prepared)
        return rules.in_order(retried, self._commit(rules.without_retried(call, retried)))

    def catch_up(self) -> None:
        """Read what others wrote, and repair a torn tail. Needs `acquire`."""
        if not self._is_unchanged():
            self._reload()

    def _is_unchanged(self) -> bool:
        """Return whether nobody wrote, sealed or deleted since: one fstat."""
        tail = self._tail
        if tail is None:
            return False
        if tail.failure is not None:
            raise tail.failure
        status = os.fstat(tail.descriptor)
        if not status.st_nlink:
            raise SessionDeletedError
        return status.st_size == self._size and status.st_mode & _WRITABLE != 0 and not tail.has_unlocked_writer

    def _reload(self) -> None:
        """Read the log on first use, or after others wrote, sealed or deleted."""
        if not self._is_current(self.directory):
            raise SessionDeletedError
        try:
            with disk.map_errors(f"opening session {self.session}", session=self.session):
                self._read_log()
        except BaseException:
            if self._tail is not None:  # a partly known state is worse than none
                self._tail.close()
                self._tail = None
            raise

    def _read_log(self) -> None:
        with LogReader(os.dup(self.directory)) as log:
            last = log.last_part
            tail = self._tail
            is_first_read = tail is None or tail.has_unlocked_writer
            is_new_part = is_first_read or last != self.part
            if tail is None or is_new_part:
                tail = self._open_part(last, new=not log.numbers)
            if self._is_part_full:
                size = os.fstat(tail.descriptor).st_size
            else:
                size = tail.repair_tail(part_name(last), partial(self.quarantine, "torn", last))
        if self._durable:
            # The process that wrote this may have been killed before it synced: a power cut could
            # still lose it, so sync before anything builds on it or a retry is found in it.
            disk.sync(tail.descriptor)
            if is_new_part:
                disk.sync_directory(self.directory)
        with LogReader(os.dup(self.directory)) as log:
            start = Through(part=self.part, bytes=self._size, seq=self._fold.seq)
            if is_first_read or not metadata_file.covers(start, log):
                self._fold, _ = metadata_file.load(self.session, log)
                self._holds_metadata = holds_metadata(log)
                self._seen_from_seq, self._last_marker, self._ids = self._fold.seq, 0, None
                # So that the next writer reads less.
                self.save_due = self.save_due or log.total_size() > _LONG_LOG_BYTES
            else:
                for entry in log.forward(start.part, start.bytes, start.seq):
                    if isinstance(entry, Damaged):
                        self._fold.skip_damaged()
                    else:
                        self._add_records([entry])
            self._earlier_bytes = sum(log.part(n).size for n in log.numbers if n != last)
            self.part, self._size = last, size

    def _open_part(self, number: int, *, new: bool) -> LogTail:
        name = part_name(number)
        flags = os.O_RDWR | os.O_APPEND | (os.O_CREAT if new else 0)
        # Sealed and still the last: a crash between sealing it and starting the next.
        is_sealed = not new and not (os.stat(name, dir_fd=self.directory, follow_symlinks=False).st_mode & _WRITABLE)
        descriptor = disk.open_file(name, os.O_RDONLY if is_sealed else flags, self.directory)
        if not is_sealed:
            disk.restrict_mode(descriptor)
        if self._tail is not None:
            self._tail.close()
        self._tail = LogTail(descriptor, self.session, self._report, durable=self._durable)
        self._is_part_full = is_sealed
        return self._tail

    def quarantine(self, prefix: str, number: int, start: int, end: int) -> str:
        """Copy a byte range of a part into a file of its own, durably; returns its name."""
        existing = os.listdir(self.directory)
        base = f"{prefix}.{number}.{start}"
        numbered = (f"{base}.{suffix}" for suffix in count(2))
        name = next(name for name in chain((base,), numbered) if name not in existing)
        with disk.map_errors(f"quarantining {name}", session=self.session):
            with (
                disk.opened_file(part_name(number), os.O_RDONLY, self.directory) as source,
                disk.opened_file(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, self.directory) as copy,
            ):
                disk.copy(source, copy, start, end)
                disk.sync(copy)
            disk.sync_directory(self.directory)
        return name

    def _add_records(self, records: Sequence[AnyRecord]) -> None:
        for record in records:
            self._fold.add(record)
            if type(record) is Message:  # most records are, and need none of the checks
                continue
            if isinstance(record, MARKERS):
                self._last_marker = record.seq
            elif isinstance(record, Event) and record.kind == "turn_end":
                self.save_due = True
        if self._ids is not None:
            self._ids |= {record.id: record.seq for record in records if record.id}
            if len(self._ids) > 2 * RETRY_WINDOW:
                low = self._fold.seq - RETRY_WINDOW
                self._ids = {name: seq for name, seq in self._ids.items() if seq > low}

    # --- retries and conditions

    def _find_retried(self, call: AppendCall) -> dict[int, AnyRecord]:
        if self._ids is not None and self._ids.keys().isdisjoint([item.record.id for item in call.prepared]):
            return {}  # new ids, as usual: the log need not be opened
        with (
            disk.map_errors(f"reading session {self.session}", session=self.session),
            LogReader(os.dup(self.directory)) as log,
        ):
            if self._ids is None:
                self._ids = recent_ids(log, RETRY_WINDOW)
            return rules.find_retried(self.session, call, self._fold.seq, self._ids.get, partial(record_at, log))

    def _find_marker(self, after: int) -> int:
        """Return the seq of the last marker; one up to `after` need not be found."""
        if self._last_marker or after >= self._seen_from_seq:
            return self._last_marker
        with (
            disk.map_errors(f"reading session {self.session}", session=self.session),
            LogReader(os.dup(self.directory)) as log,
        ):
            return last_marker(log, after)

    # --- writing

    def _commit(self, records: Sequence[PreparedRecord]) -> list[AnyRecord]:
        first_seq = self._fold.seq + 1
        size, earlier_bytes, limits = self._size, self._earlier_bytes, self._settings
        is_empty = size + earlier_bytes == 0
        if is_empty:
            initial = rules.birth_line(self._fold)
        elif self._holds_metadata:
            initial = None
        else:
            initial = rules.adoption_line(self._fold, first_seq, records[0].record.timestamp)
            first_seq += initial is not None
        lines = [] if initial is None else [initial]
        for seq, item in enumerate(records, first_seq):
            lines.append(line_codec.build_line(item.body, item.record.record_type, seq))
        data = _join_lines(lines)
        total = earlier_bytes + size + len(data)
        if len(data) > limits.line_bytes or total > limits.total_bytes:  # a cheap check first
            rules.check_limits(self.session, lines, records, earlier_bytes + size, limits)
        tail = self._tail
        assert tail is not None
        if size + len(data) <= limits.part_bytes and not (self._is_part_full or tail.sync_failed):
            self._size = tail.append(data, size)
        else:
            self._write_across_parts(lines, tail)
        if initial is not None:
            record = line_codec.decode(lines.pop(0)).record
            assert record is not None
            self._fold.add(record)
            self._holds_metadata = True
        stored = [
            line_codec.as_stored(item.record, seq, line, plain=item.plain)
            for seq, (item, line) in enumerate(zip(records, lines, strict=True), first_seq)
        ]
        self._add_records(stored)
        return stored

    def _write_across_parts(self, lines: list[bytes], current: LogTail) -> None:
        """Write lines across a part boundary; an error leaves the log as it was before."""
        limit = self._settings.part_bytes
        used_bytes = limit if self._is_part_full or current.sync_failed else self._size
        first, *groups = split_at_boundary(lines, used_bytes, limit)
        base = end = self._size
        new_tails: list[LogTail] = []
        sizes: list[int] = []
        try:
            if first:
                end = current.append(_join_lines(first), base)
            for number, group in enumerate(groups, self.part + 1):
                new_tails.append(self._start_part(number, new_tails[-1] if new_tails else current))
                sizes.append(new_tails[-1].append(_join_lines(group), 0))
            if groups and self._durable:
                with disk.map_errors("syncing the directory", session=self.session):
                    disk.sync_directory(self.directory)
        except BaseException:
            self._undo_write(new_tails, current, base, end)
            raise
        if not new_tails:
            self._size = end
            return
        for tail in (current, *new_tails[:-1]):
            tail.close()
        self._earlier_bytes += end + sum(sizes[:-1])
        self.part += len(new_tails)
        self._tail, self._size, self._is_part_full = new_tails[-1], sizes[-1], False

    def _start_part(self, number: int, previous: LogTail) -> LogTail:
        """Seal a part and create the next one, in this order: a writer that finds its part sealed
        looks for the next, so none continues in the old one, whenever this process dies."""
        with disk.map_errors(f"starting {part_name(number)}", session=self.session):
            os.fchmod(previous.descriptor, 0o400)
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL
            descriptor = disk.open_file(part_name(number), flags, self.directory)
        return LogTail(descriptor, self.session, self._report, durable=self._durable)

    def _undo_write(self, new_tails: list[LogTail], current: LogTail, base: int, end: int) -> None:
        """Undo a write whose new part failed: nothing of the call may remain."""
        with suppress(OSError):
            for number, tail in enumerate(new_tails, self.part + 1):
                tail.close()
                os.unlink(part_name(number), dir_fd=self.directory)
            disk.sync_directory(self.directory)
        if end != base:
            current.cut(base, end)
        if not self._is_part_full:
            with suppress(OSError):
                os.fchmod(current.descriptor, 0o600)

    # --- state

    @property
    def metadata(self) -> Metadata:
        """Return the metadata as this writer left the log."""
        return self._fold.metadata(self.part, self._size)

    @property
    def total_bytes(self) -> int:
        """Return the bytes of all parts."""
        return self._earlier_bytes + self._size

    def lock_threads(self) -> bool:
        """Lock out other threads, but not processes; False after `lock_seconds`."""
        return self._mutex.acquire(timeout=self._settings.lock_seconds)

    def unlock_threads(self) -> None:
        """Let other threads in again, after `lock_threads`."""
        self._mutex.release()

    @property
    def is_loaded(self) -> bool:
        """Return whether the log was read and the writer is not closed yet."""
        return not self.is_closed and self._tail is not None

    def current_metadata(self) -> Metadata | None:
        """Return the metadata if the log is unchanged, else None; waits for one append at most."""
        if not self.lock_threads():
            return None
        try:
            with suppress(SessionDeletedError, EverlogError, OSError):
                return self.metadata if self.is_loaded and self._is_unchanged() else None
            return None
        finally:
            self.unlock_threads()

    def save(self) -> SessionRow:
        """Write metadata.json, synced if no record holds its content; returns the index row."""
        with disk.map_errors(f"saving metadata of session {self.session}"):
            durable = self._durable and not self._holds_metadata
            metadata_file.save(self.metadata, self.directory, durable=durable)
        self.saved_at, self.save_due = time.monotonic(), False
        return SessionRow(self.metadata, self.total_bytes, self.part)

    def seal(self) -> None:
        """Seal the last part, so that every writer reloads the session before it appends."""
        with disk.map_errors(f"sealing session {self.session}", session=self.session):
            for name in map(part_name, part_numbers(self.directory)[-1:]):
                status = os.stat(name, dir_fd=self.directory, follow_symlinks=False)
                if not stat.S_ISREG(status.st_mode):
                    continue  # planted: no writer has it open
                with disk.opened_file(name, os.O_RDONLY, self.directory) as part:
                    os.fchmod(part, 0o400)

    def close(self) -> None:
        """Close the descriptors; that releases the flock too."""
        self.is_closed = True
        if self._tail is not None:
            self._tail.close()
        for descriptor in (self._lock, self.directory):
            if descriptor >= 0:
                os.close(descriptor)
        self._tail = None
        self._lock = self.directory = -1

    # In a forked child: unlocking would release the parent's lock, closing does not.
    abandon = close


class SessionDeletedError(Exception):
    """The session was deleted while this writer had it open."""


def _join_lines(lines: list[bytes]) -> bytes:
    return b"\n".join((*lines, b""))
