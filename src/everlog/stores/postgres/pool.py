"""Connections for the threads of a process: a bounded number, the one used last first.

An append takes a connection and gives it back, so both are a single step as long as nobody waits.
Who waits is served in turn, but for who is urgent: turns must be renewed while everybody else asks
something that takes long. So there is one connection more, for that moment alone, and where the
server allows none, the first that is given back. Nothing happens here that nobody asked for: a
server that is away is noticed by who needs it. The first to find that waits, since it may be back
at once; until it is, whoever comes after is told without waiting.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from weakref import WeakSet

from psycopg.pq import TransactionStatus

from everlog.errors import StoreFailedError
from everlog.stores.postgres.driver_errors import Address
from everlog.stores.postgres.timeouts import Patient

_PAUSE = 0.1  # seconds between attempts to reach a server
_REST = 600.0  # seconds; one that nobody has needed for so long is closed


class _Waiter:
    """Somebody who waits for a connection."""

    __slots__ = ("link", "served")

    def __init__(self) -> None:
        self.link: Patient | None = None
        self.served = threading.Event()


class Links:
    """The connections to one database."""

    def __init__(
        self, connect: Callable[[], Patient], address: Address, most: int, seconds: float
    ) -> None:
        """So many at most, and one for who is urgent; `seconds`: to wait for any, or the server."""
        self._connect, self._address, self._most, self._seconds = connect, address, most, seconds
        self._lock = threading.Lock()
        self._idle: deque[Patient] = deque()
        self._waiting: deque[_Waiter] = deque()
        self._all: WeakSet[Patient] = WeakSet()  # a thread that is broken off may have dropped one
        self._making = 0
        self._era = 0  # those of an earlier one are not used again
        self._closed = False
        self._away = False  # the server, when it was last asked for

    def take(self, *, urgent: bool = False) -> Patient:
        """A connection that is the caller's until it is given back; one at a time is urgent."""
        if self._waiting:
            return self._more(urgent)
        try:
            link = self._idle.pop()
        except IndexError:
            return self._more(urgent)
        if link.era == self._era:
            return link
        self._drop(link)  # given back just as a loss was told
        return self._more(urgent)

    def give(self, link: Patient) -> None:
        """Let others have it; one that is broken, or in the middle of something, is closed."""
        if (
            link.era != self._era
            or self._closed
            or len(self._all) > self._most  # one more, which was urgent
            or link.pgconn.transaction_status != TransactionStatus.IDLE
        ):
            self._drop(link)
            return
        link.since = time.monotonic()
        self._idle.append(link)
        if self._waiting:  # who waits says so first and looks then, as this does the other way
            with self._lock:
                self._hand_over()
        elif len(self._idle) > 1:
            self._rest(link.since)

    def renew(self) -> None:
        """After a loss: none of those that there are is used again."""
        with self._lock:
            self._era += 1
            there = tuple(self._idle)  # in one step: others take and give without the lock
            old = [one for one in there if one.era != self._era]
            for one in old:
                with suppress(ValueError):
                    self._idle.remove(one)
        for one in old:
            self._drop(one)

    def close(self) -> None:
        """Close them, those in use once they are given back."""
        self._closed = True
        self.renew()

    def _rest(self, now: float) -> None:
        """Close one that has not been needed for long."""
        with suppress(IndexError):
            if self._idle[0].since < now - _REST:
                self._drop(self._idle.popleft())

    def _drop(self, link: Patient) -> None:
        link.close()
        self._all.discard(link)

    # --- where none is free

    def _more(self, urgent: bool) -> Patient:
        deadline = time.monotonic() + self._seconds
        problem = StoreFailedError(
            f"all connections to {self._address} are in use",
            hint="raise postgres.pool_size, or postgres.wait_seconds",
        )
        waiter = _Waiter()
        with self._lock:
            (self._waiting.appendleft if urgent else self._waiting.append)(waiter)
            self._hand_over()
        try:
            while not waiter.served.is_set():
                made = self._made(self._most + urgent)
                if isinstance(made, Patient):
                    return made
                problem = made or problem
                left = deadline - time.monotonic()
                if made is not None and not self._all and (self._away or left <= 0):
                    self._away = True
                    raise problem
                # Not for longer: there may be room for one more, or the server may be back.
                if not waiter.served.wait(min(left, _PAUSE)) and left <= 0:
                    raise problem
            link, waiter.link = waiter.link, None
            assert link is not None
            return link
        finally:
            self._leave(waiter)

    def _made(self, most: int) -> Patient | StoreFailedError | None:
        """A new connection, or why there is none; None if there may be no more."""
        with self._lock:
            if len(self._all) + self._making >= most:
                return None
            self._making += 1
            era = self._era
        try:
            link = self._connect()
        except StoreFailedError as error:
            return error
        else:
            link.era = era
            self._all.add(link)
            self._away = False
            return link
        finally:
            with self._lock:
                self._making -= 1

    def _hand_over(self) -> None:
        """Give what is free to those who wait, in turn; the lock is held."""
        while self._waiting:
            try:
                link = self._idle.pop()
            except IndexError:
                return
            if link.era != self._era:
                self._drop(link)
                continue
            waiter = self._waiting.popleft()
            waiter.link = link
            waiter.served.set()

    def _leave(self, waiter: _Waiter) -> None:
        """Somebody waits no more, perhaps just as something was handed over."""
        with self._lock:
            with suppress(ValueError):
                self._waiting.remove(waiter)
            link, waiter.link = waiter.link, None
        if link is not None:
            self.give(link)
