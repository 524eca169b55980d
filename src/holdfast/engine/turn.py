"""A turn: one input until the agent rests. Each step is on disk before the next begins.

    lease → close what a crash left open → append the user's message → hooks
    step:  check the size, compact if need be → call the model → append → run tools → append
    last:  check once more → record that the turn ended

The context is built anew from the log for every step, so what a compaction or another writer
did meanwhile counts at once.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.aio import AsyncSession, AsyncStore
from holdfast.api import CompactFailed, Sink, TokenWarning, ignore
from holdfast.compaction.plan import budget
from holdfast.context.build import Context, assemble, fit
from holdfast.context.inject import stripped
from holdfast.engine.compact import Compactor, Outcome
from holdfast.engine.hooks import Hook, injections
from holdfast.errors import ContextOverflow, HoldfastError, ProviderError
from holdfast.log.live import TRIMMED, Live
from holdfast.model import Content, Event, Message, ToolCall, Usage, tool_result, user
from holdfast.ports import Lease, Provider, Request, Tool
from holdfast.session import Session, Store
from holdfast.settings import CompactionSettings

MAX_STEPS = 20
WARNINGS = (95, 80)  # percent of the window
REFUSED_SHARE = 0.75  # of a context that a provider refused: how much the second try may have

Function = Callable[..., Any]


class Agent:
    """Runs turns on sessions with one model."""

    def __init__(
        self,
        store: Store | AsyncStore,
        provider: Provider,
        *,
        name: str = "main",
        model: str = "",
        system: str = "",
        tools: Mapping[str, Function] | None = None,
        hooks: Iterable[Hook] = (),
        settings: CompactionSettings | None = None,
        emit: Sink = ignore,
        max_steps: int = MAX_STEPS,
    ) -> None:
        self.store = store if isinstance(store, AsyncStore) else AsyncStore(store)
        self.provider = provider
        self.name = name
        self.model = model
        self.system = system
        self.tools = dict(tools or {})
        self.hooks = tuple(hooks)
        self.settings = settings or self.store.sync.settings.compaction_of(name)
        self.emit = emit
        self.max_steps = max_steps
        self.count = self.store.sync.count
        self.compactor = Compactor(
            self.settings, provider=provider, model=model, emit=emit, count=self.count
        )
        self.window = self.compactor.window
        self._told = tuple(
            Tool(name, inspect.getdoc(function) or "") for name, function in self.tools.items()
        )
        self._overhead = self.count(system) + sum(
            self.count(tool.name) + self.count(tool.description) + 10 for tool in self._told
        )
        self._warned: dict[str, int] = {}  # session → the percentage that was warned of

    async def run(
        self,
        prompt: Content,
        *,
        session: Session | AsyncSession,
        messages: Sequence[Message] | None = None,
    ) -> Message:
        """Say something to the agent and get its answer; SessionBusy if a turn is running.

        With `messages` that history is the context instead of the session's own. It is not
        appended; what this turn adds is.
        """
        own = self._own(session)
        with await own.lease() as lease:
            return await _Turn(self, own, lease, messages).run(prompt)

    async def compact(self, session: Session | AsyncSession, *, focus: str = "") -> Outcome:
        """Compact a session now, whatever its size and however often that has failed."""
        own = self._own(session)
        with await own.lease() as lease:
            await own.close_calls(lease=lease)
            return await self.compactor.run(own, lease, manual=True, focus=focus)

    def request(self, context: Context) -> Request:
        """A context as one call of the model."""
        return Request(
            messages=context.messages, system=self.system, model=self.model, tools=self._told
        )

    def warn(self, session: str, context: Context) -> None:
        """Tell once when the context reaches 80 and 95 percent of the window."""
        percent = next((p for p in WARNINGS if context.tokens * 100 >= p * self.window), 0)
        if percent > self._warned.get(session, 0):
            self.emit(
                TokenWarning(
                    session_id=session,
                    percent=percent,
                    tokens=context.tokens,
                    window=self.window,
                )
            )
        self._warned[session] = percent

    def assemble(self, live: Live, inject: Sequence[Message]) -> Context:
        """The context of a step, before it is made to fit."""
        return assemble(
            live,
            window=self.window,
            overhead=self._overhead,
            inject=inject,
            tool_result_budget=self.settings.tool_result_budget,
            count=self.count,
        )

    def _own(self, session: Session | AsyncSession) -> AsyncSession:
        sync = session.sync if isinstance(session, AsyncSession) else session
        return AsyncSession(self.store, sync)


class _Turn:
    """One turn under way."""

    def __init__(
        self,
        agent: Agent,
        session: AsyncSession,
        lease: Lease,
        messages: Sequence[Message] | None,
    ) -> None:
        self.agent = agent
        self.session = session
        self.lease = lease
        self.given = None if messages is None else stripped(messages)
        self.inject: list[Message] = []
        self.usage = Usage()
        self.calls = 0
        self.gave_up = False  # a summary failed: once a turn is enough

    async def run(self, prompt: Content) -> Message:
        agent, session = self.agent, self.session
        started = time.monotonic()
        await session.close_calls(lease=self.lease)
        await self._append(user(prompt))
        context, _ = await self._read(inject=())
        self.inject = await injections(
            agent.hooks, agent.name, session.sync, context.messages, emit=agent.emit
        )
        for _ in range(agent.max_steps):
            reply = await self._append(await self._step())
            if not reply.tool_calls:
                break
            for call in reply.tool_calls:
                await self._append(await self._use(call))
        await self._check_at_rest()
        await session.end_turn(
            duration_ms=int((time.monotonic() - started) * 1000),
            usage=self.usage,
            cost=self.usage.cost,
            tool_calls=self.calls,
        )
        return reply

    async def _check_at_rest(self) -> None:
        """The last check; the answer is there already, so no failure of it may take that away."""
        try:
            await self._checked()
        except HoldfastError as error:
            event = CompactFailed(session_id=self.session.id, reason=error.message)
            self.agent.emit(event)

    async def _append(self, message: Message) -> Message:
        stored = await self.session.append(message, lease=self.lease)
        if self.given is not None:
            self.given.append(stored)
        return stored

    async def _step(self) -> Message:
        """One model call on a context that fits; a refused one is sent once more, smaller."""
        agent = self.agent
        # What a strategy does not compact yet must be sent.
        limit = max(budget(agent.settings, agent.window), agent.compactor.trigger)
        context, live = await self._checked()
        agent.warn(self.session.id, context)
        fitted = await self._fit(context, live, limit)
        try:
            reply = await agent.provider.complete(agent.request(fitted))
        except ContextOverflow:
            if self.given is None and agent.settings.enabled:
                await agent.compactor.run(self.session, self.lease, squeeze=True)
            context, live = await self._read(self.inject)
            limit = min(limit, int(fitted.tokens * REFUSED_SHARE))
            fitted = await self._fit(context, live, limit)
            reply = await agent.provider.complete(agent.request(fitted))
        if reply.role != "assistant":
            raise ProviderError(f"the model answered as {reply.role!r}")
        if reply.usage is not None:
            self.usage = _sum(self.usage, reply.usage)
        return replace(reply, model=reply.model or agent.model or None)

    async def _checked(self) -> tuple[Context, Live]:
        """The context, after compacting the session if it has grown too large."""
        context, live = await self._read(self.inject)
        for _ in range(2):
            if (
                self.given is not None
                or not self.agent.settings.enabled
                or self.gave_up
                or context.tokens <= self.agent.compactor.trigger
            ):
                break
            outcome = await self.agent.compactor.run(self.session, self.lease)
            self.gave_up = outcome.problem is not None
            if not outcome.compacted:
                break
            context, live = await self._read(self.inject)
        return context, live

    async def _read(self, inject: Sequence[Message]) -> tuple[Context, Live]:
        def read() -> tuple[Context, Live]:
            given = self.given
            live = self.session.sync.live() if given is None else Live(messages=tuple(given))
            return self.agent.assemble(live, inject), live

        return await self.session.store.call(read)

    async def _fit(self, context: Context, live: Live, limit: int) -> Context:
        """The context without its oldest rounds if it must be; the log is told of the first time.

        What a provider counts from then on is not the size of everything that is live.
        """
        fitted = fit(context, live, limit, self.agent.count)
        missing = len(fitted.left_out) - len(context.left_out)
        if missing and self.given is None and not live.trimmed:
            event = Event(kind=TRIMMED, data={"messages": missing})
            await self.session.append(event, lease=self.lease)
        return fitted

    async def _use(self, call: ToolCall) -> Message:
        """Run a tool; whatever goes wrong is its result."""
        self.calls += 1
        function = self.agent.tools.get(call.name)
        if function is None:
            return tool_result(call.id, f"there is no tool {call.name!r}", is_error=True)
        try:
            if inspect.iscoroutinefunction(function):
                answer = await function(**call.arguments)
            else:
                answer = await asyncio.to_thread(function, **call.arguments)
        except Exception as error:  # a tool is somebody else's code: it may raise anything
            text = f"{type(error).__name__}: {error}"
            return tool_result(call.id, text, is_error=True, tool_name=call.name)
        text = answer if isinstance(answer, str) else msgspec.json.encode(answer).decode()
        return tool_result(call.id, text, tool_name=call.name)


def _sum(first: Usage, second: Usage) -> Usage:
    one, other = msgspec.structs.asdict(first), msgspec.structs.asdict(second)
    return Usage(**{key: one[key] + other[key] for key in one})
