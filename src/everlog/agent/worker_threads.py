"""Somebody else's code, called where it can hold up nobody."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable, Coroutine
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
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            done.set_exception(error)
        else:  # a future cannot carry it, or it would end the process, as that of `sys.exit`
            done.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))

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


async def foreign(work: Awaitable[T]) -> T:
    """Await somebody else's code: whatever it raises comes out as an Exception.

    A stop of ours passes. A CancelledError that nobody asked for would be taken for one, and what
    is no Exception (`sys.exit`, a panic of an extension) would take the loop or the queue along.
    """
    before = stops()
    try:
        return await work
    except (Exception, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and stops() > before:
            raise
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


def stops() -> int:
    """How often the running task was told to stop; code of others may have swallowed that."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


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
