"""A check-up: every byte of every session is looked at, behind everything else that goes on.

One session after the other, one check-up at a time. What it finds is kept until the next one, with
what was done about it since.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
from msgspec.structs import replace

from everlog.agent.turn_lease import leased
from everlog.aio import AsyncStore
from everlog.errors import EverlogError, NotFoundError
from everlog.ids import timestamp
from everlog.model import Damaged
from everlog.wire.events import RunEvent, SessionChanged


class Problem(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Damage, and the session that has it."""

    session: str
    damage: Damaged


class Repair(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What was done about a session, and what could not be."""

    session: str
    at: str
    done: tuple[str, ...]
    left: tuple[Damaged, ...]


class Progress(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How far a check-up is, and what it has found."""

    running: bool = False
    started_at: str | None = None  # None: there was none yet
    ended_at: str | None = None
    done: int = 0  # sessions
    of: int = 0
    problems: tuple[Problem, ...] = ()
    failure: str = ""  # why it ended early


class Checkup:
    """The check-ups of one store."""

    def __init__(self, store: AsyncStore, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self.progress = Progress()
        self.repairs: dict[str, Repair] = {}  # by session, since the last check-up began

    def begin(self) -> Progress:
        """Begin one, unless one is under way; how far it is."""
        if not self.progress.running:
            self.progress = Progress(running=True, started_at=self._now())
            self.repairs = {}
            self._task = asyncio.create_task(self._run())
        return self.progress

    async def end(self) -> None:
        """Stop the one that is under way."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    async def verify(self, session: str) -> tuple[Damaged, ...]:
        """Look at one session now; what was known of it is known anew."""
        with self._forgetting(session):
            found = await self._store.call(self._store.sync.port.verify, session)
        self._found(session, found)
        return found

    async def repair(self, session: str) -> Repair:
        """Set right what can be, deleting nothing; SessionBusyError during a turn."""
        with self._forgetting(session):
            own = await self._store.session(session)
            async with leased(own):
                done = await own.repair()
        left = await self.verify(own.id)
        made = Repair(session=own.id, at=self._now(), done=done, left=left)
        self.repairs[own.id] = made
        return made

    def hear(self, event: RunEvent) -> None:
        """A session that was deleted has nothing wrong with it any more."""
        if isinstance(event, SessionChanged) and event.change == "deleted":
            self._found(event.session_id, ())

    @contextmanager
    def _forgetting(self, session: str) -> Iterator[None]:
        """The same for one that is found to be gone."""
        try:
            yield
        except NotFoundError:
            self._found(session, ())
            raise

    async def _run(self) -> None:
        failure = ""
        try:
            await self._look()
        except asyncio.CancelledError:
            failure = "it was stopped"
            raise
        except EverlogError as error:
            failure = error.message
        finally:
            self._note(running=False, ended_at=self._now(), failure=failure)

    async def _look(self) -> None:
        port = self._store.sync.port
        ids = await self._store.call(lambda: [one.id for one in self._store.sync.walk()])
        self._note(of=len(ids))
        for number, session in enumerate(ids, 1):
            try:
                self._found(session, await self._store.call(port.verify, session))
            except NotFoundError:
                pass  # deleted meanwhile
            except EverlogError as error:  # one session that cannot be read hides no other
                unread = Damaged(file="session.jsonl", start=0, end=0, problem=error.message)
                self._found(session, (unread,))
            self._note(done=number)

    def _found(self, session: str, damage: tuple[Damaged, ...]) -> None:
        others = [one for one in self.progress.problems if one.session != session]
        new = [Problem(session=session, damage=one) for one in damage]
        if new or len(others) < len(self.progress.problems):
            self._note(problems=(*others, *new))

    def _note(self, **changes: object) -> None:
        self.progress = replace(self.progress, **changes)

    def _now(self) -> str:
        return timestamp(self._clock())
