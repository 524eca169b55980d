"""The same verbs for asynchronous code, each run in a thread.

An append that was started is awaited to its end even when its task is cancelled: what the disk
has taken cannot be called back, and the caller would never learn its seq.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from everlog.context.build import Context
from everlog.errors import StoreFailedError
from everlog.log.backward_read import Live
from everlog.log.fold import View
from everlog.model import (
    AnyRecord,
    Damaged,
    Event,
    Message,
    Metadata,
    Part,
    Rewind,
    Tombstone,
)
from everlog.ports import Lease, Page, Results, UsageReport
from everlog.session import R, Session, Store

if TYPE_CHECKING:
    from everlog.identity.route import Routed

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 8


class AsyncStore:
    """Sessions, wherever they are kept."""

    def __init__(self, store: Store) -> None:
        self.sync = store
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="everlog")

    async def call(self, verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a verb in a thread, to its end."""
        try:
            started = asyncio.wrap_future(self._threads.submit(verb, *args, **kwargs))
        except RuntimeError as error:  # the pool takes no more work
            raise StoreFailedError("the store is closed") from error
        try:
            return await asyncio.shield(started)
        except asyncio.CancelledError as cancelled:
            while not started.done():  # however often it is cancelled
                try:
                    await asyncio.wait([started])
                except asyncio.CancelledError:
                    continue
            raise cancelled from None

    async def create(self, **facts: Any) -> AsyncSession:
        """Make an empty session."""
        return AsyncSession(self, await self.call(self.sync.create, **facts))

    async def session(self, name: str) -> AsyncSession:
        """A session by its id, key, alias, or an unambiguous beginning of its id."""
        return AsyncSession(self, await self.call(self.sync.session, name))

    async def latest(self, agent: str = "main", sender: str = "user") -> AsyncSession | None:
        """The chat of a pair with the highest number, or None."""
        found = await self.call(self.sync.latest, agent=agent, sender=sender)
        return None if found is None else AsyncSession(self, found)

    async def current(
        self, agent: str = "main", sender: str = "user", *, key: str | None = None
    ) -> AsyncSession | None:
        """The chat of a key or pair that goes on: the newest, or the one last resumed."""
        found = await self.call(self.sync.current, agent=agent, sender=sender, key=key)
        return None if found is None else AsyncSession(self, found)

    async def route_to_session(self, routed: Routed, **how: Any) -> AsyncSession:
        """The session of a routed message: the current chat of its key, made if there is none."""
        return AsyncSession(self, await self.call(self.sync.route_to_session, routed, **how))

    async def list(self, **which: Any) -> Page:
        """Sessions by their last message, newest first."""
        return await self.call(self.sync.list, **which)

    async def search(self, text: str, **how: Any) -> Results:
        """Sessions in which something was said, the best first."""
        return await self.call(self.sync.search, text, **how)

    async def usage(self, **how: Any) -> UsageReport:
        """What sessions spent, by day (UTC) and model, and which of them spent most."""
        return await self.call(self.sync.usage, **how)

    async def close(self) -> None:
        """Bring derived data up to date and give back descriptors and threads."""
        await self.call(self.sync.close)
        self._threads.shutdown()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class AsyncSession:
    """One conversation."""

    def __init__(self, store: AsyncStore, session: Session) -> None:
        self.store = store
        self.sync = session
        self.id = session.id
        self._call = store.call

    async def append(
        self,
        record: R,
        *,
        expected_seq: int | None = None,
        no_marker_after: int | None = None,
        lease: Lease | None = None,
    ) -> R:
        """Add one record; durable on return."""
        return await self._call(
            self.sync.append,
            record,
            expected_seq=expected_seq,
            no_marker_after=no_marker_after,
            lease=lease,
        )

    async def append_many(
        self,
        records: Iterable[AnyRecord],
        *,
        expected_seq: int | None = None,
        no_marker_after: int | None = None,
        lease: Lease | None = None,
    ) -> list[AnyRecord]:
        """Add several records in one write."""
        return await self._call(
            self.sync.append_many,
            records,
            expected_seq=expected_seq,
            no_marker_after=no_marker_after,
            lease=lease,
        )

    async def messages(self) -> list[Message]:
        """All live messages."""
        return await self._call(self.sync.messages)

    async def records(self, *, after: int = 0, limit: int | None = None) -> list[AnyRecord]:
        """Every record of the log in order."""
        return await self._call(self.sync.records, after=after, limit=limit)

    async def record(self, seq: int) -> AnyRecord:
        """One record by its number."""
        return await self._call(self.sync.record, seq)

    async def view(self) -> View:
        """The live messages and what stood in the way of reading them."""
        return await self._call(self.sync.view)

    async def live(self, *, accept_stale: bool = True) -> Live:
        """The live messages behind the latest summary, read backwards."""
        return await self._call(self.sync.live, accept_stale=accept_stale)

    async def context(
        self,
        *,
        window: int | None = None,
        inject: Iterable[Message] = (),
        tool_result_budget: int | None = None,
    ) -> Context:
        """What the model is sent next."""
        return await self._call(
            self.sync.context,
            window=window,
            inject=inject,
            tool_result_budget=tool_result_budget,
        )

    async def close_calls(self, *, lease: Lease) -> list[Message]:
        """Record an error result for every tool call that never got its own."""
        return await self._call(self.sync.close_calls, lease=lease)

    async def metadata(self) -> Metadata:
        """What is known of the session."""
        return await self._call(lambda: self.sync.metadata)

    async def parts(self) -> tuple[Part, ...]:
        """The files of its log."""
        return await self._call(lambda: self.sync.parts)

    async def size(self) -> int:
        """Bytes of its log."""
        return await self._call(lambda: self.sync.size)

    async def tombstone(self, *seqs: int) -> Tombstone:
        """Hide messages, each with the exchange it belongs to."""
        return await self._call(self.sync.tombstone, *seqs)

    async def restore(self, *seqs: int) -> Tombstone:
        """Show hidden messages again."""
        return await self._call(self.sync.restore, *seqs)

    async def rewind(self, to_seq: int, *, lease: Lease | None = None) -> Rewind:
        """Go back to a message."""
        return await self._call(self.sync.rewind, to_seq, lease=lease)

    async def rename(self, title: str) -> Metadata:
        """Give the session its title."""
        return await self._call(self.sync.rename, title)

    async def update(self, **changes: Any) -> Metadata:
        """Change metadata."""
        return await self._call(self.sync.update, **changes)

    async def resume(self) -> Metadata:
        """Make it the current chat of its key, or of its agent and sender."""
        return await self._call(self.sync.resume)

    async def fork(self, at: int | None = None) -> AsyncSession:
        """A new session that shares everything up to a record."""
        return AsyncSession(self.store, await self._call(self.sync.fork, at))

    async def end_turn(self, **facts: Any) -> Event:
        """Record that a turn ended."""
        return await self._call(self.sync.end_turn, **facts)

    async def lease(self) -> Lease:
        """The right to run a turn, at once or SessionBusyError."""
        taken: list[Lease] = []
        try:
            await self._call(lambda: taken.append(self.sync.lease()))
        except asyncio.CancelledError:
            for lease in taken:  # nobody else will ever give it back
                await self._call(lease.release)
            raise
        return taken[0]

    async def reclaim(self) -> int:
        """Take out of its files what its program skips, after archiving it; the bytes freed."""
        return await self._call(self.sync.reclaim)

    async def usage(self, *, since: str | None = None, until: str | None = None) -> UsageReport:
        """What it spent, by day (UTC) and model."""
        return await self._call(self.sync.usage, since=since, until=until)

    async def verify(self) -> tuple[Damaged, ...]:
        """Everything wrong with its bytes."""
        return await self._call(self.sync.verify)

    async def repair(self) -> tuple[str, ...]:
        """Set right what can be, deleting nothing."""
        return await self._call(self.sync.repair)

    async def delete(self) -> int:
        """Remove it for good."""
        return await self._call(self.sync.delete)
