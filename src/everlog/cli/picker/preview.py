"""The newest messages of a session, read from the end of its log and no further than needed."""

from __future__ import annotations

import time
from collections.abc import Iterator

from everlog.cli import output
from everlog.cli.message_lines import Folded, Line
from everlog.log.backward_read import read
from everlog.model import Entry, Message
from everlog.ports import SessionRow
from everlog.session import Store

MESSAGES = 20
RECORDS = 200  # looked at to find them: most may be deleted, or no messages
BYTES = 2_000_000  # likewise
TEXT_LINES = 8  # of one text


def head(listed: SessionRow) -> list[Line]:
    """What is known of a session without reading it."""
    metadata = listed.metadata
    facts = [
        output.plural(metadata.message_count, "message"),
        output.size(listed.bytes),
        output.ago(metadata.last_message_at, time.time()),
    ]
    who = f"{output.one_line(metadata.agent)} with {output.one_line(metadata.sender)}"
    model = f" · {output.one_line(metadata.model)}" if metadata.model else ""
    return [
        ("bold", output.one_line(metadata.title)),
        ("dim", metadata.id),
        ("dim", who + model),
        ("dim", " · ".join(facts)),
    ]


def newest(store: Store, session: str) -> list[Line]:
    """The last things that were said, oldest of them first."""
    live = read(_some(store, session))
    folded = Folded(live.messages)
    lines: list[Line] = []
    if live.summary is not None:
        lines += [
            ("", ""),
            ("blue", f"── summary of what came before #{live.summary.first_kept_seq}"),
        ]
    for message in live.messages:
        lines += folded.lines(message, most=TEXT_LINES)
    return lines or [("", ""), ("dim", "nothing was said yet")]


def _some(store: Store, session: str) -> Iterator[Entry]:
    messages = size = 0
    for number, entry in enumerate(store.port.tail(session), 1):
        yield entry
        if isinstance(entry, Message):
            messages += 1
            size += len(entry.line)
        if messages >= MESSAGES or number >= RECORDS or size >= BYTES:
            return
