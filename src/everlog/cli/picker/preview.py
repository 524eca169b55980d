"""The preview of a session: its newest messages, read from the end of its log."""

from __future__ import annotations

import time
from collections.abc import Iterator

from everlog.cli import output
from everlog.cli.message_lines import Line, format_participants, item_lines
from everlog.log.backward_read import read_live
from everlog.model import Entry, Message
from everlog.ports import SessionRow
from everlog.render.transcript_items import ToolResults
from everlog.session import Store

MAX_MESSAGES = 20
MAX_RECORDS = 200  # read to find them: most may be deleted, or no messages
MAX_BYTES = 2_000_000  # of messages read to find them
TEXT_LINES = 8  # of one text


def header_lines(row: SessionRow) -> list[Line]:
    """Return what is known of a session without reading its log."""
    metadata = row.metadata
    details = [
        output.plural(metadata.message_count, "message"),
        output.size(row.bytes),
        output.ago(metadata.last_message_at, time.time()),
    ]
    model = f" · {output.one_line(metadata.model)}" if metadata.model else ""
    return [
        ("bold", output.one_line(metadata.display_title)),
        ("dim", metadata.id),
        ("dim", format_participants(metadata) + model),
        ("dim", " · ".join(details)),
        *([("dim", output.one_line(metadata.resume_command))] if metadata.resume_command else []),
    ]


def newest_lines(store: Store, session: str) -> list[Line]:
    """Return the newest messages, the oldest of them first."""
    live = read_live(_newest_entries(store, session))
    results = ToolResults(live.messages)
    lines: list[Line] = []
    if live.summary is not None:
        lines += [("", ""), ("blue", f"── summary of everything before #{live.summary.first_kept_seq}")]
    for message in live.messages:
        for item in results.items(message):
            lines += item_lines(item, max_lines=TEXT_LINES)
    return lines or [("", ""), ("dim", "no messages yet")]


def _newest_entries(store: Store, session: str) -> Iterator[Entry]:
    messages = size = 0
    for number, entry in enumerate(store.port.tail(session), 1):
        yield entry
        if isinstance(entry, Message):
            messages += 1
            size += len(entry.line)
        if messages >= MAX_MESSAGES or number >= MAX_RECORDS or size >= MAX_BYTES:
            return
