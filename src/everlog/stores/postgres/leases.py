"""The turn lease: valid until a time on the server's clock, with an epoch that only grows.

Whoever acquires a turn gets the next epoch. An append under a lease compares it, so a process that
was paused or cut off, and whose turn another has acquired, can no longer write.

The end of a lease is also known without the server: its time counts, on the clock of this process,
from the moment before the request was sent.
"""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from psycopg.errors import QueryCanceled

from everlog.errors import EverlogError, StoreFailedError
from everlog.ports import Lease
from everlog.stores.postgres.connections import Connection, Database
from everlog.stores.postgres.id_columns import session_of, sid_of
from everlog.stores.rules import busy_error, no_session

if TYPE_CHECKING:
    from everlog.stores.postgres.background import BackgroundThreads

_MIN_WAIT = 0.1  # seconds, for a row lock
_MIN_TIMEOUT = 1.0  # seconds, for an answer


class PostgresLease(Lease):
    """A turn lease, renewed while it is held."""

    def __init__(self, leases: Leases, session: str, epoch: int, expires_at: float) -> None:
        self.session = session
        self.epoch = epoch
        self.expires_at = expires_at  # by time.monotonic; nobody else can hold it before
        self.is_row_locked = False  # its row was locked at the last renewal
        self._leases: Leases | None = leases
        self.lost = False  # another process holds it, or renewal came too late
        self._callbacks: list[Callable[[], None]] = []

    @property
    def held(self) -> bool:
        """Return whether it was neither released nor lost, as far as this process knows."""
        return self._leases is not None and not self.lost

    def on_lost(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback`, in any thread, when the lease is lost; return a function to cancel."""
        self._callbacks.append(callback)
        if self.lost:
            self.mark_lost()
        return partial(self._remove_callback, callback)

    def _remove_callback(self, callback: Callable[[], None]) -> None:
        with suppress(ValueError):
            self._callbacks.remove(callback)

    def mark_lost(self) -> None:
        """Mark the lease as lost and run the callbacks."""
        self.lost = True
        with suppress(IndexError):
            while True:
                self._callbacks.pop()()  # each once, even if called by two threads

    def release(self) -> None:
        """Release the lease; a second call does nothing."""
        leases, self._leases = self._leases, None
        if leases is not None:
            leases.release(self)

    def abandon(self) -> None:
        """Drop the lease after a fork: it belongs to the parent process."""
        self._leases = None


class Leases:
    """The turn leases of one store."""

    def __init__(self, database: Database, background: BackgroundThreads) -> None:
        self._database = database
        self._background = background
        self.owner = new_owner_name()

    def acquire(self, session: str) -> PostgresLease:
        """Acquire the turn lease of a session; SessionBusyError if it is held; never waits."""
        sid = sid_of(session)
        values = {
            "sid": sid,
            # Unique per lease: if the answer is lost, the statement can be repeated.
            "owner": f"{self.owner}.{os.urandom(4).hex()}",
            "seconds": self._database.settings.lease_seconds,
        }

        def work(connection: Connection) -> tuple[float, Any]:
            sent_at = time.monotonic()
            return sent_at, connection.run("acquire_lease", values).fetchone()

        sent_at, row = self._database.run_idempotent(work)
        if row is None:
            raise self._refusal_error(session)
        expires_at = sent_at + self._database.settings.lease_seconds
        lease = PostgresLease(self, session, row[0], expires_at)
        try:
            self._background.add_lease(lease)
        except BaseException:  # do not leave a lease behind that nobody holds
            lease.release()
            raise
        return lease

    def _refusal_error(self, session: str) -> EverlogError:
        values = {"sid": sid_of(session)}
        row = self._database.fetch_row("lease_owner", values)
        if row is None:
            return no_session(session)
        owner = row[1] or ""
        if owner.startswith(f"{self.owner}."):
            return busy_error(session, owner=owner)
        return busy_error(
            session,
            owner,
            hint="wait for the turn to end; if its process is gone, the lease expires after"
            f" {self._database.settings.lease_seconds:g} seconds",
            owner=owner,
        )

    def renew(self, leases: Sequence[PostgresLease]) -> Iterator[PostgresLease]:
        """Extend leases; yield those that other processes hold.

        One statement renews all, unless it waits too long for a row: then each is renewed
        separately, and those with a locked row stay separate until their row is free. Locked rows
        are waited for and not skipped (SKIP LOCKED), since a row that is written all the time is
        never free; besides, Citus cannot lock rows of several machines in one SELECT.
        """
        deadline = time.monotonic() + self._database.settings.lease_seconds / 3
        separate = [lease for lease in leases if lease.is_row_locked]
        random.shuffle(separate)  # there may be no time for all
        together = [lease for lease in leases if not lease.is_row_locked]
        try:
            yield from self._extend(together)
        except StoreFailedError as error:
            if not _is_timeout(error):
                raise
            separate = sorted(together, key=lambda lease: lease.expires_at) + separate
        for lease in separate:
            if time.monotonic() > deadline:
                return  # the other leases must not wait for these
            try:
                yield from self._extend([lease])
                lease.is_row_locked = False
            except StoreFailedError as error:
                if not _is_timeout(error):
                    raise
                lease.is_row_locked = True

    def _extend(self, leases: Sequence[PostgresLease]) -> list[PostgresLease]:
        """Extend leases whose rows are free soon; return those that other processes hold."""
        if not leases:
            return []
        seconds = self._database.settings.lease_seconds
        values = {
            "sids": [sid_of(lease.session) for lease in leases],
            "epochs": [lease.epoch for lease in leases],
            "seconds": seconds,
        }
        limit = {"milliseconds": str(round(1000 * max(seconds / 15, _MIN_WAIT)))}

        def work(connection: Connection) -> tuple[float, list[tuple[Any, ...]]]:
            timeout_before = connection.answer_timeout
            # If the server is silent for longer, a new connection is the better choice.
            connection.answer_timeout = min(timeout_before or seconds, max(seconds / 3, _MIN_TIMEOUT))
            sent_at = time.monotonic()
            try:
                with connection.transaction():
                    connection.run("set_timeout", limit)
                    return sent_at, connection.run("renew_leases", values).fetchall()
            finally:
                connection.answer_timeout = timeout_before

        sent_at, rows = self._database.run_idempotent(work, urgent=True)
        renewed = {(session_of(sid), epoch) for sid, epoch in rows}
        lost = []
        for lease in leases:
            if (lease.session, lease.epoch) in renewed:
                lease.expires_at = sent_at + seconds
            else:
                lost.append(lease)
        return lost

    def release(self, lease: PostgresLease) -> None:
        """End a lease now; if the database is down, it expires by itself."""
        self._background.remove_lease(lease)
        values = {"sid": sid_of(lease.session), "epoch": lease.epoch}
        with self._background.report_errors(f"the turn lease of session {lease.session} ends later"):
            self._database.run_idempotent(lambda connection: connection.run("release_lease", values).rowcount)


def new_owner_name() -> str:
    """Return a name for one store in this process, shown to those who find a turn taken."""
    return f"{socket.gethostname()}.{os.getpid()}.{os.urandom(4).hex()}"


def _is_timeout(error: StoreFailedError) -> bool:
    """Return whether the server cancelled the statement."""
    return isinstance(error.__cause__, QueryCanceled)
