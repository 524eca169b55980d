"""What the page is told beside runs: that the listing has changed, and what others appended.

Runs of this daemon tell about themselves. Other processes append to the same files, and foreign
programs to theirs, without telling anybody: as long as somebody watches, the newest sessions and
those that are followed are looked at, every second. Nobody watches: nothing is looked at.

On a database, daemons tell each other which sessions have gone on, so that those which are followed
are looked at sooner. What is told comes out of the log in any case, by seq: nothing is lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from everlog.daemon.json_log import note
from everlog.errors import EverlogError, NotFoundError
from everlog.model import (
    Entry,
)
from everlog.ports import Listening, sharing_of
from everlog.runtime.feed import Notice, Subscription
from everlog.runtime.remote_events import News
from everlog.runtime.runtime import Runtime
from everlog.session import Session
from everlog.wire.events import RunEvent, SessionChanged, StreamDelta, ThinkingDelta

LOOK = 1.0  # seconds between two looks
AFTER = 0.1  # seconds after something happened here
NEWEST = 60  # sessions of the listing that are compared


class ListingChanged(RunEvent, frozen=True, kw_only=True):
    """Sessions were made, said something in, renamed or deleted: a listing is read again."""

    gone: tuple[str, ...] = ()  # sessions that are no more
    lost: bool = False  # others are no more either, and which is not known: read all of it again


Row = tuple[object, ...]


class Board:
    """Looks while somebody watches."""

    def __init__(self, runtime: Runtime, look: float = LOOK) -> None:
        self._runtime = runtime
        self._look = look
        self._watching: dict[Subscription, bool] = {}  # the listing → whether they know it
        self._news: dict[str, News] = {}  # of the sessions that are followed
        self._rows: dict[str, Row] = {}
        self._total = 0
        self._touched: set[str] = set()  # sessions in which something happened here since
        self._task: asyncio.Task[None] | None = None
        self._happened = asyncio.Event()
        self._here = False  # it happened in this daemon, or nothing did for a while
        self._sharing = sharing_of(runtime.store.sync.port)
        self._listening: Listening | None = None

    def begin(self) -> None:
        """Look from now on."""
        self._runtime.listeners.append(self._hear)
        self._task = asyncio.create_task(self._run())
        if self._sharing is not None:
            told = partial(_tell, asyncio.get_running_loop(), self._hear_of)
            self._listening = self._sharing.listen(told)

    async def end(self) -> None:
        """Look no more."""
        if self._listening is not None:
            await self._runtime.store.call(self._listening.stop)
            self._listening = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def watch(self, who: Subscription) -> None:
        """Tell somebody when the listing changes; at once, for it may have since they read it."""
        self._watching[who] = False
        self._here = True
        self._happened.set()

    def follow(self, session: str, seq: int) -> None:
        """Tell those who follow a session what comes behind a seq."""
        self._news.setdefault(session, News(Session(self._runtime.store.sync, session), seq))
        self._attend()

    def _attend(self) -> None:
        if self._listening is not None:
            self._listening.attend(self._runtime.feed.followed)

    def forget(self, who: Subscription) -> None:
        """Tell somebody nothing any more."""
        self._watching.pop(who, None)

    def _hear(self, event: RunEvent) -> None:
        """What happens here: the listing may be another one, and the log has grown by us."""
        if isinstance(event, StreamDelta | ThinkingDelta):
            return
        if event.session_id in self._news:
            self._news[event.session_id].hear(event)
        self._touched.add(event.session_id)
        if isinstance(event, SessionChanged) and event.change == "deleted":
            self._news.pop(event.session_id, None)  # they know
        self._here = True
        self._happened.set()

    def _hear_of(self, sessions: frozenset[str]) -> None:
        """What happens elsewhere: only those who follow it need to know soon."""
        if not sessions or not sessions.isdisjoint(self._runtime.feed.followed):
            self._happened.set()

    async def _run(self) -> None:
        looked = 0.0
        while True:
            try:
                async with asyncio.timeout(self._look):
                    await self._happened.wait()
                await asyncio.sleep(AFTER)
            except TimeoutError:
                pass
            self._happened.clear()
            self._attend()
            now = time.monotonic()
            try:
                if self._here or now - looked >= self._look:
                    self._here, looked = False, now
                    await self._compare()
                await self._follow()
            except EverlogError as error:  # the store; whoever asks it is told
                note("looking_failed", level="warning", error=error.message)
            except Exception as error:  # a mistake somewhere: who watches may not go blind by it
                note("looking_failed", level="error", error=f"{type(error).__name__}: {error}")

    # --- the listing

    async def _compare(self) -> None:
        touched, self._touched = self._touched, set()
        if not self._watching:
            self._rows = {}
            return
        page = await self._runtime.store.list(limit=NEWEST)
        rows: dict[str, Row] = {
            one.id: (
                one.metadata.through,
                one.metadata.name,
                self._runtime.current(one.id) is not None,
            )
            for one in page
        }
        before, self._rows = self._rows, rows
        total, self._total = self._total, page.total
        elsewhere = (before.keys() | touched) - rows.keys() - {""}
        gone = await self._runtime.store.call(self._gone, elsewhere)
        changed = [one for one in rows if rows[one] != before.get(one)]
        changed += touched & elsewhere
        # Only the newest are compared. Of the others it is known how many there should be.
        newest = max(before, default="")  # ids grow with time
        made = sum(one > newest for one in rows)
        lost = bool(before) and page.total < total + made - len(gone)
        told = ListingChanged(session_id=changed[0] if changed else "", gone=gone, lost=lost)
        notice = Notice(told)
        for one, knows in tuple(self._watching.items()):
            if not knows or changed or gone or total != self._total:
                self._watching[one] = True
                one.offer(notice)

    def _gone(self, sessions: set[str]) -> tuple[str, ...]:
        """Those that are deleted, and not only too old for the first page."""
        return tuple(one for one in sessions if not self._is_there(one))

    def _is_there(self, session: str) -> bool:
        try:
            self._runtime.store.sync.port.metadata(session)
        except NotFoundError:
            return False
        return True

    # --- what others append

    async def _follow(self) -> None:
        followed = self._runtime.feed.followed
        self._news = {one: news for one, news in self._news.items() if one in followed}
        for one in await self._runtime.store.call(self._grown, followed):
            if self._runtime.is_at_work(one):
                continue  # a turn of ours tells what it appends, and then this is looked at again
            found = await self._runtime.store.call(self._read, one)
            if self._runtime.is_at_work(one):
                continue
            if found is None:
                if self._news.pop(one, None) is not None:  # told once
                    self._runtime.feed.emit(SessionChanged(session_id=one, change="deleted"))
                continue
            news, entries = found
            self._news.setdefault(one, news)
            for event in news.tell(entries):
                self._runtime.feed.emit(event)

    def _grown(self, followed: list[str]) -> list[str]:
        """Those that may have news: where one question tells it of all, those that have."""
        if self._sharing is None or not followed:
            return followed
        heads = self._sharing.heads(followed)
        known = {one: news.seq for one, news in self._news.items()}
        gone = [one for one in followed if one not in heads and one in known]
        return gone + [one for one, head in heads.items() if known.get(one, -1) < head]

    def _read(self, session: str) -> tuple[News, list[Entry]] | None:
        """What was appended since the last look, by whomever; None if the session is no more."""
        news = self._news.get(session)
        try:
            if news is not None:
                return news, news.read()
            own = Session(self._runtime.store.sync, session)
            return News(own, own.metadata.through.seq), []
        except NotFoundError:
            return None


def _tell(
    loop: asyncio.AbstractEventLoop, hear: Callable[[frozenset[str]], None], news: frozenset[str]
) -> None:
    """From the thread that listens."""
    with suppress(RuntimeError):  # the loop has ended meanwhile
        loop.call_soon_threadsafe(hear, news)
