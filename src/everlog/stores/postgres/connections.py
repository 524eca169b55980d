"""The database of a store: pooled connections, time limits, and retries where they are safe.

Connections are in autocommit mode; `run_transaction` runs several statements as one transaction.
Work is repeated when the database asks for it (40001, 40P01), and idempotent work once more when
its connection was lost; whether a lost append was stored is for `append_statement` to find out.
A commit with a WARNING is not acknowledged: it can mean that a standby never received it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar
from weakref import ref

import psycopg
from psycopg import IsolationLevel
from psycopg.errors import Diagnostic

from everlog.errors import StoreFailedError
from everlog.settings import PostgresSettings
from everlog.stores.file.log_tail import Report
from everlog.stores.postgres.driver_errors import (
    Address,
    ConnectionLostError,
    ContentionError,
    ReadOnlyError,
    StatementLostError,
    map_error,
)
from everlog.stores.postgres.pool import ConnectionPool, TimedConnection
from everlog.stores.postgres.statements import load_statements

Connection = TimedConnection
T = TypeVar("T")
_ATTEMPTS = 20  # of a transaction that the database asks to repeat
# Sources of warnings unrelated to the statement: old rows must be vacuumed some day.
_HARMLESS_SOURCES = ("GetNewTransactionId", "GetNewMultiXactId")
_FIRST_PAUSE = 0.005  # seconds before the first retry; doubled each time
_MAX_PAUSE = 0.2
# Set on every connection, whatever the server, the database or the user is configured with.
_CONFIGURE = """SELECT set_config('statement_timeout', %(milliseconds)s, false),
    -- Outside of transactions too: a statement sees the rows that it has waited for.
    set_config('default_transaction_isolation', 'read committed', false),
    -- Warnings of a commit must arrive.
    CASE WHEN current_setting('client_min_messages') IN ('error', 'fatal', 'panic')
        THEN set_config('client_min_messages', 'warning', false) END"""
# Acknowledged commits must survive a crash of the server; a stronger setting stays.
_DURABLE = """SELECT set_config('synchronous_commit', 'on', false)
    WHERE current_setting('synchronous_commit') = 'off'"""


class Database:
    """One database, shared by the threads of a process."""

    def __init__(
        self,
        url: str,
        settings: PostgresSettings,
        report: Report,
        *,
        durable: bool = True,
        prepare: Callable[[Connection], None],
    ) -> None:
        """Connect on first use; `prepare` gets the first connection."""
        self.address = Address(url)
        self.settings = settings
        self._statements: dict[str, str] = {}
        for file in ("records", "rows", "search", "sessions", "sharing", "transfer"):
            self._statements |= load_statements(file, settings.schema)
        self._report = report
        self._durable = durable
        self._prepare = prepare
        self._lock = threading.Lock()
        self._pool: ConnectionPool | None = None
        self._parent_pools: list[object] = []  # after a fork: a child must not close them

    def __repr__(self) -> str:
        return f"Database({self.address})"

    # --- running

    def run_idempotent(self, work: Callable[[Connection], T], *, urgent: bool = False) -> T:
        """Run work that can safely be repeated; it is, after contention or a lost connection."""

        def attempt() -> T:
            try:
                return self.run_once(work, urgent=urgent)
            except ConnectionLostError:
                self.discard_connections()
            return self.run_once(work, urgent=urgent)

        return self.retry_contention(attempt)

    def fetch_all(self, label: str, values: Mapping[str, Any] | None = None) -> list[Any]:
        """Return the rows of a statement of `sql/`."""
        return self.run_idempotent(lambda connection: connection.run(label, values).fetchall())

    def fetch_row(self, label: str, values: Mapping[str, Any] | None = None) -> Any:
        """Return the first row of a statement of `sql/`; None if there is none."""
        return self.run_idempotent(lambda connection: connection.run(label, values).fetchone())

    def run_transaction(self, work: Callable[[Connection], T], *, repeatable: bool = False) -> T:
        """Run work as one transaction, and repeat all of it if the database asks for that.

        `repeatable`: it is idempotent, so it is repeated after a lost connection too.
        """

        def in_transaction(connection: Connection) -> T:
            with connection.transaction():
                return work(connection)

        if repeatable:
            return self.run_idempotent(in_transaction)
        return self.retry_contention(lambda: self.run_once(in_transaction))

    def retry_contention(self, attempt: Callable[[], T]) -> T:
        """Repeat an attempt while the database reports contention, up to a limit."""
        pause = _FIRST_PAUSE
        for remaining in reversed(range(_ATTEMPTS)):
            try:
                return attempt()
            except ContentionError:
                if not remaining:
                    raise
            time.sleep(random.uniform(0, pause))
            pause = min(2 * pause, _MAX_PAUSE)
        raise AssertionError("unreachable")

    def run_once(self, work: Callable[[Connection], T], *, urgent: bool = False) -> T:
        """Run work on a pooled connection, with errors mapped; `urgent`: see `ConnectionPool`."""
        pool = self._pool or self._open_pool()
        connection = pool.acquire(urgent=urgent)
        try:
            result = work(connection)
        except psycopg.Error as error:
            failure = map_error(error, self.address, lost=connection.closed or connection.broken)
            if isinstance(failure, ReadOnlyError | StatementLostError):
                connection.close()  # a new one may reach a primary, or have the statement
            raise failure from error
        finally:
            warning, connection.warning = connection.warning, ""
            pool.release(connection)
        if warning:
            raise ConnectionLostError(
                f"{self.address} acknowledged with a warning: {self.address.redact(warning)}",
                hint="a standby may not have received it: retry with the same id",
            )
        return result

    def run_separately(self, work: Callable[[Connection], T], *, with_timeout: bool = True) -> T:
        """Run work on a new connection, whatever version the tables have.

        Without `with_timeout` there is no time limit.
        """
        with self._connect() as connection:
            if not with_timeout:
                connection.execute("SELECT set_config('statement_timeout', '0', false)")
                connection.answer_timeout = None
            return self._run_mapped(work, connection)

    def discard_connections(self) -> None:
        """Stop using the current connections: after a loss, the others may be broken too."""
        if self._pool is not None:
            self._pool.invalidate()

    # --- connecting

    def _open_pool(self) -> ConnectionPool:
        seconds = self.settings.wait_seconds
        if not self._lock.acquire(timeout=seconds):
            raise StoreFailedError(
                f"{self.address} cannot be reached: no answer in {seconds:g} seconds",
                hint="is the server running, and the address right?",
            )
        try:
            if self._pool is None:
                with self._connect() as first:
                    self._run_mapped(self._prepare, first)
                max_size = self.settings.pool_size
                self._pool = ConnectionPool(self._connect, self.address, max_size, seconds)
            return self._pool
        finally:
            self._lock.release()

    def _connect(self) -> Connection:
        """Open and configure a connection; driver errors are mapped."""
        try:
            connection = TimedConnection.connect(self._conninfo(), autocommit=True)
        except psycopg.Error as error:
            raise map_error(error, self.address) from None  # it contains the password
        try:
            self._configure(connection)
        except psycopg.Error as error:
            connection.close()
            raise map_error(error, self.address) from None
        connection.warning = ""  # warnings during the set-up do not matter
        return connection

    def _run_mapped(self, work: Callable[[Connection], T], connection: Connection) -> T:
        try:
            return work(connection)
        except psycopg.Error as error:
            raise map_error(error, self.address, lost=connection.closed) from error

    def _conninfo(self) -> str:
        seconds = self.settings.wait_seconds
        return self.address.conninfo(
            # Leave time to reach the next of several hosts.
            connect_timeout=str(max(2, round(seconds / self.address.host_count))),
            # Detect a machine that is gone without closing its connections.
            tcp_user_timeout=str(round(2000 * seconds)),
            keepalives_idle=str(max(1, round(seconds))),
            keepalives_interval=str(max(1, round(seconds / 3))),
            keepalives_count="3",
            application_name="everlog",
            # Read where changes are made: a standby may lag behind.
            target_session_attrs="primary",
        )

    def _configure(self, connection: Connection) -> None:
        connection.statements = self._statements
        connection.add_notice_handler(partial(_on_notice, ref(connection)))
        connection.answer_timeout = self.settings.statement_seconds + self.settings.wait_seconds
        # A read after waiting for a lock must see what its holder wrote.
        connection.isolation_level = IsolationLevel.READ_COMMITTED
        milliseconds = round(self.settings.statement_seconds * 1000)
        connection.execute(_CONFIGURE, {"milliseconds": str(milliseconds)})
        if self._durable:
            connection.execute(_DURABLE)

    # --- ending

    def close(self) -> None:
        """Close all connections, those in use when they are released; the next use reconnects."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def after_fork_in_child(self) -> None:
        """Drop the parent's connections without using or closing them."""
        self._parent_pools.append(self._pool)
        self._pool = None
        self._lock = threading.Lock()


def _on_notice(connection: ref[Connection], notice: Diagnostic) -> None:
    is_harmless = notice.source_function in _HARMLESS_SOURCES
    if notice.severity_nonlocalized == "WARNING" and not is_harmless:
        target = connection()
        if target is not None:
            target.warning = notice.message_primary or "a warning"
