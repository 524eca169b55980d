"""Calls to third-party code that must not block the event loop or the end of the process."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def run_in_thread(function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
    """Call a function in a daemon thread and await its result.

    A call that hangs must not delay the end of the process, as it would in the loop's pool.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():  # cancelled
            return
        if error is None:
            future.set_result(result)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            future.set_exception(error)
        else:  # a future cannot carry it, or it would end the process, as SystemExit does
            future.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))

    def work() -> None:
        result, error = None, None
        try:
            result = context.run(function, *arguments, **keywords)
        except BaseException as exception:
            error = exception
        call_in_loop(loop, settle, result, error)

    threading.Thread(target=work, daemon=True).start()
    return await future


def call_in_loop(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *arguments: Any) -> None:
    """Call back in an event loop from another thread; does nothing if the loop was closed meanwhile."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *arguments)


async def run_external(work: Awaitable[T]) -> T:
    """Await third-party code; anything it raises becomes an `Exception`.

    A real cancellation of the task passes. A CancelledError that nobody requested would be mistaken
    for one, and a BaseException (`sys.exit`, a panic in an extension) would end the loop or queue.
    """
    cancels_before = cancel_count()
    try:
        return await work
    except (Exception, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and cancel_count() > cancels_before:
            raise
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


def cancel_count() -> int:
    """Return how often the current task was cancelled; third-party code may swallow that."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


async def run_to_completion(work: Awaitable[T]) -> T:
    """Await work that must not stop half-way, however often the task is cancelled.

    A cancellation that arrives meanwhile is raised afterwards.
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
