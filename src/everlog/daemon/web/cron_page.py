"""`/cron`: the cron jobs."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import msgspec
from litestar import Request, Response, get
from litestar.di import NamedDependency

from everlog.daemon.web.list_page import session_address
from everlog.daemon.web.templating import render_response
from everlog.ids import epoch_ms
from everlog.render.html_text import make_readable
from everlog.runtime.runtime import Runtime
from everlog.settings import CronJob
from everlog.wire.responses import JobStatus

REFRESH_SECONDS = 3  # while a job runs, in browsers without JavaScript


class JobView(msgspec.Struct, frozen=True):
    """A job as the page shows it."""

    status: JobStatus
    api_path: str
    description: str  # of its schedule
    zone: str
    agent: str
    prompt: str
    state: str
    due: str  # time until its next run
    session_address: str  # of its last run


@get("/cron", include_in_schema=False)
async def show_cron(request: Request[Any, Any, Any], runtime: NamedDependency[Runtime]) -> Response[str]:
    """Show the jobs."""
    jobs = {job.id: job for job in runtime.settings.cron.jobs}
    default = runtime.router.default_agent
    await runtime.cron.refresh()
    statuses = [status for status in runtime.cron.statuses() if status.id in jobs]
    views = [_job_view(status, jobs[status.id], default) for status in statuses]
    is_busy = any(view.status.running for view in views)
    refresh_seconds = REFRESH_SECONDS if is_busy else 0
    return render_response("cron.html", request, jobs=views, refresh_seconds=refresh_seconds)


def _job_view(status: JobStatus, job: CronJob, default: str) -> JobView:
    state = "running" if status.running else "paused" if status.paused else "waiting"
    return JobView(
        status=status,
        api_path=f"/api/cron/{quote(job.id, safe='')}",
        description=_describe_schedule(job.schedule),
        zone=job.timezone,
        agent=job.agent or default,
        prompt=make_readable(job.prompt),
        state=state if job.enabled or status.running else "disabled",
        due=_time_until(status.next_run_at or "", time.time()),
        session_address=session_address(status.last_session_id) if status.last_session_id else "",
    )


def _describe_schedule(schedule: str) -> str:
    """Describe a schedule in words; empty if that is not possible."""
    from cronsim import CronSim, CronSimError  # noqa: PLC0415 - only needed with jobs

    try:
        return CronSim(schedule, datetime.now(UTC)).explain()
    except CronSimError:
        return ""


def _time_until(iso: str, now: float) -> str:
    """Format the time until a moment."""
    due_ms = epoch_ms(iso)
    if due_ms is None:
        return ""
    seconds = due_ms / 1000 - now
    if seconds < 60:
        return "in a moment"
    for limit, step, unit in ((3600, 60, "min"), (86400, 3600, "h")):
        if seconds < limit:
            return f"in {seconds // step:.0f} {unit}"
    return f"in {seconds // 86400:.0f} d"
