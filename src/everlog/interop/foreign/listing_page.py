"""Where a session stands in a listing, and some of a listing's sessions.

A cursor has the time that its listing is sorted by. So it also serves where the session itself is
not known: in another store that is listed together with this one.
"""

from __future__ import annotations

from everlog.ids import epoch_ms
from everlog.ports import Order, Page, SessionRow, parse_cursor

Place = tuple[int, str]  # time in milliseconds, id


def place(row: SessionRow, order: Order) -> Place:
    """Where a session stands, newest first."""
    time = row.active if order == "active" else epoch_ms(row.metadata.created_at) or 0
    return max(time, 0), row.id


def cursor_of(row: SessionRow, order: Order) -> str:
    """The cursor to the sessions behind one."""
    time, name = place(row, order)
    return f"{time}-{name}"


def page(rows: list[SessionRow], limit: int, cursor: str | None, order: Order) -> Page:
    """Some of all sessions that a listing is about."""
    rows = sorted(rows, key=lambda row: place(row, order), reverse=True)
    total = len(rows)
    if cursor is not None:
        start = parse_cursor(cursor)
        rows = [row for row in rows if place(row, order) < start]
    following = cursor_of(rows[limit - 1], order) if len(rows) > limit else None
    return Page(rows[:limit], following, total)
