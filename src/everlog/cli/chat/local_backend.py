"""A partner in this process: a runtime over the root.

It is not started as the daemon's is: no cron jobs run and no other session is gone on with,
however long somebody chats. What a crash left in a session is repaired when it is spoken to.

What other processes append to the session is looked for every second while no turn of it runs
here, and told as the daemon would tell it.
"""

from __future__ import annotations

import asyncio
import os

from everlog.aio import AsyncSession
from everlog.cli.chat.backend import Told
from everlog.context.build import Context
from everlog.errors import EverlogError, NotFoundError
from everlog.log.line_codec import to_object
from everlog.runtime.remote_events import News
from everlog.runtime.runtime import Runtime
from everlog.wire.events import MessageComplete, RunEvent, SessionChanged
from everlog.wire.responses import Accepted, Compacted

LOOK = 1.0  # seconds between two looks at what others append
GRACE = 3.0  # seconds for titles and notes when the program ends


class Local:
    """Turns run here, and end with the program."""

    place = "in this process"
    stays = False

    def __init__(self, runtime: Runtime) -> None:
        self.store = runtime.store
        self.events: asyncio.Queue[Told] = asyncio.Queue()
        self._runtime = runtime
        self._news: News | None = None  # of the session that is followed; None once it has gone
        # What the runtime tells, and up to where others were at work just before it.
        self._heard: asyncio.Queue[tuple[RunEvent, int]] = asyncio.Queue()
        self._telling: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()  # held while something is recorded here beside turns
        runtime.listeners.append(self._hear)

    async def follow(self, session: str) -> str:
        """Hear of this session only; the turn of it that runs here, or nothing."""
        found = await self.store.session(session)
        self._news = News(found.sync, (await found.metadata()).through.seq)
        if self._telling is None:
            self._telling = asyncio.create_task(self._tell())
        # No await since it is followed: what this turn tells from here on is heard.
        run = self._runtime.current(found.id)
        return "" if run is None or run.ending else run.id

    async def create(self, *, agent: str, sender: str, model: str) -> AsyncSession:
        """Make a session for a model that can be used."""
        await self.store.call(self.store.sync.provider, model)
        return await self.store.create(agent=agent, sender=sender, model=model)

    async def use_model(self, session: str, model: str) -> None:
        """Let another model answer, if it can be used."""
        await self.store.call(self.store.sync.provider, model)
        await (await self.store.session(session)).update(model=model)

    async def submit(self, session: str, text: str) -> Accepted:
        """Say something."""
        found = await self.store.session(session)
        run = await self._runtime.submit(found, text, cwd=os.getcwd())
        return Accepted(run_id=run.id, position=run.position)

    async def cancel(self, session: str, run_id: str = "") -> bool:
        """Stop a turn."""
        return await self._runtime.cancel(session, run_id)

    async def compact(self, session: str, focus: str) -> Compacted:
        """Summarise the older part."""
        async with self._changing:
            outcome = await self._runtime.compact(await self.store.session(session), focus=focus)
        return Compacted(
            compacted=outcome.compacted,
            reason=outcome.reason,
            record=None if outcome.record is None else to_object(outcome.record),
            messages=outcome.messages,
            tokens=outcome.tokens,
            tokens_freed=outcome.tokens_freed,
            summariser=outcome.summariser,
            problem=outcome.problem,
        )

    async def context(self, session: str) -> Context:
        """What the model would be sent."""
        return await self._runtime.context(await self.store.session(session))

    async def rename(self, session: str, title: str) -> None:
        """Give the session a title."""
        async with self._changing:
            await self._runtime.changes.update(await self.store.session(session), name=title)

    async def rewind(self, session: str, to_seq: int) -> None:
        """Go back to a message."""
        async with self._changing:
            await self._runtime.changes.rewind(await self.store.session(session), to_seq)

    def ending(self) -> list[str]:
        """Sessions whose turns are stopped when the program ends."""
        return [one for one in self._runtime.open_sessions() if self._runtime.current(one)]

    async def close(self) -> None:
        """Stop what runs and begin no more; let what goes on behind an answer come to its end."""
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.wait({self._telling})
        await self._runtime.queue.drain(0)
        await self._runtime.drain(GRACE)
        await self.store.close()

    # --- what happens

    def _hear(self, event: RunEvent) -> None:
        news = self._news
        if news is None or event.session_id != news.session.id:
            return
        # The answer to a message that waited here, and was answered by another process: what it
        # said on the way is read before its end is told.
        through = 0
        if isinstance(event, MessageComplete) and not news.has(event.seq):
            through = event.seq
        news.hear(event)
        self._heard.put_nowait((event, through))

    async def _tell(self) -> None:
        """Put what happens into `events`, in its order."""
        while True:
            try:
                async with asyncio.timeout(LOOK):
                    event, through = await self._heard.get()
            except TimeoutError:
                await self._look()
                continue
            if through:
                await self._look(through)
            self.events.put_nowait(event)

    async def _look(self, through: int = 0) -> None:
        """Tell what others appended; with `through`, up to a record behind which we are at work."""
        news = self._news
        if news is None or self._is_at_work(news, through):
            return
        try:
            entries = await self.store.call(news.read)
        except NotFoundError:
            if news is self._news:
                self._news = None
                gone = SessionChanged(session_id=news.session.id, change="deleted")
                self.events.put_nowait(gone)
            return
        except EverlogError:
            return  # whoever speaks next is told; the next look may find it well again
        if news is not self._news or self._is_at_work(news, through):
            return  # some of it may be our own, and not told yet
        if through:
            entries = [one for one in entries if one.seq is not None and one.seq <= through]
        for event in news.tell(entries):
            self.events.put_nowait(event)

    def _is_at_work(self, news: News, through: int) -> bool:
        turn = not through and self._runtime.is_at_work(news.session.id)
        return turn or self._changing.locked()
