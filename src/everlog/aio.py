"""The public interface for asynchronous code, on asyncio and on trio: each verb runs in a thread.

A verb that was started is awaited to its end even when its task is cancelled: what the disk has
taken cannot be called back, and the caller would never learn its seq.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from functools import partial, wraps
from itertools import islice
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, overload

import anyio
from anyio import to_thread
from anyio.lowlevel import RunVar

from everlog.errors import StoreFailedError
from everlog.model import AnyRecord, Message, Metadata, Part
from everlog.ports import Lease, Permitting, SessionAccess
from everlog.session import R, Session, Store

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

THREADS = 8
BATCH = 500  # items of an iteration that are read in one go


def _verb(verb: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Make the asynchronous twin of a method of Store or Session, with the same signature."""

    @wraps(verb)
    async def twin(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = await self.call(verb, self.sync, *args, **kwargs)
        return result

    return twin


def _store_session(
    verb: Callable[Concatenate[Store, P], Session],
) -> Callable[Concatenate[AsyncStore, P], Coroutine[Any, Any, AsyncSession]]:
    """Make the asynchronous twin of a method of Store that returns a session."""

    @wraps(verb)
    async def twin(self: AsyncStore, /, *args: P.args, **kwargs: P.kwargs) -> AsyncSession:
        return AsyncSession(self, await self.call(verb, self.sync, *args, **kwargs))

    return twin


def _store_optional_session(
    verb: Callable[Concatenate[Store, P], Session | None],
) -> Callable[Concatenate[AsyncStore, P], Coroutine[Any, Any, AsyncSession | None]]:
    """Make the asynchronous twin of a method of Store that may return a session."""

    @wraps(verb)
    async def twin(self: AsyncStore, /, *args: P.args, **kwargs: P.kwargs) -> AsyncSession | None:
        session = await self.call(verb, self.sync, *args, **kwargs)
        return None if session is None else AsyncSession(self, session)

    return twin


def _store_iterator(
    verb: Callable[Concatenate[Store, P], Iterator[T]],
) -> Callable[Concatenate[AsyncStore, P], AsyncIterator[T]]:
    """Make the asynchronous twin of a method of Store that iterates; it is read in batches."""

    @wraps(verb)
    async def twin(self: AsyncStore, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        items = await self.call(verb, self.sync, *args, **kwargs)
        while batch := await self.call(lambda: [*islice(items, BATCH)]):
            for item in batch:
                yield item

    return twin


class AsyncStore:
    """Sessions, wherever they are kept; the methods of Store, to be awaited."""

    def __init__(self, store: Store) -> None:
        self.sync = store
        self._limiter: RunVar[anyio.CapacityLimiter] = RunVar("everlog threads")  # per event loop
        self._closed = False

    def __repr__(self) -> str:
        return f"Async{self.sync!r}"

    def __eq__(self, other: object) -> bool:
        return self.sync == other.sync if isinstance(other, AsyncStore) else NotImplemented

    def __hash__(self) -> int:
        return hash((AsyncStore, self.sync))

    async def call(self, verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function in a thread, to its end. StoreFailedError once the store is closed."""
        if self._closed:
            raise StoreFailedError("the store is closed")
        ended: Future[T] = Future()

        def run() -> None:
            if not ended.set_running_or_notify_cancel():
                return  # cancelled before it was started
            try:
                ended.set_result(verb(*args, **kwargs))
            except BaseException as error:
                ended.set_exception(error)

        wait: Callable[[], object] = run
        cancelled: BaseException | None = None
        while not ended.done():
            try:
                await to_thread.run_sync(wait, limiter=self._threads())
            except anyio.get_cancelled_exc_class() as error:
                # asyncio's own cancel() does not respect anyio's shield: wait for the thread.
                if ended.cancel():
                    raise  # no thread has started it yet, and none will
                cancelled, wait = error, partial(ended.exception, None)
        if cancelled is not None:
            raise cancelled
        return ended.result()

    def _threads(self) -> anyio.CapacityLimiter:
        try:
            return self._limiter.get()
        except LookupError:
            limiter = anyio.CapacityLimiter(THREADS)
            self._limiter.set(limiter)
            return limiter

    create = _store_session(Store.create)
    session = _store_session(Store.session)
    latest = _store_optional_session(Store.latest)
    current = _store_optional_session(Store.current)
    route_to_session = _store_session(Store.route_to_session)
    list = _verb(Store.list)
    walk = _store_iterator(Store.walk)
    search = _verb(Store.search)
    usage = _verb(Store.usage)

    async def close(self) -> None:
        """Bring derived data up to date and release all descriptors."""
        await self.call(self.sync.close)
        self._closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class AsyncSession:
    """One conversation; the methods of Session, to be awaited, its properties too."""

    def __init__(self, store: AsyncStore, session: Session) -> None:
        self.store = store
        self.sync = session
        self.id = session.id
        self.call = store.call

    def __repr__(self) -> str:
        return f"Async{self.sync!r}"

    def __eq__(self, other: object) -> bool:
        return self.sync == other.sync if isinstance(other, AsyncSession) else NotImplemented

    def __hash__(self) -> int:
        return hash((AsyncSession, self.id))

    @overload
    async def append(
        self,
        record: str,
        *,
        expected_seq: int | None = ...,
        no_marker_after: int | None = ...,
        lease: Lease | None = ...,
    ) -> Message: ...
    @overload
    async def append(
        self, record: R, *, expected_seq: int | None = ..., no_marker_after: int | None = ..., lease: Lease | None = ...
    ) -> R: ...
    async def append(
        self,
        record: AnyRecord | str,
        *,
        expected_seq: int | None = None,
        no_marker_after: int | None = None,
        lease: Lease | None = None,
    ) -> AnyRecord:
        """Append one record and return it as stored, with its seq and id; see `Session.append`."""
        (stored,) = await self.call(
            lambda: [self.sync.append(record, expected_seq=expected_seq, no_marker_after=no_marker_after, lease=lease)]
        )
        return stored

    append_many = _verb(Session.append_many)
    tombstone = _verb(Session.tombstone)
    restore = _verb(Session.restore)
    rewind = _verb(Session.rewind)
    rename = _verb(Session.rename)
    update = _verb(Session.update)
    resume = _verb(Session.resume)
    end_turn = _verb(Session.end_turn)
    close_calls = _verb(Session.close_calls)
    messages = _verb(Session.messages)
    records = _verb(Session.records)
    record = _verb(Session.record)
    view = _verb(Session.view)
    live = _verb(Session.live)
    context = _verb(Session.context)
    usage = _verb(Session.usage)
    verify = _verb(Session.verify)
    repair = _verb(Session.repair)
    reclaim = _verb(Session.reclaim)
    delete = _verb(Session.delete)

    async def fork(self, at: int | None = None) -> AsyncSession:
        """Create a session that shares everything up to a record, byte for byte."""
        return AsyncSession(self.store, await self.call(self.sync.fork, at))

    async def lease(self) -> Lease:
        """Acquire the turn lease. SessionBusyError if another turn holds it; never waits."""
        acquired: list[Lease] = []
        try:
            await self.call(lambda: acquired.append(self.sync.lease()))
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):  # nobody else will ever release it
                for lease in acquired:
                    await self.call(lease.release)
            raise
        return acquired[0]

    async def metadata(self) -> Metadata:
        """Return the metadata, up to the last record."""
        return await self.call(lambda: self.sync.metadata)

    async def access(self) -> SessionAccess:
        """Return what may be done with it where it is kept."""
        if self.store.sync.port.capability(Permitting) is None:
            return SessionAccess()  # without a thread: every message asks
        return await self.call(lambda: self.sync.access)

    async def parts(self) -> tuple[Part, ...]:
        """Return the files of the log."""
        return await self.call(lambda: self.sync.parts)

    async def size(self) -> int:
        """Return the bytes of the log."""
        return await self.call(lambda: self.sync.size)
