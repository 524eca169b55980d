"""The model's part of a turn: a context that fits, sent until there is an answer.

The context is built anew from the log for every call. One that has grown too large is compacted
first; one that the provider refuses is sent once more, smaller. A call that may succeed later is
made again, later and later.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from everlog.agent.compactor import Outcome
from everlog.agent.telemetry import span
from everlog.agent.turn_state import Ground
from everlog.agent.worker_threads import foreign
from everlog.context.build import Context, fit
from everlog.context.compaction.plan import budget
from everlog.context.tokens import counted, estimate
from everlog.errors import (
    ContextOverflowError,
    EverlogError,
    ProviderError,
    ProviderUnavailableError,
)
from everlog.log.backward_read import TRIMMED, Live
from everlog.log.tool_pairs import pair
from everlog.model import Event, Message, Usage
from everlog.ports import Delta, Request, Tool
from everlog.wire.events import CompactFailed, Status, StreamDelta, ThinkingDelta

REFUSED_SHARE = 0.75  # of a context that a provider refused: how much the second try may have
LONGEST_WAIT = 30.0  # seconds between two tries of a call
LONGEST_ASKED = 300.0  # by the provider; one that wants longer is given up


class Completing:
    """Calls the model of one turn."""

    def __init__(self, ground: Ground) -> None:
        self.usage = Usage()
        self.system = ""
        self.tools: tuple[Tool, ...] = ()
        self.inject: list[Message] = []
        self.said: list[str] = []  # of an answer that is still being made
        self._ground = ground
        self._agent = ground.agent
        self._session = ground.session
        self._compactor = ground.agent.compactor(ground.emit)
        self._overhead = 0  # tokens of what is sent beside the messages
        self._first: Live | None = None  # as it was read when the turn began
        self._sent: Context | None = None
        self._gave_up = False  # a summary failed: once a turn is enough

    async def begin(self, system: str, tools: Sequence[Tool]) -> Sequence[Message]:
        """Close what a crash left open; the conversation as it stands."""
        self.system, self.tools = system, tuple(tools)
        self._overhead = self._agent.overhead(system, tools)
        context, live = await self._read()
        if self._ground.given is None and pair(live.messages).open:
            await self._ground.close_calls()
            context, live = await self._read()
        self._first = live
        return context.messages

    async def step(self) -> Message:
        """One answer to a context that fits; a refused one is sent once more, smaller."""
        agent, given = self._agent, self._ground.given
        # What a strategy does not compact yet must be sent.
        limit = max(budget(agent.settings, agent.window), self._compactor.trigger)
        context, live = await self._checked()
        agent.warn(self._session.id, context, self._ground.emit)
        fitted = await self._fit(context, live, limit)
        try:
            reply = await self._complete(fitted)
        except ContextOverflowError:
            if given is None and agent.settings.enabled:
                await self._compact(squeeze=True)
            context, live = await self._read()
            limit = min(limit, int(fitted.tokens * REFUSED_SHARE))
            fitted = await self._fit(context, live, limit)
            reply = await self._complete(fitted)
        if reply.role != "assistant":
            raise ProviderError(f"the model answered as {reply.role!r}")
        if reply.usage is not None:
            self.usage = added(self.usage, reply.usage)
        self._sent = fitted
        return replace(reply, model=reply.model or agent.model or None)

    async def check_at_rest(self, reply: Message) -> None:
        """Compact if the answer has made the context too large; no failure of it may take the
        answer away, which is stored already."""
        if self._sent is not None:
            size = self._sent.tokens + estimate(reply, self._agent.count)
            if reply.usage is not None:
                size = max(size, counted(reply.usage))
            if not reply.tool_calls and size <= self._compactor.trigger:
                return
        try:
            await self._checked()
        except EverlogError as error:
            self._ground.emit(CompactFailed(session_id=self._session.id, error=error.message))

    # --- the call

    async def _complete(self, context: Context) -> Message:
        """The model's answer; a call that may succeed later is made again."""
        settings = self._agent.turn
        request = Request(
            messages=context.messages,
            system=self.system,
            model=self._agent.model,
            tools=self.tools,
        )
        for attempt in range(settings.retries + 1):
            self.said.clear()
            try:
                return await self._call(request)
            except ProviderUnavailableError as error:
                wait = error.retry_after
                if attempt == settings.retries or (wait or 0) > LONGEST_ASKED:
                    raise
                if wait is None:
                    wait = settings.retry_seconds * 2**attempt * random.uniform(0.5, 1.0)
                    wait = min(wait, LONGEST_WAIT)
                self._ground.emit(
                    Status(
                        session_id=self._session.id,
                        message=f"{error.message}; trying again in {wait:.1f} s",
                        attempt=attempt + 1,
                        delay_ms=int(wait * 1000),
                    )
                )
            await asyncio.sleep(wait)
        raise AssertionError  # the last attempt returns or raises

    async def _call(self, request: Request) -> Message:
        seconds = self._agent.turn.model_seconds
        answering = True

        def told(delta: Delta) -> None:
            if answering:  # what comes behind the answer is no part of the next one
                self._told(delta)

        with span(
            f"chat {request.model}",
            operation="chat",
            conversation=self._session.id,
            model=request.model,
        ) as traced:
            try:
                async with asyncio.timeout(seconds):
                    reply = await foreign(self._agent.provider.complete(request, told))
            except TimeoutError as error:
                raise ProviderUnavailableError(
                    f"the model gave no answer within {seconds:g} s"
                ) from error
            finally:
                answering = False
            if reply.usage is not None:
                traced.used(reply.usage)
            return reply

    def _told(self, delta: Delta) -> None:
        if delta.thinking:
            self._ground.emit(ThinkingDelta(session_id=self._session.id, text=delta.text))
        else:
            self.said.append(delta.text)
            self._ground.emit(StreamDelta(session_id=self._session.id, text=delta.text))

    # --- the context

    async def _checked(self) -> tuple[Context, Live]:
        """The context, after compacting the session if it has grown too large."""
        context, live = await self._read()
        for _ in range(2):
            if (
                self._ground.given is not None
                or not self._agent.settings.enabled
                or self._gave_up
                or context.tokens <= self._compactor.trigger
            ):
                break
            outcome = await self._compact()
            self._gave_up = outcome.problem is not None
            if not outcome.compacted:
                break
            context, live = await self._read()
        return context, live

    async def _compact(self, *, squeeze: bool = False) -> Outcome:
        outcome = await self._compactor.run(self._session, self._ground.lease, squeeze=squeeze)
        await self._ground.tell("on_compact", outcome)
        return outcome

    async def _read(self) -> tuple[Context, Live]:
        first, self._first = self._first, None

        def read() -> tuple[Context, Live]:
            given = self._ground.given
            if given is not None:
                live = Live(messages=tuple(given))
            elif first is not None and self._session.sync.metadata.through.seq == first.head:
                live = first  # nothing was said since: it need not be read twice
            else:
                live = self._session.sync.live()
            return self._agent.assemble(live, self.inject, self._overhead), live

        return await self._session.store.call(read)

    async def _fit(self, context: Context, live: Live, limit: int) -> Context:
        """The context without its oldest rounds if it must be; the log is told of the first time.

        What a provider counts from then on is not the size of everything that is live.
        """
        fitted = fit(context, live, limit, self._agent.count)
        missing = len(fitted.left_out) - len(context.left_out)
        if missing and self._ground.given is None and not live.trimmed:
            event = Event(kind=TRIMMED, data={"messages": missing})
            await self._session.append(event, lease=self._ground.lease)
        return fitted


def added(first: Usage, second: Usage) -> Usage:
    """The sum of two counts."""
    one, other = msgspec.structs.asdict(first), msgspec.structs.asdict(second)
    return Usage(**{key: one[key] + other[key] for key in one})
