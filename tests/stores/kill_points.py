"""A process that changes a memory and is killed at its n-th system call, for any n.

    python -m tests.stores.kill_points     reads lines {"path", "how", "limit", "changes"}, answers with
                                     how each run ended: 0, or minus the signal

Each run is a fork, so that hundreds of them are cheap. Counted are the calls that change something
on disk; a write that is killed has written half.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from everlog.memory.memory_directory import MemoryDirectory
from everlog.ports.memory import Change, DreamPlan
from everlog.stores.file import disk

CALLS = ("write", "rename", "unlink", "mkdir", "rmdir", "open", "link")


def naively(path: Path, plan: DreamPlan) -> None:
    """The twin: file by file, each atomically, without a decision for all of them."""
    folder = disk.open_directory(os.fspath(path))
    for change in plan.changes:
        if change.after is None:
            os.unlink(change.path, dir_fd=folder)
        else:
            disk.replace_small_file(change.path, change.after.encode(), folder, durable=True)
    os.close(folder)


def arm(limit: int) -> None:
    """From now on the n-th call is the last."""
    calls = 0
    write = os.write

    def deadly(call: Callable[..., Any]) -> Callable[..., Any]:
        def made(*given: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == limit:
                if call is write:
                    write(given[0], bytes(given[1])[: len(given[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*given, **named)

        return made

    for name in CALLS:
        setattr(os, name, deadly(getattr(os, name)))


def run(path: str, how: str, limit: int, changes: list[Any]) -> None:
    """What one child does."""
    plan = DreamPlan(msgspec.convert(changes, tuple[Change, ...]))
    memory = MemoryDirectory(path, clock=lambda: 1.0)
    ways: dict[str, Callable[[], object]] = {
        "apply": lambda: memory.apply(plan),
        "undo": memory.undo,
        "read": memory.files,
        "naive": lambda: naively(Path(path), plan),
    }
    does = ways[how]
    arm(limit)
    does()


def main() -> None:
    """Answer until nobody asks any more."""
    for line in sys.stdin:
        child = os.fork()
        if not child:
            try:
                run(**json.loads(line))
            except BaseException as error:
                sys.stderr.write(f"{error!r}\n")
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
