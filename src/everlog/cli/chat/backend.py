"""The backend of a chat: a runtime in this process, or the daemon of the home.

Both have the same interface. Only operations that need a turn, or that emit events to other
clients, go through the backend; everything else uses the store, which processes can share.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from everlog.aio import AsyncSession, AsyncStore
from everlog.cli import output
from everlog.context.build import Context
from everlog.errors import NotFoundError
from everlog.wire.events import RunEvent
from everlog.wire.responses import AcceptedMessage

if TYPE_CHECKING:
    from everlog.agent.compactor import Outcome


class Disconnected(NamedTuple):
    """The connection to the backend was lost; stored messages are safe."""

    reason: str


class Reconnected(NamedTuple):
    """The connection is back."""

    run: str = ""  # the running turn, or none


StreamItem = RunEvent | Disconnected | Reconnected


class Backend(Protocol):
    """Runs turns and emits events. Every method raises only EverlogError."""

    store: AsyncStore
    events: asyncio.Queue[StreamItem]  # of the followed session, in order
    continued: set[str]  # sessions of other programs that the user has said to continue here
    description: str  # where turns run, for the user
    survives_exit: bool  # whether turns continue when this program exits

    async def follow(self, session: str) -> str:
        """Put the events of this session, and of no other, into `events` from now on.

        Returns the id of its running turn, which can be cancelled and whose end is emitted; or "".
        """

    async def create(self, *, agent: str, sender: str, model: str = "", title: str | None = None) -> AsyncSession:
        """Create a session; SettingsError, and no session, if its model is unusable."""

    async def discard(self, session: str) -> None:
        """Delete a session that was made for a turn which its provider refused."""

    async def use_model(self, session: str, model: str) -> None:
        """Change the session's model; SettingsError, and no change, if it is unusable."""

    async def submit(self, session: str, text: str) -> AcceptedMessage:
        """Send a message; it is durable on return."""

    async def cancel(self, session: str, run_id: str = "") -> bool:
        """Cancel a turn or a queued message; return whether there was one."""

    async def compact(self, session: str, focus: str) -> Outcome:
        """Summarise the older part of the session."""

    async def context(self, session: str) -> Context:
        """Return what the model would be sent."""

    async def rename(self, session: str, title: str) -> None:
        """Set the session's title."""

    async def rewind(self, session: str, to_seq: int) -> None:
        """Rewind to a message, or with 0 to the start."""

    def sessions_stopped_on_exit(self) -> list[str]:
        """Return the sessions whose turns are stopped when this program exits."""

    async def close(self) -> None:
        """Stop and record what runs in this process, and close the store."""


async def find_backend(home: Path, location: str | None) -> Backend:
    """Return the daemon if one is running, else a runtime in this process.

    A location that the user selected may be unknown to the daemon, so its sessions are always run
    in this process. The turn lease keeps both from running a turn in the same session at once.
    """
    if location is None:
        try:
            return await open_daemon_backend(home)
        except NotFoundError:
            pass
    return open_local_backend(home, location)


async def open_daemon_backend(home: Path) -> Backend:
    """Connect to the daemon of a home; NotFoundError if none is running."""
    from everlog.cli.chat.daemon_backend import DaemonBackend, find_daemon

    address = await find_daemon(home)
    from everlog.app import open_async_store

    return DaemonBackend(home, address, open_async_store(home=home))


def open_local_backend(home: Path, location: str | None) -> Backend:
    """Open a runtime in this process."""
    from everlog.app import open_runtime
    from everlog.cli.chat.local_backend import LocalBackend

    with output.progress("indexing sessions") as on_progress:
        return LocalBackend(open_runtime(location, home=home, progress=on_progress))
