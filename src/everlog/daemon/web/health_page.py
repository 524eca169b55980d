"""`/health`: how the daemon is, and whether every byte of its sessions is as it was written."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby, islice
from typing import Any

import msgspec
from litestar import Request, Response, get
from litestar.di import NamedDependency
from litestar.params import FromQuery

from everlog.daemon.web.list_page import address_of
from everlog.daemon.web.templating import answer
from everlog.errors import EverlogError
from everlog.model import Damaged
from everlog.ports import sharing_of
from everlog.render.html_text import readable
from everlog.runtime.integrity_check import Problem, Repair
from everlog.runtime.runtime import Runtime
from everlog.settings import Settings

REPORTS = 50  # of the store that are shown
SESSIONS = 200  # with damage
LINES = 50  # of damage of one session
REFRESH = 2  # seconds, while a check-up is under way or the store is away


class Patient(msgspec.Struct, frozen=True):
    """A session that was looked at."""

    id: str
    title: str
    address: str
    damage: list[Damaged]
    more: int
    repair: Repair | None


@get("/health", include_in_schema=False)
async def health(
    request: Request[Any, Any, Any],
    runtime: NamedDependency[Runtime],
    session: FromQuery[str] = "",
) -> Response[str]:
    """The view; with `session`, also a look at every byte of that one."""
    checkup = runtime.checkup
    counts = await runtime.checked_health()
    one: Patient | None = None
    if session.strip():
        asked = await runtime.store.session(session.strip())
        damage = await checkup.verify(asked.id)
        one = await runtime.store.call(_patient, runtime, asked.id, damage)
    progress = checkup.progress
    port = runtime.store.sync.port

    def read() -> tuple[list[Patient], list[str]]:
        leftovers = getattr(port, "leftovers", tuple)
        return _patients(runtime, progress.problems), sorted(leftovers())

    patients, leftovers = await runtime.store.call(read) if counts.reachable else ([], [])
    reports = list(getattr(port, "reports", ()))[: -REPORTS - 1 : -1]
    sharing = sharing_of(port)
    again = progress.running or not counts.reachable
    return answer(
        "health.html",
        request,
        again=REFRESH if again else 0,
        counts=counts,
        root="" if runtime.memory is None else str(runtime.memory.root),
        store="" if sharing is None else sharing.address,
        stores=_stores(runtime.settings),
        recovered=[(each, address_of(each.session_id)) for each in runtime.recovered],
        reports=[readable(told) for told in reports],
        leftovers=leftovers,
        progress=progress,
        patients=patients,
        sick=len({each.session for each in progress.problems}),
        one=one,
        asked=session.strip(),
    )


def _stores(settings: Settings) -> list[str]:
    return [f"{one.path} ({one.dialect})" for one in settings.stores]


def _patients(runtime: Runtime, problems: Iterable[Problem]) -> list[Patient]:
    """The sessions with damage, and those that were repaired."""
    found: dict[str, list[Damaged]] = {}
    for session, group in groupby(problems, lambda one: one.session):
        found.setdefault(session, []).extend(each.damage for each in group)
    for session in runtime.checkup.repairs:
        found.setdefault(session, [])
    some = islice(found.items(), SESSIONS)
    return [_patient(runtime, session, damage) for session, damage in some]


def _patient(runtime: Runtime, session: str, damage: Iterable[Damaged]) -> Patient:
    try:
        title = runtime.store.sync.port.metadata(session).title
    except EverlogError:  # its metadata may be what is damaged
        title = session
    found = list(damage)
    return Patient(
        id=session,
        title=title,
        address=address_of(session),
        damage=found[:LINES],
        more=max(len(found) - LINES, 0),
        repair=runtime.checkup.repairs.get(session),
    )
