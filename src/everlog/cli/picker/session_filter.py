"""The sessions that a filter leaves: by title page by page, by what was said in the background."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from typing import NamedTuple

from msgspec.structs import replace

from everlog.cli.picker.newest_task import Newest
from everlog.errors import EverlogError, NotFoundError
from everlog.ports import Hit, Page, SessionRow
from everlog.session import Session, Store

PAGE = 100  # sessions that are read at a time
LARGEST = 2_000  # likewise, for who jumps to the end
AHEAD = 50  # rows behind the highlighted one that are kept at hand
HITS = 30  # sessions of one search
SEARCHED = 2  # characters from which on what was said is searched


class Row(NamedTuple):
    """A session in the list, and the passage that was found in it."""

    listed: SessionRow
    hit: Hit | None = None

    @property
    def id(self) -> str:
        """The session's id."""
        return self.listed.id


class Left(Exception):
    """The user has left while what is new was still being taken in."""


class Finding:
    """Rows, the highlighted one among them, and the reading of more."""

    def __init__(
        self,
        store: Store,
        threads: Executor,
        changed: Callable[[], None],
        failed: Callable[[EverlogError], None],
    ) -> None:
        self._store = store
        self._threads = threads
        self._changed = changed
        self._listing = Newest(threads, failed)
        self._searching = Newest(threads, failed)
        self._left = threading.Event()
        self._titled: list[Row] = []  # by title, newest first, as far as read
        self._cursor: str | None = None
        self._of = ""  # the filter that the rows are of
        self._hits: dict[str, Row] = {}  # by what was said, best first
        self._hits_of = ""
        self._wanted = 0  # the place to highlight; may not be read yet
        self.text = ""
        self.total = 0  # sessions by title
        self.taking_in = ""  # how far the search has come with what is new

    # --- what there is

    @property
    def rows(self) -> list[Row]:
        """What is read so far; sessions found by what was said follow those found by title."""
        if self._hits_of != self._of or not self._hits:
            return self._titled
        titled = [
            row._replace(hit=self._hits[row.id].hit) if row.id in self._hits else row
            for row in self._titled
        ]
        if self._cursor is not None:
            return titled
        known = {row.id for row in titled}
        return titled + [row for row in self._hits.values() if row.id not in known]

    @property
    def place(self) -> int:
        """Where the highlight is."""
        return max(min(self._wanted, len(self.rows) - 1), 0)

    @property
    def row(self) -> Row | None:
        """The highlighted one."""
        rows = self.rows
        return rows[self.place] if rows else None

    @property
    def count(self) -> int:
        """How many rows there will be when all are read."""
        return self.total + len(self.rows) - len(self._titled)

    @property
    def searching(self) -> bool:
        """Whether what was said is still being searched."""
        return self._searching.busy

    # --- reading

    async def begin(self) -> None:
        """Read the first page."""
        loop = asyncio.get_running_loop()
        self._take_first("", await loop.run_in_executor(self._threads, self._page, "", None, PAGE))

    def filter(self, text: str) -> None:
        """Show the sessions with this in their title, at once, or in what was said."""
        text = " ".join(text.split())
        if text == self.text:
            return
        self.text = text
        self._listing.ask(
            lambda: self._page(text, None, PAGE), lambda page: self._take_first(text, page)
        )
        if len(text) < SEARCHED:
            self._searching.drop()
            self._hits, self._hits_of = {}, ""
        else:
            tell = self._teller()
            self._searching.ask(
                lambda: self._search(text, tell), lambda hits: self._take_hits(text, hits)
            )

    def move(self, by: int) -> None:
        """Move the highlight."""
        self._wanted = max(self.place + by, 0)
        self._reach()

    def go_to_end(self) -> None:
        """Highlight the last row, however far it is."""
        self._wanted = max(self.count - 1, 0)
        self._reach()

    def _reach(self) -> None:
        """Read on if the highlight comes near the end of what was read."""
        missing = self._wanted + AHEAD - len(self._titled)
        if self._cursor is None:
            self._wanted = self.place
        elif missing > 0 and not self._listing.busy:
            text, cursor, limit = self._of, self._cursor, min(max(missing, PAGE), LARGEST)
            self._listing.ask(lambda: self._page(text, cursor, limit), self._take_more)

    def _page(self, text: str, cursor: str | None, limit: int) -> Page:
        return self._store.list(title=text or None, cursor=cursor, limit=limit)

    def _take_first(self, text: str, page: Page) -> None:
        self._titled = []
        self._wanted = 0
        self._of = text
        self._take(page)

    def _take_more(self, page: Page) -> None:
        self._take(page)
        # Only when this answer is settled may the next question be asked.
        asyncio.get_running_loop().call_soon(self._reach)

    def _take(self, page: Page) -> None:
        known = {row.id for row in self._titled}  # one that became active again moved up
        self._titled += [Row(one) for one in page if one.id not in known]
        self._cursor, self.total = page.next, page.total
        self._changed()

    def _search(self, text: str, tell: Callable[[int, int], None]) -> dict[str, Row]:
        found = self._store.search(query(text), limit=HITS, progress=tell)
        rows = {}
        for one in found.results:
            try:
                metadata = self._store.port.metadata(one.session)
                parts = self._store.port.parts(one.session)
            except NotFoundError:
                continue  # deleted meanwhile
            listed = SessionRow(metadata, sum(part.bytes for part in parts), len(parts))
            said = (hit for hit in one.hits if hit.seq)  # the title is shown in any case
            rows[one.session] = Row(listed, next(said, None))
        return rows

    def _take_hits(self, text: str, hits: dict[str, Row]) -> None:
        self._hits, self._hits_of = hits, text
        self.taking_in = ""
        self._changed()

    def _teller(self) -> Callable[[int, int], None]:
        loop = asyncio.get_running_loop()

        def show(text: str) -> None:
            self.taking_in = text
            self._changed()

        def tell(done: int, total: int) -> None:
            if self._left.is_set():
                raise Left  # what was taken in stays; the rest is for the next search
            text = f"taking in what is new: {done:,} of {total:,}" if done < total else ""
            loop.call_soon_threadsafe(show, text)

        return tell

    # --- changing

    async def rename(self, row: Row, title: str) -> None:
        """Give a session another title, durably."""
        loop = asyncio.get_running_loop()
        session = Session(self._store, row.id)
        metadata = await loop.run_in_executor(self._threads, session.rename, title)
        changed = replace(row.listed, metadata=metadata)
        self._titled = [Row(changed) if one.id == row.id else one for one in self._titled]
        if row.id in self._hits:
            self._hits[row.id] = self._hits[row.id]._replace(listed=changed)
        self._changed()

    async def delete(self, row: Row) -> None:
        """Delete a session for good."""
        loop = asyncio.get_running_loop()
        session = Session(self._store, row.id)
        await loop.run_in_executor(self._threads, session.delete)
        self.forget(row.id)

    def forget(self, session: str) -> None:
        """Take a session that is no more from the rows."""
        place = self.place
        before = len(self._titled)
        self._titled = [one for one in self._titled if one.id != session]
        self.total -= before - len(self._titled)
        self._hits.pop(session, None)
        self._wanted = place
        self._reach()
        self._changed()

    async def close(self) -> None:
        """Let what is running come to its end, soon."""
        self._left.set()
        for one in (self._listing, self._searching):
            try:
                await one.settle()
            except Left:
                pass  # as it was told to


def query(text: str) -> str:
    """What is searched for a filter that may still be growing: its last word is a beginning."""
    return f"{text}*" if text[-1:].isalnum() and '"' not in text else text
