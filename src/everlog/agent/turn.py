"""A turn: from one input until the agent rests. Each step is durable before the next begins.

    append the input → close open tool calls → system prompt, tools, hooks
    step:  check the size, compact if needed → call the model → append → run tools → append
    last:  check the size again → record the end of the turn → title

Whatever ends a turn early, its tool calls are closed and its end is recorded, so that the session
can be continued.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from everlog.agent.model_step import ModelStep, add_usage
from everlog.agent.telemetry import span
from everlog.agent.titles import set_title
from everlog.agent.tool_step import ToolStep
from everlog.agent.turn_lease import is_lost, lost_lease_error
from everlog.agent.turn_state import TurnState
from everlog.agent.worker_threads import cancel_count, run_to_completion
from everlog.aio import AsyncSession
from everlog.context.inject import strip_injections
from everlog.errors import EverlogError, RunCancelledError
from everlog.ids import timestamp, ulid_at
from everlog.model import TURN_INTERRUPTED, TURN_RESUMED, Event, Message, Metadata, Usage, assistant
from everlog.ports import Lease
from everlog.wire.events import Error, MessageComplete, MessageStored, RunStart, Sink, Status, ignore_event

if TYPE_CHECKING:
    from everlog.agent.agent import Agent


class Answer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The result of a turn."""

    run_id: str
    session_id: str
    reply: Message
    messages: tuple[Message, ...]  # all that it stored, the input first if it had one
    usage: Usage
    duration_ms: int
    tool_calls: int
    stop: str  # "end", or "max_steps" if the model wanted to continue


def new_run_id() -> str:
    """Return a new run id."""
    return ulid_at(time.time_ns() // 1_000_000, os.urandom(10))


def error_event(session: str, error: BaseException) -> Error:
    """Return the event that reports an error."""
    name = type(error).__name__
    if isinstance(error, EverlogError):
        return Error(session_id=session, message=error.message, code=name, hint=error.hint)
    return Error(session_id=session, message=f"{name}: {error}", code=name)


async def repair(session: AsyncSession, lease: Lease, emit: Sink = ignore_event) -> Metadata:
    """Close the turn of a dead process; as the caller holds the lease, that process is dead."""
    metadata = await session.metadata()
    if metadata.run is None:
        return metadata
    for result in await session.close_calls(lease=lease):
        message = replace(result, line=b"")
        emit(MessageStored(session_id=session.id, seq=result.seq, message=message))
    event = Event(kind=TURN_INTERRUPTED, data={"runId": metadata.run})
    await session.append(event, lease=lease)
    return replace(metadata, run=None)


class Turn:
    """One turn of an agent in a session, under a lease that the caller holds.

    Without a message it goes on where the session's last turn stopped.
    """

    def __init__(
        self,
        agent: Agent,
        session: AsyncSession,
        lease: Lease,
        message: Message | None,
        *,
        history: Sequence[Message] | None = None,
        emit: Sink = ignore_event,
        max_steps: int | None = None,
        allowed: frozenset[str] | None = None,
        reads_only: bool = False,
    ) -> None:
        self.agent = agent
        self.session = session
        self.message = message
        self.max_steps = max_steps or agent.max_steps
        clean_history = None if history is None else strip_injections(history)
        run_id = new_run_id() if message is None else message.run_id or ""
        self.state = TurnState(agent, session, lease, run_id, history=clean_history, emit=emit)
        self.model_step = ModelStep(self.state)
        self.tool_step = ToolStep(self.state)
        self._allowed_tools = allowed
        self._reads_only = reads_only
        self._started = time.monotonic()
        self._duration = 0  # milliseconds, set at the end

    @property
    def _usage(self) -> Usage:
        """The usage of its model calls and of its subagents."""
        return add_usage(self.model_step.usage, self.tool_step.usage)

    async def run(self) -> Answer:
        """Run the turn and return its answer; its end is recorded however it ends."""
        agent = self.agent
        with span(
            f"invoke_agent {agent.name}",
            operation="invoke_agent",
            conversation=self.session.id,
            agent=agent.name,
            model=agent.model,
        ) as active_span:
            try:
                metadata = await self._begin()
                reply, stop = await self._run_steps()
                await self.model_step.compact_if_needed(reply)
                answer = await self._finish(reply, stop)
                active_span.record_usage(answer.usage)
            except asyncio.CancelledError:
                cancellation = RunCancelledError("the turn was cancelled")
                await run_to_completion(self._abort("cancelled", cancellation))
                raise
            except Exception as error:
                await run_to_completion(self._abort("error", error))
                raise
        try:
            await self.state.notify_hooks("on_turn_end", answer)
        except asyncio.CancelledError:
            pass  # too late: the turn has ended, and its answer was emitted
        if metadata.title is None and agent.turn.titles and self.state.history is None:
            agent.run_in_background(set_title(agent, self.session, self.state.emit))
        return answer

    async def _begin(self) -> Metadata:
        """Store the input; collect the tools, the system prompt and the injections of the turn."""
        agent, state, session = self.agent, self.state, self.session
        if self.message is None:
            event = Event(kind=TURN_RESUMED, data={"runId": state.run_id})
            await session.append(event, lease=state.lease)
        elif self.message.seq:  # the queue has stored it already
            state.note_stored(self.message)
            await state.notify_hooks("on_message", self.message)
        else:
            await state.append(self.message)
        now = timestamp(time.time())
        state.emit(RunStart(session_id=session.id, model=agent.model, started_at=now))
        metadata = await session.metadata()
        self.tool_step.tools = {
            name: runnable
            for name, runnable in (await agent.collect_tools(state.emit, session.id)).items()
            if (self._allowed_tools is None or name in self._allowed_tools)
            and (not self._reads_only or runnable.spec.reads)
        }
        system = await agent.system_prompt(session, metadata, state.emit)
        specs = [runnable.spec for runnable in self.tool_step.tools.values()]
        messages = await self.model_step.begin(system, specs)
        injections = await agent.hooks.injections(session.sync, messages, state.emit)
        self.model_step.injections = injections
        return metadata

    async def _run_steps(self) -> tuple[Message, str]:
        """Call the model and run its tools until it rests; return last answer and stop reason."""
        cancels_before = cancel_count()
        for _ in range(self.max_steps):
            completion = await self.model_step.step()
            self.model_step.partial_text.clear()
            reply = await self.state.append(completion)
            if not reply.tool_calls:
                return reply, "end"
            await self.tool_step.run_all(reply.tool_calls)
            if cancel_count() > cancels_before:  # a tool swallowed the cancellation
                raise asyncio.CancelledError
        text = f"stopped after {self.max_steps} steps"
        self.state.emit(Status(session_id=self.session.id, message=text))
        return reply, "max_steps"

    async def _finish(self, reply: Message, stop: str) -> Answer:
        try:
            await run_to_completion(self._record_end(stop))
        except asyncio.CancelledError:
            pass  # too late: the end is recorded, and a turn ends only once
        usage, call_count = self._usage, self.tool_step.call_count
        self.state.emit(
            MessageComplete(
                session_id=self.session.id,
                seq=reply.seq,
                content=reply.text,
                model=reply.model or "",
                usage=usage,
                duration_ms=self._duration,
                tool_calls=call_count,
                stop=stop,
            )
        )
        return Answer(
            run_id=self.state.run_id,
            session_id=self.session.id,
            reply=reply,
            messages=tuple(self.state.stored),
            usage=usage,
            duration_ms=self._duration,
            tool_calls=call_count,
            stop=stop,
        )

    async def _abort(self, stop: str, error: Exception) -> None:
        """Leave a session that can be continued: keep partial text, close every tool call.

        If the lease is lost, write nothing: its new holder repairs the session. Whether the turn
        was cancelled for that or an append was refused, the same error is reported.
        """
        if is_lost(self.state.lease):
            error = lost_lease_error(self.session.id)
        else:
            try:
                await self._record_abort(stop, error)
            except EverlogError:
                pass  # the store failed, as `error` says; the next turn repairs the session
        self.state.emit(error_event(self.session.id, error))

    async def _record_abort(self, stop: str, error: Exception) -> None:
        if stop == "cancelled" and (text := "".join(self.model_step.partial_text)).strip():
            model = self.agent.model or None
            await self.state.append(assistant(text, stop_reason=stop, model=model))
        await self.state.close_calls()
        await self._record_end(stop, error)

    async def _record_end(self, stop: str, error: Exception | None = None) -> None:
        self._duration = int((time.monotonic() - self._started) * 1000)
        fields = {"run_id": self.state.run_id, "model": self.agent.model, "stop": stop}
        if error is not None:
            fields["error"] = f"{type(error).__name__}: {error}"[:500]
        await self.session.end_turn(
            duration_ms=self._duration,
            usage=self._usage,
            cost=self._usage.cost,
            tool_calls=self.tool_step.call_count,
            lease=self.state.lease,
            **{key: value for key, value in fields.items() if value},
        )
