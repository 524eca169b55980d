"""The files that record when a memory was last consolidated, and which process does it now.

    .consolidation_state.json   {"last_consolidated_at": 1712150400, "lock_etag": null}
    .consolidation_lock         1712150400
                                host 4711
                                823745          (start of that process, where the system tells it)

Both formats are Cersei's, which writes a lock of one line that is valid for an hour. Ours also
names its holder: the lock is held as long as that process lives and free as soon as it is gone.
The lock file is created together with its content, in one step, so only one process can get it.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import msgspec

from everlog.errors import SessionBusyError
from everlog.memory import transaction
from everlog.ports.memory import Verdict
from everlog.stores.file import disk
from everlog.stores.file.json_file import JsonFile

MIN_HOURS = 24
MIN_SESSIONS = 5
STALE_SECONDS = 3_600
_DAY = 86_400
_GUARD_SECONDS = 5.0  # that a reader or writer of these files waits for another one
_STATE_FILE, _LOCK_FILE = ".consolidation_state.json", ".consolidation_lock"
_PART = re.compile(r"(?<=.)_part\d+$")


class ConsolidationState(msgspec.Struct, frozen=True):
    """The content of `.consolidation_state.json`."""

    last_consolidated_at: int | None = None  # Unix time
    lock_etag: None = None


def check_gates(
    state: ConsolidationState,
    now: float,
    count_sessions: Callable[[int], int],
    lock_holder: Callable[[], str],
    *,
    min_hours: float = MIN_HOURS,
    min_sessions: int = MIN_SESSIONS,
) -> Verdict:
    """Check the three gates, cheapest first; the first closed one decides.

    `count_sessions(since)` counts the sessions written after a Unix time; `lock_holder()` returns
    who holds the lock, or nothing.
    """
    since = last_run(state, now)
    if since is not None and now - since < min_hours * 3600:
        hours = max((now - since) / 3600, 0.0)
        return Verdict(False, f"{hours:.1f} of {min_hours:g} hours since the last dream")
    count = count_sessions(since or 0)
    if count < min_sessions:
        return Verdict(False, f"{count} of {min_sessions} new sessions since the last dream")
    holder = lock_holder()
    if holder:
        return Verdict(False, f"another dream is running: {holder}")
    return Verdict(True, f"{count} new sessions")


def last_run(state: ConsolidationState, now: float) -> int | None:
    """Return when the last dream was; a time far in the future is a clock error, so None."""
    last = state.last_consolidated_at
    return None if last is None or last - now > _DAY else last


class DreamStateFiles:
    """The state file and the lock file of one memory."""

    def __init__(
        self, path: str | os.PathLike[str], clock: Callable[[], float] = time.time, host: str | None = None
    ) -> None:
        self.path = Path(path)
        self._clock = clock
        self._host = (host or socket.gethostname() or "localhost").replace(" ", "_")
        self._lock_content = b""  # the lock as we wrote it

    def verdict(
        self, count_sessions: Callable[[int], int], *, min_hours: float = MIN_HOURS, min_sessions: int = MIN_SESSIONS
    ) -> Verdict:
        """Return whether the gates are open; `count_sessions(since)` counts newer sessions."""
        now = self._clock()
        return check_gates(self.state, now, count_sessions, self.holder, min_hours=min_hours, min_sessions=min_sessions)

    @property
    def state(self) -> ConsolidationState:
        """Return when the last consolidation was; an unreadable file counts as never."""
        file: JsonFile[ConsolidationState] = JsonFile(self.path / _STATE_FILE, ConsolidationState)
        return file.load(ConsolidationState())

    def record_run(self) -> ConsolidationState:
        """Record that a consolidation was completed now. Durable on return."""
        state = ConsolidationState(last_consolidated_at=int(self._clock()))
        content = msgspec.json.format(msgspec.json.encode(state), indent=2)
        with self._open_locked() as folder:
            disk.replace_small_file(_STATE_FILE, content, folder, durable=True)
        return state

    # --- the lock

    def holder(self) -> str:
        """Return who holds the lock, or nothing."""
        try:
            return self._parse_holder((self.path / _LOCK_FILE).read_bytes())
        except FileNotFoundError:
            return ""

    def acquire(self) -> None:
        """Acquire the lock; SessionBusyError names its holder."""
        with self._open_locked() as folder:
            with suppress(FileNotFoundError):
                content = disk.read_small_file(_LOCK_FILE, folder)
                if holder := self._parse_holder(content):
                    raise SessionBusyError(
                        f"another consolidation is running: {holder}", hint="try again when it has finished"
                    )
                os.unlink(_LOCK_FILE, dir_fd=folder)  # its process is gone, or it has expired
            owner = f"{self._host} {os.getpid()}\n{_process_start(os.getpid())}"
            lock_content = f"{int(self._clock())}\n{owner}".rstrip("\n").encode() + b"\n"
            temporary = f"{_LOCK_FILE}.{os.getpid()}.tmp"
            disk.replace_small_file(temporary, lock_content, folder, durable=False)
            try:
                os.link(temporary, _LOCK_FILE, src_dir_fd=folder, dst_dir_fd=folder)
            except FileExistsError:  # a program that does not use our flock was faster
                raise SessionBusyError("another consolidation has just started") from None
            finally:
                os.unlink(temporary, dir_fd=folder)
            self._lock_content = lock_content

    def release(self) -> None:
        """Release the lock, if it is still ours."""
        with self._open_locked() as folder:
            with suppress(FileNotFoundError):
                content = self._lock_content
                if content and disk.read_small_file(_LOCK_FILE, folder) == content:
                    os.unlink(_LOCK_FILE, dir_fd=folder)
            self._lock_content = b""

    def _parse_holder(self, content: bytes) -> str:
        rows = content.decode("utf-8", "replace").split("\n")
        owner = rows[1].strip() if len(rows) > 1 else ""
        host, _, pid = owner.rpartition(" ")
        if host and pid.isdigit() and host == self._host:
            started = rows[2].strip() if len(rows) > 2 else ""
            current = _process_start(pid)  # another process may have got the number meanwhile
            same = not (started and current) or started == current
            return f"process {pid}" if disk.is_running(pid) and same else ""
        acquired = rows[0].strip()
        if re.fullmatch(r"\d{1,15}", acquired):
            acquired_at = float(acquired)
        else:
            try:
                acquired_at = (self.path / _LOCK_FILE).stat().st_mtime
            except OSError:
                return ""  # released in the meantime
        # abs(): if the clock went back, a lock from the future expires as well.
        stale = abs(self._clock() - acquired_at) >= STALE_SECONDS
        return "" if stale else owner or f"since {acquired}"

    def _open_locked(self) -> AbstractContextManager[int]:
        return transaction.open_locked(self.path, _GUARD_SECONDS)


def _process_start(pid: int | str) -> str:
    """Return when a process started, in the system's unit; nothing where it is unknown."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat_file:
            return stat_file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def count_new_sessions(directory: Path, since: int) -> int:
    """Count the sessions in a directory written after a Unix time, in whole seconds.

    Both layouts: `ID.jsonl` with its parts (one session, however many), and a directory for each.
    """
    sessions: set[str] = set()
    for log in (*directory.glob("*.jsonl"), *directory.glob("*/*.jsonl")):
        with suppress(OSError):  # removed in the meantime
            if int(log.stat().st_mtime) > since:
                sessions.add(_PART.sub("", log.stem) if log.parent == directory else log.parent.name)
    return len(sessions)
