"""The sort order of a listing, its cursors and its pages.

A cursor contains the time that its listing is sorted by. So it also works in a store that does not
have the session itself: one that is listed together with this store.
"""

from __future__ import annotations

from everlog.ids import epoch_ms
from everlog.ports import Order, Page, SessionRow, parse_cursor

SortKey = tuple[int, str]  # time in milliseconds, id


def sort_key(row: SessionRow, order: Order) -> SortKey:
    """Return the key by which a session is sorted; the newest session has the highest one."""
    time = row.active if order == "active" else epoch_ms(row.metadata.created_at) or 0
    return max(time, 0), row.id


def cursor_of(row: SessionRow, order: Order) -> str:
    """Return the cursor for the sessions that follow this one."""
    time, name = sort_key(row, order)
    return f"{time}-{name}"


def page(rows: list[SessionRow], limit: int, cursor: str | None, order: Order) -> Page:
    """Sort the rows, newest first, and return one page of them."""
    rows = sorted(rows, key=lambda row: sort_key(row, order), reverse=True)
    total = len(rows)
    if cursor is not None:
        start = parse_cursor(cursor)
        rows = [row for row in rows if sort_key(row, order) < start]
    next_cursor = cursor_of(rows[limit - 1], order) if len(rows) > limit else None
    return Page(rows[:limit], next_cursor, total)
