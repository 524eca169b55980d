"""`/sessions/{id}`: a session to read and to talk in, page by page from its end.

Everything is read in threads and through the session's sketch, so a page costs what it shows,
however long the session is. Pieces of the page are HTML that the module puts in their places.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from litestar import MediaType, Request, Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery

from everlog.daemon.api.requests import LARGEST, find
from everlog.daemon.error_responses import Refused
from everlog.daemon.web.list_page import address_of
from everlog.daemon.web.marker_cache import Sketches, sketches_of
from everlog.daemon.web.partial_answers import unfinished_of
from everlog.daemon.web.templating import answer
from everlog.daemon.web.transcript_view import Row, picture, rows, said, whole_text
from everlog.interop.exporter import document
from everlog.model import SCHEMA_VERSION, Message, Metadata
from everlog.render.html_text import readable
from everlog.render.markdown_document import one_line
from everlog.render.marker_index import Sketch
from everlog.render.page_window import Leaf, Span, between, departed, part_of, turn_back, turn_on
from everlog.render.transcript_items import Said
from everlog.runtime.queue_log import find as find_waiting
from everlog.runtime.run import Run
from everlog.runtime.runtime import Runtime
from everlog.session import Session

AHEAD = 24  # records behind the message that a link leads to
Asking = Request[Any, Any, Any]
T = TypeVar("T")


class Waiting(msgspec.Struct, frozen=True):
    """A message that waits for its turn."""

    run: str
    text: str


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """What a page of a session is made of."""

    metadata: Metadata
    leaf: Leaf
    head: int
    before: int  # messages that a summary at the beginning stands for
    waiting: tuple[Waiting, ...] = ()


@get("/sessions/{session_id:str}", include_in_schema=False)
async def session(
    *,
    request: Asking,
    runtime: NamedDependency[Runtime],
    session_id: FromPath[str],
    at: FromQuery[int | None] = None,
    before: FromQuery[int | None] = None,
    after: FromQuery[int | None] = None,
) -> Response[str]:
    """The end of a session; with `at` the page that has a message, else the one before or after."""

    def turn(span: Span, sketch: Sketch) -> Leaf:
        if at is not None:
            high = _known(at, sketch) + AHEAD
            leaf = turn_back(span, sketch, high if high < sketch.high else LARGEST)
            if leaf.low > at:  # a summary lies between
                return between(span, sketch, max(1, at - AHEAD), high)
            return leaf
        if after is not None:
            return turn_on(span, sketch, _known(after, sketch))
        return turn_back(span, sketch, LARGEST if before is None else _known(before, sketch))

    opened = await _open(request, runtime, session_id, turn)
    return await _answer("session.html", request, runtime, opened, at=at or 0)


@get("/sessions/{session_id:str}/older", include_in_schema=False)
async def older(
    request: Asking,
    runtime: NamedDependency[Runtime],
    session_id: FromPath[str],
    before: FromQuery[int],
) -> Response[str]:
    """The page before a seq."""
    opened = await _open(
        request,
        runtime,
        session_id,
        lambda span, sketch: turn_back(span, sketch, _known(before, sketch)),
    )
    return await _answer("session_leaf.html", request, runtime, opened)


@get("/sessions/{session_id:str}/newer", include_in_schema=False)
async def newer(
    request: Asking,
    runtime: NamedDependency[Runtime],
    session_id: FromPath[str],
    after: FromQuery[int],
) -> Response[str]:
    """The page behind a seq."""
    opened = await _open(
        request,
        runtime,
        session_id,
        lambda span, sketch: turn_on(span, sketch, _known(after, sketch)),
    )
    return await _answer("session_leaf.html", request, runtime, opened)


@get("/sessions/{session_id:str}/rows", include_in_schema=False)
async def some(
    request: Asking,
    runtime: NamedDependency[Runtime],
    session_id: FromPath[str],
    low: FromQuery[int],
    high: FromQuery[int],
) -> Response[str]:
    """What is shown of some records, such as those that were changed."""

    def turn(span: Span, sketch: Sketch) -> Leaf:
        return between(span, sketch, max(1, _known(low, sketch)), _known(high, sketch))

    opened = await _open(request, runtime, session_id, turn)
    return await _answer("session_rows.html", request, runtime, opened)


@get("/sessions/{session_id:str}/messages/{seq:int}", include_in_schema=False)
async def message(
    request: Asking,
    runtime: NamedDependency[Runtime],
    session_id: FromPath[str],
    seq: FromPath[int],
    full: FromQuery[bool] = False,
) -> Response[str]:
    """What shows one message; `full`: however long it is."""
    opened = await _open(
        request,
        runtime,
        session_id,
        lambda span, sketch: part_of(span, sketch, _known(seq, sketch)),
    )
    return await _answer("session_rows.html", request, runtime, opened, full=full)


@get("/sessions/{session_id:str}/messages/{seq:int}/text", include_in_schema=False)
async def text(
    runtime: NamedDependency[Runtime], session_id: FromPath[str], seq: FromPath[int]
) -> Response[bytes]:
    """What a message says, as plain text, however long it is."""
    own = await find(runtime, session_id)
    record = await runtime.store.call(own.sync.record, min(max(seq, 1), LARGEST))
    if not isinstance(record, Message):
        raise Refused(404, "There is no such message")
    data = whole_text(record).encode("utf-8", "replace")
    return Response(data, media_type=MediaType.TEXT)


@get("/sessions/{session_id:str}/gone", include_in_schema=False)
async def gone(
    request: Asking,
    runtime: NamedDependency[Runtime],
    session_id: FromPath[str],
    first: FromQuery[int],
    last: FromQuery[int],
) -> Response[str]:
    """Messages that were deleted or rewound."""
    own = await find(runtime, session_id)

    def read() -> list[Row]:
        with sketches_of(request).of(own.sync, own.sync.metadata) as (sketch, span):
            start = max(1, _known(first, sketch))
            found = departed(span, sketch, start, _known(last, sketch))
        return [said(one, fate=fate) for one, fate in found]

    made = await runtime.store.call(read)
    return answer("session_rows.html", request, rows=made, full=False, address=address_of(own.id))


@get("/sessions/{session_id:str}/queue", include_in_schema=False)
async def queue(
    request: Asking, runtime: NamedDependency[Runtime], session_id: FromPath[str]
) -> Response[str]:
    """The messages that wait for their turn."""
    own = await find(runtime, session_id)
    waiting = await runtime.store.call(lambda: _waiting(own.sync, own.sync.metadata))
    run = _running(runtime, own.id)
    return answer("session_queue.html", request, waiting=waiting, run=run.id if run else "")


@get("/sessions/{session_id:str}/pictures/{seq:int}/{number:int}", include_in_schema=False)
async def pictures(
    runtime: NamedDependency[Runtime],
    session_id: FromPath[str],
    seq: FromPath[int],
    number: FromPath[int],
) -> Response[bytes]:
    """A picture of a message."""
    own = await find(runtime, session_id)
    record = await runtime.store.call(own.sync.record, min(max(seq, 1), LARGEST))
    found = picture(record, number) if isinstance(record, Message) else None
    if found is None:
        raise Refused(404, "There is no such picture")
    headers = {"Cache-Control": "private, max-age=3600"}
    return Response(found[1], media_type=found[0], headers=headers)


async def _export(runtime: Runtime, session_id: str, kind: str, media_type: str) -> Response[bytes]:
    own = await find(runtime, session_id)
    written, _ = await runtime.store.call(document, own.sync, kind)
    name = "".join(one if one.isascii() and one.isalnum() else "-" for one in own.id)
    headers = {"Content-Disposition": f'attachment; filename="{name}.{kind}"'}
    return Response(
        next(iter(written.files.values())),
        media_type=media_type,
        headers=headers,
    )


@get("/sessions/{session_id:str}/export.md", include_in_schema=False)
async def export_markdown(
    runtime: NamedDependency[Runtime], session_id: FromPath[str]
) -> Response[bytes]:
    """The session as Markdown, secrets covered up."""
    return await _export(runtime, session_id, "md", "text/markdown")


@get("/sessions/{session_id:str}/export.html", include_in_schema=False)
async def export_html(
    runtime: NamedDependency[Runtime], session_id: FromPath[str]
) -> Response[bytes]:
    """The session as one HTML file, secrets covered up."""
    return await _export(runtime, session_id, "html", MediaType.HTML)


# --- reading --------------------------------------------------------------------------------


async def _open(
    request: Asking, runtime: Runtime, session_id: str, turn: Callable[[Span, Sketch], Leaf]
) -> Opened:
    own = await find(runtime, session_id)
    return await runtime.store.call(_read, own.sync, sketches_of(request), turn)


def _read(own: Session, sketches: Sketches, turn: Callable[[Span, Sketch], Leaf]) -> Opened:
    metadata = own.metadata
    with sketches.of(own, metadata) as (sketch, span):
        leaf = turn(span, sketch)
        before = metadata.message_count - sketch.messages_from(leaf.low) if leaf.folded else 0
        return Opened(
            metadata=metadata,
            leaf=leaf,
            head=sketch.high,
            before=max(before, 0),
            waiting=_waiting(own, metadata),
        )


def _waiting(own: Session, metadata: Metadata) -> tuple[Waiting, ...]:
    found = (find_waiting(own, one) for one in metadata.waiting)
    return tuple(
        Waiting(one[0].run_id or "", one_line(one[0].text[:2_000])[:300]) for one in found if one
    )


def _running(runtime: Runtime, session_id: str) -> Run | None:
    """The turn that is under way; not one that has told its end."""
    run = runtime.current(session_id)
    return None if run is None or run.ending else run


def _known(seq: int, sketch: Sketch) -> int:
    """A number of a record, whatever was asked for."""
    return min(max(seq, 0), sketch.high + 1)


async def _answer(
    template: str,
    request: Asking,
    runtime: Runtime,
    opened: Opened,
    *,
    at: int = 0,
    full: bool = False,
) -> Response[str]:
    metadata, leaf = opened.metadata, opened.leaf
    run = _running(runtime, metadata.id)
    running = None
    if run is not None and leaf.high >= opened.head:  # its calls without a result are under way
        messages = [one.message for one in leaf.parts if isinstance(one, Said)]
        running = next((one.seq for one in messages if one.id == run.message_id), 0)
    unfinished = unfinished_of(request).text(metadata.id)

    def make() -> Response[str]:  # long code takes a while: nobody else waits for it
        return answer(
            template,
            request,
            metadata=metadata,
            address=address_of(metadata.id),
            rows=rows(leaf, sender=metadata.sender, running=running, full=full),
            full=full,
            leaf=leaf,
            head=opened.head,
            at=at,
            at_end=leaf.high > opened.head,
            before=opened.before,
            run=run.id if run else "",
            unfinished=readable(unfinished),
            waiting=opened.waiting,
            read_only=metadata.newest_schema > SCHEMA_VERSION,
        )

    return await runtime.store.call(make)


ROUTES = (
    session,
    older,
    newer,
    some,
    message,
    text,
    gone,
    queue,
    pictures,
    export_markdown,
    export_html,
)
