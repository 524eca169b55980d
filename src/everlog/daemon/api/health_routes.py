"""`/api/health`: how the daemon is, and whether every byte of its sessions is as it was written."""

from __future__ import annotations

from collections.abc import Iterable

from litestar import Controller, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath

from everlog.daemon.api.requests import find
from everlog.daemon.error_responses import PROBLEMS
from everlog.model import Damaged
from everlog.runtime.integrity_check import Progress
from everlog.runtime.runtime import Health, Runtime
from everlog.wire.responses import Checked, Damage, Repaired, Verified


class HealthRoutes(Controller):
    """The daemon and its store."""

    path = "/api"
    tags = ("daemon",)

    @get("/health", responses=PROBLEMS)
    async def health(self, runtime: NamedDependency[Runtime]) -> Health:
        """That the daemon runs, counts, and whether its store answers."""
        return await runtime.checked_health()

    @get("/health/verify", responses=PROBLEMS)
    async def verified(self, runtime: NamedDependency[Runtime]) -> Checked:
        """How far the check of all sessions is, and what it has found."""
        return checked(runtime.checkup.progress)

    @post("/health/verify", status_code=200, responses=PROBLEMS)
    async def verify_all(self, runtime: NamedDependency[Runtime]) -> Checked:
        """Begin to look at every byte of every session, unless that is under way."""
        return checked(runtime.checkup.begin())

    @get("/sessions/{session_id:str}/verify", responses=PROBLEMS)
    async def verify(
        self, runtime: NamedDependency[Runtime], session_id: FromPath[str]
    ) -> Verified:
        """Look at every byte of one session."""
        session = await find(runtime, session_id)
        damage = await runtime.checkup.verify(session.id)
        return Verified(ok=not damage, damage=_damage(session.id, damage))

    @post("/sessions/{session_id:str}/repair", status_code=200, responses=PROBLEMS)
    async def repair(
        self, runtime: NamedDependency[Runtime], session_id: FromPath[str]
    ) -> Repaired:
        """Set right what can be, deleting nothing; not during a turn."""
        session = await find(runtime, session_id)
        await runtime.at_rest(session.id)
        made = await runtime.checkup.repair(session.id)
        return Repaired(id=session.id, done=list(made.done), left=_damage(session.id, made.left))


def checked(progress: Progress) -> Checked:
    """A check-up as an answer."""
    return Checked(
        running=progress.running,
        started_at=progress.started_at,
        ended_at=progress.ended_at,
        done=progress.done,
        of=progress.of,
        ok=not progress.problems and not progress.failure,
        damage=[one for each in progress.problems for one in _damage(each.session, [each.damage])],
        failure=progress.failure,
    )


def _damage(session: str, found: Iterable[Damaged]) -> list[Damage]:
    return [
        Damage(
            session=session,
            file=one.file,
            start=one.start,
            end=one.end,
            seq=one.seq,
            problem=one.problem,
        )
        for one in found
    ]
