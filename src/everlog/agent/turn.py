"""A turn: one input until the agent rests. Each step is on disk before the next begins.

    append the input → close what a crash left open → system prompt, tools, hooks
    step:  check the size, compact if need be → call the model → append → run tools → append
    last:  check once more → record that the turn ended → title

Whatever ends a turn early, its calls are closed and its end is recorded: the session can go on.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from everlog.agent.model_step import Completing, added
from everlog.agent.telemetry import span
from everlog.agent.titles import entitle
from everlog.agent.tool_step import Using
from everlog.agent.turn_lease import is_lost, loss
from everlog.agent.turn_state import Ground
from everlog.agent.worker_threads import stops, to_its_end
from everlog.aio import AsyncSession
from everlog.context.inject import stripped
from everlog.errors import EverlogError, RunCancelledError
from everlog.ids import made_at, timestamp
from everlog.model import TURN_INTERRUPTED, Event, Message, Metadata, Usage, assistant
from everlog.ports import Lease
from everlog.wire.events import (
    Error,
    MessageComplete,
    MessageStored,
    RunStart,
    Sink,
    Status,
    ignore,
)

if TYPE_CHECKING:
    from everlog.agent.agent import Agent


class Answer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a turn came to."""

    run_id: str
    session_id: str
    reply: Message
    messages: tuple[Message, ...]  # everything it stored, the input first
    usage: Usage
    duration_ms: int
    tool_calls: int
    stop: str  # "end", or "max_steps" if the model would have gone on


def new_run_id() -> str:
    """An id for a run."""
    return made_at(time.time_ns() // 1_000_000, os.urandom(10))


def failed(session: str, error: BaseException) -> Error:
    """An error as those who watch are told it."""
    name = type(error).__name__
    if isinstance(error, EverlogError):
        return Error(session_id=session, message=error.message, code=name, hint=error.hint)
    return Error(session_id=session, message=f"{name}: {error}", code=name)


async def repair(session: AsyncSession, lease: Lease, emit: Sink = ignore) -> Metadata:
    """Bring to an end what another process left half done; who holds the lease knows it is dead."""
    metadata = await session.metadata()
    if metadata.run is None:
        return metadata
    for result in await session.close_calls(lease=lease):
        shown = replace(result, line=b"")
        emit(MessageStored(session_id=session.id, seq=result.seq, message=shown))
    event = Event(kind=TURN_INTERRUPTED, data={"runId": metadata.run})
    await session.append(event, lease=lease)
    return replace(metadata, run=None)


class Turn:
    """One turn under way."""

    def __init__(
        self,
        agent: Agent,
        session: AsyncSession,
        lease: Lease,
        message: Message,
        *,
        given: Sequence[Message] | None = None,
        emit: Sink = ignore,
        max_steps: int | None = None,
        allowed: frozenset[str] | None = None,
        reads_only: bool = False,
    ) -> None:
        self.agent = agent
        self.session = session
        self.message = message
        self.max_steps = max_steps or agent.max_steps
        history = None if given is None else stripped(given)
        self.ground = Ground(agent, session, lease, message.run_id or "", given=history, emit=emit)
        self.model = Completing(self.ground)
        self.tools = Using(self.ground)
        self._allowed = allowed
        self._reads_only = reads_only
        self._started = time.monotonic()
        self._duration = 0  # milliseconds, when it has ended

    @property
    def _usage(self) -> Usage:
        """What its calls took, and those of the agents that it asked."""
        return added(self.model.usage, self.tools.usage)

    async def run(self) -> Answer:
        """The whole of it."""
        agent = self.agent
        with span(
            f"invoke_agent {agent.name}",
            operation="invoke_agent",
            conversation=self.session.id,
            agent=agent.name,
            model=agent.model,
        ) as traced:
            try:
                metadata = await self._begin()
                reply, stop = await self._steps()
                await self.model.check_at_rest(reply)
                answer = await self._rest(reply, stop)
                traced.used(answer.usage)
            except asyncio.CancelledError:
                stopped = RunCancelledError("the turn was stopped")
                await to_its_end(self._break_off("cancelled", stopped))
                raise
            except Exception as error:
                await to_its_end(self._break_off("error", error))
                raise
        try:
            await self.ground.tell("on_turn_end", answer)
        except asyncio.CancelledError:
            pass  # too late: the turn has ended, and its answer is told
        if metadata.name is None and agent.turn.titles and self.ground.given is None:
            agent.background(entitle(agent, self.session, self.ground.emit))
        return answer

    async def _begin(self) -> Metadata:
        """Store the input, and find out what every call of this turn is sent beside messages."""
        agent, ground, session = self.agent, self.ground, self.session
        if self.message.seq:  # whoever took it has stored it already
            ground.heard(self.message)
            await ground.tell("on_message", self.message)
        else:
            await ground.append(self.message)
        now = timestamp(time.time())
        ground.emit(RunStart(session_id=session.id, model=agent.model, started_at=now))
        metadata = await session.metadata()
        self.tools.tools = {
            name: one
            for name, one in (await agent.usable_tools(ground.emit, session.id)).items()
            if (self._allowed is None or name in self._allowed)
            and (not self._reads_only or one.told.reads)
        }
        system = await agent.system_prompt(session, metadata, ground.emit)
        told = [one.told for one in self.tools.tools.values()]
        messages = await self.model.begin(system, told)
        self.model.inject = await agent.hooks.injections(session.sync, messages, ground.emit)
        return metadata

    async def _steps(self) -> tuple[Message, str]:
        """Call the model and run its tools until it rests; the last answer, and why it ended."""
        before = stops()
        for _ in range(self.max_steps):
            made = await self.model.step()
            self.model.said.clear()
            reply = await self.ground.append(made)
            if not reply.tool_calls:
                return reply, "end"
            await self.tools.use_all(reply.tool_calls)
            if stops() > before:  # a tool has made an answer of it
                raise asyncio.CancelledError
        text = f"stopped after {self.max_steps} steps"
        self.ground.emit(Status(session_id=self.session.id, message=text))
        return reply, "max_steps"

    async def _rest(self, reply: Message, stop: str) -> Answer:
        try:
            await to_its_end(self._record_end(stop))
        except asyncio.CancelledError:
            pass  # too late: it is recorded, and a turn ends once
        usage, calls = self._usage, self.tools.calls
        self.ground.emit(
            MessageComplete(
                session_id=self.session.id,
                seq=reply.seq,
                content=reply.text,
                model=reply.model or "",
                usage=usage,
                duration_ms=self._duration,
                tool_calls=calls,
                stop=stop,
            )
        )
        return Answer(
            run_id=self.ground.run_id,
            session_id=self.session.id,
            reply=reply,
            messages=tuple(self.ground.stored),
            usage=usage,
            duration_ms=self._duration,
            tool_calls=calls,
            stop=stop,
        )

    async def _break_off(self, stop: str, error: Exception) -> None:
        """Leave a session that can go on: what was said is kept, every call has its result.

        A turn that is lost writes nothing more: whoever has it now sees to that. Whether it was
        stopped for it or had an append refused, it is told in the same words.
        """
        if is_lost(self.ground.lease):
            error = loss(self.session.id)
        else:
            try:
                await self._close(stop, error)
            except EverlogError:
                pass  # the store is what failed, and `error` says so; the next turn repairs
        self.ground.emit(failed(self.session.id, error))

    async def _close(self, stop: str, error: Exception) -> None:
        if stop == "cancelled" and (text := "".join(self.model.said)).strip():
            model = self.agent.model or None
            await self.ground.append(assistant(text, stop_reason=stop, model=model))
        await self.ground.close_calls()
        await self._record_end(stop, error)

    async def _record_end(self, stop: str, error: Exception | None = None) -> None:
        self._duration = int((time.monotonic() - self._started) * 1000)
        facts = {"run_id": self.ground.run_id, "model": self.agent.model, "stop": stop}
        if error is not None:
            facts["error"] = f"{type(error).__name__}: {error}"[:500]
        await self.session.end_turn(
            duration_ms=self._duration,
            usage=self._usage,
            cost=self._usage.cost,
            tool_calls=self.tools.calls,
            lease=self.ground.lease,
            **{key: value for key, value in facts.items() if value},
        )
