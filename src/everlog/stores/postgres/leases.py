"""The turn lease: held until a time of the server's clock, with an epoch that only grows.

Whoever takes a turn gets the next epoch. An append under a lease compares it, so a runner that was
paused or cut off, and whose turn another has taken, writes nothing any more, whatever it believes.

When a lease is over is also known without the server: it lasts from the moment before the question
was sent that it was granted for, by the clock of this process.
"""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from psycopg.errors import QueryCanceled

from everlog.errors import EverlogError, NotFoundError, StoreFailedError
from everlog.stores.file.turn_lock import taken
from everlog.stores.postgres.connections import Database, Link
from everlog.stores.postgres.id_columns import session_of, sid_of
from everlog.stores.postgres.statements import load

if TYPE_CHECKING:
    from everlog.stores.postgres.background import Keeper

_LEAST = 0.1  # seconds to wait for a row
_PATIENCE = 1.0  # seconds, at least, for an answer


class PostgresLease:
    """The right to run a turn, renewed for as long as it is held."""

    def __init__(self, leases: Leases, session: str, epoch: int, until: float) -> None:
        self.session = session
        self.epoch = epoch
        self.until = until  # by time.monotonic: nobody else has it before
        self.hindered = False  # somebody held its row when it was last renewed
        self._leases: Leases | None = leases
        self.lost = False  # another has it, or renewing came too late
        self._told: list[Callable[[], None]] = []  # when it is lost

    @property
    def held(self) -> bool:
        """Whether it was neither given back nor lost, as far as this process knows."""
        return self._leases is not None and not self.lost

    def on_lost(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call something, in any thread, as soon as it is known to be lost."""
        self._told.append(call)
        if self.lost:
            self.lose()
        return partial(self._leave_alone, call)

    def _leave_alone(self, call: Callable[[], None]) -> None:
        with suppress(ValueError):
            self._told.remove(call)

    def lose(self) -> None:
        """Another has it, or may have."""
        self.lost = True
        with suppress(IndexError):
            while True:
                self._told.pop()()  # each once, whoever else tells

    def release(self) -> None:
        """Give it back; doing so twice is harmless."""
        leases, self._leases = self._leases, None
        if leases is not None:
            leases.give_back(self)

    def forsake(self) -> None:
        """It belongs to the process that this one was forked from."""
        self._leases = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


class Leases:
    """Turns of one store."""

    def __init__(self, database: Database, keeper: Keeper) -> None:
        self._database = database
        self._keeper = keeper
        self._sql = load("sessions", database.settings.schema)
        self.owner = new_owner()

    def take(self, session: str) -> PostgresLease:
        """The turn of a session, at once or SessionBusyError."""
        sid = sid_of(session)
        values = {
            "sid": sid,
            # A name for this lease alone: if the answer is lost, it is asked for again.
            "owner": f"{self.owner}.{os.urandom(4).hex()}",
            "seconds": self._database.settings.lease_seconds,
        }

        def work(link: Link) -> tuple[float, Any]:
            sent = time.monotonic()
            return sent, link.execute(self._sql["take_turn"], values).fetchone()

        sent, row = self._database.reading(work)
        if row is None:
            raise self._refusal(session)
        until = sent + self._database.settings.lease_seconds
        lease = PostgresLease(self, session, row[0], until)
        try:
            self._keeper.renew(lease)
        except BaseException:  # a turn that nobody has must not be left taken
            lease.release()
            raise
        return lease

    def _refusal(self, session: str) -> EverlogError:
        values = {"sid": sid_of(session)}
        row = self._database.reading(
            lambda link: link.execute(self._sql["turn"], values).fetchone()
        )
        if row is None:
            return NotFoundError(f"there is no session {session}", session=session)
        owner = row[1] or ""
        if owner.startswith(f"{self.owner}."):
            return taken(session, owner=owner)
        return taken(
            session,
            owner,
            hint="wait for its end; if its process is gone, it is free after"
            f" {self._database.settings.lease_seconds:g} seconds",
            owner=owner,
        )

    def renew(self, leases: Sequence[PostgresLease]) -> Iterator[PostgresLease]:
        """Hold them for longer; yields those that others have.

        All by one statement, unless that has to wait too long for a row: then each by itself, and
        those that were hindered so from there on, until they are free. Rows are waited for and not
        passed over (SKIP LOCKED), since one that is written to all the time is never found free;
        besides, Citus locks no rows of several machines for one SELECT.
        """
        deadline = time.monotonic() + self._database.settings.lease_seconds / 3
        apart = [one for one in leases if one.hindered]
        random.shuffle(apart)  # there may not be time for all
        together = [one for one in leases if not one.hindered]
        try:
            yield from self._prolonged(together)
        except StoreFailedError as error:
            if not _took_too_long(error):
                raise
            apart = sorted(together, key=lambda one: one.until) + apart
        for one in apart:
            if time.monotonic() > deadline:
                return  # the others must not wait for these
            try:
                yield from self._prolonged([one])
                one.hindered = False
            except StoreFailedError as error:
                if not _took_too_long(error):
                    raise
                one.hindered = True

    def _prolonged(self, leases: Sequence[PostgresLease]) -> list[PostgresLease]:
        """Hold some for longer, if their rows are free soon; those that others have."""
        if not leases:
            return []
        seconds = self._database.settings.lease_seconds
        values = {
            "sids": [sid_of(one.session) for one in leases],
            "epochs": [one.epoch for one in leases],
            "seconds": seconds,
        }
        limit = {"milliseconds": str(round(1000 * max(seconds / 15, _LEAST)))}

        def work(link: Link) -> tuple[float, list[tuple[Any, ...]]]:
            patience = link.patience
            # A server that is silent for longer is better looked for on another connection.
            link.patience = min(patience or seconds, max(seconds / 3, _PATIENCE))
            sent = time.monotonic()
            try:
                with link.transaction():
                    link.execute(self._sql["limit"], limit)
                    return sent, link.execute(
                        self._sql["renew_turns"], values, binary=True
                    ).fetchall()
            finally:
                link.patience = patience

        sent, rows = self._database.reading(work, urgent=True)
        held = {(session_of(sid), epoch) for sid, epoch in rows}
        lost = []
        for one in leases:
            if (one.session, one.epoch) in held:
                one.until = sent + seconds
            else:
                lost.append(one)
        return lost

    def give_back(self, lease: PostgresLease) -> None:
        """End it now; if the database cannot be told, it ends by itself."""
        self._keeper.let_go(lease)
        values = {"sid": sid_of(lease.session), "epoch": lease.epoch}
        with self._keeper.harmless(f"the turn of session {lease.session} ends later"):
            self._database.reading(
                lambda link: link.execute(self._sql["give_turn_back"], values).rowcount
            )


def new_owner() -> str:
    """A name for one store in this process, told to those who find a turn taken."""
    return f"{socket.gethostname()}.{os.getpid()}.{os.urandom(4).hex()}"


def _took_too_long(error: StoreFailedError) -> bool:
    """Whether the server ended it, and not something else."""
    return isinstance(error.__cause__, QueryCanceled)
