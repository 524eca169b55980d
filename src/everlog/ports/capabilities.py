"""What some stores can do beside keeping sessions: ask a store with `store.capability(Watchable)`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from everlog.errors import NotFoundError
from everlog.model import Damaged, Entry, Metadata
from everlog.ports.access import SessionAccess
from everlog.ports.queries import DiskUsage
from everlog.ports.store import Progress, Store


class Reporting(Protocol):
    """A store that reports what it did or could not do outside of a caller's sight."""

    @property
    def reports(self) -> Sequence[str]:
        """Actions of recovery, and errors that failed no call; the newest thousand."""
        ...


class Watchable(Protocol):
    """A store that notices changes by any program."""

    def watch(self, stop: threading.Event) -> Iterator[frozenset[str]]:
        """Yield sessions as any program changes them, their rows updated; ends with `stop`."""
        ...


class SweepResult(msgspec.Struct, frozen=True):
    """The counts of a sweep."""

    sessions: int
    refreshed: int
    removed: int


class Sweepable(Protocol):
    """A store with an index that can be compared with its logs."""

    def sweep(self, progress: Progress | None = None) -> SweepResult:
        """Bring the index in line with every log, whoever wrote to it."""
        ...

    def leftovers(self) -> Sequence[str]:
        """Return what crashes left behind, which is safe to delete."""
        ...


class Purgeable(Protocol):
    """A store in which text of deleted sessions may be left."""

    def purge(self) -> int:
        """Remove what is left of sessions that were deleted; return of how many.

        A crash may have left it, or another program may have deleted the files of its sessions.
        """
        ...


class SkippedFile(msgspec.Struct, frozen=True):
    """A file in the directory of a store that is not taken as a session."""

    path: str  # relative to the directory
    reason: str


class DirectoryBacked(Protocol):
    """A store on directories that may hold files which are not sessions."""

    def skipped_files(self) -> Sequence[SkippedFile]:
        """Return every file that is neither a session nor part of one, with the reason."""
        ...


class Permitting(Protocol):
    """A store with sessions that not everything can be done with."""

    def access(self, session: str) -> SessionAccess:
        """Return what may be done with a session."""
        ...


class Copying(Protocol):
    """A store beside which sessions of other programs are shown."""

    def copy_session(self, session: str) -> str:
        """Copy a session of another program into the store, and return the id of the copy. Durable on return.

        A copy that was made before is brought up to date, unless it was continued meanwhile.
        """
        ...


class FileBacked(Protocol):
    """A store whose sessions are files."""

    def paths(self, session: str) -> Sequence[Path]:
        """Return the paths of a session's files, or of the directory that has them all."""
        ...


class Reclaimable(Protocol):
    """A store on files with lines that their program skips."""

    def reclaim(self, session: str) -> int:
        """Remove the lines that the session's program skips; returns the bytes freed.

        The files are backed up before. UnsupportedError if the session's format has no such lines.
        """
        ...


class Measurable(Protocol):
    """A store that knows how much space it uses."""

    def disk_usage(self, biggest: int = 10) -> DiskUsage:
        """Return the number and size of sessions, and the size of what holds them."""
        ...


class RawLine(NamedTuple):
    """One line of a log."""

    part: int
    seq: int  # its own; for an unreadable line one that is free at its position
    body: bytes  # without its newline
    entry: Entry  # what it decodes to

    def is_same(self, other: RawLine) -> bool:
        """Return whether both have the same bytes in the same part."""
        return self.body == other.body and self.part == other.part


class RawReadable(Protocol):
    """A store that can return its lines without decoding them."""

    def raw_lines(self, session: str, *, after: int = 0) -> Iterator[bytes]:
        """Iterate over the bytes of the lines above a seq, damaged ones too, in pieces of any length.

        They are read from where they are stored. Nothing is returned if the first line is not found.
        """
        ...


class Transferable(Store, Protocol):
    """A store that whole sessions can be copied from and to."""

    def ids(self) -> Iterator[str]:
        """Yield the ids of all sessions, oldest first, also those that no listing shows."""
        ...

    def lines(self, session: str) -> Iterator[RawLine | Damaged]:
        """Return the exact lines of a session; Damaged stands for a line that cannot be copied."""
        ...

    def adopt(self, source: Metadata, lines: Callable[[], Iterator[RawLine]], after: int | None = None) -> None:
        """Add a session, or its lines after the last one here, `after`. Durable on return.

        All or nothing, except for a crash while lines are appended. Raises ConflictError if the
        session exists already, or has grown meanwhile. `lines` may be called more than once.
        """
        ...


class ChangeSubscription(Protocol):
    """A subscription to appends of other processes; notifications may be late or lost."""

    def watch(self, sessions: Collection[str]) -> None:
        """Watch these sessions from now on, in place of those before."""
        ...

    def stop(self) -> None:
        """End the subscription."""
        ...


class SharedBetweenMachines(Protocol):
    """A store that processes on several machines use at once: unowned turns, notifications, jobs.

    Its methods wait and fail as those of the store do.
    """

    @property
    def address(self) -> str:
        """The location of the store, without a password."""
        ...

    @property
    def lease_seconds(self) -> float:
        """Seconds after which the lease of a silent process expires."""
        ...

    def unowned(self, limit: int) -> list[str]:
        """Return sessions that may be unfinished and whose turn nobody holds, in any order."""
        ...

    def heads(self, sessions: Collection[str]) -> dict[str, int]:
        """Return the last seq of each of these sessions that exists."""
        ...

    def listen(self, on_change: Callable[[frozenset[str]], None]) -> ChangeSubscription:
        """Call `on_change`, in a thread, with sessions that other processes appended to.

        An empty set means that any session may have changed.
        """
        ...

    def take_due(self, job: str, due: int) -> bytes | None:
        """Claim the run of a job that is due at a time in milliseconds; returns the job's state.

        None if another process has claimed it: of any number of calls for one time, one succeeds.
        ConflictError if the shared clock has not reached that time. Durable on return.
        """
        ...

    def jobs(self) -> dict[str, bytes]:
        """Return the state of each job."""
        ...

    def change_job(self, job: str, change: Callable[[bytes], bytes]) -> bytes:
        """Change the state of a job atomically, by a function of its state. Durable on return."""
        ...


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """The route of a message: the facts by which its session is found, or made."""

    agent: str
    sender: str = ""  # empty: unknown
    key: str  # of the scope, or the explicit one that came with the message
    is_explicit: bool = False  # the key came with the message
    name: str = ""  # another name that came with the message
    aliases: tuple[str, ...] = ()  # that the session may claim: of a main session its own, else never that
    scope: dict[str, Any] = {}
    is_main: bool = False  # for the main session of the agent, which belongs to no sender

    @property
    def origin(self) -> str:
        """The channel and the account that the sender's id is of."""
        return f"{self.scope.get('channel', '')}/{self.scope.get('account', '')}"


class Routing(Protocol):
    """A store that finds the session of a message by the rules of its format, and makes new ones by them."""

    @property
    def dimensions(self) -> tuple[str, ...] | None:
        """The only dimensions that can separate sessions here; None: any."""
        ...

    @property
    def default_agent(self) -> str:
        """The agent of messages if the settings name none; empty: ours."""
        ...

    def prepare(self) -> None:
        """Get ready for messages: convert what an earlier version of the program left, as it would."""
        ...

    def find_session(self, route: Route) -> str | None:
        """Return the session that a message goes to, or None if its session is yet to be made."""
        ...

    def route_to_session(self, route: Route, fields: Mapping[str, Any], *, new_chat: bool = False) -> str:
        """Return the session that a message goes to, made if need be. Durable on return.

        `fields` is further metadata of a new session; `new_chat` makes the next chat and makes it the
        current one. UnsupportedError for what the format cannot hold.
        """
        ...


CAPABILITIES: tuple[type, ...] = (
    Reporting,
    Watchable,
    Sweepable,
    Permitting,
    Copying,
    Purgeable,
    FileBacked,
    Reclaimable,
    Measurable,
    RawReadable,
    Transferable,
    SharedBetweenMachines,
    Routing,
)


def access_of(store: Store, session: str) -> SessionAccess:
    """Return what may be done with a session of a store."""
    permitting = store.capability(Permitting)
    return SessionAccess() if permitting is None else permitting.access(session)


def listed_access(store: Store, session: str) -> SessionAccess:
    """Return what may be done with a session of a listing, also if it was deleted since."""
    try:
        return access_of(store, session)
    except NotFoundError:
        return SessionAccess()
