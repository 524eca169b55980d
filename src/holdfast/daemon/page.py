"""Two pages for people, without scripts, styles or anything from elsewhere.

All that was stored is escaped; the guard's Content-Security-Policy is the second line.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

from litestar import MediaType, get
from litestar.di import NamedDependency

from holdfast import __version__
from holdfast.engine.runtime import Runtime

NEWEST = 20

_HEAD = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title></head>
<body>
"""


@get("/", media_type=MediaType.HTML, include_in_schema=False)
async def front(runtime: NamedDependency[Runtime]) -> str:
    """That the daemon runs, and its newest sessions."""
    found = await runtime.store.list(limit=NEWEST)
    rows = [
        (
            one.metadata.title,
            one.metadata.agent,
            one.metadata.sender,
            str(one.metadata.message_count),
            one.metadata.last_message_at,
            one.id,
        )
        for one in found
    ]
    noun = "session" if found.total == 1 else "sessions"
    titles = ("title", "agent", "sender", "messages", "last message", "id")
    return (
        _HEAD.format(title="holdfast")
        + f"<h1>holdfast {escape(__version__)} is running</h1>\n"
        + f"<p>{found.total:,} {noun}. <a href='/docs'>The API</a></p>\n"
        + _table(titles, rows)
        + "</body></html>\n"
    )


def document(schema: dict[str, Any]) -> str:
    """Every operation of an OpenAPI document."""
    rows = [
        (method.upper(), path, operation.get("description") or operation.get("summary") or "")
        for path, methods in sorted(schema["paths"].items())
        for method, operation in methods.items()
        if isinstance(operation, dict)
    ]
    return (
        _HEAD.format(title="holdfast: the API")
        + "<h1>The API</h1>\n"
        + "<p>As OpenAPI: <a href='/docs/openapi.json'>openapi.json</a>."
        + " Events as they happen: the WebSocket <code>/ws</code>.</p>\n"
        + _table(("method", "path", "what it does"), rows)
        + "</body></html>\n"
    )


def _table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>\n"
