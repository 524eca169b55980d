"""The tool step of a turn: run the calls of one message concurrently, each with a timeout."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from everlog.agent.telemetry import span
from everlog.agent.tools import RunnableTool
from everlog.agent.turn_state import TurnState
from everlog.agent.worker_threads import run_external, run_to_completion
from everlog.errors import FormatError, StoreFullError
from everlog.model import AnyBlock, Content, Message, Text, ToolCall, blocks, tool_result
from everlog.ports import ToolOutput
from everlog.settings import TurnSettings
from everlog.wire.events import ToolResult, ToolStart


class ToolStep:
    """The tool calls of one turn."""

    def __init__(self, settings: TurnSettings, state: TurnState) -> None:
        self.tools: dict[str, RunnableTool] = {}
        self.call_count = 0
        self._settings = settings
        self._state = state

    async def run_all(self, calls: Sequence[ToolCall]) -> None:
        """Run the calls of one message; store each result as soon as it arrives."""
        if len(calls) == 1:
            await self._run(calls[0])
            return
        tasks = [asyncio.create_task(self._run(call)) for call in calls]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await run_to_completion(asyncio.gather(*tasks, return_exceptions=True))

    async def _run(self, call: ToolCall) -> None:
        """Run one tool and store its output; a failure is stored as its output."""
        self.call_count += 1
        state = self._state
        state.emit(
            ToolStart(session_id=state.session.id, tool_call_id=call.id, tool_name=call.name, args=call.arguments)
        )
        started = time.monotonic()
        with span(f"execute_tool {call.name}", operation="execute_tool", conversation=state.session.id, tool=call.name):
            output = await self._call(call)
        state.add_usage(output.usage)  # of a subagent
        stored = await self._store(call, output)
        state.emit(
            ToolResult(
                session_id=state.session.id,
                tool_call_id=call.id,
                tool_name=call.name,
                result=stored.text,
                is_error=bool(stored.is_error),
                duration_ms=int((time.monotonic() - started) * 1000),
            )
        )
        await state.notify_hooks("on_tool", call, stored)

    async def _store(self, call: ToolCall, output: ToolOutput) -> Message:
        """Store an output; if that is impossible, the model gets an error instead."""

        def result(content: Content, is_error: bool) -> Message:
            return tool_result(call.id, content, is_error=is_error, tool_name=call.name)

        try:
            content = _truncate(output, self._settings.tool_characters)
            return await self._state.append(result(content, output.is_error))
        except (FormatError, StoreFullError, TypeError) as error:
            return await self._state.append(result(f"the output cannot be stored: {error}", True))

    async def _call(self, call: ToolCall) -> ToolOutput:
        tool = self.tools.get(call.name)
        if tool is None:
            return ToolOutput(f"unknown tool {call.name!r}", is_error=True)
        seconds = self._settings.tool_seconds
        try:
            async with asyncio.timeout(seconds) as limit:
                return await run_external(tool.call(call.arguments))
        except Exception as error:  # third-party code may raise anything
            if limit.expired():
                return ToolOutput(f"no answer within {seconds:g} s", is_error=True)
            return ToolOutput(f"{type(error).__name__}: {error}", is_error=True)


def _truncate(output: ToolOutput, limit: int) -> Content:
    """Return the content of an output, its text truncated to `limit` characters."""
    result: list[AnyBlock] = []
    for block in blocks(output.content):
        if isinstance(block, Text):
            if len(block.text) > limit:
                excess = len(block.text) - limit
                block = Text(f"{block.text[:limit]}\n[{excess} more characters were cut]")
                limit = 0
            else:
                limit -= len(block.text)
        result.append(block)
    return result
