"""The steps of a start that write to the home; a full disk delays them, and the daemon serves meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from everlog.daemon.json_log import log_event
from everlog.errors import StoreFullError
from everlog.runtime.background_task import BackgroundTask

RETRY_SECONDS = 1.0

Step = Callable[[], Awaitable[None]]


class StartupSteps:
    """Steps that are done at once, or as soon as there is room on the disk."""

    def __init__(self) -> None:
        self._delayed: dict[str, Step] = {}
        self.task = BackgroundTask("start", self._run_delayed, interval=RETRY_SECONDS, on_failure=_log_failure)

    async def run(self, name: str, step: Step) -> None:
        """Do a step; on a full disk it is logged and done later."""
        try:
            await step()
        except StoreFullError as error:
            log_event("start_delayed", level="warning", step=name, error=error.message)
            self._delayed[name] = step
            self.task.start()

    async def _run_delayed(self) -> None:
        for name, step in tuple(self._delayed.items()):
            await step()
            del self._delayed[name]
            log_event("start_completed", step=name)


def _log_failure(error: Exception) -> None:
    if not isinstance(error, StoreFullError):  # which was logged at the start
        log_event("start_failed", level="error", error=str(error))
