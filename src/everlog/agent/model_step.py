"""The model step of a turn: send a context that fits until the model answers.

The context is built from the log again for every call. If it has grown too large, the session is
compacted first; if the provider refuses it as too large, a smaller one is sent once. A call that
failed for a temporary reason is retried with exponential backoff.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Sequence

from msgspec.structs import replace

from everlog.agent.compactor import Outcome
from everlog.agent.telemetry import span
from everlog.agent.turn_spec import TurnSpec
from everlog.agent.turn_state import TurnState
from everlog.agent.worker_threads import run_external
from everlog.context.build import Context, fit
from everlog.context.tokens import estimate, usage_tokens
from everlog.errors import ContextOverflowError, EverlogError, ProviderError, ProviderUnavailableError
from everlog.log.backward_read import TRIMMED, LiveMessages
from everlog.log.tool_pairs import pair_results
from everlog.model import Event, Message
from everlog.ports import Delta, Request, ToolSpec
from everlog.wire.events import CompactFailed, Status, StreamDelta, ThinkingDelta, TokenWarning

REFUSED_SHARE = 0.75  # size of the second attempt, relative to the context that was refused
MAX_WAIT = 30.0  # seconds between two attempts
MAX_RETRY_AFTER = 300.0  # seconds; if the provider asks for more, the call fails
WARN_PERCENT = (95, 80)  # percent of the window


class ModelStep:
    """The model calls of one turn."""

    def __init__(self, spec: TurnSpec, state: TurnState, warned_percentages: dict[str, int]) -> None:
        self.system = ""
        self.tools: tuple[ToolSpec, ...] = ()
        self.injections: list[Message] = []
        self.partial_text: list[str] = []  # deltas of the answer that is streaming in
        self._spec = spec
        self._state = state
        self._session = state.session
        self._warned_percentages = warned_percentages  # session → last warning, kept between turns
        self._compactor = dataclasses.replace(spec.compactor, emit=state.emit)
        self._overhead = 0  # tokens of the system prompt and the tools
        self._initial_live: LiveMessages | None = None  # as read when the turn began
        self._last_context: Context | None = None
        self._compaction_failed = False  # do not try again in this turn

    async def begin(self, system: str, tools: Sequence[ToolSpec]) -> Sequence[Message]:
        """Close tool calls that a crash left open, and return the messages of the context."""
        self.system, self.tools = system, tuple(tools)
        self._compactor = dataclasses.replace(self._compactor, tools=self.tools)
        self._overhead = self._spec.overhead(system, tools)
        context, live = await self._read()
        if self._state.history is None and pair_results(live.messages).open_calls:
            await self._state.close_calls()
            context, live = await self._read()
        self._initial_live = live
        return context.messages

    async def step(self) -> Message:
        """Return one answer of the model; retry once with less if the context is refused."""
        compactor = self._compactor
        limit = compactor.limit
        context, live = await self._read_compacted()
        self._warn(context.tokens)
        fitted = await self._fit(context, live, limit)
        try:
            reply = await self._complete(fitted)
        except ContextOverflowError:
            if self._state.history is None and compactor.settings.enabled:
                await self._compact(squeeze=True)
            context, live = await self._read()
            limit = min(limit, int(fitted.tokens * REFUSED_SHARE))
            fitted = await self._fit(context, live, limit)
            reply = await self._complete(fitted)
        if reply.role != "assistant":
            raise ProviderError(f"the model replied with role {reply.role!r}")
        self._state.add_usage(reply.usage)
        self._last_context = fitted
        return replace(reply, model=reply.model or self._spec.model or None)

    async def compact_if_needed(self, reply: Message) -> None:
        """Compact if `reply` has made the context too large.

        A failure is only reported: the answer is stored already and must be returned.
        """
        if self._last_context is not None:
            size = self._last_context.tokens + estimate(reply, self._spec.count)
            if reply.usage is not None:
                size = max(size, usage_tokens(reply.usage))
            if not reply.tool_calls and size <= self._compactor.trigger:
                return
        try:
            await self._read_compacted()
        except EverlogError as error:
            self._state.emit(CompactFailed(session_id=self._session.id, error=error.message))

    def _warn(self, tokens: int) -> None:
        """Emit a warning, once each, when the context reaches 80 and 95 percent of the window."""
        session, window = self._session.id, self._compactor.window
        percent = next((p for p in WARN_PERCENT if tokens * 100 >= p * window), 0)
        if percent > self._warned_percentages.get(session, 0):
            self._state.emit(TokenWarning(session_id=session, percent=percent, tokens=tokens, window=window))
        if percent:
            self._warned_percentages[session] = percent
        else:
            self._warned_percentages.pop(session, None)

    # --- the model call

    async def _complete(self, context: Context) -> Message:
        """Call the model, with retries while it is unavailable."""
        settings = self._spec.settings
        request = Request(messages=context.messages, system=self.system, model=self._spec.model, tools=self.tools)
        for attempt in range(settings.retries + 1):
            self.partial_text.clear()
            try:
                return await self._call(request)
            except ProviderUnavailableError as error:
                wait = error.retry_after
                if attempt == settings.retries or (wait or 0) > MAX_RETRY_AFTER:
                    raise
                if wait is None:
                    wait = settings.retry_seconds * 2**attempt * random.uniform(0.5, 1.0)
                    wait = min(wait, MAX_WAIT)
                self._state.emit(
                    Status(
                        session_id=self._session.id,
                        message=f"{error.message}; retrying in {wait:.1f} s",
                        attempt=attempt + 1,
                        delay_ms=int(wait * 1000),
                    )
                )
            await asyncio.sleep(wait)
        raise AssertionError  # the last attempt returns or raises

    async def _call(self, request: Request) -> Message:
        seconds = self._spec.settings.model_seconds
        in_progress = True

        def on_delta(delta: Delta) -> None:
            if not in_progress:  # a late delta must not become part of the next answer
                return
            if delta.thinking:
                self._state.emit(ThinkingDelta(session_id=self._session.id, text=delta.text))
            else:
                self.partial_text.append(delta.text)
                self._state.emit(StreamDelta(session_id=self._session.id, text=delta.text))

        with span(
            f"chat {request.model}", operation="chat", conversation=self._session.id, model=request.model
        ) as record_usage:
            try:
                async with asyncio.timeout(seconds):
                    reply = await run_external(self._spec.provider.complete(request, on_delta))
            except TimeoutError as error:
                raise ProviderUnavailableError(f"the model gave no answer within {seconds:g} s") from error
            finally:
                in_progress = False
            if reply.usage is not None:
                record_usage(reply.usage)
            return reply

    # --- the context

    async def _read_compacted(self) -> tuple[Context, LiveMessages]:
        """Read the context, after compacting the session if it has grown too large."""
        context, live = await self._read()
        for _ in range(2):
            if (
                self._state.history is not None
                or not self._compactor.settings.enabled
                or self._compaction_failed
                or context.tokens <= self._compactor.trigger
            ):
                break
            outcome = await self._compact()
            self._compaction_failed = outcome.problem is not None
            if not outcome.compacted:
                break
            context, live = await self._read()
        return context, live

    async def _compact(self, *, squeeze: bool = False) -> Outcome:
        outcome = await self._compactor.run(self._session, self._state.lease, squeeze=squeeze)
        await self._state.notify_hooks("on_compact", outcome)
        return outcome

    async def _read(self) -> tuple[Context, LiveMessages]:
        initial, self._initial_live = self._initial_live, None

        def read() -> tuple[Context, LiveMessages]:
            history = self._state.history
            if history is not None:
                live = LiveMessages(messages=tuple(history))
            elif initial and self._session.sync.metadata.through.seq == initial.last_seq:
                live = initial  # nothing was appended since: do not read it twice
            else:
                live = self._session.sync.live()
            return self._compactor.context(live, self.injections, self._overhead), live

        return await self._session.store.call(read)

    async def _fit(self, context: Context, live: LiveMessages, limit: int) -> Context:
        """Drop the oldest rounds if the context exceeds `limit`; log the first time it happens.

        From then on the provider's token count is not the size of all live messages.
        """
        fitted = fit(context, live, limit, self._spec.count)
        dropped = len(fitted.left_out) - len(context.left_out)
        if dropped and self._state.history is None and not live.first_trimmed_seq:
            event = Event(kind=TRIMMED, data={"messages": dropped})
            await self._session.append(event, lease=self._state.lease)
        return fitted
