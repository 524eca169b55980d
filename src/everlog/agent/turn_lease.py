"""The turn lease, held by asynchronous code: giving it back may take as long as a store does, and
one that ends by a clock can be lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from everlog.agent.worker_threads import to_its_end
from everlog.aio import AsyncSession, AsyncStore
from everlog.errors import ConflictError, StoreFailedError
from everlog.ports import ExpiringLease, Lease


def is_lost(lease: Lease) -> bool:
    """Whether another process has the turn by now, or may have."""
    return isinstance(lease, ExpiringLease) and lease.lost


def loss(session: str) -> ConflictError:
    """What whoever waits for a turn is told when it is lost."""
    return ConflictError(
        "the turn was lost: its lease ran out before it could be renewed",
        hint="what it said until then is kept; another process goes on with the session",
        session=session,
    )


async def give_back(store: AsyncStore, lease: Lease) -> None:
    """Give a lease back, whatever is cancelled meanwhile; off the event loop if it takes a call."""
    if not isinstance(lease, ExpiringLease):
        lease.release()  # closes a file
        return
    try:
        await to_its_end(store.call(lease.release))
    except StoreFailedError:  # it has no threads any more
        lease.release()


@asynccontextmanager
async def leased(session: AsyncSession) -> AsyncIterator[Lease]:
    """The right to run a turn, for a while; SessionBusyError if another has it."""
    lease = await session.lease()
    try:
        yield lease
    finally:
        await give_back(session.store, lease)
