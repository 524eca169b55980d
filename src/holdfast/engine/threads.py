"""Somebody else's code, called where it can hold up nobody."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a function in a thread that nobody waits for: one that hangs must not hold up the end
    of the process, as it would in the pool of the loop."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if done.done():  # given up
            return
        if error is None:
            done.set_result(result)
        elif isinstance(error, StopIteration):  # a future cannot carry it
            done.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))
        else:
            done.set_exception(error)

    def work() -> None:
        result, error = None, None
        try:
            result = context.run(function, *arguments, **named)
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, daemon=True).start()
    return await done


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Await something that must not stop half-way, however often the task is cancelled.

    A cancellation that came meanwhile is raised afterwards.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result
