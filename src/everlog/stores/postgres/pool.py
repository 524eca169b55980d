"""Bounded connection pool for the threads of a process; the last used connection goes first.

Waiters are served in order, except for urgent ones: leases must be renewed while all connections
run slow queries. An urgent caller may open one extra connection, or, if the server refuses, gets
the first that is released. The pool does nothing in the background: a server that is down is
noticed by the next caller. The first one to notice waits, since the server may be back at once;
until it is back, later callers fail without waiting.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar
from weakref import WeakSet

from psycopg import Connection, Cursor, OperationalError, RawCursor
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus

from everlog.errors import StoreFailedError
from everlog.stores.postgres.driver_errors import Address

T = TypeVar("T")
_RETRY_SECONDS = 0.1  # between attempts to reach the server
_IDLE_SECONDS = 600.0  # after which an unused connection is closed


class TimedConnection(Connection[tuple[Any, ...]]):
    """A connection on which every request must be answered within a time.

    The server itself cancels a statement that takes too long, but not a commit that waits for a
    standby that is gone, and a stopped server cancels nothing. The outcome is then unknown, as with
    every other lost connection.
    """

    answer_timeout: float | None = None  # seconds; None: no limit
    warning = ""  # received with the running statement
    statements: Mapping[str, str] = {}  # by label: see `sql/`
    pool_generation = 0  # see `ConnectionPool`
    idle_since = 0.0  # when it was last released
    _repeat_cursor: RawCursor[tuple[Any, ...]] | None = None

    def run(self, label: str, values: Mapping[str, Any] | None = None) -> Cursor[tuple[Any, ...]]:
        """Run a statement of `sql/` by its label; results are binary."""
        return self.execute(self.statements[label], values, binary=True)

    def run_many(self, label: str, rows: Iterable[Any]) -> None:
        """Run a statement of `sql/` once for each row of values."""
        with self.cursor() as cursor:
            cursor.executemany(self.statements[label], rows)

    def value(self, label: str, values: Mapping[str, Any] | None = None) -> Any:
        """Return the first column of the first row of a statement; None if there is no row."""
        row = self.run(label, values).fetchone()
        return None if row is None else row[0]

    def run_repeated(self, label: str, values: Sequence[Any]) -> int:
        """Run a frequent statement with $1 parameters; return how many rows it changed.

        The cursor is kept, with what it has cached about the statement and its values.
        """
        if self._repeat_cursor is None:
            self._repeat_cursor = RawCursor(self)
        return self._repeat_cursor.execute(self.statements[label], values).rowcount

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        """Wait for an answer, with a time limit; every request passes here, commits included."""
        limit = self.answer_timeout if timeout is None else timeout
        try:
            return super().wait(gen, interval, limit)
        except OperationalError as error:
            from_server = error.sqlstate is not None  # so it is not silent
            if timeout is None and not from_server and self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                self.pgconn.finish()  # a late answer must not pass for that to the next request
                raise OperationalError(f"no answer in {limit:g} seconds") from None
            raise


class ConnectionPool:
    """The connections of a process to one database."""

    def __init__(
        self, connect: Callable[[], TimedConnection], address: Address, max_size: int, wait_seconds: float
    ) -> None:
        """`max_size` excludes the urgent connection; `wait_seconds`: for one, or the server."""
        self._connect, self._address = connect, address
        self._max_size, self._wait_seconds = max_size, wait_seconds
        self._lock = threading.Lock()
        # Invariant: nobody waits while a connection is idle.
        self._idle: deque[TimedConnection] = deque()
        self._waiters: deque[SimpleQueue[TimedConnection]] = deque()
        # Weak: an aborted thread may drop a connection.
        self._all: WeakSet[TimedConnection] = WeakSet()
        self._opening = 0
        self._generation = 0  # connections of earlier generations are not reused
        self._closed = False
        self._unreachable = False  # whether the server was, at the last attempt

    def acquire(self, *, urgent: bool = False) -> TimedConnection:
        """Return a connection for the caller to release; only one call at a time may be urgent."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
            waiter: SimpleQueue[TimedConnection] = SimpleQueue()
            (self._waiters.appendleft if urgent else self._waiters.append)(waiter)
        try:
            return self._wait_for_connection(waiter, self._max_size + urgent)
        finally:
            self._remove_waiter(waiter)

    def release(self, connection: TimedConnection) -> None:
        """Make a connection available again; close it if it is broken or inside a transaction."""
        connection.idle_since = now = time.monotonic()
        with self._lock:
            if (
                connection.pool_generation == self._generation
                and not self._closed
                and len(self._all) <= self._max_size  # else it is the extra one of an urgent call
                and connection.pgconn.transaction_status == TransactionStatus.IDLE
            ):
                if self._waiters:
                    self._waiters.popleft().put(connection)
                    return
                self._idle.append(connection)
                if self._idle[0].idle_since >= now - _IDLE_SECONDS:
                    return
                connection = self._idle.popleft()
        self._discard(connection)

    def invalidate(self) -> None:
        """Discard all current connections after a loss, those in use when they are released."""
        with self._lock:
            self._generation += 1
            idle, self._idle = self._idle, deque()
        for connection in idle:
            self._discard(connection)

    def close(self) -> None:
        """Close all connections, those in use when they are released."""
        self._closed = True
        self.invalidate()

    def _discard(self, connection: TimedConnection) -> None:
        connection.close()
        self._all.discard(connection)

    # --- when no connection is free

    def _wait_for_connection(self, waiter: SimpleQueue[TimedConnection], max_size: int) -> TimedConnection:
        deadline = time.monotonic() + self._wait_seconds
        problem = StoreFailedError(
            f"all connections to {self._address} are in use", hint="raise postgres.pool_size, or postgres.wait_seconds"
        )
        while True:
            opened = self._open_connection(max_size)
            if isinstance(opened, TimedConnection):
                return opened
            problem = opened or problem
            remaining = deadline - time.monotonic()
            if opened is not None and not self._all and (self._unreachable or remaining <= 0):
                self._unreachable = True
                raise problem
            with suppress(Empty):  # not for longer: a slot may become free, or the server may be back
                return waiter.get(timeout=max(min(remaining, _RETRY_SECONDS), 0))
            if remaining <= 0:
                raise problem

    def _open_connection(self, max_size: int) -> TimedConnection | StoreFailedError | None:
        """Return a new connection, or the error; None if the pool is full."""
        with self._lock:
            if len(self._all) + self._opening >= max_size:
                return None
            self._opening += 1
            generation = self._generation
        try:
            connection = self._connect()
        except StoreFailedError as error:
            return error
        else:
            connection.pool_generation = generation
            self._all.add(connection)
            self._unreachable = False
            return connection
        finally:
            with self._lock:
                self._opening -= 1

    def _remove_waiter(self, waiter: SimpleQueue[TimedConnection]) -> None:
        """Remove a waiter; release a connection that was handed to it meanwhile."""
        with self._lock, suppress(ValueError):
            self._waiters.remove(waiter)
        with suppress(Empty):
            self.release(waiter.get_nowait())
