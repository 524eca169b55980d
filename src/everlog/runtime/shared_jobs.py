"""Scheduled jobs of several daemons on one database: each time is one daemon's, and what came of
it is everybody's."""

from __future__ import annotations

import logging
from datetime import datetime

import msgspec
from msgspec.structs import replace

from everlog.aio import AsyncStore
from everlog.errors import ConflictError, NotFoundError
from everlog.ports import Sharing
from everlog.runtime.cron import Fared
from everlog.settings import CronJob


class SharedJobs:
    """How jobs fared, in the store that all share."""

    def __init__(self, store: AsyncStore, sharing: Sharing) -> None:
        self._store = store
        self._sharing = sharing
        self._clock_is_wrong = False

    async def load(self) -> dict[str, Fared]:
        """All jobs that ever ran, or were paused."""
        found = await self._store.call(self._sharing.jobs)
        return {name: _decoded(fared) for name, fared in found.items()}

    async def take(self, job: CronJob, due: datetime) -> Fared | None:
        """Be the one that runs a job for a time; None if another is, or its last run goes on.

        None as well if it is not that time by the clock that all share, which is logged once: what
        is known of the job is everybody's, and for the others nothing is wrong.
        """
        try:
            fared = await self._store.call(
                self._sharing.take_due, job.id, round(due.timestamp() * 1000)
            )
        except ConflictError as error:
            if not self._clock_is_wrong:
                logging.getLogger(__name__).warning("%s; %s", error.message, error.hint)
            self._clock_is_wrong = True
            return None
        self._clock_is_wrong = False
        if fared is None:
            return None
        known = _decoded(fared)
        return None if await self._goes_on(job, known) else known

    async def _goes_on(self, job: CronJob, known: Fared) -> bool:
        """Whether the session of the last run is at work, wherever that is.

        The main session of an agent says nothing of a job: others speak there too.
        """
        if job.system or known.last_session_id is None:
            return False
        try:
            session = await self._store.session(known.last_session_id)
            return (await session.metadata()).unfinished
        except NotFoundError:
            return False

    async def change(self, job: str, **changes: object) -> Fared:
        """Change what is known of a job; what others changed meanwhile stays."""
        made = Fared()

        def change(before: bytes) -> bytes:
            nonlocal made
            made = replace(_decoded(before), **changes)
            return msgspec.json.encode(made)

        await self._store.call(self._sharing.change_job, job, change)
        return made


def _decoded(fared: bytes) -> Fared:
    """What is known of a job; what cannot be read counts as nothing: it is nobody's words."""
    try:
        return msgspec.json.decode(fared, type=Fared)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Fared()
