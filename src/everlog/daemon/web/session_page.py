"""`/sessions/{id}`: the page of a session, read window by window from its end.

Everything is read in threads and through the session's marker index, so the cost is that of the
window, however long the session is. Parts of the page are HTML that page.js inserts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from litestar import MediaType, Request, Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery

from everlog.aio import AsyncSession
from everlog.daemon.api.session_lookup import find_session
from everlog.daemon.error_responses import HttpError
from everlog.daemon.web.marker_cache import MarkerCache
from everlog.daemon.web.templating import render_response, session_address
from everlog.daemon.web.transcript_view import PageBlocks, decode_picture
from everlog.interop.exporter import export_document
from everlog.model import SCHEMA_VERSION, Message, Metadata
from everlog.ports import SessionAccess
from everlog.render.html_text import make_readable
from everlog.render.humanize import one_line
from everlog.render.marker_index import MarkerIndex
from everlog.render.page_window import (
    PageWindow,
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
from everlog.wire.requests import MAX_INTEGER

RECORDS_AFTER = 24  # shown after the message that a link leads to
ReadWindow = Callable[[MarkerIndex], PageWindow]


class SessionView:
    """The session of a request, and what its pages are rendered with."""

    def __init__(
        self, request: Request[Any, Any, Any], runtime: Runtime, session: AsyncSession, access: SessionAccess
    ) -> None:
        self.request = request
        self.runtime = runtime
        self.session = session
        self.access = access
        self.address = session_address(session.id)
        self.cache: MarkerCache = request.app.state.marker_cache

    async def render_window(
        self, template: str, read_window: ReadWindow, *, at: int = 0, full: bool = False
    ) -> Response[str]:
        """Read a window and render it, in a thread: highlighting long code is slow."""

        def show() -> Response[str]:
            session = self.session.sync
            metadata = session.metadata
            with self.cache.open(session, metadata) as index:
                window = read_window(index)
                head = index.high
                shown = index.count_messages_from(window.low) if window.starts_with_summary else None
            run = self.run
            running = None
            if run is not None and window.high >= head:  # its calls without a result are running
                messages = [item.message for item in window.items if isinstance(item, MessageItem)]
                running = next((message.seq for message in messages if message.id == run.message_id), 0)
            return self.render(
                template,
                metadata=metadata,
                items=window.items,
                blocks=PageBlocks(self.address, running=running, full=full),
                sender=metadata.sender,
                window=window,
                head=head,
                at=at,
                at_end=window.high > head,
                # covered by a summary at the beginning of the window
                messages_before=0 if shown is None else max(metadata.message_count - shown, 0),
                run_id=run.id if run else "",
                partial_answer=make_readable(self.request.app.state.partial_answers.text(session.id)),
                queue=self.queued_messages(metadata),
                read_only=metadata.newest_schema > SCHEMA_VERSION,
                model=self.runtime.agents.model_of(metadata),
            )

        return await self.session.store.call(show)

    def render(self, template: str, **variables: Any) -> Response[str]:
        """Respond with a rendered template."""
        return render_response(template, self.request, address=self.address, access=self.access, **variables)

    @property
    def run(self) -> Run | None:
        """The running turn, unless it has emitted its end."""
        run = self.runtime.current(self.session.id)
        return None if run is None or run.is_ending else run

    def queued_messages(self, metadata: Metadata) -> list[tuple[str, str]]:
        """Return the run id and the text of each queued message."""
        queued = (find_queued(self.session.sync, item) for item in metadata.waiting)
        return [(item[0].run_id or "", one_line(item[0].text[:2_000])[:300]) for item in queued if item]

    async def find_message(self, seq: int) -> Message | None:
        """Return a message by its seq."""
        record = await self.session.store.call(self.session.sync.record, min(max(seq, 1), MAX_INTEGER))
        return record if isinstance(record, Message) else None

    async def export(self, extension: str, media_type: str) -> Response[bytes]:
        """Respond with the session as a document, with secrets redacted."""
        written, _ = await self.session.store.call(export_document, self.session.sync, extension)
        name = re.sub(r"[^A-Za-z0-9]", "-", self.session.id)
        headers = {"Content-Disposition": f'attachment; filename="{name}.{extension}"'}
        return Response(next(iter(written.files.values())), media_type=media_type, headers=headers)


async def provide_view(
    request: Request[Any, Any, Any], runtime: NamedDependency[Runtime], session_id: FromPath[str]
) -> SessionView:
    """Return the view of the session that the path names."""
    session = await find_session(runtime, session_id)
    access = await session.access()
    if access.program:
        await session.metadata()  # reads the file to its end: only then it is known what it can hold
        access = await session.access()
    return SessionView(request, runtime, session, access)


@get("/")
async def show_session(
    view: NamedDependency[SessionView],
    at: FromQuery[int | None] = None,
    before: FromQuery[int | None] = None,
    after: FromQuery[int | None] = None,
) -> Response[str]:
    """Show the end of a session, or the page at a message or before or after a seq."""

    def read_window(index: MarkerIndex) -> PageWindow:
        if at is not None:
            high = index.clamp(at) + RECORDS_AFTER
            window = window_before(index, high if high < index.high else MAX_INTEGER)
            if window.low > at:  # the window starts at a summary after the message
                return window_between(index, at - RECORDS_AFTER, high)
            return window
        if after is not None:
            return window_after(index, after)
        return window_before(index, MAX_INTEGER if before is None else before)

    return await view.render_window("session.html", read_window, at=at or 0)


@get("/older")
async def show_older(view: NamedDependency[SessionView], before: FromQuery[int]) -> Response[str]:
    """Show the window before a seq."""
    return await view.render_window("session_window.html", partial(window_before, before=before))


@get("/newer")
async def show_newer(view: NamedDependency[SessionView], after: FromQuery[int]) -> Response[str]:
    """Show the window after a seq."""
    return await view.render_window("session_window.html", partial(window_after, after=after))


@get("/rows")
async def show_rows(view: NamedDependency[SessionView], low: FromQuery[int], high: FromQuery[int]) -> Response[str]:
    """Show a range of records, such as changed ones."""
    return await view.render_window("session_rows.html", partial(window_between, low=low, high=high))


@get("/messages/{seq:int}")
async def show_message(
    view: NamedDependency[SessionView], seq: FromPath[int], full: FromQuery[bool] = False
) -> Response[str]:
    """Show one message; with `full`, up to a much higher limit."""
    return await view.render_window("session_rows.html", partial(window_of_message, seq=seq), full=full)


@get("/messages/{seq:int}/text")
async def show_text(view: NamedDependency[SessionView], seq: FromPath[int]) -> Response[bytes]:
    """Return the text of a message as plain text, of any length."""
    message = await view.find_message(seq)
    if message is None:
        raise HttpError(404, "Message not found")
    texts = filter(None, map(block_text, message.content))
    return Response("\n\n".join(texts).encode("utf-8", "replace"), media_type=MediaType.TEXT)


@get("/gone")
async def show_removed(
    view: NamedDependency[SessionView], first: FromQuery[int], last: FromQuery[int]
) -> Response[str]:
    """Show messages that were deleted or rewound."""

    def read() -> list[MessageItem]:
        session = view.session.sync
        with view.cache.open(session, session.metadata) as index:
            return removed_messages(index, first, last)

    items = await view.session.store.call(read)
    return view.render("session_rows.html", items=items, blocks=PageBlocks(view.address), sender="")


@get("/queue")
async def show_queue(view: NamedDependency[SessionView]) -> Response[str]:
    """Show the queued messages."""
    queue = await view.session.store.call(lambda: view.queued_messages(view.session.sync.metadata))
    run = view.run
    return view.render("session_queue.html", queue=queue, run_id=run.id if run else "")


@get("/pictures/{seq:int}/{number:int}")
async def show_picture(
    view: NamedDependency[SessionView], seq: FromPath[int], number: FromPath[int]
) -> Response[bytes]:
    """Return an image of a message."""
    message = await view.find_message(seq)
    picture = None if message is None else decode_picture(message, number)
    if picture is None:
        raise HttpError(404, "Image not found")
    headers = {"Cache-Control": "private, max-age=3600"}
    return Response(picture[1], media_type=picture[0], headers=headers)


@get("/export.md")
async def export_markdown(view: NamedDependency[SessionView]) -> Response[bytes]:
    """Export the session as Markdown."""
    return await view.export("md", "text/markdown")


@get("/export.html")
async def export_html(view: NamedDependency[SessionView]) -> Response[bytes]:
    """Export the session as one HTML file."""
    return await view.export("html", MediaType.HTML)


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
