"""A turn: from one input until the agent rests. Each step is durable before the next begins.

    append the input → close open tool calls → system prompt, tools, hooks
    step:  check the size, compact if needed → call the model → append → run tools → append
    last:  check the size again → record the end of the turn

Whatever ends a turn early, its tool calls are closed and its end is recorded, so that the session
can be continued.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence

from msgspec.structs import replace

from everlog.agent.answer import Answer
from everlog.agent.model_step import ModelStep
from everlog.agent.telemetry import span
from everlog.agent.tool_step import ToolStep
from everlog.agent.turn_lease import is_lost, lost_lease_error
from everlog.agent.turn_spec import TurnSpec
from everlog.agent.turn_state import TurnState, stored_event
from everlog.agent.worker_threads import cancel_count, run_to_completion
from everlog.aio import AsyncSession
from everlog.context.inject import strip_injections
from everlog.errors import EverlogError, RunCancelledError
from everlog.ids import timestamp, ulid_at
from everlog.model import TURN_INTERRUPTED, TURN_RESUMED, Event, Message, Metadata, assistant
from everlog.ports import Lease
from everlog.wire.events import Error, RunStart, Sink, Status, ignore_event


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
        emit(stored_event(session.id, result))
    event = Event(kind=TURN_INTERRUPTED, data={"runId": metadata.run})
    await session.append(event, lease=lease)
    return replace(metadata, run=None)


class Turn:
    """One turn in a session, under a lease that the caller holds.

    Without a message it goes on where the session's last turn stopped.
    """

    def __init__(
        self,
        spec: TurnSpec,
        session: AsyncSession,
        lease: Lease,
        message: Message | None,
        *,
        warned_percentages: dict[str, int],
        history: Sequence[Message] | None = None,
        emit: Sink = ignore_event,
    ) -> None:
        """Prepare a turn. `history` replaces the session's own as context.

        `warned_percentages` are the last token warnings by session, kept between turns.
        """
        self.spec = spec
        self.session = session
        self.message = message
        self.state = TurnState(
            session=session,
            lease=lease,
            run_id=new_run_id() if message is None else message.run_id or "",
            hooks=spec.hooks,
            sink=emit,
            history=None if history is None else strip_injections(history),
        )
        self.model_step = ModelStep(spec, self.state, warned_percentages)
        self.tool_step = ToolStep(spec.settings, self.state)
        self.needs_title = False  # known when it has begun
        self._started = time.monotonic()
        self._duration = 0  # milliseconds, set at the end

    async def run(self) -> Answer:
        """Run the turn and return its answer; its end is recorded however it ends."""
        spec = self.spec
        with span(
            f"invoke_agent {spec.agent}",
            operation="invoke_agent",
            conversation=self.session.id,
            agent=spec.agent,
            model=spec.model,
        ) as record_usage:
            try:
                await self._begin()
                reply, stop = await self._run_steps()
                await self.model_step.compact_if_needed(reply)
                answer = await self._finish(reply, stop)
                record_usage(answer.usage)
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
        return answer

    async def _begin(self) -> None:
        """Store the input; collect the tools, the system prompt and the injections of the turn."""
        spec, state, session = self.spec, self.state, self.session
        if self.message is None:
            event = Event(kind=TURN_RESUMED, data={"runId": state.run_id})
            await session.append(event, lease=state.lease)
        elif self.message.seq:  # the queue has stored it already
            state.note_stored(self.message)
            await state.notify_hooks("on_message", self.message)
        else:
            await state.append(self.message)
        now = timestamp(time.time())
        state.emit(RunStart(session_id=session.id, model=spec.model, started_at=now))
        metadata = await session.metadata()
        self.needs_title = metadata.title is None and spec.settings.titles and state.history is None
        self.tool_step.tools = await spec.collect_tools(session.id, state.emit)
        system = await spec.system_prompt(session, metadata, state.emit)
        messages = await self.model_step.begin(system, [tool.spec for tool in self.tool_step.tools.values()])
        self.model_step.injections = await spec.hooks.injections(session.sync, messages, state.emit)

    async def _run_steps(self) -> tuple[Message, str]:
        """Call the model and run its tools until it rests; return last answer and stop reason."""
        cancels_before = cancel_count()
        for _ in range(self.spec.max_steps):
            completion = await self.model_step.step()
            self.model_step.partial_text.clear()
            reply = await self.state.append(completion)
            if not reply.tool_calls:
                return reply, "end"
            await self.tool_step.run_all(reply.tool_calls)
            if cancel_count() > cancels_before:  # a tool swallowed the cancellation
                raise asyncio.CancelledError
        text = f"stopped after {self.spec.max_steps} steps"
        self.state.emit(Status(session_id=self.session.id, message=text))
        return reply, "max_steps"

    async def _finish(self, reply: Message, stop: str) -> Answer:
        try:
            await run_to_completion(self._record_end(stop))
        except asyncio.CancelledError:
            pass  # too late: the end is recorded, and a turn ends only once
        answer = Answer(
            run_id=self.state.run_id,
            session_id=self.session.id,
            reply=reply,
            messages=tuple(self.state.stored),
            usage=self.state.usage,
            duration_ms=self._duration,
            tool_calls=self.tool_step.call_count,
            stop=stop,
        )
        self.state.emit(answer.event())
        return answer

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
            model = self.spec.model or None
            await self.state.append(assistant(text, stop_reason=stop, model=model))
        await self.state.close_calls()
        await self._record_end(stop, error)

    async def _record_end(self, stop: str, error: Exception | None = None) -> None:
        self._duration = int((time.monotonic() - self._started) * 1000)
        fields = {"run_id": self.state.run_id, "model": self.spec.model, "stop": stop}
        if error is not None:
            fields["error"] = f"{type(error).__name__}: {error}"[:500]
        await self.session.end_turn(
            duration_ms=self._duration,
            usage=self.state.usage,
            cost=self.state.usage.cost,
            tool_calls=self.tool_step.call_count,
            lease=self.state.lease,
            **{key: value for key, value in fields.items() if value},
        )
