"""The threads that keep things going: rows follow appends, leases are renewed, their end is told.

Each has one duty, since each waits for something else:

    rows      brings rows up to date behind appends
    renewing  asks the database to hold leases for longer
    watching  tells who holds a lease that it is over, by this process's clock; waits for no server

Nothing depends on them being in time. A lease that is not renewed ends, and its appends are refused
as soon as another has it; a row that is behind is brought up to date by whoever asks for it.
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

AFTER = 1.0  # seconds after an append that its row follows
IDLE = 10.0  # seconds without one after which its mark goes
GRACE = 1.0  # seconds to renew a lease that is over: all of this process may have been paused
_LONGEST = 60.0  # seconds to wait for nothing


class _Lasting(Protocol):
    def __call__(self, session: str, *, unmark: bool) -> None: ...


class Keeper:
    """The threads of one store, started when there is something to do."""

    def __init__(self, lease_seconds: float, report: Report) -> None:
        self._report = report
        self._every = lease_seconds / 3
        self._again = lease_seconds / 15  # after an attempt that did not renew all
        self.refresh: _Lasting | None = None
        # Renews leases, and tells which of them others have.
        self.prolong: Callable[[Sequence[PostgresLease]], Iterable[PostgresLease]] | None = None
        self.reset()

    def reset(self) -> None:
        """Begin anew, as after a fork: the threads stayed behind."""
        lock = threading.RLock()
        self._changed = threading.Condition(lock)  # rows
        self._leased = threading.Condition(lock)  # leases
        self._threads: dict[str, threading.Thread] = {}  # those that go on
        self._stopping = False
        self._due: dict[str, float] = {}  # session → when its row is to be written
        self._idle: dict[str, float] = {}  # session → when its mark may go
        self._leases: WeakSet[PostgresLease] = WeakSet()
        self._tried = 0.0  # when leases were last tried to be renewed

    # --- telling

    def appended(self, session: str, *, at_once: bool = False) -> None:
        """A session was appended to; its row follows soon, or at once."""
        now = time.monotonic()
        self._idle[session] = now + IDLE
        if at_once or session not in self._due:
            with self._changed, self.harmless(f"the listing of session {session} follows later"):
                self._start(self._follow)  # or the next append tries again
                self._due[session] = now if at_once else now + AFTER
                self._changed.notify_all()

    def renew(self, lease: PostgresLease) -> None:
        """Renew a lease until it is let go, or nobody has it any more; StoreFailedError if none can."""
        with self._leased:
            self._start(self._renew)
            self._start(self._watch)
            self._leases.add(lease)
            self._leased.notify_all()

    def let_go(self, lease: PostgresLease) -> None:
        """A lease is given back."""
        with self._leased:
            self._leases.discard(lease)

    def forget(self, session: str) -> None:
        """A session is gone."""
        with self._changed:
            self._due.pop(session, None)
            self._idle.pop(session, None)

    @property
    def held(self) -> list[PostgresLease]:
        """The leases that are renewed."""
        return list(self._leases)

    def close(self) -> None:
        """Stop, and bring every row up to date, unless the database is away: marks tell of them."""
        with self._changed:
            threads, self._threads = self._threads, {}
            self._stopping = True
            self._changed.notify_all()
            self._leased.notify_all()
        for thread in threads.values():
            thread.join()
        with self._changed:
            sessions = [*self._idle]
            self._due.clear()
            self._idle.clear()
            self._stopping = False
            if self._leases:  # one that is held over this is held on
                with self.harmless("turns are not renewed"):
                    self._start(self._renew)
                    self._start(self._watch)
        for session in sessions:
            if not self._write(session, unmark=True):
                return

    @contextmanager
    def harmless(self, what: str) -> Iterator[None]:
        """Report what goes wrong, and go on: a thread that ended would be missed by nobody."""
        try:
            yield
        except EverlogError as error:
            self._report(f"{what}: {error.message}")
        except Exception as error:
            self._report(f"{what}: {type(error).__name__}: {error}")

    # --- threads

    def _start(self, loop: Callable[[], None]) -> None:
        name = loop.__name__
        if name not in self._threads and not self._stopping:
            thread = threading.Thread(target=loop, name=f"everlog-keeper{name}", daemon=True)
            try:
                thread.start()  # it waits for the lock, which is held here
            except RuntimeError as error:
                raise StoreFailedError(
                    f"no thread can be started: {error}",
                    hint="this machine allows no more of them (ulimit -u, or a limit of processes)",
                ) from error
            self._threads[name] = thread

    def _goes_on(self) -> bool:
        """Whether the thread that asks is still one of ours."""
        return threading.current_thread() in self._threads.values()

    # --- rows

    def _follow(self) -> None:
        while True:
            with self._changed:
                if not self._goes_on():
                    return
                now = time.monotonic()
                writing = {name for name, at in list(self._due.items()) if at <= now}
                for name in writing:
                    del self._due[name]
                resting = {name for name, at in list(self._idle.items()) if at <= now}
                if not (writing or resting):
                    times = (*self._due.values(), *self._idle.values())
                    self._changed.wait(max(min(times, default=now + _LONGEST) - now, 0.001))
                    continue
            for name in writing | resting:
                if not self._goes_on():
                    return  # `close` writes what is left: all of it stands in `_idle`
                rested = self._idle.get(name, math.inf) <= now
                if rested:
                    self._idle.pop(name, None)
                self._write(name, unmark=rested)

    def _write(self, session: str, *, unmark: bool) -> bool:
        """Bring a row up to date; False if the database is not there for it."""
        with self.harmless(f"the listing of session {session} is behind"):
            try:
                if self.refresh is not None:
                    self.refresh(session, unmark=unmark)
            except StoreFailedError as error:
                self._report(f"the listing of session {session} is behind: {error.message}")
                return False
        return True

    # --- leases

    def _renew(self) -> None:
        while True:
            with self._leased:
                if not self._goes_on():
                    return
                pause = self._next_renewal() - time.monotonic()
                if pause > 0:
                    self._leased.wait(min(pause, _LONGEST))
                    continue
            self._renew_all()

    def _next_renewal(self) -> float:
        """When the first of the leases is a third of its time old."""
        ends = (lease.until for lease in self._leases)
        return max(min(ends, default=math.inf) - 2 * self._every, self._tried + self._again)

    def _renew_all(self) -> None:
        with self._leased:
            leases = self.held
        with self.harmless("turns are not renewed"):
            for lease in () if self.prolong is None else self.prolong(leases):
                self._lose(lease)
        with self._leased:
            self._tried = time.monotonic()
            self._leased.notify_all()

    def _watch(self) -> None:
        while True:
            with self._leased:
                if not self._goes_on():
                    return
                if not self._over():
                    now = time.monotonic()
                    first = min((lease.until for lease in self._leases), default=math.inf)
                    self._leased.wait(max(min(first - now, _LONGEST), 0.001))
                    continue
                self._leased.wait_for(lambda: not (self._over() and self._goes_on()), GRACE)
                over = self._over()
            for lease in over:
                self._lose(lease)

    def _over(self) -> list[PostgresLease]:
        """Leases that another may have by now."""
        now = time.monotonic()
        return [lease for lease in self._leases if lease.until <= now]

    def _lose(self, lease: PostgresLease) -> None:
        self.let_go(lease)
        if lease.held:
            self._report(f"the turn of session {lease.session} was lost")
            with self.harmless(f"not all were told that the turn of {lease.session} was lost"):
                lease.lose()
