"""Background work: a task that repeats its work until it is stopped, and the backoff after failures."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

from everlog.agent.worker_threads import run_external

MAX_DOUBLINGS = 2  # of the interval after failures: a store that is back is noticed soon
FIRST_PAUSE, MAX_PAUSE = 5.0, 600.0  # seconds until the next attempt at one item, doubled each time
MAX_ITEMS = 10_000  # remembered; one that is deleted elsewhere would never be removed


class BackgroundTask:
    """Work that is done again and again, after an interval or when it is woken; no failure ends it.

    `interval` is in seconds, or a function that returns them and never raises; None waits until
    `wake`. A fixed interval is randomised by the share `jitter` and grows after failures. After
    `wake` the work begins `debounce` seconds later, since more may follow. `on_failure` gets what
    the work raises; without it, the exception handler of the event loop does.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], Awaitable[None]],
        *,
        interval: float | Callable[[], float] | None = None,
        jitter: float = 0.0,
        debounce: float = 0.0,
        on_failure: Callable[[Exception], None] | None = None,
    ) -> None:
        self.name = name
        self.interval = interval
        self.failures = 0  # in a row; 0: it is healthy
        self.problem = ""  # of the last failure
        self.is_stopped = False  # for work in threads, which cannot be cancelled
        self._work = work
        self._jitter = jitter
        self._debounce = debounce
        self._on_failure = on_failure or self._report
        self._wakeup = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task, unless it runs; call it in a running event loop."""
        self.is_stopped = False
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=self.name)

    def wake(self) -> None:
        """Do the work soon, without waiting for the end of the interval."""
        self._wakeup.set()

    async def stop(self) -> None:
        """Cancel the task and wait until it has ended."""
        self.is_stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _run(self) -> None:
        while True:
            await self._wait()
            try:
                await run_external(self._work())
                self.failures, self.problem = 0, ""
            except Exception as error:  # a bug too: the next run may succeed
                self.failures += 1
                self.problem = f"{type(error).__name__}: {error}"
                self._on_failure(error)

    def _seconds(self) -> float | None:
        if self.interval is None:
            return None
        if not isinstance(self.interval, float | int):
            return self.interval()
        factor = 2.0 ** min(self.failures, MAX_DOUBLINGS)
        return self.interval * factor * random.uniform(1 - self._jitter, 1 + self._jitter)

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._seconds()):
                await self._wakeup.wait()
            if self._debounce:
                await asyncio.sleep(self._debounce)
        except TimeoutError:
            pass
        self._wakeup.clear()

    def _report(self, error: Exception) -> None:
        context = {"message": f"background work failed: {self.name}", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)


class RetryBackoff:
    """Exponential backoff for items that failed, such as sessions; each problem is reported once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: dict[str, tuple[float, float, str]] = {}  # next attempt, pause, problem

    def is_due(self, item: str) -> bool:
        """Return whether an item may be tried now."""
        failure = self._failures.get(item)
        return failure is None or failure[0] <= self._clock()

    def record_failure(self, item: str, problem: str) -> bool:
        """Record a failed attempt; return whether the problem is new and should be reported."""
        previous = self._failures.pop(item, None)
        pause = FIRST_PAUSE if previous is None else min(2 * previous[1], MAX_PAUSE)
        if len(self._failures) >= MAX_ITEMS:
            del self._failures[next(iter(self._failures))]
        self._failures[item] = (self._clock() + pause, pause, problem)
        return previous is None or previous[2] != problem

    def forget(self, item: str) -> None:
        """Forget the failures of an item that succeeded or was deleted."""
        self._failures.pop(item, None)
