"""Work in a thread, one request at a time; of waiting requests only the newest is run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

from everlog.errors import EverlogError

T = TypeVar("T")
_Request = tuple[Callable[[], Any], Callable[[Any], None]]


class NewestTask:
    """Runs the newest request; the result of an outdated request is dropped."""

    def __init__(self, threads: Executor, on_error: Callable[[EverlogError], None]) -> None:
        self._threads = threads
        self._on_error = on_error
        self._next: _Request | None = None
        self._number = 0  # of the newest request
        self._task: asyncio.Task[None] | None = None

    def submit(self, work: Callable[[], T], on_done: Callable[[T], None]) -> None:
        """Run `work` in a thread and call `on_done` with its result, unless a newer one comes."""
        self._next = work, on_done
        self._number += 1
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def cancel(self) -> None:
        """Drop the waiting request and the result of the running one."""
        self._next = None
        self._number += 1

    @property
    def is_busy(self) -> bool:
        """Whether a request is running."""
        return self._task is not None

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._next is not None:
                (work, on_done), self._next = self._next, None
                number = self._number
                try:
                    answer = await loop.run_in_executor(self._threads, work)
                except EverlogError as error:
                    if number == self._number:
                        self._on_error(error)
                    continue
                if number == self._number:
                    on_done(answer)
        finally:
            self._task = None

    async def settle(self) -> None:
        """Cancel, and wait for the running request to end."""
        self.cancel()
        if self._task is not None:
            await self._task
