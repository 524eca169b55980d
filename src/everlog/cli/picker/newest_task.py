"""Work in a thread, one piece at a time; of what waits, only the newest is done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

from everlog.errors import EverlogError

T = TypeVar("T")
_Asked = tuple[Callable[[], Any], Callable[[Any], None]]


class Newest:
    """Answers the newest question; an answer that a newer one has overtaken is dropped."""

    def __init__(self, threads: Executor, failed: Callable[[EverlogError], None]) -> None:
        self._threads = threads
        self._failed = failed
        self._next: _Asked | None = None
        self._number = 0  # of the newest question
        self._task: asyncio.Task[None] | None = None

    def ask(self, work: Callable[[], T], done: Callable[[T], None]) -> None:
        """Do `work` in a thread and call `done` with its answer, unless something newer comes."""
        self._next = work, done
        self._number += 1
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def drop(self) -> None:
        """Want no answer any more."""
        self._next = None
        self._number += 1

    @property
    def busy(self) -> bool:
        """Whether an answer is on its way."""
        return self._task is not None

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._next is not None:
                (work, done), self._next = self._next, None
                number = self._number
                try:
                    answer = await loop.run_in_executor(self._threads, work)
                except EverlogError as error:
                    if number == self._number:
                        self._failed(error)
                    continue
                if number == self._number:
                    done(answer)
        finally:
            self._task = None

    async def settle(self) -> None:
        """Wait for what is running; nothing that waits is begun."""
        self.drop()
        if self._task is not None:
            await self._task
