"""`everlog cron`: list and control the jobs of the running daemon."""

from __future__ import annotations

import time

import click

from everlog.cli import output
from everlog.cli.options import command, connect_daemon

job_argument = click.argument("job")


@command("list")
def list_jobs(as_json: bool) -> None:
    """List the jobs with their state and last result."""
    with connect_daemon() as client:
        jobs = client.cron()
    if as_json:
        output.print_json({"jobs": jobs})
        return
    now = time.time()
    rows = [
        (
            job["id"],
            job["schedule"],
            _state(job),
            output.ago(job["lastRunAt"], now) if job.get("lastRunAt") else "–",
            job.get("lastStatus") or "–",
            str(job["consecutiveFailures"]),
            job.get("nextRunAt") or "–",
        )
        for job in jobs
    ]
    head = ("JOB", "SCHEDULE", "STATE", "LAST RUN", "RESULT", "FAILURES", "NEXT RUN")
    output.print_table(head, rows)


@command()
@job_argument
def pause(job: str, as_json: bool) -> None:
    """Pause a job until it is resumed."""
    with connect_daemon() as client:
        client.pause(job)
    output.print_answer({"job": job, "paused": True}, f"{job} is paused", as_json)


@command()
@job_argument
def resume(job: str, as_json: bool) -> None:
    """Resume a paused job from its next scheduled time on."""
    with connect_daemon() as client:
        client.resume(job)
    output.print_answer({"job": job, "paused": False}, f"{job} is resumed", as_json)


@command()
@job_argument
def run(job: str, as_json: bool) -> None:
    """Run a job now and print the id of its session."""
    with connect_daemon() as client:
        session = client.run(job)
    output.print_answer({"sessionId": session}, session, as_json)


def _state(job: dict[str, object]) -> str:
    if job["running"]:
        return "running"
    if not job["enabled"]:
        return "disabled"
    return "paused" if job["paused"] else "waiting"
