"""`everlog sessions list`, `show` and `parts`: reading."""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from everlog.cli import output
from everlog.cli.completion_source import complete_agent
from everlog.cli.options import json_option, moment, open_root, root_option, session_argument


@click.command("list")
@click.option("--limit", type=click.IntRange(1, 1_000_000), default=50, show_default=True)
@click.option("--cursor", help="Go on where a listing ended.")
@click.option("--agent", shell_complete=complete_agent, help="Only of this agent.")
@click.option("--sender", help="Only with this sender.")
@click.option("--source", help="Only from this source, such as interactive or cron.")
@click.option(
    "--since", callback=moment, metavar="TIME", help="Active since: ISO 8601 (UTC), or 7d, 12h …"
)
@click.option("--title", metavar="TEXT", help="Only with this text in the title.")
@json_option
@root_option()
def list_sessions(limit: int, cursor: str | None, as_json: bool, **which: Any) -> None:
    """List sessions, last active first."""
    with open_root() as store:
        page = store.list(limit=limit, cursor=cursor, **which)
    if as_json:
        from everlog.log.fold import to_builtins

        found = [
            {**to_builtins(one.metadata), "bytes": one.bytes, "parts": one.parts} for one in page
        ]
        output.put_json({"sessions": found, "next": page.next, "total": page.total})
        return
    if not page:
        narrowed = any(which.values()) or cursor is not None
        output.note("no session matches" if narrowed else "no sessions (everlog sessions new)")
        return
    now = time.time()
    rows = [
        (
            one.id,
            one.metadata.title,
            one.metadata.agent,
            one.metadata.sender,
            str(one.metadata.message_count),
            output.ago(one.metadata.last_message_at, now),
            output.size(one.bytes),
        )
        for one in page
    ]
    titles = ("ID", "TITLE", "AGENT", "SENDER", "MSGS", "ACTIVE", "SIZE")
    spare = ("SENDER", "AGENT", "SIZE", "MSGS")
    right = ("MSGS", "SIZE")
    output.put_table(titles, rows, right=right, elastic="TITLE", spare=spare, last="ACTIVE")
    if page.next is not None:
        sys.stdout.flush()
        output.note(f"{len(page):,} of {page.total:,}; go on with --cursor {page.next}")


@click.command()
@session_argument
@click.option(
    "--all", "everything", is_flag=True, help="Also what was compacted, deleted or rewound."
)
@click.option("--full", is_flag=True, help="Tool calls, results and thinking in full.")
@click.option("--raw", is_flag=True, help="The exact lines of the log.")
@json_option
@root_option()
def show(session_id: str, everything: bool, full: bool, raw: bool, as_json: bool) -> None:
    """Show a session as a transcript."""
    from everlog.cli import transcript_output

    if raw and (as_json or full):
        raise click.UsageError("--raw goes with neither --json nor --full")
    with open_root() as store:
        session = store.session(session_id)
        if raw:
            transcript_output.put_lines(session)
        elif as_json:
            transcript_output.put_objects(session, everything=everything)
        else:
            transcript_output.put(session, everything=everything, full=full)


@click.command()
@session_argument
@json_option
@root_option()
def parts(session_id: str, as_json: bool) -> None:
    """List the files of a session's log."""
    with open_root() as store:
        found = store.session(session_id).parts
    total = sum(part.bytes for part in found)
    if as_json:
        output.put_json({"parts": found, "bytes": total})
        return
    rows = [
        (
            part.file,
            output.size(part.bytes),
            *("-" if seq is None else str(seq) for seq in (part.first_seq, part.last_seq)),
        )
        for part in found
    ]
    titles = ("FILE", "SIZE", "FIRST SEQ", "LAST SEQ")
    output.put_table(titles, rows, right=titles[1:])
    sys.stdout.flush()
    output.note(f"{output.plural(len(found), 'part')}, {output.size(total)}")
