"""Turn leases in asynchronous code: releasing one may be a slow call to the store, and a lease that
expires can be lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from everlog.agent.worker_threads import run_to_completion
from everlog.aio import AsyncSession, AsyncStore
from everlog.errors import ConflictError, StoreFailedError
from everlog.ports import ExpiringLease, Lease


def is_lost(lease: Lease) -> bool:
    """Return whether the lease has expired, so that another process may hold it."""
    return isinstance(lease, ExpiringLease) and lease.lost


def lost_lease_error(session: str) -> ConflictError:
    """Return the error for a turn whose lease was lost."""
    return ConflictError(
        "the turn was lost: its lease expired before it could be renewed",
        hint="the messages stored until then are kept; another process continues the session",
        session=session,
    )


async def release_lease(store: AsyncStore, lease: Lease) -> None:
    """Release a lease, even if the task is cancelled; off the event loop if that is a slow call."""
    if not isinstance(lease, ExpiringLease):
        lease.release()  # closes a file
        return
    try:
        await run_to_completion(store.call(lease.release))
    except StoreFailedError:  # the store is closed and has no threads any more
        lease.release()


@asynccontextmanager
async def acquire_lease(session: AsyncSession) -> AsyncIterator[Lease]:
    """Hold the turn lease within a block; raises `SessionBusyError` at once if it is taken."""
    lease = await session.lease()
    try:
        yield lease
    finally:
        await release_lease(session.store, lease)
