"""The commands that read sessions: `everlog sessions list`, `show`, `browse` and `parts`."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import click

from everlog.cli import output
from everlog.cli.options import (
    command,
    filter_options,
    limit_option,
    open_chosen_store,
    open_session,
    session_argument,
    time_option,
)

SHOWN_SKIPPED = 5  # files that are not sessions, named by a listing; --json names all


@command("list")
@limit_option(1_000_000, 50, "sessions")
@click.option("--cursor", help="Continue a listing after the page that printed this cursor.")
@filter_options("Show")
@time_option("--since", "Show only sessions active since TIME: ISO 8601 (UTC), or an age such as 7d or 12h.")
@click.option("--title", metavar="TEXT", help="Show only sessions with TEXT in the title.")
def list_sessions(limit: int, cursor: str | None, as_json: bool, **criteria: Any) -> None:
    """List sessions, last active first.

    Files in a directory of another program that are not sessions are named with the reason.
    """
    from everlog.app import unrecognised_files
    from everlog.ports import DirectoryBacked

    with open_chosen_store() as store:
        page = store.list(limit=limit, cursor=cursor, **criteria)
        directories = store.port.capability(DirectoryBacked)
        skipped = directories.skipped_files() if directories else () if page else unrecognised_files(store)
    if as_json:
        from everlog.log.fold import to_builtins

        sessions = [
            {
                **to_builtins(row.metadata),
                "resumeCommand": row.metadata.resume_command,
                "bytes": row.bytes,
                "parts": row.parts,
            }
            for row in page
        ]
        others = {"skipped": skipped} if skipped else {}
        output.print_json({"sessions": sessions, "next": page.next, "total": page.total, **others})
        return
    output.print_skipped(skipped, SHOWN_SKIPPED)
    if not page:
        is_filtered = any(criteria.values()) or cursor is not None
        output.info("no session matches" if is_filtered else "no sessions yet (everlog sessions new)")
        return
    now = time.time()
    rows = [output.session_cells(row, now) for row in page]
    titles = tuple(rows[0])
    droppable = ("SENDER", "AGENT", "SIZE", "MSGS")
    right = ("MSGS", "SIZE")
    cells = [tuple(row.values()) for row in rows]
    output.print_table(titles, cells, right=right, elastic="TITLE", droppable=droppable, last_resort="ACTIVE")
    if page.next is not None:
        output.info(f"{len(page):,} of {page.total:,}; continue with --cursor {page.next}")


@command()
@session_argument
@click.option("--all", "everything", is_flag=True, help="Include messages that were compacted, deleted or rewound.")
@click.option("--full", is_flag=True, help="Show tool calls, results and thinking in full.")
@click.option("--raw", is_flag=True, help="Print the exact lines of the log.")
def show(session_id: str, everything: bool, full: bool, raw: bool, as_json: bool) -> None:
    """Show a session as a transcript."""
    from everlog.cli import transcript_output

    if raw and (as_json or full):
        raise click.UsageError("--raw cannot be combined with --json or --full")
    with open_session(session_id) as session:
        if raw:
            transcript_output.print_raw_lines(session)
        elif as_json:
            transcript_output.print_messages_json(session, everything=everything)
        else:
            transcript_output.print_transcript(session, everything=everything, full=full)


@command()
@session_argument
def parts(session_id: str, as_json: bool) -> None:
    """List the files that hold a session's log."""
    with open_session(session_id) as session:
        log_parts = session.parts
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
    output.info(f"{output.plural(len(log_parts), 'part')}, {output.size(total)}")


@command()
@click.pass_context
def browse(ctx: click.Context, as_json: bool) -> int:
    """Pick a session from a list and continue it in a chat.

    Type to filter by title and content. Enter opens, Ctrl-R renames, Ctrl-D deletes, Tab shows or
    hides the preview, Esc quits. With --json it prints the picked session instead.
    """
    screen = sys.stderr if as_json and not output.is_terminal(sys.stdout) else sys.stdout
    is_dumb = os.environ.get("TERM", "dumb") == "dumb"
    if not (output.is_terminal(sys.stdin) and output.is_terminal(screen)) or is_dumb:
        raise click.UsageError("browse needs a terminal; use everlog sessions list instead", ctx)
    from everlog.cli.picker import pick

    with open_chosen_store() as store:
        store.list(limit=1)  # if the index is rebuilt, its progress bar is shown now
        picked = pick(store)
        if as_json:
            from everlog.log.fold import to_builtins

            output.print_json({"session": to_builtins(store.session(picked).metadata) if picked else None})
            return 0
    if picked is None:
        return 0
    from everlog.cli.chat.command import chat

    # As `everlog chat --resume ID` on the same home does.
    with chat.make_context("chat", ["--resume", picked], parent=ctx) as chat_context:
        return chat.invoke(chat_context) or 0
