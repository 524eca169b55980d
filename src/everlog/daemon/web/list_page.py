"""`/`: all sessions, or those in which something was said.

The cursor of a search is how many of its sessions were shown: what is said meanwhile can move one
from page to page, which a search that is asked again puts right.
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

from everlog.daemon.web.templating import answer
from everlog.errors import FormatError, NotFoundError
from everlog.ports import Hit, SessionHit, SessionRow
from everlog.render.html_text import readable
from everlog.runtime.runtime import Runtime

ROWS = 60  # of a page
FOUND = 50  # sessions of a page of a search
CHIPS = ("agent", "sender", "source")
_WHO = {"user": "You", "assistant": "Agent", "title": "Title", "tool": "Tool", "summary": "Summary"}
_SHOWN = re.compile(r"[0-9]{1,9}")
_WORD = re.compile(r"[\w-]{2,}", re.UNICODE)


class FoundAt(msgspec.Struct, frozen=True):
    """A passage, with what was found marked."""

    seq: int
    who: str
    marked: Markup


class Chip(msgspec.Struct, frozen=True):
    """What a session is filtered by."""

    value: str
    address: str  # of the list with that filter too, or without it
    says: str  # what that does


class Row(msgspec.Struct, frozen=True):
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
    hits: list[FoundAt]


@get("/", include_in_schema=False)
async def sessions(
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
    """The list, or with `part=rows` only its rows."""
    given = {"agent": agent, "sender": sender, "source": source}
    which = {name: value for name, value in given.items() if value}
    shown = {**which, "q": q} if q.strip() else which
    listed: Iterable[tuple[SessionRow, Sequence[Hit]]]
    if q.strip():
        listed, total, further = await _search(runtime, q, cursor, which)
    else:
        page = await runtime.store.list(limit=ROWS, cursor=cursor, **which)
        listed, total, further = ((one, ()) for one in page), page.total, page.next
    rows = [_row(runtime, one, hits, shown) for one, hits in listed]
    return answer(
        "rows.html" if part == "rows" else "list.html",
        request,
        q=q.strip(),
        which=which,
        filters=[
            (name, _chip(name, value, shown))
            for name, value in which.items()
            if cursor is None or part != "rows"
        ],
        rows=rows,
        total=total,
        first=cursor is None,
        next=further and _address({**shown, "cursor": further}),
        stamp=rows[0].active if rows else "",
    )


async def _search(
    runtime: Runtime, q: str, cursor: str | None, which: dict[str, str]
) -> tuple[list[tuple[SessionRow, Sequence[Hit]]], int, str | None]:
    """Sessions with something in their title or in what was said; as it is being typed.

    With how many there are, and the cursor of the next page.
    """
    if cursor is not None and not _SHOWN.fullmatch(cursor):
        raise FormatError(f"not a cursor: {cursor[:60]!r}", hint="take the one a search gave")
    shown = int(cursor or 0)
    typed = q.rstrip()
    if typed == q and _WORD.fullmatch(typed.rpartition(" ")[2]) and typed.count('"') % 2 == 0:
        typed += "*"  # the last word may go on
    found = await runtime.store.search(typed, limit=FOUND, offset=shown, **which)
    rows = await runtime.store.call(lambda: list(_listed(runtime, found.results)))
    more = found.results and found.total > shown + FOUND
    return rows, found.total, str(shown + FOUND) if more else None


def _listed(
    runtime: Runtime, found: Iterable[SessionHit]
) -> Iterable[tuple[SessionRow, Sequence[Hit]]]:
    port = runtime.store.sync.port
    for one in found:
        try:
            metadata = port.metadata(one.session)
            parts = port.parts(one.session)
        except NotFoundError:
            continue  # deleted since
        yield SessionRow(metadata, sum(part.bytes for part in parts), len(parts)), one.hits


def _row(runtime: Runtime, listed: SessionRow, hits: Iterable[Hit], shown: dict[str, str]) -> Row:
    """A session; `shown` is what the list shows."""
    metadata = listed.metadata
    values = {"agent": metadata.agent, "sender": metadata.sender, "source": metadata.source}
    return Row(
        id=listed.id,
        address=address_of(listed.id),
        title=metadata.title,
        chips=[_chip(name, values[name], shown) for name in CHIPS if values[name]],
        count=metadata.message_count,
        bytes=listed.bytes,
        active=metadata.last_message_at,
        running=runtime.current(listed.id) is not None,
        waiting=len(metadata.waiting),
        hits=[FoundAt(hit.seq, _WHO.get(hit.role, "Tool"), _marked(hit)) for hit in hits],
    )


def _chip(name: str, value: str, shown: dict[str, str]) -> Chip:
    """A value as a filter beside those that the list has; one that it has takes itself away."""
    on = shown.get(name) == value
    address = _address({**shown, name: "" if on else value})
    return Chip(value, address, f"{'Not only' if on else 'Only'} {name} {value}")


def address_of(session: str, *rest: str) -> str:
    """Where a session is shown."""
    return "/".join(("/sessions", quote(session, safe=""), *rest))


def _address(which: dict[str, str]) -> str:
    query = urlencode({name: value for name, value in which.items() if value})
    return f"/?{query}" if query else "/"


def _marked(hit: Hit) -> Markup:
    """A snippet with what was found marked."""
    made = ((escape(readable(text)), found) for text, found in hit.pieces)
    return Markup("").join(
        Markup("<mark>{}</mark>").format(text) if found else text for text, found in made
    )
