"""The tools' part of a turn: calls of one message run side by side, each within its time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from everlog.agent.model_step import added
from everlog.agent.telemetry import span
from everlog.agent.tools import Usable
from everlog.agent.turn_state import Ground
from everlog.agent.worker_threads import foreign, to_its_end
from everlog.errors import FormatError, StoreFullError
from everlog.model import (
    AnyBlock,
    Content,
    Message,
    Text,
    ToolCall,
    Usage,
    blocks,
    tool_result,
)
from everlog.ports import ToolAnswer
from everlog.wire.events import ToolResult, ToolStart


class Using:
    """Runs the tools of one turn."""

    def __init__(self, ground: Ground) -> None:
        self.tools: dict[str, Usable] = {}
        self.calls = 0
        self.usage = Usage()  # of agents that were asked
        self._ground = ground
        self._settings = ground.agent.turn

    async def use_all(self, calls: Sequence[ToolCall]) -> None:
        """Run the calls of one message; each result is stored as it comes."""
        if len(calls) == 1:
            await self._use(calls[0])
            return
        tasks = [asyncio.create_task(self._use(call)) for call in calls]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await to_its_end(_ended(tasks))

    async def _use(self, call: ToolCall) -> None:
        """Run one tool and store its answer; whatever goes wrong with it is its answer."""
        self.calls += 1
        ground = self._ground
        ground.emit(
            ToolStart(
                session_id=ground.session.id,
                tool_call_id=call.id,
                tool_name=call.name,
                args=call.arguments,
            )
        )
        started = time.monotonic()
        with span(
            f"execute_tool {call.name}",
            operation="execute_tool",
            conversation=ground.session.id,
            tool=call.name,
        ):
            answer = await self._answer(call)
        if answer.usage is not None:
            self.usage = added(self.usage, answer.usage)
        stored = await self._store(call, answer)
        ground.emit(
            ToolResult(
                session_id=ground.session.id,
                tool_call_id=call.id,
                tool_name=call.name,
                result=stored.text,
                is_error=bool(stored.is_error),
                duration_ms=int((time.monotonic() - started) * 1000),
            )
        )
        await ground.tell("on_tool", call, stored)

    async def _store(self, call: ToolCall, answer: ToolAnswer) -> Message:
        """Store an answer; one that cannot be kept is an error for the model, not for the turn."""

        def result(content: Content, is_error: bool) -> Message:
            return tool_result(call.id, content, is_error=is_error, tool_name=call.name)

        try:
            content = _cut(answer, self._settings.tool_characters)
            return await self._ground.append(result(content, answer.is_error))
        except (FormatError, StoreFullError, TypeError) as error:
            return await self._ground.append(result(f"the answer cannot be kept: {error}", True))

    async def _answer(self, call: ToolCall) -> ToolAnswer:
        found = self.tools.get(call.name)
        if found is None:
            return ToolAnswer(f"there is no tool {call.name!r}", is_error=True)
        seconds = self._settings.tool_seconds
        try:
            async with asyncio.timeout(seconds) as limit:
                return await foreign(found.call(call.arguments))
        except Exception as error:  # a tool is somebody else's code: it may raise anything
            if limit.expired():
                return ToolAnswer(f"no answer within {seconds:g} s", is_error=True)
            return ToolAnswer(f"{type(error).__name__}: {error}", is_error=True)


def _cut(answer: ToolAnswer, limit: int) -> Content:
    """The answer with as much text as is kept."""
    made: list[AnyBlock] = []
    for block in blocks(answer.content):
        if isinstance(block, Text):
            if len(block.text) > limit:
                more = len(block.text) - limit
                block = Text(f"{block.text[:limit]}\n[{more} more characters were cut]")
                limit = 0
            else:
                limit -= len(block.text)
        made.append(block)
    return made


async def _ended(tasks: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)
