"""Hooks: code of others that has a say before each run, and watches it.

Each may have any of the methods below, as functions or coroutines; one that is no coroutine is
called in a thread of its own. A hook gets copies, so it cannot change a conversation. One that
fails or takes too long is reported, and the run goes on without it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Iterable, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from everlog.agent.worker_threads import foreign, in_thread
from everlog.model import Message, ToolCall
from everlog.session import Session
from everlog.wire.events import HookFailed, Sink

if TYPE_CHECKING:
    from everlog.agent.compactor import Outcome
    from everlog.agent.turn import Answer

HOOK_SECONDS = 10.0


class Hook:
    """All a hook may do; those that do nothing need not be there."""

    def on_system(self, agent: str, session: Session) -> str | Awaitable[str]:
        """Text for the system prompt, behind the agent's own: stored data, marked as such."""
        return ""

    def on_before_run(
        self, agent: str, session: Session, messages: Sequence[Message]
    ) -> Iterable[Message] | Awaitable[Iterable[Message]]:
        """The messages to inject into this run; they are sent and never kept."""
        return ()

    def on_message(self, agent: str, session: Session, message: Message) -> Awaitable[None] | None:
        """A message was stored."""

    def on_tool(
        self, agent: str, session: Session, call: ToolCall, result: Message
    ) -> Awaitable[None] | None:
        """A tool has answered, and the answer was stored."""

    def on_compact(self, agent: str, session: Session, outcome: Outcome) -> Awaitable[None] | None:
        """A compaction was tried."""

    def on_turn_end(self, agent: str, session: Session, answer: Answer) -> Awaitable[None] | None:
        """A turn ended well and is recorded; the answer waits for this."""


class Hooks:
    """The hooks of one agent, as a turn calls them."""

    def __init__(self, hooks: Iterable[object], agent: str, seconds: float = HOOK_SECONDS) -> None:
        self.agent = agent
        self.seconds = seconds
        given = tuple(hooks)
        self._having = {name: [hook for hook in given if _has(hook, name)] for name in _METHODS}

    def __contains__(self, name: str) -> bool:
        return bool(self._having[name])

    async def system(self, session: Session, emit: Sink) -> list[str]:
        """What all hooks have to say in the system prompt."""
        made: list[str] = []
        for hook in self._having["on_system"]:
            text = await self._ask(hook, "on_system", session, emit)
            if text:
                made.append(str(text))
        return made

    async def injections(
        self, session: Session, messages: Sequence[Message], emit: Sink
    ) -> list[Message]:
        """What all hooks inject, in their order."""
        made: list[Message] = []
        for hook in self._having["on_before_run"]:
            copies = [_copy(one) for one in messages]
            made += await self._ask(hook, "on_before_run", session, emit, copies) or ()
        return made

    async def tell(self, what: str, session: Session, emit: Sink, *facts: Any) -> None:
        """Call one of the methods that only watch."""
        for hook in self._having[what]:
            copies = [_copy(one) if isinstance(one, Message) else one for one in facts]
            await self._ask(hook, what, session, emit, *copies)

    async def _ask(self, hook: object, what: str, session: Session, emit: Sink, *given: Any) -> Any:
        method = getattr(hook, what)
        try:
            async with asyncio.timeout(self.seconds) as limit:
                if inspect.iscoroutinefunction(method):
                    answer = await foreign(method(self.agent, session, *given))
                else:
                    answer = await in_thread(method, self.agent, session, *given)
                    if inspect.isawaitable(answer):
                        answer = await foreign(answer)
            return _checked(answer) if what == "on_before_run" else answer
        except Exception as error:  # a hook is somebody else's code: it may raise anything
            problem = f"{type(error).__name__}: {error}"
            if limit.expired():
                problem = f"no answer within {self.seconds:g} s"
            name = type(hook).__qualname__
            emit(HookFailed(session_id=session.id, hook=name, problem=problem))
            return None


_METHODS = tuple(name for name in vars(Hook) if name.startswith("on_"))


def _has(hook: object, name: str) -> bool:
    """Whether a hook has a method of its own of that name."""
    return getattr(type(hook), name, None) is not getattr(Hook, name) and hasattr(hook, name)


def _checked(given: Iterable[Message]) -> list[Message]:
    messages = list(given)
    for message in messages:
        if not isinstance(message, Message) or message.role == "toolResult" or message.tool_calls:
            raise TypeError("a hook may inject messages without tool calls and results only")
    return messages


def _copy(message: Message) -> Message:
    """Messages are frozen, the arguments of a call are not."""
    return replace(message, content=deepcopy(message.content)) if message.tool_calls else message
