"""Hooks: third-party code that adds to a run before it begins, and observes it.

A hook may have any of the methods below, as functions or coroutines; a plain function is called in
a thread of its own. A hook gets copies, so it cannot change a conversation. A hook that fails or
times out is reported, and the run continues without it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Iterable, Sequence
from copy import deepcopy
from typing import Any

from msgspec.structs import replace

from everlog.agent.answer import Answer
from everlog.agent.compactor import Outcome
from everlog.agent.worker_threads import run_external, run_in_thread
from everlog.context.fence import fence_injection
from everlog.model import AnyBlock, Message, Text, ToolCall
from everlog.session import Session
from everlog.wire.events import HookFailed, Sink

HOOK_SECONDS = 10.0


class Hook:
    """Base class with every method that a hook may implement; all are optional."""

    def on_system(self, agent: str, session: Session) -> str | Awaitable[str]:
        """Return text to add to the system prompt; it is fenced there as stored data."""
        return ""

    def on_before_run(
        self, agent: str, session: Session, messages: Sequence[Message]
    ) -> Iterable[Message] | Awaitable[Iterable[Message]]:
        """Return messages to inject into this run; they are sent to the model, never stored."""
        return ()

    def on_message(self, agent: str, session: Session, message: Message) -> Awaitable[None] | None:
        """Handle a message that was stored."""

    def on_tool(self, agent: str, session: Session, call: ToolCall, result: Message) -> Awaitable[None] | None:
        """Handle a tool result that was stored."""

    def on_compact(self, agent: str, session: Session, outcome: Outcome) -> Awaitable[None] | None:
        """Handle the outcome of a compaction, whether it succeeded or not."""

    def on_turn_end(self, agent: str, session: Session, answer: Answer) -> Awaitable[None] | None:
        """Handle a turn that succeeded and is recorded; the answer is returned after this."""


class Hooks:
    """The hooks of one agent, called by its turns."""

    def __init__(self, hooks: Iterable[object], agent: str, seconds: float = HOOK_SECONDS) -> None:
        self.agent = agent
        self.seconds = seconds
        hooks = tuple(hooks)
        self._by_method = {name: [hook for hook in hooks if _has(hook, name)] for name in _METHODS}

    async def system_texts(self, session: Session, emit: Sink) -> list[str]:
        """Return the texts that hooks add to the system prompt."""
        return [str(text) for text in await self.notify("on_system", session, emit) if text]

    async def injections(self, session: Session, messages: Sequence[Message], emit: Sink) -> list[Message]:
        """Return the messages that hooks inject, in the order of the hooks."""
        answers = await self.notify("on_before_run", session, emit, messages)
        return [message for answer in answers for message in answer or ()]

    async def notify(self, method_name: str, session: Session, emit: Sink, *arguments: Any) -> list[Any]:
        """Call a method of every hook that has it, and return what each returned; None if it failed."""
        return [
            await self._call(hook, method_name, session, emit, *map(_copy, arguments))
            for hook in self._by_method[method_name]
        ]

    async def _call(self, hook: object, method_name: str, session: Session, emit: Sink, *arguments: Any) -> Any:
        method = getattr(hook, method_name)
        try:
            async with asyncio.timeout(self.seconds) as limit:
                if inspect.iscoroutinefunction(method):
                    answer = await run_external(method(self.agent, session, *arguments))
                else:
                    answer = await run_in_thread(method, self.agent, session, *arguments)
                    if inspect.isawaitable(answer):
                        answer = await run_external(answer)
            return _check_injections(answer) if method_name == "on_before_run" else answer
        except Exception as error:  # third-party code may raise anything
            problem = f"{type(error).__name__}: {error}"
            if limit.expired():
                problem = f"no answer within {self.seconds:g} s"
            name = type(hook).__qualname__
            emit(HookFailed(session_id=session.id, hook=name, problem=problem))
            return None


_METHODS = tuple(name for name in vars(Hook) if name.startswith("on_"))


def _has(hook: object, name: str) -> bool:
    """Return whether a hook implements a method, rather than inheriting it from `Hook`."""
    return getattr(type(hook), name, None) is not getattr(Hook, name) and hasattr(hook, name)


def _check_injections(injections: Iterable[Message]) -> list[Message]:
    messages = list(injections)
    for message in messages:
        if not isinstance(message, Message) or message.role == "toolResult" or message.tool_calls:
            raise TypeError("a hook may only inject messages without tool calls and tool results")
    return [replace(message, content=tuple(map(_fence_block, message.content))) for message in messages]


def _fence_block(block: AnyBlock) -> AnyBlock:
    return Text(str(fence_injection(block.text))) if isinstance(block, Text) else block


def _copy(argument: Any) -> Any:
    """Copy messages as needed: they are frozen, but the arguments of their tool calls are not."""
    if isinstance(argument, Message) and argument.tool_calls:
        return replace(argument, content=deepcopy(argument.content))
    return [_copy(item) for item in argument] if isinstance(argument, list | tuple) else argument
