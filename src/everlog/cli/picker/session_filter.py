"""The filtered list of sessions: by title page by page, by content in the background."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from typing import NamedTuple

from msgspec.structs import replace

from everlog.cli.picker.newest_task import NewestTask
from everlog.errors import EverlogError, NotFoundError
from everlog.ports import Hit, Page, SessionRow
from everlog.session import Session, Store

PAGE_SIZE = 100  # sessions per page
MAX_PAGE_SIZE = 2_000  # sessions per page when jumping to the end
READ_AHEAD = 50  # rows that are loaded below the highlighted one
MAX_HITS = 30  # sessions per search
MIN_SEARCH_CHARS = 2  # a shorter filter searches titles only


class Row(NamedTuple):
    """A session in the list, with the passage that matches the filter."""

    session: SessionRow
    hit: Hit | None = None

    @property
    def id(self) -> str:
        """Return the session's id."""
        return self.session.id


class PickerClosedError(Exception):
    """The user closed the picker while new messages were being indexed."""


class SessionFilter:
    """The rows that match a filter, the highlighted one, and the loading of more rows."""

    def __init__(
        self, store: Store, threads: Executor, on_change: Callable[[], None], on_error: Callable[[EverlogError], None]
    ) -> None:
        self._store = store
        self._threads = threads
        self._on_change = on_change
        self._list_task = NewestTask(threads, on_error)
        self._search_task = NewestTask(threads, on_error)
        self._closed = threading.Event()
        self._title_rows: list[Row] = []  # matches by title, newest first, as far as loaded
        self._cursor: str | None = None
        self._rows_filter = ""  # the filter of these rows
        self._hits: dict[str, Row] = {}  # matches by content, best first
        self._hits_filter = ""
        self._target = 0  # the position to highlight; may not be loaded yet
        self.text = ""
        self.total = 0  # matches by title
        self.index_progress = ""  # of new messages, as text

    # --- state

    @property
    def rows(self) -> list[Row]:
        """Return the loaded rows; matches by content follow those by title."""
        if self._hits_filter != self._rows_filter or not self._hits:
            return self._title_rows
        titled = [row._replace(hit=self._hits[row.id].hit) if row.id in self._hits else row for row in self._title_rows]
        if self._cursor is not None:
            return titled
        listed_ids = {row.id for row in titled}
        return titled + [row for row in self._hits.values() if row.id not in listed_ids]

    @property
    def position(self) -> int:
        """Return the position of the highlighted row."""
        return max(min(self._target, len(self.rows) - 1), 0)

    @property
    def row(self) -> Row | None:
        """Return the highlighted row."""
        rows = self.rows
        return rows[self.position] if rows else None

    @property
    def count(self) -> int:
        """Return how many rows there will be when all are loaded."""
        return self.total + len(self.rows) - len(self._title_rows)

    @property
    def is_searching(self) -> bool:
        """Return whether the search by content is still running."""
        return self._search_task.is_busy

    # --- loading

    async def load(self) -> None:
        """Load the first page."""
        loop = asyncio.get_running_loop()
        page = await loop.run_in_executor(self._threads, self._page, "", None, PAGE_SIZE)
        self._set_first_page("", page)

    def filter(self, text: str) -> None:
        """Filter by text in the title, at once, or in the messages, when the search is done."""
        text = " ".join(text.split())
        if text == self.text:
            return
        self.text = text
        self._list_task.submit(lambda: self._page(text, None, PAGE_SIZE), lambda page: self._set_first_page(text, page))
        if len(text) < MIN_SEARCH_CHARS:
            self._search_task.cancel()
            self._hits, self._hits_filter = {}, ""
        else:
            on_progress = self._progress_callback()
            self._search_task.submit(lambda: self._search(text, on_progress), lambda hits: self._set_hits(text, hits))

    def move(self, by: int) -> None:
        """Move the highlight."""
        self._target = max(self.position + by, 0)
        self._read_ahead()

    def go_to_end(self) -> None:
        """Highlight the last row, even if it is not loaded yet."""
        self._target = max(self.count - 1, 0)
        self._read_ahead()

    def _read_ahead(self) -> None:
        """Load more rows if the highlight is near the end of the loaded ones."""
        missing = self._target + READ_AHEAD - len(self._title_rows)
        if self._cursor is None:
            self._target = self.position
        elif missing > 0 and not self._list_task.is_busy:
            text, cursor = self._rows_filter, self._cursor
            limit = min(max(missing, PAGE_SIZE), MAX_PAGE_SIZE)
            self._list_task.submit(lambda: self._page(text, cursor, limit), self._add_next_page)

    def _page(self, text: str, cursor: str | None, limit: int) -> Page:
        return self._store.list(title=text or None, cursor=cursor, limit=limit)

    def _set_first_page(self, text: str, page: Page) -> None:
        self._title_rows = []
        self._target = 0
        self._rows_filter = text
        self._append_page(page)

    def _add_next_page(self, page: Page) -> None:
        self._append_page(page)
        # The next request may be submitted only after this one has ended.
        asyncio.get_running_loop().call_soon(self._read_ahead)

    def _append_page(self, page: Page) -> None:
        listed_ids = {row.id for row in self._title_rows}  # an active one moved up
        self._title_rows += [Row(session) for session in page if session.id not in listed_ids]
        self._cursor, self.total = page.next, page.total
        self._on_change()

    def _search(self, text: str, on_progress: Callable[[int, int], None]) -> dict[str, Row]:
        results = self._store.search(to_query(text), limit=MAX_HITS, progress=on_progress)
        rows = {}
        for result in results.results:
            try:
                metadata = self._store.port.metadata(result.session)
                parts = self._store.port.parts(result.session)
            except NotFoundError:
                continue  # deleted meanwhile
            session = SessionRow(metadata, sum(part.bytes for part in parts), len(parts))
            text_hits = (hit for hit in result.hits if hit.seq)  # not the title, which is shown anyway
            rows[result.session] = Row(session, next(text_hits, None))
        return rows

    def _set_hits(self, text: str, hits: dict[str, Row]) -> None:
        self._hits, self._hits_filter = hits, text
        self.index_progress = ""
        self._on_change()

    def _progress_callback(self) -> Callable[[int, int], None]:
        loop = asyncio.get_running_loop()

        def show(text: str) -> None:
            self.index_progress = text
            self._on_change()

        def on_progress(done: int, total: int) -> None:
            if self._closed.is_set():
                raise PickerClosedError  # the next search continues from here
            text = f"indexing new messages: {done:,} of {total:,}" if done < total else ""
            loop.call_soon_threadsafe(show, text)

        return on_progress

    # --- edits

    async def rename(self, row: Row, title: str) -> None:
        """Rename a session; durable on return."""
        loop = asyncio.get_running_loop()
        session = Session(self._store, row.id)
        metadata = await loop.run_in_executor(self._threads, session.rename, title)
        changed = replace(row.session, metadata=metadata)
        self._title_rows = [Row(changed) if other.id == row.id else other for other in self._title_rows]
        if row.id in self._hits:
            self._hits[row.id] = self._hits[row.id]._replace(session=changed)
        self._on_change()

    async def delete(self, row: Row) -> None:
        """Delete a session permanently."""
        loop = asyncio.get_running_loop()
        session = Session(self._store, row.id)
        await loop.run_in_executor(self._threads, session.delete)
        self.remove(row.id)

    def remove(self, session: str) -> None:
        """Remove a deleted session from the rows."""
        position = self.position
        before = len(self._title_rows)
        self._title_rows = [row for row in self._title_rows if row.id != session]
        self.total -= before - len(self._title_rows)
        self._hits.pop(session, None)
        self._target = position
        self._read_ahead()
        self._on_change()

    async def close(self) -> None:
        """Stop loading, and wait for running requests to end."""
        self._closed.set()
        for task in (self._list_task, self._search_task):
            try:
                await task.settle()
            except PickerClosedError:
                pass  # raised on our request


def to_query(text: str) -> str:
    """Return the search query of a filter; its last word, which may be incomplete, is a prefix."""
    return f"{text}*" if text[-1:].isalnum() and '"' not in text else text
