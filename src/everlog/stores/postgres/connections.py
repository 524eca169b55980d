"""Connections, and how statements are run on them: pooled, bounded, retried where that is safe.

A connection commits each statement by itself; `changing` runs several as one transaction. Both are
run again when the database asks for that (40001, 40P01), and what only reads once more when its
connection turns out to be gone; whether a lost append was stored is for `appending` to find out.
A WARNING beside a commit is no acknowledgement: it can mean that a standby never got it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar
from weakref import ref

import psycopg
from psycopg import IsolationLevel
from psycopg.errors import Diagnostic

from everlog.errors import StoreFailedError
from everlog.settings import PostgresSettings
from everlog.stores.file.log_tail import Report
from everlog.stores.postgres.driver_errors import (
    Address,
    ConnectionLost,
    Contended,
    Forgotten,
    ReadOnly,
    mapped,
)
from everlog.stores.postgres.pool import Links
from everlog.stores.postgres.timeouts import Patient

Link = Patient
T = TypeVar("T")
_ATTEMPTS = 20  # of a transaction that the database wants again
# Warnings that say nothing of what was just done: that old rows must be vacuumed some day.
_HARMLESS = ("GetNewTransactionId", "GetNewMultiXactId")
_PAUSE = 0.005  # seconds before the first of them; twice as long each time, up to a limit
_LONGEST_PAUSE = 0.2
# How every connection is, whatever the server, the database or the user has been given.
_CONFIGURE = """SELECT set_config('statement_timeout', %(milliseconds)s, false),
    -- Of statements outside of transactions too: each sees what it has waited for.
    set_config('default_transaction_isolation', 'read committed', false),
    -- A warning beside a commit must arrive.
    CASE WHEN current_setting('client_min_messages') IN ('error', 'fatal', 'panic')
        THEN set_config('client_min_messages', 'warning', false) END"""
# A server that forgets what it has acknowledged is told not to; a stronger setting stays.
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
        prepare: Callable[[Link], None],
    ) -> None:
        """Connects when it is first used; `prepare` is given the very first connection."""
        self.address = Address(url)
        self.settings = settings
        self._report = report
        self._durable = durable
        self._prepare = prepare
        self._lock = threading.Lock()
        self._links: Links | None = None
        self._forsaken: list[object] = []  # a parent's, of which a child must not close any

    def __repr__(self) -> str:
        return f"Database({self.address})"

    # --- running

    def reading(self, work: Callable[[Link], T], *, urgent: bool = False) -> T:
        """Run something that changes nothing, or the same however often it is run."""
        return self.insisting(lambda: self._twice(work, urgent))

    def _twice(self, work: Callable[[Link], T], urgent: bool) -> T:
        try:
            return self.once(work, urgent=urgent)
        except ConnectionLost:
            self.recheck()
        return self.once(work, urgent=urgent)

    def changing(self, work: Callable[[Link], T], *, repeatable: bool = False) -> T:
        """Run something as one transaction, all of it again if the database asks for that.

        `repeatable`: it changes the same however often it is run, so also after a loss.
        """

        def whole(link: Link) -> T:
            with link.transaction():
                return work(link)

        return self.reading(whole) if repeatable else self.insisting(lambda: self.once(whole))

    def insisting(self, attempt: Callable[[], T]) -> T:
        """Try again while the database says that others were in the way."""
        pause = _PAUSE
        for left in reversed(range(_ATTEMPTS)):
            try:
                return attempt()
            except Contended:
                if not left:
                    raise
            time.sleep(random.uniform(0, pause))
            pause = min(2 * pause, _LONGEST_PAUSE)
        raise AssertionError("unreachable")

    def once(self, work: Callable[[Link], T], *, urgent: bool = False) -> T:
        """Run something on a connection, its errors as ours; `urgent`: see `Links`."""
        links = self._links or self._opened()
        link = links.take(urgent=urgent)
        try:
            done = work(link)
        except psycopg.Error as error:
            found = mapped(error, self.address, lost=link.closed or link.broken)
            if isinstance(found, ReadOnly | Forgotten):
                link.close()  # another one may be allowed more, or know more
            raise found from error
        finally:
            warning, link.warning = link.warning, ""
            links.give(link)
        if warning:
            raise ConnectionLost(
                f"{self.address} acknowledged with a warning: {self.address.clean(warning)}",
                hint="it may not be on every machine that it must be on: try again, same id",
            )
        return done

    def prepared(self, work: Callable[[Link], T], *, patience: bool = True) -> T:
        """Run something on a connection of its own, whatever version the tables have.

        Without `patience` it may take as long as it takes.
        """
        with self._connected() as link:
            if not patience:
                link.execute("SELECT set_config('statement_timeout', '0', false)")
                link.patience = None
            return self._guarded(work, link)

    def recheck(self) -> None:
        """After a loss: the other connections are not to be trusted either."""
        if self._links is not None:
            self._links.renew()

    # --- connecting

    def _opened(self) -> Links:
        seconds = self.settings.wait_seconds
        if not self._lock.acquire(timeout=seconds):
            raise StoreFailedError(
                f"{self.address} cannot be reached: no answer in {seconds:g} seconds",
                hint="is the server running, and the address right?",
            )
        try:
            if self._links is None:
                with self._connected() as first:
                    self._guarded(self._prepare, first)
                most = self.settings.pool_size
                self._links = Links(self._connected, self.address, most, seconds)
            return self._links
        finally:
            self._lock.release()

    def _connected(self) -> Link:
        """A new connection, or why there is none."""
        try:
            link = Patient.connect(self._conninfo(), autocommit=True)
        except psycopg.Error as error:
            raise mapped(error, self.address) from None  # it holds on to the password
        try:
            self._configure(link)
        except psycopg.Error as error:
            link.close()
            raise mapped(error, self.address) from None
        link.warning = ""  # of what was asked so far, nothing matters
        return link

    def _guarded(self, work: Callable[[Link], T], link: Link) -> T:
        try:
            return work(link)
        except psycopg.Error as error:
            raise mapped(error, self.address, lost=link.closed) from error

    def _conninfo(self) -> str:
        seconds = self.settings.wait_seconds
        return self.address.conninfo(
            # The next of several hosts must still be reached while somebody waits.
            connect_timeout=str(max(2, round(seconds / self.address.hosts))),
            # A machine that does not answer any more, also not that it is gone.
            tcp_user_timeout=str(round(2000 * seconds)),
            keepalives_idle=str(max(1, round(seconds))),
            keepalives_interval=str(max(1, round(seconds / 3))),
            keepalives_count="3",
            application_name="everlog",
            # Decisions are made where changes are made: a standby may lag behind.
            target_session_attrs="primary",
        )

    def _configure(self, link: Link) -> None:
        link.add_notice_handler(partial(_noticed, ref(link)))
        link.patience = self.settings.statement_seconds + self.settings.wait_seconds
        # What is read behind a lock must be what the lock was waited for.
        link.isolation_level = IsolationLevel.READ_COMMITTED
        milliseconds = round(self.settings.statement_seconds * 1000)
        link.execute(_CONFIGURE, {"milliseconds": str(milliseconds)})
        if self._durable:
            link.execute(_DURABLE)

    # --- ending

    def close(self) -> None:
        """Close all connections, those in use once they are given back; the next use connects."""
        with self._lock:
            links, self._links = self._links, None
        if links is not None:
            links.close()

    def after_fork_in_child(self) -> None:
        """The connections are the parent's: they are neither used nor closed here."""
        self._forsaken.append(self._links)
        self._links = None
        self._lock = threading.Lock()


def _noticed(link: ref[Link], notice: Diagnostic) -> None:
    if notice.severity_nonlocalized == "WARNING" and notice.source_function not in _HARMLESS:
        found = link()
        if found is not None:
            found.warning = notice.message_primary or "a warning"
