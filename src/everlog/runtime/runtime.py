"""The runtime: everything that goes on over one store, for whatever face it is shown by.

    inbound → routed to its session → queue → turn → feed
                                        cron ↗

Who answers is in `agents`; what people change in a session beside talking is in `changes`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from everlog.agent.agent import Prepared
from everlog.agent.compactor import Outcome
from everlog.agent.environment import Recall
from everlog.agent.tools import Function
from everlog.agent.turn import Answer
from everlog.aio import AsyncSession, AsyncStore
from everlog.context.build import Context
from everlog.errors import EverlogError, StoreFailedError
from everlog.identity.key import main_alias, main_key
from everlog.identity.key_text import agent_id
from everlog.identity.route import Router, Routing
from everlog.identity.scope import Inbound
from everlog.memory.memory_hook import Remembering
from everlog.model import Content, Message, user
from everlog.ports import Lease, Page, sharing_of
from everlog.runtime.agents import Agents, Toolsets
from everlog.runtime.cron import Cron, Fared, Save
from everlog.runtime.dream_schedule import Nights, seconds_until
from everlog.runtime.feed import Feed
from everlog.runtime.index_worker import TakingIn
from everlog.runtime.integrity_check import Checkup
from everlog.runtime.queue import Queue
from everlog.runtime.queue_log import How
from everlog.runtime.run import Recovered, Run
from everlog.runtime.session_edits import Changes
from everlog.runtime.shared_jobs import SharedJobs
from everlog.runtime.takeover import Rescue
from everlog.session import Session
from everlog.settings import CronJob, Settings
from everlog.wire.events import RunEvent, Sink


class Arrived(NamedTuple):
    """A message that came by a channel: where it went."""

    session: AsyncSession
    key: str
    run: Run


class Health(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How the runtime is."""

    ok: bool
    uptime_secs: int
    sessions: int
    running: int  # turns
    waiting: int  # messages
    watchers: int
    turns: int  # since the start
    failures: int  # turns among them without an answer
    recovered: int  # sessions that a crash had left unfinished
    jobs: int
    model: str  # of the default agent
    store: str  # what keeps the sessions: files, postgresql or memory
    reachable: bool  # whether it answers
    problem: str = ""  # why not
    hint: str = ""  # what to do about it


class Runtime:
    """Turns, queues, cron and the feed over one store."""

    def __init__(
        self,
        store: AsyncStore,
        *,
        toolsets: Toolsets = lambda _: {},
        tools: Iterable[Function] = (),
        hooks: Iterable[object] = (),
        recall: Recall | None = None,
        root: Path | None = None,
        fared: Mapping[str, Fared] | None = None,
        save: Save = lambda _: None,
        clock: Callable[[], float] = time.time,
        kind: str = "files",
    ) -> None:
        """`root`: where the memories of agents are; without one they have none.

        `fared` and `save` keep how jobs fared, unless the store shares that between machines;
        `kind` is what the store is called.
        """
        self.store = store
        self.kind = kind
        self.feed = Feed()
        self.listeners: list[Sink] = [self.feed.emit]
        self.agents = Agents(store, toolsets=toolsets, tools=tools, hooks=hooks, recall=recall)
        self.router = Router(Routing.of(self.settings))
        self.queue = Queue(store, self._answer, waiting=self.settings.turn.waiting, emit=self.emit)
        self.changes = Changes(self.emit, self.at_rest)
        sharing = sharing_of(store.sync.port)
        self.cron = Cron(
            self.settings.cron.jobs,
            self._start_job,
            fared=fared,
            save=save,
            shared=None if sharing is None else SharedJobs(store, sharing),
        )
        self._rescue = Rescue(store, self.queue, found=self._rescued, failed=self._rescue_failed)
        # Called with each session that is taken over after the start, and when none can be.
        self.when_rescued: Callable[[Recovered], None] = lambda _: None
        self.when_rescue_fails: Callable[[EverlogError], None] = lambda _: None
        self._taking_in = TakingIn(store)
        self.checkup = Checkup(store)
        self.listeners.append(self.checkup.hear)
        self.memory: Remembering | None = None
        if root is not None:
            self.memory = self.agents.memory = Remembering(
                root,
                store,
                agent_of=self.agents.of,
                named=self.agents.named,
                at_rest=self.at_rest,
                running=lambda: self.queue.running,
                emit=self.emit,
                clock=clock,
            )
        seconds_until(self.settings.memory.dream_schedule)  # SettingsError now, not at night
        self._nights = Nights(lambda: self.settings.memory.dream_schedule, self._night)
        self._started = time.monotonic()
        self._asked: asyncio.Future[Page] | None = None  # how the store is
        self._opened: dict[str, None] = {}
        self.recovered: deque[Recovered] = deque(maxlen=1000)  # the last of them
        self._recovered = 0
        self._turns = self._failures = 0

    @property
    def settings(self) -> Settings:
        """What is in force."""
        return self.store.sync.settings

    def emit(self, event: RunEvent) -> None:
        """Tell everybody."""
        for listener in self.listeners:
            listener(event)

    # --- life

    async def start(self) -> list[Recovered]:
        """Repair what a crash left, go on with what waits, and let time pass."""
        found = await self.queue.recover()
        self.recovered.extend(found)
        self._recovered += len(found)
        await self.cron.refresh()
        self._rescue.begin()
        self.cron.begin()
        self._taking_in.begin()
        self._nights.begin()
        return found

    async def reload(self, settings: Settings) -> None:
        """Go by other settings from the next turn on; SettingsError, and nothing changes, if they
        cannot be used. How sessions are kept is decided once, when the store is opened."""
        router = Router(Routing.of(settings))
        seconds_until(settings.memory.dream_schedule)
        toolsets = self.agents.prepare(settings)
        self.cron.replace(settings.cron.jobs)
        self.store.sync.settings = settings
        self.router = router
        self.queue.waiting = settings.turn.waiting
        await self.agents.renew(toolsets)

    async def drain(self, seconds: float) -> None:
        """Begin no more turns; those under way end, or are stopped and recorded."""
        until = time.monotonic() + seconds
        await self.cron.end()
        await self._rescue.end()
        await self.checkup.end()
        await self.queue.drain(seconds)
        await self._taking_in.end()
        await self._nights.end()
        if self.memory is not None:
            await self.memory.settle(max(until - time.monotonic(), 0))
        await self.agents.close(until)

    def _rescued(self, one: Recovered) -> None:
        self.recovered.append(one)
        self._recovered += 1
        self.when_rescued(one)

    def _rescue_failed(self, error: EverlogError) -> None:
        self.when_rescue_fails(error)

    async def checked_health(self) -> Health:
        """The same, and whether the store answers; that is waited for as for a connection."""
        try:
            return self.health((await self._first_page()).total)
        except EverlogError as error:
            return replace(
                self.health(), ok=False, reachable=False, problem=error.message, hint=error.hint
            )

    async def _first_page(self) -> Page:
        """Ask the store something; StoreFailedError if it is silent.

        All who ask meanwhile wait for one answer: a store that is silent must not cost a thread
        for everybody who wonders about it.
        """
        if self._asked is None or self._asked.done():
            self._asked = asyncio.ensure_future(self.store.list(limit=1))
            self._asked.add_done_callback(lambda done: done.cancelled() or done.exception())
        asked, seconds = self._asked, self.settings.postgres.wait_seconds
        await asyncio.wait([asked], timeout=seconds)
        if not asked.done():
            raise StoreFailedError(
                f"the store does not answer in {seconds:g} seconds",
                hint="is what it is on running, and not too busy?",
            )
        return asked.result()

    def health(self, sessions: int = 0) -> Health:
        """Counts."""
        return Health(
            ok=True,
            store=self.kind,
            reachable=True,
            uptime_secs=int(time.monotonic() - self._started),
            sessions=sessions,
            running=self.queue.running,
            waiting=self.queue.held,
            watchers=self.feed.watchers,
            turns=self._turns,
            failures=self._failures,
            recovered=self._recovered,
            jobs=len(self.cron.statuses()),
            model=self.settings.model_of(self.router.default_agent),
        )

    # --- messages

    async def create(self, *, agent: str | None = None, **facts: Any) -> AsyncSession:
        """Make an empty session; without a name it is the default agent's."""
        return await self.store.create(agent=agent or self.router.default_agent, **facts)

    async def submit(
        self,
        session: AsyncSession,
        content: Content,
        *,
        cwd: str | None = None,
        sender: str | None = None,
    ) -> Run:
        """Say something in a session; durable when this returns. QueueFullError if too many wait."""
        return await self._submit(session, user(content, cwd=cwd, sender=sender), How())

    async def inbound(
        self,
        inbound: Inbound,
        content: Content,
        *,
        session_key: str = "",
        new_chat: bool = False,
        cwd: str | None = None,
        system: bool = False,
    ) -> Arrived:
        """Take a message from a channel; `system` ones go to the main session of their agent."""
        routed = self.router.route(inbound, session_key)
        sender = self.router.facts(inbound).sender
        if system:
            session = await self.main_session(routed.agent)
            key = routed.main_key
        else:
            key = routed.session_key
            session = await self.store.route_to_session(
                routed,
                incoming=session_key,
                new_chat=new_chat,
                **({"sender": sender} if sender else {}),
            )
        message = user(content, cwd=cwd, sender=sender or None)
        return Arrived(session, key, await self._submit(session, message, How()))

    async def main_session(self, agent: str) -> AsyncSession:
        """The session of an agent that belongs to nobody in particular."""
        facts = {
            "agent": agent_id(agent),
            "sender": "system",
            "source": "system",
            "key": main_key(agent),
            "aliases": [main_alias(agent)],
        }

        def find() -> Session:
            store = self.store.sync
            held = store.current(key=main_key(agent))
            return held or store.session(store.port.create(facts, unless_held=True).id)

        return AsyncSession(self.store, await self.store.call(find))

    def current(self, session: str) -> Run | None:
        """The turn of a session that is running here."""
        return self.queue.current(session)

    def is_at_work(self, session: str) -> bool:
        """Whether a turn of a session runs here, or is about to."""
        return self.queue.is_at_work(session)

    def open_sessions(self) -> list[str]:
        """The sessions that had a turn since the start."""
        return list(self._opened)

    async def cancel(self, session: str, run_id: str = "") -> bool:
        """Stop a run, under way or waiting; without an id the one under way."""
        return await self.queue.cancel(await self.store.session(session), run_id)

    async def at_rest(self, session: str) -> None:
        """To be awaited before what needs the lease: a turn may just be giving it back."""
        await self.queue.at_rest(session)

    async def compact(self, session: AsyncSession, *, focus: str = "") -> Outcome:
        """Compact a session now; SessionBusyError during a turn."""
        await self.at_rest(session.id)
        agent = await self.agents.of(session)
        return await agent.compact(session, focus=focus, emit=self.emit)

    async def plan_compaction(self, session: AsyncSession, *, focus: str = "") -> Outcome:
        """What compacting a session now would record, with the built-in summary."""
        agent = await self.agents.of(session)
        preview = agent.compactor(self.emit).preview
        return await self.store.call(preview, session.sync, focus)

    async def context(self, session: AsyncSession) -> Context:
        """What the model would be sent if somebody spoke now."""
        return await (await self.agents.of(session)).preview(session, self.emit)

    async def prepare(self, session: AsyncSession) -> Prepared:
        """The same with everything that is sent beside the messages."""
        return await (await self.agents.of(session)).prepare(session, self.emit)

    async def _night(self) -> None:
        if self.memory is not None:
            await self.memory.night()

    # --- turns

    async def _submit(self, session: AsyncSession, message: Message, how: How) -> Run:
        run = await self.queue.submit(session, message, how)
        self._opened[session.id] = None
        return run

    async def _answer(
        self, session: AsyncSession, message: Message, lease: Lease, emit: Sink, how: How
    ) -> Answer:
        self._turns += 1
        try:
            agent = await self.agents.of(session)
            with self.memory.during(session) if self.memory else nullcontext():
                answer = await agent.answer(
                    message,
                    session,
                    lease,
                    emit=emit,
                    max_steps=how.max_steps,
                    allowed=how.allowed,
                    reads_only=how.reads_only,
                )
        except BaseException:
            self._failures += 1
            raise
        finally:
            self._taking_in.told()
        if self.memory is not None:
            self.memory.after_turn(session)
        return answer

    async def _start_job(self, job: CronJob, when: datetime) -> tuple[str, Awaitable[object]]:
        agent = agent_id(job.agent) if job.agent else self.router.default_agent
        if job.system:
            session = await self.main_session(agent)
        else:
            session = await self.store.create(
                agent=agent,
                sender="cron",
                source="cron",
                cron_job_id=job.id,
                title=f"[cron] {job.id} — {when:%Y-%m-%d %H:%M}",
            )
        allowed = job.policy.allowed_tools
        how = How(job.policy.max_iterations, allowed, allowed is None)
        run = await self._submit(session, user(job.prompt, sender="cron"), how)
        return session.id, run.answer()
