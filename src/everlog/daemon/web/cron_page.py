"""`/cron`: what happens at certain times."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import msgspec
from litestar import Request, Response, get
from litestar.di import NamedDependency

from everlog.daemon.web.list_page import address_of
from everlog.daemon.web.templating import answer
from everlog.ids import epoch_ms
from everlog.render.html_text import readable
from everlog.runtime.cron import JobStatus
from everlog.runtime.runtime import Runtime
from everlog.settings import CronJob

REFRESH = 3  # seconds, while a job runs, for who has no scripts


class Shown(msgspec.Struct, frozen=True):
    """A job as the page shows it."""

    status: JobStatus
    call: str  # where it is paused, resumed and run
    words: str  # its schedule
    zone: str
    agent: str
    prompt: str
    state: str
    until: str  # its next run
    session: str  # address of its last run's


@get("/cron", include_in_schema=False)
async def cron(request: Request[Any, Any, Any], runtime: NamedDependency[Runtime]) -> Response[str]:
    """The view."""
    jobs = {job.id: job for job in runtime.settings.cron.jobs}
    default = runtime.router.default_agent
    await runtime.cron.refresh()
    statuses = [one for one in runtime.cron.statuses() if one.id in jobs]
    shown = [_shown(one, jobs[one.id], default) for one in statuses]
    busy = any(one.status.running for one in shown)
    return answer("cron.html", request, jobs=shown, again=REFRESH if busy else 0)


def _shown(status: JobStatus, job: CronJob, default: str) -> Shown:
    state = "running" if status.running else "paused" if status.paused else "waiting"
    return Shown(
        status=status,
        call=f"/api/cron/{quote(job.id, safe='')}",
        words=_in_words(job.schedule),
        zone=job.timezone,
        agent=job.agent or default,
        prompt=readable(job.prompt),
        state=state if job.enabled or status.running else "disabled",
        until=_until(status.next_run_at or "", time.time()),
        session=address_of(status.last_session_id) if status.last_session_id else "",
    )


def _in_words(schedule: str) -> str:
    """A schedule as people say it; nothing for one that has no words."""
    from cronsim import CronSim, CronSimError  # noqa: PLC0415 - only who has jobs needs it

    try:
        return CronSim(schedule, datetime.now(UTC)).explain()
    except CronSimError:
        return ""


def _until(iso: str, now: float) -> str:
    """How long it is until a time."""
    then = epoch_ms(iso)
    if then is None:
        return ""
    seconds = then / 1000 - now
    if seconds < 60:
        return "in a moment"
    for limit, step, unit in ((3600, 60, "min"), (86400, 3600, "h")):
        if seconds < limit:
            return f"in {seconds // step:.0f} {unit}"
    return f"in {seconds // 86400:.0f} d"
