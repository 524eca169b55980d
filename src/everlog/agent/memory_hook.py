"""The hook through which an agent's memory takes part in its turns.

    before a run   MEMORY.md in the system prompt, recalled notes and passages in `<recall>`
    during it      the tools recall, remember and forget
    after a turn   extraction, then a dream, in the background: no answer waits for them

All of it is data to the model. A memory that cannot be read is reported as a status, and the run
continues without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from everlog.agent import memory_tools
from everlog.agent.hooks import Hook
from everlog.agent.tools import Function
from everlog.agent.worker_threads import run_external
from everlog.aio import AsyncSession, AsyncStore
from everlog.errors import EverlogError, InvalidIdError, SessionBusyError, SettingsError
from everlog.model import Message, user
from everlog.ports import Provider, Request, Store
from everlog.ports.memory import Ask, DreamPlan, Memory, RecallQuery, Verdict
from everlog.session import Session
from everlog.settings import MemorySettings
from everlog.wire.events import MemoryDreamed, MemoryExtracted, Sink, Status

if TYPE_CHECKING:
    from everlog.agent.agent import Agent

ANSWER_SECONDS = 120.0
_MAX_TOKENS = 4_096  # of one answer


def make_ask(provider: Provider, model: str = "") -> Ask | None:
    """Return a function that asks the model; None for the offline model, which extracts nothing."""
    if getattr(provider, "offline", False):
        return None

    async def ask(system: str, text: str) -> str:
        messages = (user(text),)
        request = Request(
            messages=messages, system=system, model=model, max_tokens=_MAX_TOKENS, temperature=0.0, purpose="summary"
        )
        async with asyncio.timeout(ANSWER_SECONDS):
            return (await run_external(provider.complete(request))).text

    return ask


class MemoryHook(Hook):
    """The part that memory takes in the turns of all agents."""

    def __init__(
        self,
        store: AsyncStore,
        *,
        open_memory: Callable[[str, str | None], Memory],
        list_memories: Callable[[], list[str]],
        agent_of: Callable[[AsyncSession], Awaitable[Agent]],
        find_agent: Callable[[str], Agent],
        wait_idle: Callable[[str], Awaitable[None]],
        count_running: Callable[[], int],
        emit: Sink,
    ) -> None:
        self._store = store
        self._open_memory = open_memory  # of an agent, and of the project around a directory
        self._list_memories = list_memories  # agents that have a memory
        self._agent_of = agent_of
        self._find_agent = find_agent
        self._wait_idle = wait_idle  # waits until the turn of a session has ended
        self._count_running = count_running  # of turns
        self._emit = emit
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by session
        self._due: set[str] = set()  # sessions with another turn since their task began

    @property
    def settings(self) -> MemorySettings:
        """Return the current settings."""
        return self._store.sync.settings.memory

    def _open(self, agent: str, cwd: str | None = None) -> Memory | None:
        """Return the memory of an agent, or None if its name can have none."""
        try:
            return self._open_memory(agent, cwd)
        except InvalidIdError:
            return None

    # --- before a run

    def on_system(self, agent: str, session: Session) -> str:
        """Return the indexes for the system prompt."""
        memory = (
            self._open(agent, _working_directory(session.store.port, session.id)) if self.settings.enabled else None
        )
        return memory.index(partial(self._emit_status, session.id)) if memory else ""

    def recall(self, agent: str, session: Session, messages: Sequence[Message]) -> str:
        """Return notes and passages about the user's last message; nothing if there are none."""
        settings = self.settings
        message = next((message for message in reversed(messages) if _is_user_input(message)), None)
        if not settings.enabled or not settings.recall or message is None or not message.text.strip():
            return ""
        query = RecallQuery(
            text=message.text,
            limit=settings.recall,
            tokens=settings.recall_tokens,
            sender=session.metadata.sender,
            session=session.id,
            directory=message.cwd if settings.foreign else None,
        )
        memory = self._open(agent, message.cwd)
        return memory.recall(query, partial(self._emit_status, session.id)) if memory else ""

    # --- during a run

    @contextmanager
    def bind_session(self, session: AsyncSession) -> Iterator[None]:
        """Attribute the tool calls inside this context to a session."""
        self._loop = asyncio.get_running_loop()
        with memory_tools.bind_session(session.id):
            yield

    def tools(self, agent: str) -> list[Function]:
        """Return the memory tools of an agent."""
        memory = self._open(agent) if self.settings.enabled else None
        if memory is None:
            return []
        return memory_tools.make_memory_tools(
            memory,
            sender_of=lambda session: self._store.sync.port.metadata(session).sender,
            directory_of=self._recalled_directory,
            recall_tokens=lambda: self.settings.recall_tokens,
        )

    def _recalled_directory(self, session: str) -> str | None:
        """Return the directory that other programs' sessions are recalled from; None: from none."""
        return _working_directory(self._store.sync.port, session) if self.settings.foreign else None

    # --- after a turn

    def after_turn(self, session: AsyncSession) -> None:
        """Schedule extraction after a successful turn. Call it in the event loop."""
        if not self.settings.enabled:
            return
        self._due.add(session.id)
        if session.id not in self._tasks:
            task = asyncio.create_task(self._process_session(session))
            self._tasks[session.id] = task
            task.add_done_callback(lambda _: self._tasks.pop(session.id, None))

    async def finish_tasks(self, seconds: float | None = None) -> None:
        """Wait for the background tasks; cancel those that exceed the timeout."""
        while self._tasks:
            _, late = await asyncio.wait(set(self._tasks.values()), timeout=seconds)
            for task in late:
                task.cancel()

    async def _process_session(self, session: AsyncSession) -> None:
        while session.id in self._due:
            self._due.discard(session.id)
            try:
                await run_external(self._process_once(session))
            except EverlogError as error:
                self._emit(Status(session_id=session.id, message=f"memory: {error.message}"))

    async def _process_once(self, session: AsyncSession) -> None:
        await self._wait_idle(session.id)
        agent = await self._agent_of(session)
        memory = self._open(agent.name)
        if memory is None:
            return
        with agent.busy():  # keeps its connections open
            if self.settings.extract:
                result = await memory.extract(session.id, make_ask(agent.provider, agent.model))
                if result.facts or result.problem:
                    count = len(result.facts)
                    self._emit(
                        MemoryExtracted(
                            session_id=session.id, facts=count, finder=result.finder, problem=result.problem
                        )
                    )
            if self.settings.dream:
                await self._dream_if_due(agent, memory, session.id)

    async def run_scheduled_dreams(self) -> None:
        """Dream for every agent with a memory whose gates are open, as after a turn."""
        if not (self.settings.enabled and self.settings.dream):
            return
        for name in await self._store.call(self._list_memories):
            try:
                agent = await self._store.call(self._find_agent, name)
                await self._dream_if_due(agent, self._open_memory(name, None))
            except EverlogError as error:
                self._emit(Status(session_id="", message=f"memory of {name}: {error.message}"))

    async def dream_now(self, name: str, *, force: bool = True, dry_run: bool = False) -> tuple[DreamPlan | None, str]:
        """Dream on request and return the plan, or the reason why not.

        `dry_run` changes nothing. SessionBusyError if another dream is running. Uses rules if the
        model is not available.
        """
        memory = self._open_memory(name, None)
        if not (force or dry_run):
            verdict = await self._check_dream(memory)
            if not verdict.ready:
                return None, verdict.reason
        try:
            agent = await self._store.call(self._find_agent, name)
        except SettingsError:
            return await memory.dream(dry_run=dry_run), ""
        return await self._dream(agent, memory, dry_run=dry_run), ""

    async def _dream_if_due(self, agent: Agent, memory: Memory, session: str = "") -> None:
        """Consolidate the notes if it is time; never during a turn, whose end tries again."""
        if self._count_running():
            return
        verdict = await self._check_dream(memory)
        if verdict.ready and not self._count_running():
            with suppress(SessionBusyError):  # another process is dreaming
                await self._dream(agent, memory, session)

    async def _check_dream(self, memory: Memory) -> Verdict:
        hours, sessions = self.settings.dream_hours, self.settings.dream_sessions
        return await self._store.call(memory.check_dream, min_hours=hours, min_sessions=sessions)

    async def _dream(self, agent: Agent, memory: Memory, session: str = "", *, dry_run: bool = False) -> DreamPlan:
        with agent.busy():
            plan = await run_external(memory.dream(make_ask(agent.provider, agent.model), dry_run=dry_run))
        if plan.changes and not dry_run:
            changes = len(plan.changes)
            self._emit(MemoryDreamed(session_id=session, agent=agent.name, changes=changes, maker=plan.maker))
        return plan

    def _emit_status(self, session: str, message: str) -> None:
        """Emit a status event from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._emit, Status(session_id=session, message=message))


def _working_directory(store: Store, session: str) -> str | None:
    """Return the directory that the newest message of the user came from."""
    entries = store.tail(session)
    return next((entry.cwd for entry in entries if isinstance(entry, Message) and _is_user_input(entry)), None)


def _is_user_input(message: Message) -> bool:
    return message.is_typed and not message.auto_injected
