"""Cersei's `AutoDream`: the consolidation of a memory directory, on Cersei's files.

    dream = AutoDream("~/.claude/projects/x/memory", "~/.claude/projects/x")
    if dream.should_consolidate():
        dream.run()

Gates, state and lock are Cersei's, so that each program sees the other's runs. The changes of a run
are planned first, made in one transaction, and can be reverted with `undo`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

from everlog.memory.dream import ConsolidationState, Verdict
from everlog.memory.dream_plan import DreamPlan
from everlog.memory.dream_state import count_new_sessions
from everlog.memory.extraction_run import Dream, make_ask
from everlog.memory.memory_directory import MemoryDirectory, UndoResult
from everlog.ports import Provider


class AutoDream:
    """The consolidation of one memory directory, by rules unless a provider is given."""

    def __init__(
        self,
        memory_dir: str | os.PathLike[str],
        sessions_dir: str | os.PathLike[str],
        *,
        provider: Provider | None = None,
        model: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.memories = MemoryDirectory(Path(memory_dir).expanduser(), clock)
        self.sessions_dir = Path(sessions_dir).expanduser()
        self._dream = Dream(self.memories, clock=clock)
        self._ask = None if provider is None else make_ask(provider, model)

    def verdict(self) -> Verdict:
        """Return whether a run is due, and why: checks hours, then sessions, then the lock."""
        return self._dream.state_files.verdict(lambda since: count_new_sessions(self.sessions_dir, since))

    def should_consolidate(self) -> bool:
        """Return whether all three gates are open."""
        return self.verdict().ready

    @property
    def state(self) -> ConsolidationState:
        """The time of the last consolidation."""
        return self._dream.state_files.state

    def acquire_lock(self) -> None:
        """Acquire the lock. Raises SessionBusyError, which names its holder; never waits."""
        self._dream.state_files.acquire()

    def update_state(self) -> ConsolidationState:
        """Record that a consolidation was done now."""
        return self._dream.state_files.record_run()

    def release_lock(self) -> None:
        """Release the lock, if it is ours."""
        self._dream.state_files.release()

    def run(self) -> DreamPlan:
        """Consolidate now under the lock, whatever the gates say, and return the changes.

        Not for use in an event loop: await `run_async` there.
        """
        return asyncio.run(self.run_async())

    async def run_async(self) -> DreamPlan:
        """Consolidate now under the lock, in a running event loop, and return the changes."""
        return await self._dream.run(self._ask)

    def undo(self) -> UndoResult:
        """Revert the last run; ConflictError if a file was edited since."""
        return self.memories.undo()
