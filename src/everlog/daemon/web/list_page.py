"""`/`: the list of all sessions, or the results of a search.

The cursor of a search is an offset: new messages may move a session to another page, which the next
search corrects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlencode

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
_OFFSET = re.compile(r"[0-9]{1,9}")
_WORD = re.compile(r"[\w-]{2,}", re.UNICODE)

ListRow = tuple[SessionRow, Sequence[Hit]]


class Chip(NamedTuple):
    """A filter that can be switched on or off."""

    value: str
    address: str  # of the list with the filter switched
    title: str  # what a click does


@get("/")
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
    rows: list[ListRow]
    if q.strip():
        rows, total, next_cursor = await _search(runtime, q, cursor, criteria)
    else:
        page = await runtime.store.list(
            limit=PAGE_ROWS, cursor=cursor, agent=agent or None, sender=sender or None, source=source or None
        )
        rows, total, next_cursor = [(row, ()) for row in page], page.total, page.next
    return render_response(
        "rows.html" if part == "rows" else "list.html",
        request,
        q=q.strip(),
        criteria=criteria,
        with_filters=cursor is None or part != "rows",
        chip=partial(_chip, query),
        rows=rows,
        is_running=lambda session: runtime.current(session) is not None,
        highlight=_highlight,
        total=total,
        first=cursor is None,
        next=next_cursor and _list_address({**query, "cursor": next_cursor}),
        stamp=rows[0][0].metadata.last_message_at if rows else "",
    )


async def _search(
    runtime: Runtime, q: str, cursor: str | None, criteria: dict[str, str]
) -> tuple[list[ListRow], int, str | None]:
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


def _load_rows(runtime: Runtime, hits: Iterable[SessionHit]) -> Iterator[ListRow]:
    port = runtime.store.sync.port
    for hit in hits:
        try:
            metadata = port.metadata(hit.session)
            parts = port.parts(hit.session)
        except NotFoundError:
            continue  # deleted since
        yield SessionRow(metadata, sum(part.bytes for part in parts), len(parts)), hit.hits


def _chip(query: dict[str, str], name: str, value: str) -> Chip:
    """Return a chip that adds a filter to the current query, or removes it if active."""
    is_active = query.get(name) == value
    address = _list_address({**query, name: "" if is_active else value})
    return Chip(value, address, f"{'Stop filtering' if is_active else 'Filter'} by {name} {value}")


def _list_address(criteria: dict[str, str]) -> str:
    query = urlencode({name: value for name, value in criteria.items() if value})
    return f"/?{query}" if query else "/"


def _highlight(hit: Hit) -> Markup:
    """Return a snippet with its matches marked."""
    chunks = ((escape(make_readable(text)), is_match) for text, is_match in hit.fragments)
    return Markup("").join(Markup("<mark>{}</mark>").format(text) if is_match else text for text, is_match in chunks)
