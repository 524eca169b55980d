"""The runtime: turns, queue, cron and background work on one store, for the daemon and the CLI.

    inbound → routed to its session → queue → turn → feed
                                        cron ↗

`agents` holds the agents that answer; `edits` changes sessions other than by messages.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from msgspec.structs import replace

from everlog.agent.agent import PreparedCall
from everlog.agent.compactor import Outcome
from everlog.agent.environment import Recall
from everlog.agent.memory_hook import MemoryHook
from everlog.agent.tools import Function
from everlog.aio import AsyncSession, AsyncStore
from everlog.context.build import Context
from everlog.errors import EverlogError, StoreFailedError, UnsupportedError
from everlog.identity.key_text import agent_id
from everlog.identity.route import main_route
from everlog.identity.scope import Inbound
from everlog.memory.file_memory import FileMemories
from everlog.model import Content, Message, user
from everlog.ports import Page, Route, SharedBetweenMachines
from everlog.promotion import make_router, routing_of
from everlog.runtime.agents import Agents, Toolsets
from everlog.runtime.cron import Cron, SaveStates
from everlog.runtime.dream_schedule import DreamSchedule, seconds_until
from everlog.runtime.feed import Feed
from everlog.runtime.index_worker import IndexWorker
from everlog.runtime.integrity_check import IntegrityCheck
from everlog.runtime.queue import Queue
from everlog.runtime.queue_log import DEFAULT_OPTIONS, TurnOptions, find_submission
from everlog.runtime.run import RecoveredSession, Run
from everlog.runtime.session_edits import SessionEdits
from everlog.runtime.shared_jobs import JobState, SharedJobs
from everlog.runtime.takeover import Takeover
from everlog.settings import CronJob, Settings
from everlog.wire.events import RunEvent, Sink
from everlog.wire.responses import Health

MEMORY_LOCK_SECONDS = 2.0  # that a run waits for a memory that is being written


class InboundResult(NamedTuple):
    """The session and run that a message from a channel was routed to."""

    session: AsyncSession
    key: str
    run: Run


class Runtime:
    """Turns, queues, cron jobs and the event feed on one store."""

    def __init__(
        self,
        store: AsyncStore,
        *,
        toolsets: Toolsets = lambda _: {},
        tools: Iterable[Function] = (),
        hooks: Iterable[object] = (),
        recall: Recall | None = None,
        home: Path | None = None,
        job_states: Mapping[str, JobState] | None = None,
        save: SaveStates = lambda _: None,
        clock: Callable[[], float] = time.time,
        kind: str = "files",
    ) -> None:
        """Set up a runtime; nothing runs before `start`. Raises `SettingsError`.

        Every agent gets `tools`, `hooks`, `recall` and the toolsets that `toolsets` makes from the
        settings. `home` is the directory of agent memory; without it agents have no memory.
        `job_states` are the saved states of cron jobs and `save` stores new ones, unless the store
        shares them between machines. `kind` is the name of the store in health reports.
        """
        self.store = store
        self.kind = kind
        self.feed = Feed()
        self.listeners: list[Sink] = [self.feed.emit]
        self.agents = Agents(store, toolsets=toolsets, tools=tools, hooks=hooks, recall=recall)
        self.router = make_router(store.sync.port, self.settings)
        max_waiting = self.settings.turn.waiting
        self.queue = Queue(self.agents, max_waiting=max_waiting, emit=self.emit)
        self.edits = SessionEdits(self.emit, self.queue.wait_for_release)
        sharing = store.sync.port.capability(SharedBetweenMachines)
        self.cron = Cron(
            self.settings.cron.jobs,
            self._start_job,
            states=job_states,
            save=save,
            shared=None if sharing is None else SharedJobs(store, sharing),
        )
        self.takeover = Takeover(store, self.queue, self.emit)
        self.recovered = self.takeover.recovered
        self._index_worker = IndexWorker(store)
        self.integrity_check = IntegrityCheck(store)
        self.listeners += [self._index_worker.on_event, self.integrity_check.on_event]
        self.memories: FileMemories | None = None
        self.memory: MemoryHook | None = None
        if home is not None:
            self.memories = FileMemories(
                home,
                store.sync.port,
                count_tokens=store.sync.count,
                clock=clock,
                lock_seconds=MEMORY_LOCK_SECONDS,
                call=store.call,
            )
            self.memory = self.agents.memory = MemoryHook(
                store,
                open_memory=self.memories.open,
                list_memories=self.memories.agents,
                agent_of=self.agents.for_session,
                find_agent=self.agents.by_name,
                wait_idle=self.queue.wait_for_release,
                count_running=lambda: self.queue.running,
                emit=self.emit,
            )
        seconds_until(self.settings.memory.dream_schedule)  # raise SettingsError now, not at night
        self._dream_schedule = DreamSchedule(lambda: self.settings.memory.dream_schedule, self._dream)
        self._started = time.monotonic()
        self._store_probe: asyncio.Future[Page] | None = None  # shared by concurrent callers
        self._opened_sessions: dict[str, None] = {}

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self.store.sync.settings

    def emit(self, event: RunEvent) -> None:
        """Pass an event to all listeners."""
        for listener in self.listeners:
            listener(event)

    # --- lifecycle

    async def start(self) -> list[RecoveredSession]:
        """Repair sessions that a crash left unfinished, and start all background work.

        Their waiting messages are processed now. Returns the repaired sessions.
        """
        await self.store.call(routing_of(self.store.sync.port).prepare)
        recovered = await self.takeover.recover_all()
        await self.cron.refresh()
        for task in (self.takeover.task, self.cron.task, self._index_worker.task, self._dream_schedule.task):
            task.start()
        return recovered

    async def reload(self, settings: Settings) -> None:
        """Apply new settings from the next turn on.

        Raises `SettingsError` and changes nothing if they are invalid. Settings of the store itself
        take effect only when it is opened.
        """
        router = make_router(self.store.sync.port, settings)
        seconds_until(settings.memory.dream_schedule)
        toolsets = self.agents.prepare_toolsets(settings)
        self.cron.replace(settings.cron.jobs)
        self.store.sync.settings = settings
        self.router = router
        self.queue.workers.max_waiting = settings.turn.waiting
        await self.agents.replace_toolsets(toolsets)

    async def drain(self, seconds: float) -> None:
        """Shut down: start no more turns, and cancel those that take longer than `seconds`.

        The end of every turn is recorded. Waiting messages continue after the next start.
        """
        deadline = time.monotonic() + seconds
        for task in (self.cron.task, self.takeover.task, self.integrity_check.task):
            await task.stop()
        await self.queue.drain(seconds)
        for task in (self._index_worker.task, self._dream_schedule.task):
            await task.stop()
        if self.memory is not None:
            await self.memory.finish_tasks(max(deadline - time.monotonic(), 0))
        await self.agents.close(deadline)

    async def check_health(self) -> Health:
        """Return the health of the runtime, including whether the store answers.

        Waits for the store as long as for a connection; never raises an `EverlogError`.
        """
        try:
            return self.health((await self._probe_store()).total)
        except EverlogError as error:
            return replace(self.health(), ok=False, reachable=False, problem=error.message, hint=error.hint)

    async def _probe_store(self) -> Page:
        """Query the store; raises `StoreFailedError` if it does not answer in time.

        Concurrent callers share one query: a hanging store must not cost a thread per caller.
        """
        if self._store_probe is None or self._store_probe.done():
            self._store_probe = asyncio.ensure_future(self.store.list(limit=1))
            self._store_probe.add_done_callback(lambda done: done.cancelled() or done.exception())
        probe, seconds = self._store_probe, self.settings.postgres.wait_seconds
        await asyncio.wait([probe], timeout=seconds)
        if not probe.done():
            raise StoreFailedError(
                f"the store did not answer within {seconds:g} seconds",
                hint="check that its database server or disk is running and not overloaded",
            )
        return probe.result()

    def health(self, sessions: int = 0) -> Health:
        """Return the counters of the runtime, without querying the store."""
        return Health(
            ok=True,
            store=self.kind,
            location=self.store.sync.location,
            reachable=True,
            uptime_secs=int(time.monotonic() - self._started),
            sessions=sessions,
            running=self.queue.running,
            waiting=self.queue.waiting,
            watchers=self.feed.watchers,
            turns=self.agents.turns,
            failures=self.agents.failures,
            recovered=self.takeover.recovered_count,
            jobs=len(self.cron.statuses()),
            model=self.settings.model_of(self.router.default_agent),
        )

    # --- messages

    async def create(
        self,
        *,
        agent: str | None = None,
        sender: str = "user",
        model: str = "",
        title: str | None = None,
        key: str | None = None,
        aliases: Iterable[str] = (),
        system_prompt_override: str | None = None,
        check: bool = False,
    ) -> AsyncSession:
        """Create an empty session of `agent`, or of the default agent; durable on return.

        With `check`, `SettingsError`, and no session, if its model cannot be used.
        """
        if check:
            await self._check_model(agent or self.router.default_agent, model)
        return await self.store.create(
            agent=agent or self.router.default_agent,
            sender=sender,
            model=model,
            title=title,
            key=key,
            aliases=aliases,
            system_prompt_override=system_prompt_override,
        )

    async def submit(
        self,
        session: AsyncSession,
        content: Content,
        *,
        id: str = "",
        cwd: str | None = None,
        sender: str | None = None,
        continue_here: bool = False,
    ) -> Run:
        """Send a user message to a session; its turn starts at once, or waits in the queue.

        The message is durable on return; `Run.answer` waits for the reply. A message with an `id`
        that was submitted before is not answered again: its earlier run is returned. Raises
        `QueueFullError` if too many messages wait, `SessionBusyError` during shutdown,
        `ConflictError` if another message has the id, and `UnconfirmedError` for a session of another
        program beside the store, unless the user has said to `continue_here`.
        """
        (await session.access()).check("append", continue_here=continue_here)
        return await self._submit(session, user(content, id=id, cwd=cwd, sender=sender))

    async def inbound(
        self,
        inbound: Inbound,
        content: Content,
        *,
        id: str = "",
        session_key: str = "",
        new_chat: bool = False,
        cwd: str | None = None,
        system: bool = False,
    ) -> InboundResult:
        """Route a message from a channel to its session, created if needed, and submit it.

        `session_key` is the key that came with the message, if any. `new_chat` begins a new session
        under the same key. `system` messages go to the main session of their agent. A message
        that is delivered again with the same `id` is answered once. Durable on return; raises what
        `submit` raises, and `SettingsError`, without making a session, if its model cannot be used.
        """
        routed = self.router.route(inbound, session_key)
        sender = self.router.facts(inbound).sender
        key = routed.main_key if system else routed.session_key
        route = main_route(routed.agent) if system else routed.route(session_key, sender=sender)
        new_chat = new_chat and not system
        exists, is_submitted = await self.store.call(self._find_current, route, id if new_chat else "")
        new_chat = new_chat and not is_submitted
        if new_chat or not exists:  # no session for a turn that cannot begin
            await self._check_model(routed.agent)
        if system:
            session = await self.main_session(routed.agent)
        else:
            session = await self.store.route_to_session(
                routed, incoming=session_key, new_chat=new_chat, sender=sender or None
            )
        (await session.access()).check("append")
        message = user(content, id=id, cwd=cwd, sender=sender or None)
        return InboundResult(session, key, await self._submit(session, message))

    async def _check_model(self, agent: str, model: str = "") -> None:
        """Raise `SettingsError` if no turn of an agent can begin."""
        await self.store.call(self.agents.by_name, agent, model)

    async def main_session(self, agent: str) -> AsyncSession:
        """Return the main session of an agent, which belongs to no sender; created if needed."""
        routing, route = routing_of(self.store.sync.port), main_route(agent)
        session = await self.store.call(routing.route_to_session, route, {"source": "system"})
        return await self.store.session(session)

    def _find_current(self, route: Route, message: str) -> tuple[bool, bool]:
        """Return whether a route leads to a session, and whether a message with this id was submitted to it."""
        store = self.store.sync
        current = routing_of(store.port).find_session(route)
        if current is None or not message:
            return current is not None, False
        return True, find_submission(store.session(current), message) is not None

    def current(self, session: str) -> Run | None:
        """Return the run of a session whose turn is running in this process, if any."""
        return self.queue.current(session)

    def is_busy(self, session: str) -> bool:
        """Return whether this process runs a turn of a session, or is about to."""
        return self.queue.is_busy(session)

    def open_sessions(self) -> list[str]:
        """Return the ids of the sessions that received a message since the start."""
        return list(self._opened_sessions)

    async def cancel(self, session: str, run_id: str = "") -> bool:
        """Cancel a running or waiting run; without an id, the running one. False if there is none.

        Returns when the session is ready for another turn.
        """
        return await self.queue.cancel((await self.store.session(session)).id, run_id)

    async def wait_for_release(self, session: str) -> None:
        """Wait until a turn that has emitted its answer has released its lease.

        Call it before an operation that needs the lease. Does not wait for a running turn.
        """
        await self.queue.wait_for_release(session)

    async def compact(self, session: AsyncSession, *, focus: str = "", continue_here: bool = False) -> Outcome:
        """Compact a session now, whatever its size; raises `SessionBusyError` during a turn."""
        (await session.access()).check("compact", continue_here=continue_here)
        await self.wait_for_release(session.id)
        agent = await self.agents.for_session(session)
        return await agent.compact(session, focus=focus, emit=self.emit)

    async def plan_compaction(self, session: AsyncSession, *, focus: str = "") -> Outcome:
        """Return what a compaction would record with the built-in summary; write nothing."""
        agent = await self.agents.for_session(session)
        return await self.store.call(agent.spec.compactor.preview, session.sync, focus)

    async def context(self, session: AsyncSession) -> Context:
        """Return the context that the next model call would be sent; nothing is sent."""
        return await (await self.agents.for_session(session)).preview(session, self.emit)

    async def prepare(self, session: AsyncSession) -> PreparedCall:
        """Return the next call's context with its system prompt and tools; nothing is sent."""
        return await (await self.agents.for_session(session)).prepare(session, self.emit)

    async def _dream(self) -> None:
        if self.memory is not None:
            await self.memory.run_scheduled_dreams()

    # --- turns

    async def _submit(self, session: AsyncSession, message: Message, options: TurnOptions = DEFAULT_OPTIONS) -> Run:
        run = await self.queue.submit(session, message, options)
        self._opened_sessions[session.id] = None
        return run

    async def _start_job(self, job: CronJob, started_at: datetime) -> tuple[str, Awaitable[object]]:
        agent = agent_id(job.agent) if job.agent else self.router.default_agent
        await self._check_model(agent)  # or each run would leave a session behind
        if job.system:
            session = await self.main_session(agent)
        else:
            try:
                session = await self.store.create(
                    agent=agent,
                    sender="cron",
                    source="cron",
                    cron_job_id=job.id,
                    title=f"[cron] {job.id} — {started_at:%Y-%m-%d %H:%M}",
                )
            except UnsupportedError:  # the files of another program may only have a place for its key
                key = f"agent:cron-{job.id}-{uuid4()}"
                routed = replace(self.router.route(Inbound(), key), agent=agent)
                session = await self.store.route_to_session(routed, incoming=key, sender="cron")
        allowed = job.policy.allowed_tools
        options = TurnOptions(job.policy.max_iterations, allowed, allowed is None)
        run = await self._submit(session, user(job.prompt, sender="cron"), options)
        return session.id, run.answer()
