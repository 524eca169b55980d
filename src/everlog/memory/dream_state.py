"""The files that say when a memory was last consolidated, and who does it now.

    .consolidation_state.json   {"last_consolidated_at": 1712150400, "lock_etag": null}
    .consolidation_lock         1712150400
                                host 4711
                                823745          (when that process started, where it can be told)

Both are Cersei's, which writes a lock of one line and lets it count for an hour. Ours says who
holds it: it is free as soon as that process is gone, and held as long as it lives. The lock comes
into being with its content, in one step, so of two processes one has it.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from everlog.errors import SessionBusyError
from everlog.memory import dream
from everlog.memory.dream import State
from everlog.stores.file import disk

STALE_SECONDS = 3_600
_STATE, _LOCK, _GUARD = ".consolidation_state.json", ".consolidation_lock", ".lock"
_PART = re.compile(r".+_part\d+\.jsonl")


class Consolidation:
    """The two files of one memory's directory."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        clock: Callable[[], float] = time.time,
        host: str | None = None,
    ) -> None:
        self.path = Path(path)
        self._clock = clock
        self._host = (host or socket.gethostname() or "localhost").replace(" ", "_")
        self._held = b""  # the lock as we wrote it

    def verdict(
        self,
        sessions: Callable[[int], int],
        *,
        hours: float = dream.HOURS,
        least: int = dream.SESSIONS,
    ) -> dream.Verdict:
        """Whether the gates are open; `sessions(since)` counts those written after a time."""
        now = self._clock()
        return dream.gate(self.state, now, sessions, self.holder, hours=hours, least=least)

    @property
    def state(self) -> State:
        """When the last one was. What cannot be read counts as never."""
        try:
            return msgspec.json.decode((self.path / _STATE).read_bytes(), type=State)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return State()

    def update(self) -> State:
        """A consolidation is done now. Durable on return."""
        made = State(last_consolidated_at=int(self._clock()))
        content = msgspec.json.format(msgspec.json.encode(made), indent=2)
        with self._guarded() as folder:
            disk.put(_STATE, content, folder, durable=True)
        return made

    # --- the lock

    def holder(self) -> str:
        """Who holds the lock, or nothing."""
        try:
            return self._holder((self.path / _LOCK).read_bytes())
        except FileNotFoundError:
            return ""

    def acquire(self) -> None:
        """Take the lock; SessionBusyError names who has it."""
        with self._guarded() as folder:
            with suppress(FileNotFoundError):
                content = disk.get(_LOCK, folder)
                if holder := self._holder(content):
                    raise SessionBusyError(
                        f"another consolidation is under way: {holder}",
                        hint="try again when it has finished",
                    )
                os.unlink(_LOCK, dir_fd=folder)  # its process is gone, or its hour is over
            who = f"{self._host} {os.getpid()}\n{_started(os.getpid())}"
            mine = f"{int(self._clock())}\n{who}".rstrip("\n").encode() + b"\n"
            temporary = f"{_LOCK}.{os.getpid()}.tmp"
            disk.put(temporary, mine, folder, durable=False)
            try:
                os.link(temporary, _LOCK, src_dir_fd=folder, dst_dir_fd=folder)
            except FileExistsError:  # a program that does not know our guard was faster
                raise SessionBusyError("another consolidation has just begun") from None
            finally:
                os.unlink(temporary, dir_fd=folder)
            self._held = mine

    def release(self) -> None:
        """Give the lock back; one that is not ours (any more) stays."""
        with self._guarded() as folder:
            with suppress(FileNotFoundError):
                if self._held and disk.get(_LOCK, folder) == self._held:
                    os.unlink(_LOCK, dir_fd=folder)
            self._held = b""

    def _holder(self, content: bytes) -> str:
        rows = content.decode("utf-8", "replace").split("\n")
        who = rows[1].strip() if len(rows) > 1 else ""
        host, _, pid = who.rpartition(" ")
        if host and pid.isdigit() and host == self._host:
            started = rows[2].strip() if len(rows) > 2 else ""
            return f"process {pid}" if _lives(int(pid), started) else ""
        when = rows[0].strip()
        if re.fullmatch(r"\d{1,15}", when):
            begun = float(when)
        else:
            try:
                begun = (self.path / _LOCK).stat().st_mtime
            except OSError:
                return ""  # given back meanwhile
        # Also when the clock went back: a lock from the future counts for its hour and no longer.
        return (who or f"since {when}") if abs(self._clock() - begun) < STALE_SECONDS else ""

    @contextmanager
    def _guarded(self) -> Iterator[int]:
        """The directory, under the same flock as all writing of ours."""
        with disk.errors_mapped(f"memory {self.path.name}"):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder = disk.open_directory(os.fspath(self.path))
            try:
                guard = disk.open_file(_GUARD, os.O_RDWR | os.O_CREAT, folder)
                try:
                    disk.lock(guard, 5.0, f"the memory {self.path.name}")
                    yield folder
                finally:
                    os.close(guard)
            finally:
                os.close(folder)


def _started(pid: int) -> str:
    """When a process started, as the system counts it; nothing where it does not tell."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as told:
            return told.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _lives(pid: int, started: str) -> bool:
    """Whether the process that took the lock is there, and is still the same one."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    now = _started(pid)
    return not (started and now) or started == now


def new_sessions(directory: Path, since: int) -> int:
    """How many sessions in a directory were written after a Unix time, in whole seconds.

    Both layouts: `ID.jsonl` with its parts (one session, however many), and a directory for each.
    """
    found: set[str] = set()
    try:
        entries = list(os.scandir(directory))
    except OSError:
        return 0
    for entry in entries:
        with suppress(OSError):
            if entry.is_dir(follow_symlinks=False):
                logs = [one for one in os.scandir(entry.path) if one.name.endswith(".jsonl")]
            elif entry.name.endswith(".jsonl"):
                logs = [entry]
            else:
                continue
            newest = max((int(one.stat().st_mtime) for one in logs), default=0)
            if logs and newest > since:
                name = entry.name.removesuffix(".jsonl")
                if _PART.fullmatch(entry.name):
                    name = entry.name.rpartition("_part")[0]
                found.add(name)
    return len(found)
