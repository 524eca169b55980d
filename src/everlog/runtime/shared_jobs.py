"""Scheduled jobs of several daemons on one database: one daemon claims each due run, and all share
the state of the jobs."""

from __future__ import annotations

import logging
from datetime import datetime

import msgspec
from msgspec.structs import replace

from everlog.aio import AsyncStore
from everlog.errors import ConflictError, NotFoundError
from everlog.ports import SharedBetweenMachines
from everlog.settings import CronJob


class JobState(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The state of a job that survives restarts."""

    paused: bool = False
    last_run_at: str | None = None
    last_status: str | None = None
    last_error_snippet: str | None = None
    last_session_id: str | None = None
    consecutive_failures: int = 0


class SharedJobs:
    """The states of jobs in a store that several daemons share."""

    def __init__(self, store: AsyncStore, sharing: SharedBetweenMachines) -> None:
        self._store = store
        self._sharing = sharing
        self._clock_is_wrong = False

    async def load(self) -> dict[str, JobState]:
        """Load the states of all jobs that ever ran or were paused."""
        encoded = await self._store.call(self._sharing.jobs)
        return {name: _decode(state) for name, state in encoded.items()}

    async def claim(self, job: CronJob, due: datetime) -> JobState | None:
        """Claim a due run; None if another daemon has it, or the last run is still running.

        Also None if the run is not due by the clock of the database. That is logged once rather
        than stored in the shared state, since other daemons have no problem.
        """
        due_ms = round(due.timestamp() * 1000)
        try:
            encoded = await self._store.call(self._sharing.take_due, job.id, due_ms)
        except ConflictError as error:
            if not self._clock_is_wrong:
                logging.getLogger(__name__).warning("%s; %s", error.message, error.hint)
            self._clock_is_wrong = True
            return None
        self._clock_is_wrong = False
        if encoded is None:
            return None
        state = _decode(encoded)
        return None if await self._is_running(job, state) else state

    async def _is_running(self, job: CronJob, state: JobState) -> bool:
        """Return whether the session of the last run is busy, in whatever process.

        The main session of an agent tells nothing about a job: it gets other messages too.
        """
        if job.system or state.last_session_id is None:
            return False
        try:
            session = await self._store.session(state.last_session_id)
            return (await session.metadata()).unfinished
        except NotFoundError:
            return False

    async def update(self, job: str, **changes: object) -> JobState:
        """Change fields of a job's state; concurrent changes of other fields are kept."""
        state = JobState()

        def change(before: bytes) -> bytes:
            nonlocal state
            state = replace(_decode(before), **changes)
            return msgspec.json.encode(state)

        await self._store.call(self._sharing.change_job, job, change)
        return state


def _decode(encoded: bytes) -> JobState:
    """Decode the state of a job; one that cannot be read is treated as empty."""
    try:
        return msgspec.json.decode(encoded, type=JobState)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return JobState()
