"""Cersei's `AutoDream`: the consolidation of a memory directory, on its files.

    dream = AutoDream("~/.claude/projects/x/memory", "~/.claude/projects/x")
    if dream.should_consolidate():
        dream.run()

Gates, state and lock are Cersei's, so that either program sees what the other did. What a run
changes is planned first, made at once, and can be taken back with `undo`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

from everlog.memory.dream import State, Verdict
from everlog.memory.dream_plan import Plan
from everlog.memory.dream_state import new_sessions
from everlog.memory.extraction_run import Dream, asking
from everlog.memory.memory_directory import Memories, Undone
from everlog.ports import Provider


class AutoDream:
    """The consolidation of one memory, by rules unless a provider is given."""

    def __init__(
        self,
        memory_dir: str | os.PathLike[str],
        sessions_dir: str | os.PathLike[str],
        *,
        provider: Provider | None = None,
        model: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.memories = Memories(Path(memory_dir).expanduser(), clock)
        self.sessions_dir = Path(sessions_dir).expanduser()
        self._dream = Dream(self.memories, clock=clock)
        self._ask = None if provider is None else asking(provider, model)

    def verdict(self) -> Verdict:
        """Whether it is time, and why or why not: hours, then sessions, then the lock."""
        return self._dream.files.verdict(lambda since: new_sessions(self.sessions_dir, since))

    def should_consolidate(self) -> bool:
        """Whether all three gates are open."""
        return self.verdict().ready

    @property
    def state(self) -> State:
        """When the last consolidation was."""
        return self._dream.files.state

    def acquire_lock(self) -> None:
        """Take the lock; SessionBusyError names who has it."""
        self._dream.files.acquire()

    def update_state(self) -> State:
        """Record that a consolidation is done now."""
        return self._dream.files.update()

    def release_lock(self) -> None:
        """Give the lock back, if it is ours."""
        self._dream.files.release()

    def run(self) -> Plan:
        """Consolidate now, whatever the gates say, under the lock; what was changed and why.

        For code that is not asynchronous; a coroutine awaits `run_async`.
        """
        return asyncio.run(self.run_async())

    async def run_async(self) -> Plan:
        """The same in a running loop."""
        return await self._dream.run(self._ask)

    def undo(self) -> Undone:
        """Take the last run back; ConflictError if a file was edited since."""
        return self.memories.undo()
