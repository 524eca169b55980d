"""The integrity check: reads every byte of every session, in the background.

It checks one session after the other, and only one check runs at a time. The problems it finds are
kept until the next check, with the repairs made since.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
from msgspec.structs import replace

from everlog.agent.turn_lease import acquire_lease
from everlog.aio import AsyncStore
from everlog.errors import EverlogError, NotFoundError
from everlog.ids import timestamp
from everlog.runtime.background_task import BackgroundTask
from everlog.wire.events import RunEvent, SessionChanged
from everlog.wire.responses import Damage, IntegrityStatus


class Repair(msgspec.Struct, frozen=True, kw_only=True):
    """The repairs made to a session, and the damage that is left."""

    at: str
    done: list[str]
    left: list[Damage]


_NOT_RUN = IntegrityStatus(running=False, started_at=None, ended_at=None, done=0, of=0, ok=True, damage=[], failure="")


class IntegrityCheck:
    """The integrity check of one store."""

    def __init__(self, store: AsyncStore, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self.task = BackgroundTask("integrity check", self._run)
        self.progress = _NOT_RUN
        self.repairs: dict[str, Repair] = {}  # by session, since the last check began

    def start(self) -> IntegrityStatus:
        """Start a check, unless one is running; return its progress."""
        if not self.progress.running:
            self.progress = replace(_NOT_RUN, running=True, started_at=self._now())
            self.repairs = {}
            self.task.start()
            self.task.wake()
        return self.progress

    async def verify(self, session_id: str) -> list[Damage]:
        """Check one session now, update its problems, and return its damage."""
        with self._clear_if_missing(session_id):
            damaged = await self._store.call(self._store.sync.port.verify, session_id)
        damage = [Damage.of(session_id, item) for item in damaged]
        self._set_damage(session_id, damage)
        return damage

    async def repair(self, session_id: str) -> Repair:
        """Repair a session without deleting anything; raises `SessionBusyError` during a turn."""
        with self._clear_if_missing(session_id):
            session = await self._store.session(session_id)
            async with acquire_lease(session):
                done = await session.repair()
        remaining = await self.verify(session.id)
        report = Repair(at=self._now(), done=list(done), left=remaining)
        self.repairs[session.id] = report
        return report

    def on_event(self, event: RunEvent) -> None:
        """Clear the problems of a session when it is deleted."""
        if isinstance(event, SessionChanged) and event.change == "deleted":
            self._set_damage(event.session_id, [])

    @contextmanager
    def _clear_if_missing(self, session_id: str) -> Iterator[None]:
        """Clear the problems of a session if the block raises `NotFoundError`."""
        try:
            yield
        except NotFoundError:
            self._set_damage(session_id, [])
            raise

    async def _run(self) -> None:
        failure = ""
        try:
            await self._check_all()
        except asyncio.CancelledError:
            failure = "the check was cancelled"
            raise
        except EverlogError as error:
            failure = error.message
        finally:
            self._update(running=False, ended_at=self._now(), failure=failure)

    async def _check_all(self) -> None:
        ids = await self._store.call(lambda: [row.id for row in self._store.sync.walk()])
        self._update(of=len(ids))
        for number, session_id in enumerate(ids, 1):
            try:
                await self.verify(session_id)
            except NotFoundError:
                pass  # deleted meanwhile
            except EverlogError as error:  # continue with the other sessions
                self._set_damage(session_id, [Damage.unreadable(session_id, error.message)])
            self._update(done=number)

    def _set_damage(self, session_id: str, damage: list[Damage]) -> None:
        others = [item for item in self.progress.damage if item.session != session_id]
        if damage or len(others) < len(self.progress.damage):
            self._update(damage=others + damage)

    def _update(self, **changes: object) -> None:
        status = replace(self.progress, **changes)
        self.progress = replace(status, ok=not status.damage and not status.failure)

    def _now(self) -> str:
        return timestamp(self._clock())
