"""`/`: the list of all sessions, or the results of a search.

The cursor of a search is an offset: new messages may move a session to another page, which the next
search corrects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from litestar import Request, Response, get
from litestar.di import NamedDependency
from litestar.params import FromQuery
from markupsafe import Markup, escape

from everlog.daemon.web.templating import render_response
from everlog.errors import FormatError, NotFoundError
from everlog.ports import Hit, SessionHit, SessionRow
from everlog.render.html_text import make_readable
from everlog.runtime.runtime import Runtime

PAGE_ROWS = 60  # of a page of all sessions
SEARCH_ROWS = 50  # of a page of search results
FILTERS = ("agent", "sender", "source")
_ROLE_LABELS = {"user": "You", "assistant": "Agent", "title": "Title", "tool": "Tool", "summary": "Summary"}
_OFFSET = re.compile(r"[0-9]{1,9}")
_WORD = re.compile(r"[\w-]{2,}", re.UNICODE)


class Snippet(msgspec.Struct, frozen=True):
    """A passage with its matches marked."""

    seq: int
    speaker: str
    html: Markup


class Chip(msgspec.Struct, frozen=True):
    """A filter that can be switched on or off."""

    value: str
    address: str  # of the list with the filter switched
    title: str  # what a click does


class ListRow(msgspec.Struct, frozen=True):
    """A session in the list."""

    id: str
    address: str
    title: str
    chips: list[Chip]
    count: int
    bytes: int | None
    active: str
    running: bool
    waiting: int
    hits: list[Snippet]


@get("/", include_in_schema=False)
async def show_sessions(
    *,
    request: Request[Any, Any, Any],
    runtime: NamedDependency[Runtime],
    q: FromQuery[str] = "",
    cursor: FromQuery[str | None] = None,
    agent: FromQuery[str | None] = None,
    sender: FromQuery[str | None] = None,
    source: FromQuery[str | None] = None,
    part: FromQuery[str | None] = None,
) -> Response[str]:
    """Show the list, or with `part=rows` only its rows."""
    filters = {"agent": agent, "sender": sender, "source": source}
    criteria = {name: value for name, value in filters.items() if value}
    query = {**criteria, "q": q} if q.strip() else criteria
    results: Iterable[tuple[SessionRow, Sequence[Hit]]]
    if q.strip():
        results, total, next_cursor = await _search(runtime, q, cursor, criteria)
    else:
        page = await runtime.store.list(
            limit=PAGE_ROWS, cursor=cursor, agent=agent or None, sender=sender or None, source=source or None
        )
        results, total, next_cursor = ((row, ()) for row in page), page.total, page.next
    rows = [_row(runtime, row, hits, query) for row, hits in results]
    return render_response(
        "rows.html" if part == "rows" else "list.html",
        request,
        q=q.strip(),
        criteria=criteria,
        filters=[
            (name, _chip(name, value, query)) for name, value in criteria.items() if cursor is None or part != "rows"
        ],
        rows=rows,
        total=total,
        first=cursor is None,
        next=next_cursor and _list_address({**query, "cursor": next_cursor}),
        stamp=rows[0].active if rows else "",
    )


async def _search(
    runtime: Runtime, q: str, cursor: str | None, criteria: dict[str, str]
) -> tuple[list[tuple[SessionRow, Sequence[Hit]]], int, str | None]:
    """Search titles and messages as the query is being typed.

    Returns a page of rows with their hits, the total, and the cursor of the next page.
    """
    if cursor is not None and not _OFFSET.fullmatch(cursor):
        raise FormatError(f"not a cursor: {cursor[:60]!r}", hint="use the cursor of a search")
    offset = int(cursor or 0)
    typed = q.rstrip()
    if typed == q and _WORD.fullmatch(typed.rpartition(" ")[2]) and typed.count('"') % 2 == 0:
        typed += "*"  # the last word may be incomplete
    results = await runtime.store.search(
        typed,
        limit=SEARCH_ROWS,
        offset=offset,
        agent=criteria.get("agent"),
        sender=criteria.get("sender"),
        source=criteria.get("source"),
    )
    rows = await runtime.store.call(lambda: list(_load_rows(runtime, results.results)))
    has_more = results.results and results.total > offset + SEARCH_ROWS
    return rows, results.total, str(offset + SEARCH_ROWS) if has_more else None


def _load_rows(runtime: Runtime, hits: Iterable[SessionHit]) -> Iterable[tuple[SessionRow, Sequence[Hit]]]:
    port = runtime.store.sync.port
    for hit in hits:
        try:
            metadata = port.metadata(hit.session)
            parts = port.parts(hit.session)
        except NotFoundError:
            continue  # deleted since
        yield SessionRow(metadata, sum(part.bytes for part in parts), len(parts)), hit.hits


def _row(runtime: Runtime, row: SessionRow, hits: Iterable[Hit], query: dict[str, str]) -> ListRow:
    """Return a row of the list; `query` has the current search and filters."""
    metadata = row.metadata
    values = {"agent": metadata.agent, "sender": metadata.sender, "source": metadata.source}
    return ListRow(
        id=row.id,
        address=session_address(row.id),
        title=metadata.display_title,
        chips=[_chip(name, values[name], query) for name in FILTERS if values[name]],
        count=metadata.message_count,
        bytes=row.bytes,
        active=metadata.last_message_at,
        running=runtime.current(row.id) is not None,
        waiting=len(metadata.waiting),
        hits=[Snippet(hit.seq, _ROLE_LABELS.get(hit.role, "Tool"), _highlight(hit)) for hit in hits],
    )


def _chip(name: str, value: str, query: dict[str, str]) -> Chip:
    """Return a chip that adds a filter to the current query, or removes it if active."""
    is_active = query.get(name) == value
    address = _list_address({**query, name: "" if is_active else value})
    return Chip(value, address, f"{'Stop filtering' if is_active else 'Filter'} by {name} {value}")


def session_address(session: str, *segments: str) -> str:
    """Return the path of a session's page."""
    return "/".join(("/sessions", quote(session, safe=""), *segments))


def _list_address(criteria: dict[str, str]) -> str:
    query = urlencode({name: value for name, value in criteria.items() if value})
    return f"/?{query}" if query else "/"


def _highlight(hit: Hit) -> Markup:
    """Return a snippet with its matches marked."""
    chunks = ((escape(make_readable(text)), is_match) for text, is_match in hit.fragments)
    return Markup("").join(Markup("<mark>{}</mark>").format(text) if is_match else text for text, is_match in chunks)
