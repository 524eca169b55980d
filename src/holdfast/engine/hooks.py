"""Hooks: what a run is told beside the conversation.

A hook sees the context and returns the messages to inject; it cannot change the others, since
it gets copies. One that fails or takes too long is reported and the run goes on without it.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any, Protocol

from msgspec.structs import replace

from holdfast.api import HookFailed, Sink
from holdfast.model import Message
from holdfast.session import Session

HOOK_SECONDS = 10.0


class Hook(Protocol):
    """Something that has a say before each run."""

    def on_before_run(
        self, agent: str, session: Session, messages: Sequence[Message]
    ) -> Iterable[Message] | Awaitable[Iterable[Message]]:
        """The messages to inject into this run; they are sent and never kept.

        May be a coroutine function. One that is not is called in a thread of its own.
        """
        ...


async def injections(
    hooks: Iterable[Hook],
    agent: str,
    session: Session,
    messages: Sequence[Message],
    *,
    emit: Sink,
    seconds: float = HOOK_SECONDS,
) -> list[Message]:
    """What all hooks give, in their order."""
    made: list[Message] = []
    for hook in hooks:
        try:
            async with asyncio.timeout(seconds):
                made += await _ask(hook, agent, session, [_copy(one) for one in messages])
        except Exception as error:  # a hook is somebody else's code: it may raise anything
            problem = f"{type(error).__name__}: {error}"
            if isinstance(error, TimeoutError):
                problem = f"no answer within {seconds:g} s"
            name = type(hook).__qualname__
            emit(HookFailed(session_id=session.id, hook=name, problem=problem))
    return made


async def _ask(hook: Hook, *arguments: Any) -> list[Message]:
    if inspect.iscoroutinefunction(hook.on_before_run):
        given = await hook.on_before_run(*arguments)
    else:
        given = await _in_thread(hook.on_before_run, *arguments)
        if inspect.isawaitable(given):
            given = await given
    messages = list(given)
    for message in messages:
        if not isinstance(message, Message) or message.role == "toolResult" or message.tool_calls:
            raise TypeError("a hook may inject messages without tool calls and results only")
    return messages


async def _in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a thread that nobody waits for: one that hangs must not hold up the end
    of the process, as it would in the pool of the loop."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if done.done():  # given up
            return
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)

    def work() -> None:
        result, error = None, None
        try:
            result = function(*arguments)
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, daemon=True).start()
    return await done


def _copy(message: Message) -> Message:
    """Messages are frozen, the arguments of a call are not."""
    return replace(message, content=deepcopy(message.content)) if message.tool_calls else message
