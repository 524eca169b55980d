"""`/health`: the daemon's status, and the integrity check of its sessions."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import msgspec
from litestar import Request, Response, get
from litestar.di import NamedDependency
from litestar.params import FromQuery

from everlog.daemon.api.session_lookup import open_session
from everlog.daemon.web.templating import render_response
from everlog.errors import EverlogError
from everlog.ports import Reporting, Sweepable
from everlog.render.html_text import make_readable
from everlog.runtime.integrity_check import Repair
from everlog.runtime.runtime import Runtime
from everlog.wire.responses import Damage

MAX_REPORTS = 50  # of the store
MAX_SESSIONS = 200  # with damage
MAX_DAMAGE = 50  # of one session
REFRESH_SECONDS = 2  # while a check runs or the store is unreachable


class CheckedSession(msgspec.Struct, frozen=True):
    """A session after its integrity check."""

    id: str
    title: str
    damage: list[Damage]
    more_damage: int
    repair: Repair | None


@get("/health")
async def show_health(
    request: Request[Any, Any, Any], runtime: NamedDependency[Runtime], session: FromQuery[str] = ""
) -> Response[str]:
    """Show the daemon's health; with `session`, also check the integrity of that one."""
    checkup = runtime.integrity_check
    counts = await runtime.check_health()
    checked: CheckedSession | None = None
    if session.strip():
        opened = await open_session(runtime, session.strip())
        damage = await checkup.verify(opened.id)
        checked = await runtime.store.call(_checked_session, runtime, opened.id, damage)
    progress = checkup.progress
    port = runtime.store.sync.port

    def read() -> tuple[list[CheckedSession], list[str]]:
        sweepable = port.capability(Sweepable)
        return _checked_sessions(runtime, progress.damage), sorted(sweepable.leftovers() if sweepable else ())

    checked_sessions, leftovers = await runtime.store.call(read) if counts.reachable else ([], [])
    reporting = port.capability(Reporting)
    reports = [] if reporting is None else list(reporting.reports)[: -MAX_REPORTS - 1 : -1]
    is_refreshing = progress.running or not counts.reachable
    return render_response(
        "health.html",
        request,
        refresh_seconds=REFRESH_SECONDS if is_refreshing else 0,
        counts=counts,
        home="" if runtime.memories is None else str(runtime.memories.home),
        store=runtime.store.sync.location or "in memory",
        stores=[store.location for store in runtime.settings.stores],
        recovered=runtime.recovered,
        reports=[make_readable(report) for report in reports],
        leftovers=leftovers,
        progress=progress,
        checked_sessions=checked_sessions,
        damaged_count=len({item.session for item in progress.damage}),
        requested_session=checked,
        requested=session.strip(),
    )


def _checked_sessions(runtime: Runtime, damage: Iterable[Damage]) -> list[CheckedSession]:
    """Return the sessions with damage and those that were repaired."""
    damage_by_session: dict[str, list[Damage]] = {}
    for item in damage:
        damage_by_session.setdefault(item.session, []).append(item)
    for session in runtime.integrity_check.repairs:
        damage_by_session.setdefault(session, [])
    first_sessions = islice(damage_by_session.items(), MAX_SESSIONS)
    return [_checked_session(runtime, session, items) for session, items in first_sessions]


def _checked_session(runtime: Runtime, session: str, damage: Iterable[Damage]) -> CheckedSession:
    try:
        title = runtime.store.sync.port.metadata(session).display_title
    except EverlogError:  # its metadata may be damaged
        title = session
    damaged = list(damage)
    return CheckedSession(
        id=session,
        title=title,
        damage=damaged[:MAX_DAMAGE],
        more_damage=max(len(damaged) - MAX_DAMAGE, 0),
        repair=runtime.integrity_check.repairs.get(session),
    )
