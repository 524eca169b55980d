"""Background tasks: they repeat, are woken, report failures, wait longer after them, and stop."""

from __future__ import annotations

import asyncio
from typing import Any

from everlog.runtime.background_task import BackgroundTask


async def until(count: int, runs: list[float]) -> None:
    async with asyncio.timeout(60):
        while len(runs) < count:
            await asyncio.sleep(0.001)


def test_work_is_repeated_until_it_is_stopped() -> None:
    async def scenario() -> None:
        runs: list[float] = []

        async def work() -> None:
            runs.append(0.0)

        task = BackgroundTask("test", work, interval=0.001)
        task.start()
        task.start()  # it runs once
        await until(3, runs)
        await task.stop()
        count = len(runs)
        await asyncio.sleep(0.01)
        assert len(runs) == count and task.is_stopped
        task.start()
        await until(count + 1, runs)
        await task.stop()

    asyncio.run(scenario())


def test_without_an_interval_it_waits_until_it_is_woken() -> None:
    async def scenario() -> None:
        runs: list[float] = []

        async def work() -> None:
            runs.append(0.0)

        task = BackgroundTask("test", work)
        task.start()
        await asyncio.sleep(0.01)
        assert runs == []
        task.wake()
        await until(1, runs)
        await asyncio.sleep(0.01)
        assert len(runs) == 1
        await task.stop()

    asyncio.run(scenario())


def test_a_failure_is_reported_and_the_next_waits_are_longer() -> None:
    async def scenario() -> None:
        waits: list[float] = []
        reported: list[Exception] = []
        fails = True

        class Waiting(BackgroundTask):
            """Notes how long it would wait, and does not."""

            async def _wait(self) -> None:
                waits.append(self._seconds() or 0)
                await asyncio.sleep(0)

        async def work() -> None:
            if fails:
                raise OverflowError("too large")

        task = Waiting("test", work, interval=1.0, on_failure=reported.append)
        task.start()
        await until(5, waits)
        assert waits[:5] == [1, 2, 4, 4, 4]
        assert task.failures >= 4 and task.problem == "OverflowError: too large"
        fails = False
        await until(len(waits) + 3, waits)
        assert (task.failures, task.problem, waits[-1]) == (0, "", 1)
        assert all(isinstance(error, OverflowError) for error in reported)
        await task.stop()

    asyncio.run(scenario())


def test_a_failure_that_nobody_handles_goes_to_the_event_loop() -> None:
    async def scenario() -> None:
        reported: list[dict[str, Any]] = []
        done = asyncio.Event()

        def handle(_: asyncio.AbstractEventLoop, what: dict[str, Any]) -> None:
            reported.append(what)
            done.set()

        asyncio.get_running_loop().set_exception_handler(handle)

        async def work() -> None:
            raise ValueError("no")

        task = BackgroundTask("test", work)
        task.start()
        task.wake()
        await asyncio.wait_for(done.wait(), 60)
        assert "test" in reported[0]["message"] and isinstance(reported[0]["exception"], ValueError)
        await task.stop()

    asyncio.run(scenario())


def test_a_run_in_progress_is_cancelled_by_the_stop() -> None:
    async def scenario() -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            begun.set()
            try:
                await asyncio.sleep(60)
            finally:
                ended.set()

        task = BackgroundTask("test", work, interval=0.0)
        task.start()
        await asyncio.wait_for(begun.wait(), 60)
        await task.stop()
        assert ended.is_set()

    asyncio.run(scenario())
