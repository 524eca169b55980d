"""What people change in a session beside talking in it: done in one place, told to everybody."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from everlog.aio import AsyncSession
from everlog.model import Metadata, Rewind, Tombstone
from everlog.wire.events import SessionChanged, SessionRenamed, Sink


class Changes:
    """Changes to sessions that whoever follows a runtime hears of."""

    def __init__(self, emit: Sink, at_rest: Callable[[str], Awaitable[None]]) -> None:
        """`at_rest` is awaited before what needs the lease: a turn may just be giving it back."""
        self._emit = emit
        self._at_rest = at_rest

    async def update(self, session: AsyncSession, **changes: Any) -> Metadata:
        """Give a session another name, model or system prompt."""
        metadata = await session.update(**changes) if changes else await session.metadata()
        if "name" in changes:
            self._emit(SessionRenamed(session_id=session.id, name=metadata.title))
        return metadata

    async def rewind(self, session: AsyncSession, to_seq: int) -> Rewind:
        """Go back to a message; SessionBusyError during a turn."""
        await self._at_rest(session.id)
        marker = await session.rewind(to_seq)
        self._emit(change_by(marker, session.id))
        return marker

    async def hide(self, session: AsyncSession, seq: int) -> Tombstone:
        """Hide a message, with the tool calls and results that belong to it."""
        marker = await session.tombstone(seq)
        self._emit(change_by(marker, session.id))
        return marker

    async def restore(self, session: AsyncSession, seq: int) -> Tombstone:
        """Show a hidden message again."""
        marker = await session.restore(seq)
        self._emit(change_by(marker, session.id))
        return marker

    async def delete(self, session: AsyncSession) -> None:
        """Remove a session for good; SessionBusyError during a turn."""
        await self._at_rest(session.id)
        await session.delete()
        self._emit(SessionChanged(session_id=session.id, change="deleted"))


def change_by(marker: Tombstone | Rewind, session: str) -> SessionChanged:
    """What a marker changes in its session."""
    if isinstance(marker, Rewind):
        seqs = (marker.to_seq,)
        return SessionChanged(session_id=session, change="rewound", seq=marker.seq, seqs=seqs)
    return SessionChanged(
        session_id=session,
        change="hidden" if marker.deletes else "restored",
        seq=marker.seq,
        seqs=marker.deletes or marker.restores,
    )
