"""Background threads: refresh listing rows, renew leases, report lost leases.

Each thread has one duty, since each waits for something else:

    refresh  updates listing rows after appends
    renew    asks the database to extend leases
    watch    tells the holder of a lease that it expired, by this process's clock; needs no server

Correctness does not depend on them. A lease that is not renewed expires, and its appends are
refused as soon as another process acquires it; a stale row is refreshed by whoever reads it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet

from everlog.errors import EverlogError, StoreFailedError
from everlog.stores.file.log_tail import Report

if TYPE_CHECKING:
    from everlog.stores.postgres.leases import PostgresLease

REFRESH_DELAY = 1.0  # seconds from an append to the refresh of its row
IDLE_SECONDS = 10.0  # without an append, after which the mark is removed
GRACE_SECONDS = 1.0  # to renew an expired lease: the whole process may have been paused
_MAX_WAIT = 60.0  # seconds
_RenewLeases = Callable[[Sequence["PostgresLease"]], Iterable["PostgresLease"]]


class _RefreshRow(Protocol):
    def __call__(self, session: str, *, unmark: bool) -> None: ...


class BackgroundThreads:
    """The threads of one store, started when first needed."""

    def __init__(self, lease_seconds: float, report: Report) -> None:
        self._report = report
        self._renew_interval = lease_seconds / 3
        self._retry_interval = lease_seconds / 15  # after an attempt that did not renew all leases
        self.refresh_row: _RefreshRow | None = None
        # Renews leases and yields those that another process holds.
        self.renew_leases: _RenewLeases | None = None
        self.reset()

    def reset(self) -> None:
        """Start over, as after a fork, which does not copy threads."""
        lock = threading.RLock()
        self._rows_changed = threading.Condition(lock)
        self._leases_changed = threading.Condition(lock)
        self._threads: dict[str, threading.Thread] = {}  # by function name
        self._stopping = False
        self._due: dict[str, float] = {}  # session → when to write its row
        self._idle: dict[str, float] = {}  # session → when to remove its mark
        self._leases: WeakSet[PostgresLease] = WeakSet()
        self._last_attempt = 0.0  # to renew leases

    # --- requests

    def schedule_refresh(self, session: str, *, immediately: bool = False) -> None:
        """Refresh the row of a session soon after an append, or immediately."""
        now = time.monotonic()
        self._idle[session] = now + IDLE_SECONDS
        if immediately or session not in self._due:
            with self._rows_changed, self.report_errors(f"the listing of {session} is delayed"):
                self._start(self._refresh_rows)  # if it fails, the next append retries
                self._due[session] = now if immediately else now + REFRESH_DELAY
                self._rows_changed.notify_all()

    def add_lease(self, lease: PostgresLease) -> None:
        """Renew a lease until it is removed or unreferenced; StoreFailedError without a thread."""
        with self._leases_changed:
            self._start(self._renew_loop)
            self._start(self._watch_expiry)
            self._leases.add(lease)
            self._leases_changed.notify_all()

    def remove_lease(self, lease: PostgresLease) -> None:
        """Stop renewing a lease."""
        with self._leases_changed:
            self._leases.discard(lease)

    def forget(self, session: str) -> None:
        """Drop what is scheduled for a deleted session."""
        with self._rows_changed:
            self._due.pop(session, None)
            self._idle.pop(session, None)

    @property
    def leases(self) -> list[PostgresLease]:
        """Return the leases that are being renewed."""
        return list(self._leases)

    def close(self) -> None:
        """Stop, and refresh every row unless the database is down: marked rows are found later."""
        with self._rows_changed:
            threads, self._threads = self._threads, {}
            self._stopping = True
            self._rows_changed.notify_all()
            self._leases_changed.notify_all()
        for thread in threads.values():
            thread.join()
        with self._rows_changed:
            sessions = [*self._idle]
            self._due.clear()
            self._idle.clear()
            self._stopping = False
            if self._leases:  # leases survive a close of the store
                with self.report_errors("turn leases are not renewed"):
                    self._start(self._renew_loop)
                    self._start(self._watch_expiry)
        for session in sessions:
            if not self._write_row(session, unmark=True):
                return

    @contextmanager
    def report_errors(self, context: str) -> Iterator[None]:
        """Report errors and continue: nobody would notice that a thread has ended."""
        try:
            yield
        except EverlogError as error:
            self._report(f"{context}: {error.message}")
        except Exception as error:
            self._report(f"{context}: {type(error).__name__}: {error}")

    # --- threads

    def _start(self, loop: Callable[[], None]) -> None:
        name = loop.__name__
        if name not in self._threads and not self._stopping:
            thread = threading.Thread(target=loop, name=f"everlog-background{name}", daemon=True)
            try:
                thread.start()  # it waits for the lock that the caller holds
            except RuntimeError as error:
                raise StoreFailedError(
                    f"cannot start a thread: {error}", hint="the limit of threads or processes is reached (ulimit -u)"
                ) from error
            self._threads[name] = thread

    def _is_running(self) -> bool:
        """Return whether the calling thread is still wanted."""
        return threading.current_thread() in self._threads.values()

    # --- rows

    def _refresh_rows(self) -> None:
        while True:
            with self._rows_changed:
                if not self._is_running():
                    return
                now = time.monotonic()
                due = {name for name, time_due in list(self._due.items()) if time_due <= now}
                for name in due:
                    del self._due[name]
                idle = {name for name, at in list(self._idle.items()) if at <= now}
                if not (due or idle):
                    times = (*self._due.values(), *self._idle.values())
                    self._rows_changed.wait(max(min(times, default=now + _MAX_WAIT) - now, 0.001))
                    continue
            for name in due | idle:
                if not self._is_running():
                    return  # `close` writes the remainder: all of it is in `_idle`
                is_idle = self._idle.get(name, math.inf) <= now
                if is_idle:
                    self._idle.pop(name, None)
                self._write_row(name, unmark=is_idle)

    def _write_row(self, session: str, *, unmark: bool) -> bool:
        """Refresh a row; return False if the database is down."""
        with self.report_errors(f"the listing of session {session} is behind"):
            try:
                if self.refresh_row is not None:
                    self.refresh_row(session, unmark=unmark)
            except StoreFailedError as error:
                self._report(f"the listing of session {session} is behind: {error.message}")
                return False
        return True

    # --- leases

    def _renew_loop(self) -> None:
        while True:
            with self._leases_changed:
                if not self._is_running():
                    return
                pause = self._next_renewal() - time.monotonic()
                if pause > 0:
                    self._leases_changed.wait(min(pause, _MAX_WAIT))
                    continue
            self._renew_all()

    def _next_renewal(self) -> float:
        """Return when the oldest lease has used a third of its time."""
        ends = (lease.expires_at for lease in self._leases)
        first = min(ends, default=math.inf) - 2 * self._renew_interval
        return max(first, self._last_attempt + self._retry_interval)

    def _renew_all(self) -> None:
        with self._leases_changed:
            leases = self.leases
        with self.report_errors("turn leases are not renewed"):
            for lease in () if self.renew_leases is None else self.renew_leases(leases):
                self._drop_lost(lease)
        with self._leases_changed:
            self._last_attempt = time.monotonic()
            self._leases_changed.notify_all()

    def _watch_expiry(self) -> None:
        while True:
            with self._leases_changed:
                if not self._is_running():
                    return
                if not self._expired():
                    now = time.monotonic()
                    first = min((lease.expires_at for lease in self._leases), default=math.inf)
                    self._leases_changed.wait(max(min(first - now, _MAX_WAIT), 0.001))
                    continue
                self._leases_changed.wait_for(lambda: not (self._expired() and self._is_running()), GRACE_SECONDS)
                expired = self._expired()
            for lease in expired:
                self._drop_lost(lease)

    def _expired(self) -> list[PostgresLease]:
        """Return the leases that another process may hold by now."""
        now = time.monotonic()
        return [lease for lease in self._leases if lease.expires_at <= now]

    def _drop_lost(self, lease: PostgresLease) -> None:
        self.remove_lease(lease)
        if lease.held:
            self._report(f"the turn lease of session {lease.session} was lost")
            with self.report_errors(f"a callback for the lost lease of {lease.session} failed"):
                lease.mark_lost()
