"""An agent: a model, what it is told, and the tools it has; it runs turns on sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any, NamedTuple

from everlog.agent.compactor import SUMMARY_SECONDS, Compactor, Outcome, window_of
from everlog.agent.hooks import HOOK_SECONDS, Hooks
from everlog.agent.tools import Function, Usable, served, usable
from everlog.agent.turn import Answer, Turn, new_run_id, repair
from everlog.agent.turn_lease import leased
from everlog.agent.worker_threads import foreign
from everlog.aio import AsyncSession, AsyncStore
from everlog.context.build import Context, assemble, fit
from everlog.context.inject import as_data
from everlog.log.backward_read import Live
from everlog.model import Content, Message, Metadata, user
from everlog.ports import Lease, Provider, Tool, Toolset
from everlog.session import Session, Store
from everlog.settings import CompactionSettings, TurnSettings
from everlog.wire.events import RunEvent, Sink, Status, TokenWarning, ignore

WARNINGS = (95, 80)  # percent of the window


class Prepared(NamedTuple):
    """Everything that one call would be sent."""

    context: Context  # its tokens count the rest too
    system: str
    tools: tuple[Tool, ...]  # its own
    toolsets: tuple[str, ...]  # whose tools are asked for when a turn begins


class Agent:
    """Runs turns on sessions with one model.

    `model` is `provider:name`, as the settings say if it is not given. `tools` are functions;
    `toolsets` are tools that live elsewhere. `emit` is told what happens.
    """

    def __init__(
        self,
        store: Store | AsyncStore,
        provider: Provider | None = None,
        *,
        name: str = "main",
        model: str = "",
        system: str = "",
        tools: Mapping[str, Function] | Iterable[Function] = (),
        toolsets: Iterable[Toolset] = (),
        hooks: Iterable[object] = (),
        settings: CompactionSettings | None = None,
        turn: TurnSettings | None = None,
        emit: Sink = ignore,
        max_steps: int | None = None,
        hook_seconds: float = HOOK_SECONDS,
        summary_seconds: float = SUMMARY_SECONDS,
    ) -> None:
        self.store = store if isinstance(store, AsyncStore) else AsyncStore(store)
        everything = self.store.sync.settings
        self.name = name
        self.turn = turn or everything.turn
        self.settings = settings or everything.compaction_of(name)
        self.model = model or (everything.model_of(name) if provider is None else "")
        self.provider = provider or self.store.sync.provider(self.model)
        self._summariser: Provider | None = self.provider
        if getattr(self.provider, "offline", False):
            self._summariser = None  # the offline model summarises nothing; the built-in one does
        elif provider is None and self.settings.model:
            self._summariser = self.store.sync.provider(self.settings.model)
        self.system = system
        self.tools = usable(tools)
        self.toolsets = tuple(toolsets)
        self.hooks = Hooks(hooks, name, hook_seconds)
        self.emit = emit
        self.summary_seconds = summary_seconds
        self.max_steps = max_steps or self.turn.max_steps
        self.count = self.store.sync.count
        self.window = window_of(self.settings, self.provider, self.model)
        self._warned: dict[str, int] = {}  # session → the percentage that was warned of
        self._background: set[asyncio.Task[None]] = set()
        self._under_way: set[object] = set()  # turns and compactions, also of its likes

    # --- the face

    async def run(
        self,
        prompt: Content,
        *,
        session: Session | AsyncSession,
        messages: Sequence[Message] | None = None,
        cwd: str | None = None,
        emit: Sink = ignore,
    ) -> Message:
        """Say something to the agent and get its answer; SessionBusyError if a turn is running.

        With `messages` that history is the context instead of the session's own. It is not
        appended; what this turn adds is. Cancelling it leaves a session that can go on.
        """
        own = self._own(session)
        message = user(prompt, cwd=cwd, run_id=new_run_id())
        with self.at_work():
            async with leased(own) as lease:
                await repair(own, lease)
                turn = Turn(self, own, lease, message, given=messages, emit=emit)
                return (await turn.run()).reply

    async def stream(
        self, prompt: Content, *, session: Session | AsyncSession, cwd: str | None = None
    ) -> AsyncIterator[RunEvent]:
        """The same, event by event; the last one is `MessageComplete` with the answer.

        Leaving the iteration early cancels the turn.
        """
        waiting: asyncio.Queue[RunEvent | None] = asyncio.Queue()
        running = self.run(prompt, session=session, cwd=cwd, emit=waiting.put_nowait)
        task = asyncio.create_task(running)
        task.add_done_callback(lambda _: waiting.put_nowait(None))
        try:
            while (event := await waiting.get()) is not None:
                yield event
            await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])

    async def answer(
        self,
        message: Message,
        session: AsyncSession,
        lease: Lease,
        *,
        emit: Sink = ignore,
        max_steps: int | None = None,
        allowed: Iterable[str] | None = None,
        reads_only: bool = False,
    ) -> Answer:
        """Answer a message that carries the id of its run, under a lease that the caller holds.

        `allowed`: the tools it may use; `reads_only`: those that change nothing.
        """
        turn = Turn(
            self,
            session,
            lease,
            message,
            emit=emit,
            max_steps=max_steps,
            allowed=None if allowed is None else frozenset(allowed),
            reads_only=reads_only,
        )
        with self.at_work():
            return await turn.run()

    @property
    def is_idle(self) -> bool:
        """Whether it answers nothing and nothing goes on behind an answer."""
        return not self._under_way and not self._background

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """It is not idle, and keeps its connections, as long as this lasts."""
        self._under_way.add(work := object())
        try:
            yield
        finally:
            self._under_way.discard(work)

    async def compact(
        self, session: Session | AsyncSession, *, focus: str = "", emit: Sink = ignore
    ) -> Outcome:
        """Compact a session now, whatever its size and however often that has failed."""
        own = self._own(session)
        told = both(self.emit, emit)
        with self.at_work():
            async with leased(own) as lease:
                await own.close_calls(lease=lease)
                outcome = await self.compactor(told).run(own, lease, manual=True, focus=focus)
                await self.hooks.tell("on_compact", own.sync, told, outcome)
                return outcome

    def on(self, store: AsyncStore) -> Agent:
        """The same agent over another store."""
        other = copy(self)
        other.store = store
        other.emit = ignore
        other._background = set()
        other._warned = {}
        return other

    async def settle(self, seconds: float | None = None) -> None:
        """Wait for what goes on behind the answers, such as finding a title.

        What takes longer than `seconds` is given up.
        """
        while self._background:
            _, late = await asyncio.wait(set(self._background), timeout=seconds)
            for task in late:
                task.cancel()

    async def close(self, seconds: float | None = None) -> None:
        """Wait likewise, and give back the connections to the model."""
        await self.settle(seconds)
        for provider in {id(one): one for one in (self.provider, self._summariser)}.values():
            closing = getattr(provider, "close", None)
            if closing is not None:
                await closing()

    # --- for a turn

    def background(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that no answer waits for; it tells its own failures."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def compactor(self, emit: Sink) -> Compactor:
        """What compacts its sessions, telling `emit`."""
        return Compactor(
            self.settings,
            provider=self._summariser,
            model=self.model,
            window=self.window,
            emit=emit,
            count=self.count,
            seconds=self.summary_seconds,
        )

    async def usable_tools(self, emit: Sink, session: str) -> dict[str, Usable]:
        """Its own tools and those of its toolsets; a toolset that is away is told and missing."""
        found = dict(self.tools)
        for toolset in self.toolsets:
            try:
                found = await foreign(served(toolset)) | found  # none takes another's place
            except Exception as error:  # it is somebody else's code
                emit(Status(session_id=session, message=f"{toolset.name}: {error}"))
        return found

    def warn(self, session: str, context: Context, emit: Sink) -> None:
        """Tell once when the context reaches 80 and 95 percent of the window."""
        percent = next((p for p in WARNINGS if context.tokens * 100 >= p * self.window), 0)
        if percent > self._warned.get(session, 0):
            emit(
                TokenWarning(
                    session_id=session,
                    percent=percent,
                    tokens=context.tokens,
                    window=self.window,
                )
            )
        if percent:
            self._warned[session] = percent
        else:
            self._warned.pop(session, None)

    def assemble(self, live: Live, inject: Sequence[Message], overhead: int) -> Context:
        """The context of a step, before it is made to fit."""
        return assemble(
            live,
            window=self.window,
            overhead=overhead,
            inject=inject,
            tool_result_budget=self.settings.tool_result_budget,
            count=self.count,
        )

    async def preview(self, session: AsyncSession, emit: Sink = ignore) -> Context:
        """What the model would be sent if somebody spoke now, without being sent it."""
        return await self._previewed(session, 0, both(self.emit, emit))

    async def prepare(self, session: AsyncSession, emit: Sink = ignore) -> Prepared:
        """The same with the system prompt and the tools; nobody outside is asked anything."""
        told = both(self.emit, emit)
        system = await self.system_prompt(session, await session.metadata(), told)
        tools = tuple(one.told for one in self.tools.values())
        context = await self._previewed(session, self.overhead(system, tools), told)
        return Prepared(context, system, tools, tuple(one.name for one in self.toolsets))

    async def _previewed(self, session: AsyncSession, overhead: int, told: Sink) -> Context:
        live = await session.live()
        context = self.assemble(live, (), overhead)
        inject = await self.hooks.injections(session.sync, context.messages, told)
        return fit(self.assemble(live, inject, overhead), live, self.window, self.count)

    async def system_prompt(self, session: AsyncSession, metadata: Metadata, emit: Sink) -> str:
        """Its own, what hooks have to say there, and what was set for the session."""
        data = await self.hooks.system(session.sync, emit)
        parts = (self.system, *map(as_data, data), metadata.system_prompt_override or "")
        return "\n\n".join(text for text in parts if text)

    def overhead(self, system: str, tools: Iterable[Tool]) -> int:
        """An estimate of what is sent beside the messages."""
        return self.count(system) + sum(map(self.tool_tokens, tools))

    def tool_tokens(self, tool: Tool) -> int:
        """An estimate of one tool."""
        return self.count(tool.name) + self.count(tool.description) + 10

    def _own(self, session: Session | AsyncSession) -> AsyncSession:
        sync = session.sync if isinstance(session, AsyncSession) else session
        return AsyncSession(self.store, sync)


def both(one: Sink, other: Sink) -> Sink:
    """A sink that tells two others."""
    if one is ignore or one is other:
        return other
    if other is ignore:
        return one

    def tell(event: RunEvent) -> None:
        one(event)
        other(event)

    return tell
