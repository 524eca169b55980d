"""Ways about in a session: the outline of what the user said, and everything that has some text.

The outline comes from the session's sketch: the log is read through once, and then only what is
new. A text is looked for in the log itself, newest first, in every block that the page shows;
what was deleted or rewound is left out. No index is asked: it knows words, not passages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
from litestar import Request, Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery
from markupsafe import Markup

from everlog.daemon.api.requests import find
from everlog.daemon.web.list_page import address_of
from everlog.daemon.web.marker_cache import Sketches, sketches_of
from everlog.daemon.web.templating import answer
from everlog.daemon.web.transcript_view import WHO
from everlog.model import Message, Text, Thinking, ToolCall
from everlog.render.html_document import arguments
from everlog.render.markdown_document import one_line
from everlog.render.marker_index import Prompt
from everlog.render.page_window import reach
from everlog.runtime.runtime import Runtime
from everlog.session import Session

PROMPTS = 1_000  # of an outline, the newest
HITS = 200
_AROUND = 60  # characters on each side of a hit


class Place(msgspec.Struct, frozen=True):
    """A message in which a text was found."""

    seq: int
    who: str
    snippet: Markup


@get("/sessions/{session_id:str}/outline", include_in_schema=False)
async def outline(
    request: Request[Any, Any, Any],
    runtime: NamedDependency[Runtime],
    session_id: FromPath[str],
) -> Response[str]:
    """What the user said, a line each."""
    own = await find(runtime, session_id)
    prompts = await runtime.store.call(_prompts, own.sync, sketches_of(request))
    return answer(
        "session_outline.html",
        request,
        prompts=prompts[-PROMPTS:],
        more=max(len(prompts) - PROMPTS, 0),
        address=address_of(own.id),
    )


@get("/sessions/{session_id:str}/find", include_in_schema=False)
async def seek(
    request: Request[Any, Any, Any],
    runtime: NamedDependency[Runtime],
    session_id: FromPath[str],
    q: FromQuery[str] = "",
    at: FromQuery[int] = 0,
) -> Response[str]:
    """The messages that have a text, whatever its case; `at` is the one that is shown."""
    own = await find(runtime, session_id)
    places = await runtime.store.call(_places, own.sync, sketches_of(request), q.strip())
    return answer(
        "session_hits.html",
        request,
        places=places[:HITS][::-1],
        all=len(places) <= HITS,
        q=q.strip(),
        at=at,
        address=address_of(own.id),
    )


def _prompts(own: Session, sketches: Sketches) -> list[Prompt]:
    with sketches.of(own, own.metadata) as (sketch, span):
        reach(span, sketch, 1)
        return sketch.prompts()


def _places(own: Session, sketches: Sketches, text: str) -> list[Place]:
    """Newest first; one more than are shown if there are more."""
    if not text:
        return []
    # Not by lower(), which gives some letters two: what is found would be elsewhere.
    sought = re.compile(re.escape(text), re.IGNORECASE)
    found: list[Place] = []
    metadata = own.metadata
    for entry in own.store.port.tail(own.id):
        if not isinstance(entry, Message) or entry.seq > metadata.through.seq:
            continue
        snippet = next((one for said in _texts(entry) if (one := _snippet(said, sought))), None)
        if snippet is None:
            continue
        with sketches.of(own, metadata) as (sketch, span):
            reach(span, sketch, entry.seq)
            if sketch.fate(entry.seq) != "live":
                continue
        found.append(Place(entry.seq, WHO[entry.role], snippet))
        if len(found) > HITS:
            break
    return found


def _texts(message: Message) -> Iterator[str]:
    for block in message.content:
        if isinstance(block, Text):
            yield block.text
        elif isinstance(block, Thinking):
            yield block.thinking
        elif isinstance(block, ToolCall):
            yield f"{block.name} {arguments(block)}"


def _snippet(text: str, sought: re.Pattern[str]) -> Markup | None:
    found = sought.search(text)
    if found is None:
        return None
    at, end = found.span()
    before, after = text[max(0, at - _AROUND) : at], text[end : end + _AROUND]
    cut = "…" if at > _AROUND else ""
    return Markup("{}{} <mark>{}</mark> {}").format(
        cut, one_line(before), one_line(text[at:end]), one_line(after)
    )
