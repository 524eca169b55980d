"""`everlog cron`: list and control the jobs of the running daemon."""

from __future__ import annotations

import time

import click

from everlog.cli import output
from everlog.cli.options import chosen_root, json_option, root_option

job_argument = click.argument("job")


@click.group()
@root_option()
def cron() -> None:
    """List, pause, resume and run the jobs of the running daemon."""


@cron.command("list")
@json_option
@root_option()
def list_jobs(as_json: bool) -> None:
    """List the jobs with their state and last result."""
    from everlog.client import Client

    with Client.of(chosen_root()) as client:
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


@cron.command()
@job_argument
@json_option
@root_option()
def pause(job: str, as_json: bool) -> None:
    """Pause a job until it is resumed."""
    from everlog.client import Client

    with Client.of(chosen_root()) as client:
        client.pause(job)
    _print_answer(f"{job} is paused", {"job": job, "paused": True}, as_json)


@cron.command()
@job_argument
@json_option
@root_option()
def resume(job: str, as_json: bool) -> None:
    """Resume a paused job from its next scheduled time on."""
    from everlog.client import Client

    with Client.of(chosen_root()) as client:
        client.resume(job)
    _print_answer(f"{job} is resumed", {"job": job, "paused": False}, as_json)


@cron.command()
@job_argument
@json_option
@root_option()
def run(job: str, as_json: bool) -> None:
    """Run a job now and print the id of its session."""
    from everlog.client import Client

    with Client.of(chosen_root()) as client:
        session = client.run(job)
    _print_answer(session, {"sessionId": session}, as_json)


def _print_answer(text: str, answer: dict[str, object], as_json: bool) -> None:
    if as_json:
        output.print_json(answer)
    else:
        print(text)


def _state(job: dict[str, object]) -> str:
    if job["running"]:
        return "running"
    if not job["enabled"]:
        return "disabled"
    return "paused" if job["paused"] else "waiting"
