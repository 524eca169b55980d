"""`/api/health`: the daemon's status, and the integrity check and repair of sessions."""

from __future__ import annotations

from litestar import Controller, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath

from everlog.daemon.api.session_lookup import find_session
from everlog.daemon.error_responses import ERROR_RESPONSES
from everlog.runtime.runtime import Runtime
from everlog.wire.responses import Health, IntegrityStatus, RepairResult, VerifyResult


class HealthRoutes(Controller):
    """Health and integrity of the daemon and its store."""

    path = "/api"
    tags = ("daemon",)

    @get("/health", responses=ERROR_RESPONSES)
    async def get_health(self, runtime: NamedDependency[Runtime]) -> Health:
        """Return the daemon's counts, and whether its store is reachable."""
        return await runtime.check_health()

    @get("/health/verify", responses=ERROR_RESPONSES)
    async def get_integrity_status(self, runtime: NamedDependency[Runtime]) -> IntegrityStatus:
        """Return the progress and findings of the integrity check of all sessions."""
        return runtime.integrity_check.progress

    @post("/health/verify", status_code=200, responses=ERROR_RESPONSES)
    async def start_integrity_check(self, runtime: NamedDependency[Runtime]) -> IntegrityStatus:
        """Start the integrity check of all sessions, unless it is running."""
        return runtime.integrity_check.start()

    @get("/sessions/{session_id:str}/verify", responses=ERROR_RESPONSES)
    async def verify_session(self, runtime: NamedDependency[Runtime], session_id: FromPath[str]) -> VerifyResult:
        """Check the integrity of every byte of one session."""
        session = await find_session(runtime, session_id)
        damage = await runtime.integrity_check.verify(session.id)
        return VerifyResult(ok=not damage, damage=damage)

    @post("/sessions/{session_id:str}/repair", status_code=200, responses=ERROR_RESPONSES)
    async def repair_session(self, runtime: NamedDependency[Runtime], session_id: FromPath[str]) -> RepairResult:
        """Repair a session as far as possible, deleting nothing; not during a turn."""
        session = await find_session(runtime, session_id)
        await runtime.wait_for_release(session.id)
        repair = await runtime.integrity_check.repair(session.id)
        return RepairResult(id=session.id, done=repair.done, left=repair.left)
