"""The runtime: everything that goes on over one store, for whatever face it is shown by.

    inbound → routed to its session → queue → turn → feed
                                        cron ↗

Agents are made from the settings when they are first needed, one for each name and model, and
made anew when the settings change.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from holdfast.aio import AsyncSession, AsyncStore
from holdfast.api import RunEvent, Sink
from holdfast.context.build import Context
from holdfast.engine.agent import Agent
from holdfast.engine.backlog import How
from holdfast.engine.compact import Outcome
from holdfast.engine.cron import Cron, Fared, Save
from holdfast.engine.feed import Feed
from holdfast.engine.members import asking, current_time
from holdfast.engine.memory import Remembering
from holdfast.engine.nights import Nights, seconds_until
from holdfast.engine.queue import Queue
from holdfast.engine.run import Recovered, Run
from holdfast.engine.surroundings import Recall, Surroundings
from holdfast.engine.taking_in import TakingIn
from holdfast.engine.tools import Function, usable
from holdfast.engine.turn import Answer
from holdfast.identity.key import main_alias, main_key
from holdfast.identity.route import Router, Routing
from holdfast.identity.scope import Inbound
from holdfast.identity.text import agent_id
from holdfast.model import Content, Message, user
from holdfast.ports import Lease, Toolset
from holdfast.session import Session
from holdfast.settings import CronJob, Settings


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


Toolsets = Callable[[Settings], Mapping[str, Toolset]]


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
    ) -> None:
        """`root`: where the memories of agents are; without one they have none."""
        self.store = store
        self.feed = Feed()
        self.listeners: list[Sink] = [self.feed.emit]
        self._toolsets_of = toolsets
        self._toolsets = dict(toolsets(self.settings))
        self._tools = (current_time, *tools)
        self._hooks = tuple(hooks)
        self._recall = recall
        self._agents: dict[tuple[str, str], Agent] = {}
        self._old: list[Agent] = []  # of earlier settings; their titles may be under way
        self.router = Router(Routing.of(self.settings))
        self.queue = Queue(store, self._answer, waiting=self.settings.turn.waiting, emit=self.emit)
        self.cron = Cron(self.settings.cron.jobs, self._start_job, fared=fared, save=save)
        self._taking_in = TakingIn(store)
        self.memory: Remembering | None = None
        if root is not None:
            self.memory = Remembering(
                root,
                store,
                agent_of=self.agent_of,
                named=self.agent,
                at_rest=self.at_rest,
                running=lambda: self.queue.running,
                emit=self.emit,
                clock=clock,
            )
        seconds_until(self.settings.memory.dream_schedule)  # SettingsError now, not at night
        self._nights = Nights(lambda: self.settings.memory.dream_schedule, self._night)
        self._started = time.monotonic()
        self._opened: dict[str, None] = {}
        self._turns = self._failures = self._recovered = 0

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
        self._recovered = len(found)
        self.cron.begin()
        self._taking_in.begin()
        self._nights.begin()
        return found

    async def reload(self, settings: Settings) -> None:
        """Go by other settings from the next turn on; SettingsError, and nothing changes, if they
        cannot be used. How sessions are kept is decided once, when the store is opened."""
        router = Router(Routing.of(settings))
        seconds_until(settings.memory.dream_schedule)
        before = self.settings.mcp
        toolsets = dict(self._toolsets_of(settings))
        self.cron.replace(settings.cron.jobs)
        for name, one in self._toolsets.items():  # a server that is as it was stays connected
            if name in toolsets and settings.mcp.get(name) == before.get(name):
                toolsets[name] = one
        gone = [one for name, one in self._toolsets.items() if toolsets.get(name) is not one]
        self.store.sync.settings = settings
        self.router = router
        self.queue.waiting = settings.turn.waiting
        self._toolsets = toolsets
        agents = (*self._old, *self._agents.values())
        self._agents = {}
        self._old = [one for one in agents if not one.is_idle]  # their turns end as they began
        for agent in agents:
            if agent.is_idle:
                await agent.close()
        for one in gone:
            await one.close()

    async def drain(self, seconds: float) -> None:
        """Begin no more turns; those under way end, or are stopped and recorded."""
        until = time.monotonic() + seconds
        await self.cron.end()
        await self.queue.drain(seconds)
        await self._taking_in.end()
        await self._nights.end()
        if self.memory is not None:
            await self.memory.settle(max(until - time.monotonic(), 0))
        for agent in (*self._agents.values(), *self._old):
            await agent.close(max(until - time.monotonic(), 0))
        for toolset in self._toolsets.values():
            await toolset.close()

    def health(self, sessions: int = 0) -> Health:
        """Counts."""
        return Health(
            ok=True,
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
        """Say something in a session; durable when this returns. QueueFull if too many wait."""
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
            session = await self.store.converse(
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
        """Compact a session now; SessionBusy during a turn."""
        await self.at_rest(session.id)
        agent = await self.agent_of(session)
        return await agent.compact(session, focus=focus, emit=self.emit)

    async def context(self, session: AsyncSession) -> Context:
        """What the model would be sent if somebody spoke now."""
        return await (await self.agent_of(session)).preview(session, self.emit)

    async def _night(self) -> None:
        if self.memory is not None:
            await self.memory.night()

    # --- agents

    async def agent_of(self, session: AsyncSession) -> Agent:
        """The agent that answers in a session, with the model that was chosen for it."""
        metadata = await session.metadata()
        name = metadata.agent
        model = metadata.model if metadata.model_chosen else self.settings.model_of(name)
        if (name, model) in self._agents:
            return self._agents[name, model]
        # Loading what talks to a provider takes a second or two; others go on meanwhile.
        return await self.store.call(self.agent, name, model)

    def agent(self, name: str, model: str = "") -> Agent:
        """An agent by its name."""
        model = model or self.settings.model_of(name)
        return self._agents.get((name, model)) or self._agents.setdefault(
            (name, model), self._make(name, model)
        )

    def _make(self, name: str, model: str) -> Agent:
        own = self.settings.agent(name)
        members = {one: self.settings.agent(one).description for one in own.members}
        tools = [*self._tools]
        if members:
            tools.append(asking(self.agent, self.store.sync, tuple(members)))
        recall, own_hooks = self._recall, self._hooks
        if self.memory is not None:
            taken = usable(tools)  # a tool of the owner's takes the place of ours
            tools += [one for one in self.memory.tools(name) if one.__name__ not in taken]
            recall = recall or self.memory.recall
            own_hooks = (self.memory, *own_hooks)
        return Agent(
            self.store,
            name=name,
            model=model,
            system=own.system_prompt,
            tools=tools,
            toolsets=[
                toolset
                for server, toolset in self._toolsets.items()
                if not (allowed := self.settings.mcp[server].agents) or name in allowed
            ],
            hooks=(Surroundings(members, recall), *own_hooks),
        )

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
            agent = await self.agent_of(session)
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
