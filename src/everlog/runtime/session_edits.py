"""Edits of sessions other than by messages, made in one place and reported as events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec import UNSET, UnsetType

from everlog.aio import AsyncSession
from everlog.model import Metadata, Rewind, Tombstone
from everlog.wire.events import SessionChanged, SessionRenamed, Sink

Marker = TypeVar("Marker", Rewind, Tombstone)


class SessionEdits:
    """Changes to sessions, each emitted to the followers of a runtime.

    A session of another program beside the store is not changed unless the user has said to
    `continue_here`: UnconfirmedError.
    """

    def __init__(self, emit: Sink, wait_for_release: Callable[[str], Awaitable[None]]) -> None:
        """Await `wait_for_release` before edits that need the lease: a turn may be releasing it."""
        self._emit = emit
        self._wait_for_release = wait_for_release

    async def update(
        self,
        session: AsyncSession,
        *,
        title: str | UnsetType | None = UNSET,
        model: str | UnsetType | None = UNSET,
        system_prompt_override: str | UnsetType | None = UNSET,
        continue_here: bool = False,
    ) -> Metadata:
        """Change metadata; durable on return. What is not given stays, None removes a value."""
        (await session.access()).check("rename" if title is not UNSET else "append", continue_here=continue_here)
        metadata = await session.update(title=title, model=model, system_prompt_override=system_prompt_override)
        if title is not UNSET:
            self._emit(SessionRenamed(session_id=session.id, name=metadata.display_title))
        return metadata

    async def rewind(self, session: AsyncSession, to_seq: int, *, continue_here: bool = False) -> Rewind:
        """Rewind a session to a message; raises `SessionBusyError` during a turn."""
        (await session.access()).check("rewind", continue_here=continue_here)
        await self._wait_for_release(session.id)
        return self._report(session, await session.rewind(to_seq))

    async def hide(self, session: AsyncSession, seq: int, *, continue_here: bool = False) -> Tombstone:
        """Hide a message, with the tool calls and results that belong to it."""
        (await session.access()).check("hide", continue_here=continue_here)
        return self._report(session, await session.tombstone(seq))

    async def restore(self, session: AsyncSession, seq: int, *, continue_here: bool = False) -> Tombstone:
        """Restore a hidden message."""
        (await session.access()).check("hide", continue_here=continue_here)
        return self._report(session, await session.restore(seq))

    async def delete(self, session: AsyncSession, *, continue_here: bool = False) -> None:
        """Delete a session permanently; raises `SessionBusyError` during a turn."""
        (await session.access()).check("delete", continue_here=continue_here)
        await self._wait_for_release(session.id)
        await session.delete()
        self._emit(SessionChanged(session_id=session.id, change="deleted"))

    def _report(self, session: AsyncSession, marker: Marker) -> Marker:
        self._emit(change_event(marker, session.id))
        return marker


def change_event(marker: Tombstone | Rewind, session: str) -> SessionChanged:
    """Return the event for a marker that was appended to a session."""
    if isinstance(marker, Rewind):
        seqs = (marker.to_seq,)
        return SessionChanged(session_id=session, change="rewound", seq=marker.seq, seqs=seqs)
    return SessionChanged(
        session_id=session,
        change="hidden" if marker.deletes else "restored",
        seq=marker.seq,
        seqs=marker.deletes or marker.restores,
    )
