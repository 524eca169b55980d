"""The agent: a model, its system prompt and its tools, which runs turns on sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import Any, NamedTuple

from everlog.agent.answer import Answer
from everlog.agent.compactor import SUMMARY_SECONDS, Compactor, Outcome, window_of
from everlog.agent.hooks import HOOK_SECONDS, Hooks
from everlog.agent.titles import set_title
from everlog.agent.tools import Function, build_tools
from everlog.agent.turn import Turn, new_run_id, repair
from everlog.agent.turn_lease import acquire_lease
from everlog.agent.turn_spec import TurnSpec
from everlog.aio import AsyncSession, AsyncStore
from everlog.context.build import Context, fit
from everlog.errors import ConflictError
from everlog.model import Content, Message, user
from everlog.ports import Lease, Provider, Toolset, ToolSpec
from everlog.session import Session, Store
from everlog.settings import CompactionSettings, TurnSettings
from everlog.wire.events import RunEvent, Sink, ignore_event


class PreparedCall(NamedTuple):
    """Everything that the next model call would be sent."""

    context: Context  # its tokens include the system prompt and the tools
    system: str
    tools: tuple[ToolSpec, ...]  # its own
    toolsets: tuple[str, ...]  # names; their tools are listed when a turn begins


class Agent:
    """A model with its system prompt, tools and hooks, which runs turns on sessions.

    `model` is `provider:name`; the default is the one in the settings. `tools` are Python
    functions; `toolsets` are tools of other programs. `emit` receives every event.
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
        emit: Sink = ignore_event,
        max_steps: int | None = None,
        hook_seconds: float = HOOK_SECONDS,
        summary_seconds: float = SUMMARY_SECONDS,
    ) -> None:
        self.store = store if isinstance(store, AsyncStore) else AsyncStore(store)
        store_settings = self.store.sync.settings
        turn = turn or store_settings.turn
        compaction = settings or store_settings.compaction_of(name)
        self.name = name
        self.model = model or (store_settings.model_of(name) if provider is None else "")
        self.provider = provider or self.store.sync.provider(self.model)
        summariser: Provider | None = self.provider
        if getattr(self.provider, "offline", False):
            summariser = None  # the offline model cannot summarise; use the built-in summary
        elif provider is None and compaction.model:
            summariser = self.store.sync.provider(compaction.model)
        own_tools = build_tools(tools)
        self.spec = TurnSpec(
            agent=name,
            model=self.model,
            provider=self.provider,
            compactor=Compactor(
                compaction,
                provider=summariser,
                model=self.model,
                window=window_of(compaction, self.provider, self.model),
                count=self.store.sync.count,
                seconds=summary_seconds,
                tools=[tool.spec for tool in own_tools.values()],
            ),
            system=system,
            tools=own_tools,
            toolsets=tuple(toolsets),
            hooks=Hooks(hooks, name, hook_seconds),
            settings=turn,
            count=self.store.sync.count,
            max_steps=max_steps or turn.max_steps,
        )
        self.emit = emit
        self._warned_percentages: dict[str, int] = {}  # session → last warning
        self._background: set[asyncio.Task[None]] = set()
        self._active_work: set[object] = set()  # turns and compactions, of clones too

    # --- public API

    async def run(
        self,
        prompt: Content,
        *,
        session: Session | AsyncSession | str,
        messages: Sequence[Message] | None = None,
        cwd: str | None = None,
        emit: Sink = ignore_event,
    ) -> Message:
        """Run one turn: append `prompt` to the session, and return the agent's reply.

        `session` may be an id of your own; its session is created if there is none. Every message
        is durable before the next step begins. If `messages` is given, it replaces the session's
        history as context; it is not appended, but this turn's messages are. Cancelling the call
        ends the turn and leaves a session that can be continued.
        Raises `SessionBusyError` if another turn of the session is running.
        """
        message = user(prompt, cwd=cwd, run_id=new_run_id())
        return await self._run(message, session, messages, emit)

    async def resume(self, session: Session | AsyncSession | str, *, emit: Sink = ignore_event) -> Message:
        """Go on with a turn that was interrupted, cancelled or failed, without a new message.

        Returns the agent's reply. Raises `ConflictError` if the last message is an answer, so that
        nothing is left to do, and `SessionBusyError` if a turn of the session is running.
        """
        return await self._run(None, session, None, emit)

    async def _run(
        self,
        message: Message | None,
        session: Session | AsyncSession | str,
        history: Sequence[Message] | None,
        emit: Sink,
    ) -> Message:
        async_session = await self._open_session(session, create=message is not None)
        with self.busy():
            async with acquire_lease(async_session) as lease:
                await repair(async_session, lease)
                if message is None:
                    await _check_resumable(async_session)
                answer = await self._run_turn(self.spec, async_session, lease, message, history=history, emit=emit)
                return answer.reply

    async def _run_turn(
        self,
        spec: TurnSpec,
        session: AsyncSession,
        lease: Lease,
        message: Message | None,
        *,
        history: Sequence[Message] | None = None,
        emit: Sink,
    ) -> Answer:
        turn = Turn(
            spec,
            session,
            lease,
            message,
            warned_percentages=self._warned_percentages,
            history=history,
            emit=combine_sinks(self.emit, emit),
        )
        answer = await turn.run()
        if turn.needs_title:
            self._run_in_background(set_title(self.provider, self.model, session, turn.state.emit))
        return answer

    async def stream(
        self, prompt: Content, *, session: Session | AsyncSession | str, cwd: str | None = None
    ) -> AsyncIterator[RunEvent]:
        """Run one turn and yield its events; the last one is `MessageComplete` with the answer.

        Leaving the iteration early cancels the turn. Raises what `run` raises.
        """
        events: asyncio.Queue[RunEvent | None] = asyncio.Queue()
        work = self.run(prompt, session=session, cwd=cwd, emit=events.put_nowait)
        task = asyncio.create_task(work)
        task.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
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
        emit: Sink = ignore_event,
        max_steps: int | None = None,
        allowed: Iterable[str] | None = None,
        reads_only: bool = False,
    ) -> Answer:
        """Run the turn that answers `message`, under a lease that the caller holds.

        The message must carry its run id. `allowed` limits the turn to these tools by name;
        `reads_only` limits it to tools that change nothing.
        """
        spec = replace(
            self.spec,
            max_steps=max_steps or self.spec.max_steps,
            allowed=None if allowed is None else frozenset(allowed),
            reads_only=reads_only,
        )
        with self.busy():
            return await self._run_turn(spec, session, lease, message, emit=emit)

    @property
    def is_idle(self) -> bool:
        """Whether no turn, compaction or background work is under way."""
        return not self._active_work and not self._background

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Mark the agent as busy within a block: it is not idle and keeps its connections."""
        self._active_work.add(work := object())
        try:
            yield
        finally:
            self._active_work.discard(work)

    async def compact(
        self, session: Session | AsyncSession | str, *, focus: str = "", emit: Sink = ignore_event
    ) -> Outcome:
        """Compact a session now, whatever its size and however many attempts have failed.

        Raises `SessionBusyError` if a turn of the session is running.
        """
        async_session = await self._open_session(session, create=False)
        sink = combine_sinks(self.emit, emit)
        with self.busy():
            async with acquire_lease(async_session) as lease:
                await async_session.close_calls(lease=lease)
                compactor = replace(self.spec.compactor, emit=sink)
                outcome = await compactor.run(async_session, lease, manual=True, focus=focus)
                await self.spec.hooks.notify("on_compact", async_session.sync, sink, outcome)
                return outcome

    def with_store(self, store: AsyncStore) -> Agent:
        """Return a copy of this agent on another store, which emits no events of its own."""
        clone = copy(self)
        clone.store = store
        clone.emit = ignore_event
        clone._background = set()
        clone._warned_percentages = {}
        return clone

    async def settle(self, seconds: float | None = None) -> None:
        """Wait for background work, such as naming a session; cancel it after `seconds`."""
        while self._background:
            _, pending = await asyncio.wait(set(self._background), timeout=seconds)
            for task in pending:
                task.cancel()

    async def close(self, seconds: float | None = None) -> None:
        """Wait for background work as `settle` does, then close the connections to the model."""
        await self.settle(seconds)
        for provider in {id(p): p for p in (self.provider, self.spec.compactor.provider)}.values():
            close_provider = getattr(provider, "close", None)
            if close_provider is not None:
                await close_provider()

    def _run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Start work that no answer waits for; it must report its own failures."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # --- the next model call

    async def preview(self, session: AsyncSession, emit: Sink = ignore_event) -> Context:
        """Return the context that the next model call would be sent; nothing is sent."""
        return await self._preview(session, 0, combine_sinks(self.emit, emit))

    async def prepare(self, session: AsyncSession, emit: Sink = ignore_event) -> PreparedCall:
        """Return the next call's context with its system prompt and tools; nothing is sent.

        No toolset is contacted, so their tools are not included.
        """
        sink = combine_sinks(self.emit, emit)
        spec = self.spec
        system = await spec.system_prompt(session, await session.metadata(), sink)
        tools = tuple(tool.spec for tool in spec.tools.values())
        context = await self._preview(session, spec.overhead(system, tools), sink)
        return PreparedCall(context, system, tools, tuple(toolset.name for toolset in spec.toolsets))

    async def _preview(self, session: AsyncSession, overhead: int, sink: Sink) -> Context:
        live = await session.live()
        compactor = self.spec.compactor
        context = compactor.context(live, (), overhead)
        inject = await self.spec.hooks.injections(session.sync, context.messages, sink)
        return fit(compactor.context(live, inject, overhead), live, compactor.window, compactor.count)

    async def _open_session(self, session: Session | AsyncSession | str, *, create: bool) -> AsyncSession:
        if isinstance(session, str):
            return await self.store.session(session, create=create, agent=self.name)
        sync = session.sync if isinstance(session, AsyncSession) else session
        return AsyncSession(self.store, sync)


async def _check_resumable(session: AsyncSession) -> None:
    """Raise `ConflictError` unless the agent has yet to answer the last message."""
    messages = (await session.live()).messages
    if not messages or (messages[-1].role == "assistant" and not messages[-1].tool_calls):
        raise ConflictError(
            "there is nothing to resume: the last turn of the session has ended",
            hint="send a message with run",
            session=session.id,
        )


def combine_sinks(first: Sink, second: Sink) -> Sink:
    """Return a sink that passes every event to two sinks, or once if they are the same."""
    if first is ignore_event or first is second:
        return second
    if second is ignore_event:
        return first

    def emit(event: RunEvent) -> None:
        first(event)
        second(event)

    return emit
