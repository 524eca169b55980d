"""The commands that read sessions: `everlog sessions list`, `show` and `parts`."""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from everlog.cli import output
from everlog.cli.completion_source import complete_agent
from everlog.cli.options import find_session, json_option, open_root, parse_time, root_option, session_argument


@click.command("list")
@click.option(
    "--limit", type=click.IntRange(1, 1_000_000), default=50, show_default=True, help="Show at most this many sessions."
)
@click.option("--cursor", help="Continue a listing after the page that printed this cursor.")
@click.option("--agent", shell_complete=complete_agent, help="Show only sessions of this agent.")
@click.option("--sender", help="Show only sessions with this sender.")
@click.option("--source", help="Show only sessions from this source: interactive, cron, …")
@click.option(
    "--since",
    callback=parse_time,
    metavar="TIME",
    help="Show only sessions active since TIME: ISO 8601 (UTC), or an age such as 7d or 12h.",
)
@click.option("--title", metavar="TEXT", help="Show only sessions with TEXT in the title.")
@json_option
@root_option()
def list_sessions(limit: int, cursor: str | None, as_json: bool, **criteria: Any) -> None:
    """List sessions, last active first."""
    with open_root() as store:
        page = store.list(limit=limit, cursor=cursor, **criteria)
    if as_json:
        from everlog.log.fold import to_builtins

        sessions = [{**to_builtins(row.metadata), "bytes": row.bytes, "parts": row.parts} for row in page]
        output.print_json({"sessions": sessions, "next": page.next, "total": page.total})
        return
    if not page:
        is_filtered = any(criteria.values()) or cursor is not None
        output.info("no session matches" if is_filtered else "no sessions yet (everlog sessions new)")
        return
    now = time.time()
    rows = [
        (
            row.id,
            row.metadata.display_title,
            row.metadata.agent,
            row.metadata.sender,
            str(row.metadata.message_count),
            output.ago(row.metadata.last_message_at, now),
            output.size(row.bytes),
        )
        for row in page
    ]
    titles = ("ID", "TITLE", "AGENT", "SENDER", "MSGS", "ACTIVE", "SIZE")
    droppable = ("SENDER", "AGENT", "SIZE", "MSGS")
    right = ("MSGS", "SIZE")
    output.print_table(titles, rows, right=right, elastic="TITLE", droppable=droppable, last_resort="ACTIVE")
    if page.next is not None:
        sys.stdout.flush()
        output.info(f"{len(page):,} of {page.total:,}; continue with --cursor {page.next}")


@click.command()
@session_argument
@click.option("--all", "everything", is_flag=True, help="Include messages that were compacted, deleted or rewound.")
@click.option("--full", is_flag=True, help="Show tool calls, results and thinking in full.")
@click.option("--raw", is_flag=True, help="Print the exact lines of the log.")
@json_option
@root_option()
def show(session_id: str, everything: bool, full: bool, raw: bool, as_json: bool) -> None:
    """Show a session as a transcript."""
    from everlog.cli import transcript_output

    if raw and (as_json or full):
        raise click.UsageError("--raw cannot be combined with --json or --full")
    with open_root() as store:
        session = find_session(store, session_id)
        if raw:
            transcript_output.print_raw_lines(session)
        elif as_json:
            transcript_output.print_messages_json(session, everything=everything)
        else:
            transcript_output.print_transcript(session, everything=everything, full=full)


@click.command()
@session_argument
@json_option
@root_option()
def parts(session_id: str, as_json: bool) -> None:
    """List the files that hold a session's log."""
    with open_root() as store:
        log_parts = find_session(store, session_id).parts
    total = sum(part.bytes for part in log_parts)
    if as_json:
        output.print_json({"parts": log_parts, "bytes": total})
        return
    rows = [
        (
            part.file,
            output.size(part.bytes),
            *("-" if seq is None else str(seq) for seq in (part.first_seq, part.last_seq)),
        )
        for part in log_parts
    ]
    titles = ("FILE", "SIZE", "FIRST SEQ", "LAST SEQ")
    output.print_table(titles, rows, right=titles[1:])
    sys.stdout.flush()
    output.info(f"{output.plural(len(log_parts), 'part')}, {output.size(total)}")
