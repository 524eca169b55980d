"""`/cron`: the cron jobs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from litestar import Request, Response, get
from litestar.di import NamedDependency

from everlog.daemon.web.templating import render_response
from everlog.runtime.runtime import Runtime

REFRESH_SECONDS = 3  # while a job runs, in browsers without JavaScript


@get("/cron")
async def show_cron(request: Request[Any, Any, Any], runtime: NamedDependency[Runtime]) -> Response[str]:
    """Show the jobs."""
    jobs = {job.id: job for job in runtime.settings.cron.jobs}
    await runtime.cron.refresh()
    statuses = [status for status in runtime.cron.statuses() if status.id in jobs]
    return render_response(
        "cron.html",
        request,
        jobs=[(status, jobs[status.id]) for status in statuses],
        default_agent=runtime.router.default_agent,
        describe_schedule=_describe_schedule,
        refresh_seconds=REFRESH_SECONDS if any(status.running for status in statuses) else 0,
    )


def _describe_schedule(schedule: str) -> str:
    """Describe a schedule in words; empty if that is not possible."""
    from cronsim import CronSim, CronSimError  # noqa: PLC0415 - only needed with jobs

    try:
        return CronSim(schedule, datetime.now(UTC)).explain()
    except CronSimError:
        return ""
