"""One session's log, open for appending.

A writer remembers where it left the log. Under the lock one fstat says whether that still holds;
if not, it reads what is new. It never rewrites acknowledged bytes.

    lock → as left? → number the records → one write, one sync → unlock
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from itertools import chain, count

from everlog.errors import EverlogError, SessionBusyError
from everlog.log import append_rules, line_codec
from everlog.log.append_rules import REMEMBERED, Prepared
from everlog.log.fold import Tally
from everlog.log.parts import part_name, split_at_boundary
from everlog.model import (
    MARKERS,
    SCHEMA_VERSION,
    AnyRecord,
    Damaged,
    Event,
    Message,
    Metadata,
    Through,
)
from everlog.ports import SessionRow
from everlog.settings import SessionSettings
from everlog.stores.file import disk, metadata_file
from everlog.stores.file.log_reader import (
    OpenLog,
    is_birth,
    last_marker,
    part_numbers,
    recent_ids,
    record_at,
)
from everlog.stores.file.log_tail import Report, Tail

_WRITABLE = 0o200
_TAKE = LOCK_EX | LOCK_NB
_LONG = 1_000_000


class Writer:
    """Appends to one session, for all threads of this process."""

    def __init__(
        self,
        session: str,
        directory: int,
        settings: SessionSettings,
        report: Report,
        is_here: Callable[[int], bool],
    ) -> None:
        """Takes the directory's descriptor over; `is_here` says whether it still is the session."""
        self.session = session
        self._is_here = is_here
        self.closed = False
        self.saved_at = self.used_at = time.monotonic()
        self.due = False  # metadata.json should be written when the lock is given back
        self._settings = settings
        self._report = report
        self._durable = settings.durability == "always"
        self._mutex = threading.Lock()
        self._directory = directory
        self._lock = -1
        self._tail: Tail | None = None  # the last part; None until it is needed
        # Invariant: part, size, before and tally describe the log as this writer left it.
        self._part = 1
        self._size = 0
        self._before = 0  # bytes of the parts before
        self._tally = Tally.fresh(session)
        self._known_from = 0  # records above this seq passed through this writer's memory
        self._marker = 0  # the last marker among them
        self._ids: dict[str, int] | None = None  # id → seq, once somebody brought an id
        self._full = False  # the part takes no more: sealed, or its fsync failed
        self._born = False  # the log begins with what the session was made with
        try:
            with disk.errors_mapped(f"opening the lock of session {session}", session=session):
                disk.tighten(directory)
                self._lock = disk.open_file("lock", os.O_RDWR | os.O_CREAT, directory)
        except BaseException:
            self.close()
            raise

    # --- the lock

    def acquire(self) -> bool:
        """Take the session for this thread and process; False if the writer was closed meanwhile.

        SessionBusyError after the time that the settings give.
        """
        start = 0.0 if self._mutex.acquire(False) else self._wait_for_threads()
        try:
            if self.closed:
                self._mutex.release()
                return False
            flock(self._lock, _TAKE)
        except BlockingIOError:
            self._wait_for_processes(start or time.monotonic())
        except OSError as error:
            self._mutex.release()
            raise disk.mapped(error, f"locking session {self.session}") from error
        except BaseException:
            self._mutex.release()
            raise
        return True

    def _wait_for_threads(self) -> float:
        """Take the mutex within the time; returns when the waiting began."""
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
        """Give the session back."""
        try:
            if not self.closed:
                flock(self._lock, LOCK_UN)
        finally:
            self._mutex.release()

    # --- appending, under the lock

    def append(
        self, prepared: Sequence[Prepared], expected_seq: int | None, no_marker_after: int | None
    ) -> list[AnyRecord]:
        """Number, write and sync; returns the records as stored. Needs `acquire`."""
        if not self._as_left():
            self._catch_up()
        tally = self._tally
        if tally.newest_schema > SCHEMA_VERSION:
            append_rules.refuse_newer(self.session, tally.newest_schema)
        there: dict[int, AnyRecord] = {}
        for one in prepared:
            if one.retriable:
                there = self._find_retried(prepared)
                break
        if there and len(there) == len(prepared):
            return [there[index] for index in range(len(prepared))]
        if expected_seq is not None:
            append_rules.check_expected_seq(self.session, tally.seq, expected_seq, len(there))
        if no_marker_after is not None:
            self._check_no_marker_after(no_marker_after)
        if not there:
            return self._commit(prepared)
        stored = self._commit([one for i, one in enumerate(prepared) if i not in there])
        return [there[i] if i in there else stored.pop(0) for i in range(len(prepared))]

    def look(self) -> None:
        """Catch up with what others wrote, and seal a torn tail. Needs `acquire`."""
        if not self._as_left():
            self._catch_up()

    def _as_left(self) -> bool:
        """Whether nobody wrote, sealed or deleted since: one fstat."""
        tail = self._tail
        if tail is None:
            return False
        if tail.failure is not None:
            raise tail.failure
        status = os.fstat(tail.descriptor)
        if not status.st_nlink:
            raise Gone
        return (
            status.st_size == self._size and status.st_mode & _WRITABLE != 0 and not tail.disturbed
        )

    def _catch_up(self) -> None:
        """Look at the log anew, after others wrote, sealed or deleted, or for the first time."""
        if not self._is_here(self._directory):
            raise Gone
        try:
            with disk.errors_mapped(f"opening session {self.session}", session=self.session):
                self._read_anew()
        except BaseException:
            if self._tail is not None:  # half known is worse than unknown
                self._tail.close()
                self._tail = None
            raise

    def _read_anew(self) -> None:
        with OpenLog(os.dup(self._directory)) as log:
            last = log.last
            tail = self._tail
            fresh = tail is None or tail.disturbed
            unknown = fresh or last != self._part
            if tail is None or unknown:
                tail = self._open_part(last, new=not log.numbers)
            size = os.fstat(tail.descriptor).st_size if self._full else self._seal_torn(tail, last)
        if self._durable:
            # Who wrote this may have been killed before it synced: nothing may be built on it,
            # nor be found in it by a retry, that a power cut could still take away.
            disk.sync(tail.descriptor)
            if unknown:
                disk.sync_directory(self._directory)
        with OpenLog(os.dup(self._directory)) as log:
            start = Through(part=self._part, bytes=self._size, seq=self._tally.seq)
            if fresh or not metadata_file.covers(start, log):
                self._tally, _ = metadata_file.load(self.session, log)
                first = next(log.forward(), None)
                self._born = first is not None and is_birth(first)
                self._known_from, self._marker, self._ids = self._tally.seq, 0, None
                self.due = self.due or log.size() > _LONG  # so that the next one reads less
            else:
                self._learn(log, start)
            self._before = sum(log.part(number).size for number in log.numbers if number != last)
            self._part, self._size = last, size

    def _open_part(self, number: int, *, new: bool) -> Tail:
        name = part_name(number)
        flags = os.O_RDWR | os.O_APPEND | (os.O_CREAT if new else 0)
        # Sealed and still the last: a crash came between sealing it and starting the next.
        sealed = not new and not (
            os.stat(name, dir_fd=self._directory, follow_symlinks=False).st_mode & _WRITABLE
        )
        descriptor = disk.open_file(name, os.O_RDONLY if sealed else flags, self._directory)
        if not sealed:
            disk.tighten(descriptor)
        if self._tail is not None:
            self._tail.close()
        self._tail = Tail(descriptor, self.session, self._report, durable=self._durable)
        self._full = sealed
        return self._tail

    def _seal_torn(self, tail: Tail, number: int) -> int:
        def keep(start: int, end: int) -> str:
            return self.set_aside("torn", number, start, end)

        return tail.seal_torn(part_name(number), keep)

    def set_aside(self, why: str, number: int, start: int, end: int) -> str:
        """Copy a stretch of a part into a file of its own, durably; returns its name."""
        taken = os.listdir(self._directory)
        plain = f"{why}.{number}.{start}"
        others = (f"{plain}.{more}" for more in count(2))
        name = next(name for name in chain((plain,), others) if name not in taken)
        with disk.errors_mapped(f"setting aside {name}", session=self.session):
            source = disk.open_file(part_name(number), os.O_RDONLY, self._directory)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            copy = disk.open_file(name, flags, self._directory)
            try:
                disk.copy(source, copy, start, end)
                disk.sync(copy)
            finally:
                os.close(source)
                os.close(copy)
            disk.sync_directory(self._directory)
        return name

    def _learn(self, log: OpenLog, start: Through) -> None:
        for entry in log.forward(start.part, start.bytes, start.seq):
            if isinstance(entry, Damaged):
                self._tally.skip()
            else:
                self._remember(entry)

    def _remember(self, record: AnyRecord) -> None:
        self._tally.add(record)
        if isinstance(record, MARKERS):
            self._marker = record.seq
        elif isinstance(record, Event) and record.kind == "turn_end":
            self.due = True
        if self._ids is not None and record.id:
            self._ids[record.id] = record.seq
            if len(self._ids) > 2 * REMEMBERED:
                low = record.seq - REMEMBERED
                self._ids = {name: seq for name, seq in self._ids.items() if seq > low}

    # --- retries and guards

    def _find_retried(self, prepared: Sequence[Prepared]) -> dict[int, AnyRecord]:
        """Which of the records are stored already, by their place in the batch."""
        there: dict[int, AnyRecord] = {}
        with (
            disk.errors_mapped(f"reading session {self.session}", session=self.session),
            OpenLog(os.dup(self._directory)) as log,
        ):
            if self._ids is None:
                self._ids = recent_ids(log, REMEMBERED)
            for index, one in enumerate(prepared):
                seq = self._ids.get(one.record.id) if one.retriable else None
                if seq is not None and seq > self._tally.seq - REMEMBERED:
                    stored = record_at(log, seq)
                    there[index] = append_rules.checked_retry(self.session, one.record, stored, seq)
        return there

    def _check_no_marker_after(self, no_marker_after: int) -> None:
        marker = self._marker
        if not marker and no_marker_after < self._known_from:
            with (
                disk.errors_mapped(f"reading session {self.session}", session=self.session),
                OpenLog(os.dup(self._directory)) as log,
            ):
                marker = last_marker(log, no_marker_after)
        append_rules.check_no_marker_after(self.session, marker, no_marker_after)

    # --- writing

    def _commit(self, new: Sequence[Prepared]) -> list[AnyRecord]:
        head = seq = self._tally.seq
        size, before, limits = self._size, self._before, self._settings
        blank = size + before == 0
        rows = [append_rules.birth(self._tally)] if blank else []
        for one in new:
            seq += 1
            rows.append(line_codec.seal(one.body, one.record.record_type, seq))
        data = b"%b\n" % b"\n".join(rows)
        total = before + size + len(data)
        if len(data) > limits.line_bytes or total > limits.total_bytes:  # worth a closer look
            append_rules.check_limits(self.session, rows, new, before + size, limits)
        tail = self._tail
        assert tail is not None
        if size + len(data) <= limits.part_bytes and not (self._full or tail.suspect):
            self._size = tail.put(data, size)
        else:
            self._put_in_parts(rows, tail)
        if blank:
            born = line_codec.decode(rows.pop(0)).record
            assert born is not None
            self._tally.add(born)
            self._born = True
        stored = []
        for one, row in zip(new, rows, strict=True):
            head += 1
            record = line_codec.stored(one.record, head, row, plain=one.plain)
            if self._ids is None and isinstance(record, Message):
                self._tally.add(record)
            else:
                self._remember(record)
            stored.append(record)
        return stored

    def _put_in_parts(self, rows: list[bytes], old: Tail) -> None:
        """Write across a part boundary; on an error the log is as it was before."""
        limit = self._settings.part_bytes
        used = limit if self._full or old.suspect else self._size
        first, *rest = split_at_boundary(rows, used, limit)
        base = end = self._size
        made: list[Tail] = []
        sizes: list[int] = []
        try:
            if first:
                end = old.put(_joined(first), base)
            for number, group in enumerate(rest, self._part + 1):
                made.append(self._start_part(number, made[-1] if made else old))
                sizes.append(made[-1].put(_joined(group), 0))
            if rest and self._durable:
                with disk.errors_mapped("syncing the directory", session=self.session):
                    disk.sync_directory(self._directory)
        except BaseException:
            self._take_back(made, old, base, end)
            raise
        if not made:
            self._size = end
            return
        for tail in (old, *made[:-1]):
            tail.close()
        self._before += end + sum(sizes[:-1])
        self._part += len(made)
        self._tail, self._size, self._full = made[-1], sizes[-1], False

    def _start_part(self, number: int, before: Tail) -> Tail:
        """Seal a part and make the next one, in this order: a writer that finds its part sealed
        looks for the next, so none goes on in the old one, whenever this process dies."""
        with disk.errors_mapped(f"starting {part_name(number)}", session=self.session):
            os.fchmod(before.descriptor, 0o400)
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL
            descriptor = disk.open_file(part_name(number), flags, self._directory)
        return Tail(descriptor, self.session, self._report, durable=self._durable)

    def _take_back(self, made: list[Tail], old: Tail, base: int, end: int) -> None:
        """A new part failed: nothing of the call may stay behind."""
        with suppress(OSError):
            for number, tail in enumerate(made, self._part + 1):
                tail.close()
                os.unlink(part_name(number), dir_fd=self._directory)
            disk.sync_directory(self._directory)
        if end != base:
            old.cut(base, end)
        if not self._full:
            with suppress(OSError):
                os.fchmod(old.descriptor, 0o600)

    # --- what it knows

    @property
    def metadata(self) -> Metadata:
        """The metadata as this writer left the log."""
        return self._tally.metadata(self._part, self._size)

    @property
    def total(self) -> int:
        """Bytes of all parts."""
        return self._before + self._size

    @property
    def part(self) -> int:
        """The number of the current part."""
        return self._part

    @property
    def directory(self) -> int:
        """The session's directory; the writer owns it."""
        return self._directory

    def hold(self) -> bool:
        """Keep other threads out, while processes may go on; False if that takes too long."""
        return self._mutex.acquire(timeout=self._settings.lock_seconds)

    def let_go(self) -> None:
        """Let other threads in again."""
        self._mutex.release()

    @property
    def loaded(self) -> bool:
        """Whether it knows the log: it was used and not closed yet."""
        return not self.closed and self._tail is not None

    def current(self) -> Metadata | None:
        """The metadata if the log is as this writer left it; waits for an append at most."""
        if not self.hold():
            return None
        try:
            with suppress(Gone, EverlogError, OSError):
                return self.metadata if self.loaded and self._as_left() else None
            return None
        finally:
            self.let_go()

    def save(self) -> SessionRow:
        """Write metadata.json, with an fsync where no record holds its facts; the index row."""
        with disk.errors_mapped(f"saving metadata of session {self.session}"):
            durable = self._durable and not self._born
            metadata_file.save(self.metadata, self._directory, durable=durable)
        self.saved_at, self.due = time.monotonic(), False
        return SessionRow(self.metadata, self.total, self._part)

    def seal(self) -> None:
        """Let no writer add to the last part any more: each looks at the session anew first."""
        with disk.errors_mapped(f"sealing session {self.session}", session=self.session):
            for name in map(part_name, part_numbers(self._directory)[-1:]):
                status = os.stat(name, dir_fd=self._directory, follow_symlinks=False)
                if not stat.S_ISREG(status.st_mode):
                    continue  # planted: no writer has that open
                part = disk.open_file(name, os.O_RDONLY, self._directory)
                try:
                    os.fchmod(part, 0o400)
                finally:
                    os.close(part)

    def close(self) -> None:
        """Give the descriptors back; closing drops the flock too."""
        self.closed = True
        if self._tail is not None:
            self._tail.close()
        for descriptor in (self._lock, self._directory):
            if descriptor >= 0:
                os.close(descriptor)
        self._tail = None
        self._lock = self._directory = -1

    # In a forked child: unlocking would free the parent's lock, closing does not.
    abandon = close


class Gone(Exception):
    """The session was deleted while this writer had it open."""


def _joined(rows: list[bytes]) -> bytes:
    return b"%b\n" % b"\n".join(rows)
