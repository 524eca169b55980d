"""Turn leases, and what some stores can do beside keeping sessions."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol, Self, runtime_checkable


class Lease(Protocol):
    """The right to run a turn, held until it is released or the process ends."""

    session: str

    def release(self) -> None:
        """Release it; doing so twice is harmless."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


@runtime_checkable
class ExpiringLease(Protocol):
    """A lease that expires unless it is renewed in time.

    Once another process has acquired it, an append under it is refused.
    """

    @property
    def lost(self) -> bool:
        """Whether another process holds the lease by now, or may hold it."""
        ...

    def on_lost(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback`, in any thread, as soon as the lease is known to be lost.

        Returns a function that removes the callback.
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

    It is the `sharing` attribute of such a store, and waits and fails as the store does.
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


def shared_between_machines(store: object) -> SharedBetweenMachines | None:
    """Return what a store shares between machines; None if it is for one machine."""
    found: SharedBetweenMachines | None = getattr(store, "sharing", None)
    return found
