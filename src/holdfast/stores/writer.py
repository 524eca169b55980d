"""One session's log, open for appending.

A writer remembers where it left the log. Under the lock one fstat says whether that still holds;
if not, it reads what is new. It never rewrites acknowledged bytes: it only cuts off what was
never acknowledged, after setting it aside, or right after its own failed write.

    lock → as left? → number the records → one write → where did it end? → fdatasync → unlock
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import cast

from holdfast.errors import SessionBusy, StoreFailed
from holdfast.log import admit, lines
from holdfast.log.admit import REMEMBERED, Prepared
from holdfast.log.fold import Tally
from holdfast.log.parts import part_name, split_at_boundary
from holdfast.log.recover import examine
from holdfast.model import MARKERS, AnyRecord, Damaged, Metadata, Through
from holdfast.ports import Listed
from holdfast.settings import SessionSettings
from holdfast.stores import disk, sidecar
from holdfast.stores.reading import OpenLog

_WRITABLE = 0o200
Report = Callable[[str], None]


class Writer:
    """Appends to one session, for all threads of this process."""

    def __init__(
        self, session: str, directory: int, settings: SessionSettings, report: Report
    ) -> None:
        """Takes the directory's descriptor over."""
        self.session = session
        self.closed = False
        self.saved_at = time.monotonic()
        self.due = False  # metadata.json should be written when the lock is given back
        self._settings = settings
        self._report = report
        self._durable = settings.durability == "always"
        self._mutex = threading.Lock()
        self._directory = directory
        self._lock = self._log = -1
        # Invariant: part, size, before and tally describe the log as this writer left it.
        self._part = 1
        self._size = 0
        self._before = 0  # bytes of the parts before
        self._tally = Tally.fresh(session)
        self._known_from = 0  # records above this seq passed through this writer's memory
        self._marker = 0  # the last marker among them
        self._ids: dict[str, int] | None = None  # id → seq, once somebody brought an id
        self._distrusted = False  # sealed, or its fsync failed: go on in a new part
        self._unsure = False  # somebody wrote without a lock: read everything again
        self._failed: StoreFailed | None = None
        try:
            with disk.errors_mapped(f"opening the lock of session {session}", session=session):
                self._lock = disk.open_file("lock", os.O_RDWR | os.O_CREAT, directory)
        except BaseException:
            self.close()
            raise

    # --- the lock

    def acquire(self) -> bool:
        """Take the session for this thread and process; False if the writer was closed meanwhile.

        SessionBusy after the time that the settings give.
        """
        if not self._mutex.acquire(timeout=self._settings.lock_seconds):
            raise SessionBusy(
                f"session {self.session} is held by another thread",
                hint="try again when it has finished",
                session=self.session,
            )
        try:
            if self.closed:
                self._mutex.release()
                return False
            disk.lock(
                self._lock,
                self._settings.lock_seconds,
                f"session {self.session}",
                session=self.session,
            )
        except BaseException:
            self._mutex.release()
            raise
        return True

    def release(self) -> None:
        """Give the session back."""
        try:
            if not self.closed:
                disk.unlock(self._lock)
        finally:
            self._mutex.release()

    # --- appending, under the lock

    def append(
        self, prepared: Sequence[Prepared], expect: int | None, guard: int | None
    ) -> list[AnyRecord]:
        """Number, write and sync; returns the records as stored. Needs `acquire`."""
        self.look()
        if self._failed is not None:
            raise self._failed
        admit.check_schema(self.session, self._tally.newest_schema)
        there = self._find_retried(prepared)
        if len(there) == len(prepared):
            return [there[index] for index in range(len(prepared))]
        admit.check_expect(self.session, self._tally.seq, expect, len(there))
        if guard is not None:
            self._check_guard(guard)
        new = [one for index, one in enumerate(prepared) if index not in there]
        stored = self._commit(new)
        return [there[i] if i in there else stored.pop(0) for i in range(len(prepared))]

    def look(self) -> None:
        """See whether the log is as this writer left it; if not, catch up and seal a torn tail."""
        if self._log >= 0:
            status = os.fstat(self._log)
            if self._as_left(status):
                return
            if not status.st_nlink:
                raise Gone
        with disk.errors_mapped(f"opening session {self.session}", session=self.session):
            self._catch_up()

    def _as_left(self, status: os.stat_result) -> bool:
        return (
            status.st_size == self._size
            and status.st_mode & _WRITABLE != 0
            and status.st_nlink > 0
            and not self._unsure
        )

    def _catch_up(self) -> None:
        log = OpenLog(os.dup(self._directory))
        try:
            last = log.last
            fresh = self._log < 0 or self._unsure
            if self._log < 0 or last != self._part:
                self._open_part(last, new=not log.numbers)
            size = self._seal(last)
            log.close()
            log = OpenLog(os.dup(self._directory))
            start = Through(part=self._part, bytes=self._size, seq=self._tally.seq)
            if fresh or not sidecar.covers(start, log):
                self._tally, _ = sidecar.load(self.session, log)
                self._known_from, self._marker, self._ids = self._tally.seq, 0, None
            else:
                self._learn(log, start)
            self._before = sum(log.part(n).size for n in log.numbers if n != last)
            self._part, self._size, self._unsure = last, size, False
        finally:
            log.close()

    def _open_part(self, number: int, *, new: bool) -> None:
        name = part_name(number)
        flags = os.O_RDWR | os.O_APPEND | (os.O_CREAT if new else 0)
        sealed = not new and not (
            os.stat(name, dir_fd=self._directory, follow_symlinks=False).st_mode & _WRITABLE
        )
        descriptor = disk.open_file(name, os.O_RDONLY if sealed else flags, self._directory)
        if new and self._durable:
            disk.sync_directory(self._directory)
        if self._log >= 0:
            os.close(self._log)
        self._log = descriptor
        self._distrusted = sealed  # a crash between sealing and starting the next part

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
        if self._ids is not None and record.id:
            self._ids[record.id] = record.seq

    def _seal(self, number: int) -> int:
        """Set a torn tail aside and cut it off, or give a whole last line its newline."""
        size = os.fstat(self._log).st_size
        if self._distrusted:
            return size
        tail = examine(lambda length, offset: os.pread(self._log, length, offset), size)
        if tail.complete:
            disk.write_all(self._log, b"\n")
            disk.sync(self._log)
            self._report(f"{part_name(number)}: the last line was whole, its newline was added")
            return size + 1
        if not tail.torn:
            return size
        name = f"torn.{number}.{tail.keep}"
        self.set_aside(number, name, tail.keep, size)
        os.ftruncate(self._log, tail.keep)
        os.fsync(self._log)
        self._report(
            f"{part_name(number)}: {size - tail.keep} torn bytes from byte {tail.keep} on, "
            f"never acknowledged, were set aside in {name}"
        )
        return tail.keep

    def set_aside(self, number: int, name: str, start: int, end: int) -> None:
        """Copy a stretch of a part into a file of its own, durably."""
        with disk.errors_mapped(f"setting aside {name}", session=self.session):
            source = disk.open_file(part_name(number), os.O_RDONLY, self._directory)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            copy = disk.open_file(name, flags, self._directory)
            try:
                disk.copy(source, copy, start, end)
                disk.sync(copy)
            finally:
                os.close(source)
                os.close(copy)
            disk.sync_directory(self._directory)

    # --- retries and guards

    def _find_retried(self, prepared: Sequence[Prepared]) -> dict[int, AnyRecord]:
        """Which of the records are stored already, by their place in the batch."""
        if not any(one.retriable for one in prepared):
            return {}
        if self._ids is None:
            self._ids = self._recent_ids()
        there: dict[int, AnyRecord] = {}
        for index, one in enumerate(prepared):
            seq = self._ids.get(one.record.id) if one.retriable else None
            if seq is None or seq <= self._tally.seq - REMEMBERED:
                continue
            stored = self._stored(seq)
            admit.check_retry(self.session, one.record, stored, seq)
            there[index] = cast(AnyRecord, stored)
        return there

    def _recent_ids(self) -> dict[str, int]:
        log = OpenLog(os.dup(self._directory))
        try:
            found: dict[str, int] = {}
            for count, entry in enumerate(log.backward()):
                if count >= REMEMBERED:
                    break
                if not isinstance(entry, Damaged) and entry.id:
                    found.setdefault(entry.id, entry.seq)
            return found
        finally:
            log.close()

    def _stored(self, seq: int) -> AnyRecord | None:
        log = OpenLog(os.dup(self._directory))
        try:
            for entry in log.forward(*log.seek(seq)):
                if entry.seq is not None and entry.seq >= seq:
                    return None if isinstance(entry, Damaged) else entry
            return None
        finally:
            log.close()

    def _check_guard(self, guard: int) -> None:
        marker = self._marker
        if not marker and guard < self._known_from:
            log = OpenLog(os.dup(self._directory))
            try:
                for entry in log.backward():
                    if isinstance(entry, MARKERS):
                        marker = entry.seq
                        break
                    if entry.seq is not None and entry.seq <= guard:
                        break
            finally:
                log.close()
        admit.check_guard(self.session, marker, guard)

    # --- writing

    def _commit(self, new: Sequence[Prepared]) -> list[AnyRecord]:
        seq = self._tally.seq
        birth = self._before + self._size == 0
        rows = [admit.birth(self._tally)] if birth else []
        for one in new:
            seq += 1
            rows.append(lines.seal(one.body, one.record.record_type, seq))
        admit.check_limits(self.session, rows, new, self.total, self._settings)
        self._write(rows)
        if birth:
            self._tally.add(lines.decode(rows[0]).record)  # type: ignore[arg-type]
            del rows[0]
        stored = []
        seq -= len(new)
        for one, row in zip(new, rows, strict=True):
            seq += 1
            record = lines.stored(one.record, seq, row)
            self._remember(record)
            stored.append(record)
        if self._ids is not None and len(self._ids) > 2 * REMEMBERED:
            low = self._tally.seq - REMEMBERED
            self._ids = {name: number for name, number in self._ids.items() if number > low}
        return stored

    def _write(self, rows: list[bytes]) -> None:
        """Everything or nothing: on an error the log is as it was before."""
        limit = self._settings.part_bytes
        groups = split_at_boundary(rows, limit if self._distrusted else self._size, limit)
        if len(groups) == 1:
            self._size = self._put(self._log, self._size, rows)
            return
        old, base, end = self._log, self._size, self._size
        made: list[int] = []  # descriptors of the new parts
        try:
            if groups[0]:
                end = self._put(old, base, groups[0])
            for number, group in enumerate(groups[1:], self._part + 1):
                made.append(self._start_part(number, made[-1] if made else old))
                size = self._put(made[-1], 0, group)
            if self._durable:
                with disk.errors_mapped("syncing the directory", session=self.session):
                    disk.sync_directory(self._directory)
        except BaseException:
            self._take_back(made, old, base, end)
            raise
        self._before += end + sum(os.fstat(descriptor).st_size for descriptor in made[:-1])
        for descriptor in (old, *made[:-1]):
            os.close(descriptor)
        self._part += len(made)
        self._log, self._size, self._distrusted = made[-1], size, False

    def _start_part(self, number: int, before: int) -> int:
        """Seal a part and make the next one, in this order: a writer that finds its part sealed
        looks for the next, so none goes on in the old one, whenever this process dies."""
        with disk.errors_mapped(f"starting {part_name(number)}", session=self.session):
            os.fchmod(before, 0o400)
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL
            return disk.open_file(part_name(number), flags, self._directory)

    def _take_back(self, made: list[int], old: int, base: int, end: int) -> None:
        """A new part failed: nothing of the call may stay behind."""
        with suppress(OSError):
            for number, descriptor in enumerate(made, self._part + 1):
                os.close(descriptor)
                os.unlink(part_name(number), dir_fd=self._directory)
            disk.sync_directory(self._directory)
        if end != base:
            self._cut(old, base, end)
        if not self._distrusted:
            with suppress(OSError):
                os.fchmod(old, 0o600)

    def _put(self, descriptor: int, base: int, group: list[bytes]) -> int:
        """Write lines at the end of a part and sync it; on an error, cut back to `base`."""
        data = b"\n".join(group) + b"\n"
        done = 0
        try:
            done = os.write(descriptor, data)
            while done < len(data):
                done += os.write(descriptor, memoryview(data)[done:])
            # O_APPEND leaves the offset at the end of our write, wherever that came to lie.
            end = os.lseek(descriptor, 0, os.SEEK_CUR)
        except OSError as error:
            self._cut(descriptor, base, base + done)
            raise disk.mapped(
                error, f"appending to session {self.session}", session=self.session
            ) from error
        if end != base + len(data):
            self._settle(descriptor, base, end, data)
        if self._durable:
            try:
                disk.sync(descriptor)
            except OSError as error:
                # Never again on these bytes: a second fsync would say yes with the data gone.
                self._distrusted = True
                self._cut(descriptor, base, end)
                raise disk.mapped(
                    error, f"syncing session {self.session}", session=self.session
                ) from error
        return end

    def _settle(self, descriptor: int, base: int, end: int, data: bytes) -> None:
        """Our bytes are not where they should be: a writer without locks, or a write that lied."""
        begin = end - len(data)
        there = os.pread(descriptor, len(data), begin) if begin >= 0 else b""
        clean = begin == 0 or os.pread(descriptor, 1, begin - 1) == b"\n"
        self._unsure = True
        if begin > base and there == data and clean:
            self._report(f"session {self.session}: another program writes to it without a lock")
            return
        self._cut(descriptor, base, base + len(data))
        raise StoreFailed(
            f"session {self.session}: the written bytes are not in the file",
            hint="another program may be writing to it without a lock",
            session=self.session,
        )

    def _cut(self, descriptor: int, base: int, end: int) -> None:
        """Take back unacknowledged bytes, unless somebody else wrote after them."""
        try:
            if os.fstat(descriptor).st_size > end:
                disk.write_all(descriptor, b"\n")  # what we left becomes one damaged line
                self._report(f"session {self.session}: another program writes to it without a lock")
                return
            os.ftruncate(descriptor, base)
            if self._durable:
                os.fsync(descriptor)
        except OSError as error:
            self._failed = StoreFailed(
                f"session {self.session}: a failed write could not be taken back: "
                f"{os.strerror(error.errno or errno.EIO)}",
                hint="it stays read-only until the disk is well and it is opened again",
                session=self.session,
            )

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

    @contextmanager
    def still(self) -> Iterator[bool]:
        """Keep other threads out while processes may go on; False if it is of no use any more."""
        if not self._mutex.acquire(timeout=self._settings.lock_seconds):
            yield False
            return
        try:
            yield not self.closed and self._log >= 0
        finally:
            self._mutex.release()

    def current(self) -> Metadata | None:
        """The metadata if the log is as this writer left it; waits for an append at most."""
        with self.still() as usable:
            return self.metadata if usable and self._as_left(os.fstat(self._log)) else None

    def save(self) -> Listed:
        """Write metadata.json, with an fsync where no record holds its facts; the index row."""
        with disk.errors_mapped(f"saving metadata of session {self.session}"):
            durable = self._durable and self.total == 0
            sidecar.save(self.metadata, self._directory, durable=durable)
        self.saved_at, self.due = time.monotonic(), False
        return Listed(self.metadata, self.total, self._part)

    def close(self) -> None:
        """Give the descriptors back; closing drops the flock too."""
        self.closed = True
        for descriptor in (self._log, self._lock, self._directory):
            if descriptor >= 0:
                os.close(descriptor)
        self._log = self._lock = self._directory = -1

    # In a forked child: unlocking would free the parent's lock, closing does not.
    abandon = close


class Gone(Exception):
    """The session was deleted while this writer had it open."""
