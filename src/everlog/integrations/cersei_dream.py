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

from everlog.agent.memory_hook import make_ask
from everlog.memory.dream_state import ConsolidationState, count_new_sessions
from everlog.memory.file_memory import FileMemories, FileMemory
from everlog.memory.memory_directory import UndoResult
from everlog.ports import Provider
from everlog.ports.memory import DreamPlan, Verdict


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
        path = Path(memory_dir).expanduser()
        self.memories = FileMemory(FileMemories(path.parent, clock=clock), path)
        self.sessions_dir = Path(sessions_dir).expanduser()
        self._ask = None if provider is None else make_ask(provider, model)

    def verdict(self) -> Verdict:
        """Return whether a run is due, and why: checks hours, then sessions, then the lock."""
        return self.memories.dream_state.verdict(lambda since: count_new_sessions(self.sessions_dir, since))

    def should_consolidate(self) -> bool:
        """Return whether all three gates are open."""
        return self.verdict().ready

    @property
    def state(self) -> ConsolidationState:
        """The time of the last consolidation."""
        return self.memories.dream_state.state

    def acquire_lock(self) -> None:
        """Acquire the lock. Raises SessionBusyError, which names its holder; never waits."""
        self.memories.dream_state.acquire()

    def update_state(self) -> ConsolidationState:
        """Record that a consolidation was done now."""
        return self.memories.dream_state.record_run()

    def release_lock(self) -> None:
        """Release the lock, if it is ours."""
        self.memories.dream_state.release()

    def run(self) -> DreamPlan:
        """Consolidate now under the lock, whatever the gates say, and return the changes.

        Not for use in an event loop: await `run_async` there.
        """
        return asyncio.run(self.run_async())

    async def run_async(self) -> DreamPlan:
        """Consolidate now under the lock, in a running event loop, and return the changes."""
        return await self.memories.dream(self._ask)

    def undo(self) -> UndoResult:
        """Revert the last run; ConflictError if a file was edited since."""
        return self.memories.undo()
