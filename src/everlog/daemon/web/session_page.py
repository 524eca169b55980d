"""`/sessions/{id}`: the page of a session, read window by window from its end.

Everything is read in threads and through the session's marker index, so the cost is that of the
window, however long the session is. Parts of the page are HTML that page.js inserts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from litestar import MediaType, Request, Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery

from everlog.daemon.api.session_lookup import find_session
from everlog.daemon.error_responses import HttpError
from everlog.daemon.web.list_page import session_address
from everlog.daemon.web.marker_cache import MarkerCache, marker_cache_of
from everlog.daemon.web.partial_answers import partial_answers_of
from everlog.daemon.web.templating import render_response
from everlog.daemon.web.transcript_view import PageBlocks, decode_picture
from everlog.interop.exporter import export_document
from everlog.model import SCHEMA_VERSION, Message, Metadata
from everlog.render.html_text import make_readable
from everlog.render.humanize import one_line
from everlog.render.marker_index import MarkerIndex
from everlog.render.page_window import (
    PageWindow,
    ReadSpan,
    removed_messages,
    window_after,
    window_before,
    window_between,
    window_of_message,
)
from everlog.render.transcript_items import MessageItem, block_text
from everlog.runtime.queue_log import find_queued
from everlog.runtime.run import Run
from everlog.runtime.runtime import Runtime
from everlog.session import Session
from everlog.wire.requests import MAX_INTEGER

RECORDS_AFTER = 24  # shown after the message that a link leads to
PageRequest = Request[Any, Any, Any]
T = TypeVar("T")


class QueuedMessage(msgspec.Struct, frozen=True):
    """A message in the queue of the session."""

    run_id: str
    text: str


class SessionPage(msgspec.Struct, frozen=True, kw_only=True):
    """The data of a page of a session."""

    metadata: Metadata
    window: PageWindow
    head: int
    messages_before: int  # covered by a summary at the beginning of the window
    queue: tuple[QueuedMessage, ...] = ()


@get("/sessions/{session_id:str}", include_in_schema=False)
async def show_session(
    *,
    request: PageRequest,
    runtime: NamedDependency[Runtime],
    session_id: FromPath[str],
    at: FromQuery[int | None] = None,
    before: FromQuery[int | None] = None,
    after: FromQuery[int | None] = None,
) -> Response[str]:
    """Show the end of a session, or the page at a message or before or after a seq."""

    def read_window(read_span: ReadSpan, markers: MarkerIndex) -> PageWindow:
        if at is not None:
            high = _clamp_seq(at, markers) + RECORDS_AFTER
            window = window_before(read_span, markers, high if high < markers.high else MAX_INTEGER)
            if window.low > at:  # the window starts at a summary after the message
                return window_between(read_span, markers, max(1, at - RECORDS_AFTER), high)
            return window
        if after is not None:
            return window_after(read_span, markers, _clamp_seq(after, markers))
        return window_before(read_span, markers, MAX_INTEGER if before is None else _clamp_seq(before, markers))

    page = await _open_page(request, runtime, session_id, read_window)
    return await _render_page("session.html", request, runtime, page, at=at or 0)


@get("/sessions/{session_id:str}/older", include_in_schema=False)
async def show_older(
    request: PageRequest, runtime: NamedDependency[Runtime], session_id: FromPath[str], before: FromQuery[int]
) -> Response[str]:
    """Show the window before a seq."""
    page = await _open_page(
        request,
        runtime,
        session_id,
        lambda read_span, markers: window_before(read_span, markers, _clamp_seq(before, markers)),
    )
    return await _render_page("session_window.html", request, runtime, page)


@get("/sessions/{session_id:str}/newer", include_in_schema=False)
async def show_newer(
    request: PageRequest, runtime: NamedDependency[Runtime], session_id: FromPath[str], after: FromQuery[int]
) -> Response[str]:
    """Show the window after a seq."""
    page = await _open_page(
        request,
        runtime,
        session_id,
        lambda read_span, markers: window_after(read_span, markers, _clamp_seq(after, markers)),
    )
    return await _render_page("session_window.html", request, runtime, page)


@get("/sessions/{session_id:str}/rows", include_in_schema=False)
async def show_rows(
    request: PageRequest,
    runtime: NamedDependency[Runtime],
    session_id: FromPath[str],
    low: FromQuery[int],
    high: FromQuery[int],
) -> Response[str]:
    """Show a range of records, such as changed ones."""

    def read_window(read_span: ReadSpan, markers: MarkerIndex) -> PageWindow:
        return window_between(read_span, markers, max(1, _clamp_seq(low, markers)), _clamp_seq(high, markers))

    page = await _open_page(request, runtime, session_id, read_window)
    return await _render_page("session_rows.html", request, runtime, page)


@get("/sessions/{session_id:str}/messages/{seq:int}", include_in_schema=False)
async def show_message(
    request: PageRequest,
    runtime: NamedDependency[Runtime],
    session_id: FromPath[str],
    seq: FromPath[int],
    full: FromQuery[bool] = False,
) -> Response[str]:
    """Show one message; with `full`, up to a much higher limit."""
    page = await _open_page(
        request,
        runtime,
        session_id,
        lambda read_span, markers: window_of_message(read_span, markers, _clamp_seq(seq, markers)),
    )
    return await _render_page("session_rows.html", request, runtime, page, full=full)


@get("/sessions/{session_id:str}/messages/{seq:int}/text", include_in_schema=False)
async def show_text(
    runtime: NamedDependency[Runtime], session_id: FromPath[str], seq: FromPath[int]
) -> Response[bytes]:
    """Return the text of a message as plain text, of any length."""
    session = await find_session(runtime, session_id)
    record = await runtime.store.call(session.sync.record, min(max(seq, 1), MAX_INTEGER))
    if not isinstance(record, Message):
        raise HttpError(404, "Message not found")
    data = "\n\n".join(filter(None, map(block_text, record.content))).encode("utf-8", "replace")
    return Response(data, media_type=MediaType.TEXT)


@get("/sessions/{session_id:str}/gone", include_in_schema=False)
async def show_removed(
    request: PageRequest,
    runtime: NamedDependency[Runtime],
    session_id: FromPath[str],
    first: FromQuery[int],
    last: FromQuery[int],
) -> Response[str]:
    """Show messages that were deleted or rewound."""
    session = await find_session(runtime, session_id)

    def read() -> list[MessageItem]:
        cache = marker_cache_of(request)
        with cache.open(session.sync, session.sync.metadata) as (markers, read_span):
            start = max(1, _clamp_seq(first, markers))
            return removed_messages(read_span, markers, start, _clamp_seq(last, markers))

    items = await runtime.store.call(read)
    address = session_address(session.id)
    return render_response(
        "session_rows.html", request, items=items, blocks=PageBlocks(address), sender="", address=address
    )


@get("/sessions/{session_id:str}/queue", include_in_schema=False)
async def show_queue(
    request: PageRequest, runtime: NamedDependency[Runtime], session_id: FromPath[str]
) -> Response[str]:
    """Show the queued messages."""
    session = await find_session(runtime, session_id)
    queue = await runtime.store.call(lambda: _queued_messages(session.sync, session.sync.metadata))
    run = _current_run(runtime, session.id)
    run_id = run.id if run else ""
    return render_response("session_queue.html", request, queue=queue, run_id=run_id)


@get("/sessions/{session_id:str}/pictures/{seq:int}/{number:int}", include_in_schema=False)
async def show_picture(
    runtime: NamedDependency[Runtime], session_id: FromPath[str], seq: FromPath[int], number: FromPath[int]
) -> Response[bytes]:
    """Return an image of a message."""
    session = await find_session(runtime, session_id)
    record = await runtime.store.call(session.sync.record, min(max(seq, 1), MAX_INTEGER))
    picture = decode_picture(record, number) if isinstance(record, Message) else None
    if picture is None:
        raise HttpError(404, "Image not found")
    headers = {"Cache-Control": "private, max-age=3600"}
    return Response(picture[1], media_type=picture[0], headers=headers)


async def _export(runtime: Runtime, session_id: str, extension: str, media_type: str) -> Response[bytes]:
    session = await find_session(runtime, session_id)
    written, _ = await runtime.store.call(export_document, session.sync, extension)
    name = re.sub(r"[^A-Za-z0-9]", "-", session.id)
    headers = {"Content-Disposition": f'attachment; filename="{name}.{extension}"'}
    return Response(next(iter(written.files.values())), media_type=media_type, headers=headers)


@get("/sessions/{session_id:str}/export.md", include_in_schema=False)
async def export_markdown(runtime: NamedDependency[Runtime], session_id: FromPath[str]) -> Response[bytes]:
    """Export the session as Markdown, with secrets redacted."""
    return await _export(runtime, session_id, "md", "text/markdown")


@get("/sessions/{session_id:str}/export.html", include_in_schema=False)
async def export_html(runtime: NamedDependency[Runtime], session_id: FromPath[str]) -> Response[bytes]:
    """Export the session as one HTML file, with secrets redacted."""
    return await _export(runtime, session_id, "html", MediaType.HTML)


# --- reading --------------------------------------------------------------------------------


async def _open_page(
    request: PageRequest, runtime: Runtime, session_id: str, read_window: Callable[[ReadSpan, MarkerIndex], PageWindow]
) -> SessionPage:
    session = await find_session(runtime, session_id)
    return await runtime.store.call(_read_page, session.sync, marker_cache_of(request), read_window)


def _read_page(
    session: Session, cache: MarkerCache, read_window: Callable[[ReadSpan, MarkerIndex], PageWindow]
) -> SessionPage:
    metadata = session.metadata
    with cache.open(session, metadata) as (markers, read_span):
        window = read_window(read_span, markers)
        before = metadata.message_count - markers.count_messages_from(window.low) if window.starts_with_summary else 0
        return SessionPage(
            metadata=metadata,
            window=window,
            head=markers.high,
            messages_before=max(before, 0),
            queue=_queued_messages(session, metadata),
        )


def _queued_messages(session: Session, metadata: Metadata) -> tuple[QueuedMessage, ...]:
    queued = (find_queued(session, item) for item in metadata.waiting)
    return tuple(QueuedMessage(item[0].run_id or "", one_line(item[0].text[:2_000])[:300]) for item in queued if item)


def _current_run(runtime: Runtime, session_id: str) -> Run | None:
    """Return the running turn, unless it has emitted its end."""
    run = runtime.current(session_id)
    return None if run is None or run.is_ending else run


def _clamp_seq(seq: int, markers: MarkerIndex) -> int:
    """Return the nearest valid seq."""
    return min(max(seq, 0), markers.high + 1)


async def _render_page(
    template: str, request: PageRequest, runtime: Runtime, page: SessionPage, *, at: int = 0, full: bool = False
) -> Response[str]:
    metadata, window = page.metadata, page.window
    run = _current_run(runtime, metadata.id)
    running = None
    if run is not None and window.high >= page.head:  # its calls without a result are running
        messages = [part.message for part in window.items if isinstance(part, MessageItem)]
        running = next((message.seq for message in messages if message.id == run.message_id), 0)
    partial_answer = partial_answers_of(request).text(metadata.id)

    address = session_address(metadata.id)

    def render_in_thread() -> Response[str]:  # highlighting long code is slow
        return render_response(
            template,
            request,
            metadata=metadata,
            address=address,
            items=window.items,
            blocks=PageBlocks(address, running=running, full=full),
            sender=metadata.sender,
            window=window,
            head=page.head,
            at=at,
            at_end=window.high > page.head,
            messages_before=page.messages_before,
            run_id=run.id if run else "",
            partial_answer=make_readable(partial_answer),
            queue=page.queue,
            read_only=metadata.newest_schema > SCHEMA_VERSION,
        )

    return await runtime.store.call(render_in_thread)


ROUTES = (
    show_session,
    show_older,
    show_newer,
    show_rows,
    show_message,
    show_text,
    show_removed,
    show_queue,
    show_picture,
    export_markdown,
    export_html,
)
