"""Turns, and what processes on several machines share beside sessions."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol, Self, runtime_checkable


class Lease(Protocol):
    """The right to run a turn, held until released; it ends with the process."""

    session: str

    def release(self) -> None:
        """Give it back; doing so twice is harmless."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


@runtime_checkable
class ExpiringLease(Protocol):
    """A lease that can be lost: one that ends by a clock unless it is renewed in time.

    An append under it is refused as soon as another has it, whatever its holder believes.
    """

    @property
    def lost(self) -> bool:
        """Whether another has it, or may have."""
        ...

    def on_lost(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call something, in any thread, as soon as it is known to be lost.

        What is returned is called when that is of no interest any more.
        """
        ...


class Listening(Protocol):
    """News of sessions that other processes append to; late or lost ones are allowed for."""

    def attend(self, sessions: Collection[str]) -> None:
        """Hear of these sessions from now on."""
        ...

    def stop(self) -> None:
        """Hear nothing more."""
        ...


class Sharing(Protocol):
    """What processes on several machines share beside sessions; the `sharing` of a store that
    they can share. Its verbs wait and fail as those of the store do."""

    @property
    def address(self) -> str:
        """Where the store is, without anything secret."""
        ...

    @property
    def lease_seconds(self) -> float:
        """How long a turn stays taken whose process is silent."""
        ...

    def unowned(self, limit: int) -> list[str]:
        """Sessions that may be unfinished and whose turn nobody has, in any order."""
        ...

    def heads(self, sessions: Collection[str]) -> dict[str, int]:
        """The last seq of each of these sessions that is there."""
        ...

    def listen(self, heard: Callable[[frozenset[str]], None]) -> Listening:
        """Call something, in a thread, with sessions that have gone on elsewhere; with none if
        any may have."""
        ...

    def take_due(self, job: str, due: int) -> bytes | None:
        """Be the one that runs a job for a time, in milliseconds: how it fared until now.

        None if another is. Of any number of calls for one time, one succeeds. ConflictError if it is
        not that time yet by the clock that all share. Durable.
        """
        ...

    def jobs(self) -> dict[str, bytes]:
        """How each job fared."""
        ...

    def change_job(self, job: str, change: Callable[[bytes], bytes]) -> bytes:
        """Change how a job fared, by what it is; nothing comes in between. Durable."""
        ...


def sharing_of(store: object) -> Sharing | None:
    """What a store shares between machines; None if it is not one for several."""
    found: Sharing | None = getattr(store, "sharing", None)
    return found
