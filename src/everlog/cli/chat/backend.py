"""Whom a conversation is with: a runtime in this process, or the daemon that runs for the root.

Both are used in the same way. Only what needs a turn, or what others who watch must hear of, goes
through the partner; everything else is read from the store, which any number of processes share.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple, Protocol

from everlog.aio import AsyncSession, AsyncStore
from everlog.cli import output
from everlog.context.build import Context
from everlog.errors import NotFoundError
from everlog.wire.events import RunEvent
from everlog.wire.responses import Accepted, Compacted


class Away(NamedTuple):
    """The partner does not answer any more; nothing that is stored is lost."""

    reason: str


class Back(NamedTuple):
    """It answers again."""

    run: str = ""  # the turn under way in it, or none


Told = RunEvent | Away | Back


class Partner(Protocol):
    """What answers. Every verb raises errors of ours."""

    store: AsyncStore
    events: asyncio.Queue[Told]  # of the session that is followed, in their order
    place: str  # where turns run, in words
    stays: bool  # whether turns go on when this program ends

    async def follow(self, session: str) -> str:
        """Put the events of this session, and of no other, into `events` from now on.

        Returns the turn that is under way in it and can be stopped, or nothing; its end is told.
        """

    async def create(self, *, agent: str, sender: str, model: str) -> AsyncSession:
        """Make a session for a model; SettingsError, and none is made, if it cannot be used."""

    async def use_model(self, session: str, model: str) -> None:
        """Let another model answer; SettingsError, and nothing changes, if it cannot be used."""

    async def submit(self, session: str, text: str) -> Accepted:
        """Say something: durable when this returns."""

    async def cancel(self, session: str, run_id: str = "") -> bool:
        """Stop a turn, or take a waiting message back; whether there was one."""

    async def compact(self, session: str, focus: str) -> Compacted:
        """Summarise the older part of the session."""

    async def context(self, session: str) -> Context:
        """What the model would be sent."""

    async def rename(self, session: str, title: str) -> None:
        """Give the session a title."""

    async def rewind(self, session: str, to_seq: int) -> None:
        """Go back to a message, or with 0 to the start."""

    def ending(self) -> list[str]:
        """Sessions whose turns are stopped when this program ends."""

    async def close(self) -> None:
        """End what runs here, recorded; the store is closed."""


async def find_partner(
    root: Path, foreign: tuple[Path, str] | None, store: str | None = None
) -> Partner:
    """The daemon if one runs, else a runtime here.

    Sessions of another program, or in a database, that the user named need not be among the
    daemon's: they are talked to here. The turn lease keeps both from answering in one session at
    once.
    """
    if foreign is None and store is None:
        try:
            return await open_remote(root)
        except NotFoundError:
            pass
    return open_local(root, foreign, store)


async def open_remote(root: Path) -> Partner:
    """The daemon of a root; NotFoundError if none runs."""
    from everlog.cli.chat.daemon_backend import Remote, running

    address = await running(root)
    from everlog.app import open_async_store

    return Remote(root, address, open_async_store(root))


def open_local(root: Path, foreign: tuple[Path, str] | None, store: str | None = None) -> Partner:
    """A runtime in this process."""
    from everlog.app import open_runtime
    from everlog.cli.chat.local_backend import Local

    where, dialect = (str(foreign[0]), foreign[1]) if foreign is not None else (store, "native")
    with output.progress("indexing sessions") as tell:
        return Local(open_runtime(root, store=where, dialect=dialect, progress=tell))
