"""The event feed: events of runs, distributed to all subscribers.

A subscriber cannot slow down a run. One that does not keep up is dropped from the feed and can see
that it was; it loses nothing, since every message is in the log and can be read from there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import cached_property

import msgspec

from everlog.log.line_codec import encode_other_block, replace_surrogates
from everlog.wire.events import RunEvent

LIMIT = 1_000  # events that may wait for one subscriber

_encode = msgspec.json.Encoder(enc_hook=encode_other_block).encode


class Notice:
    """An event and its JSON, which is encoded once for all subscribers."""

    def __init__(self, event: RunEvent) -> None:
        self.event = event

    @cached_property
    def wire(self) -> bytes:
        """The event as JSON; a lone surrogate, which a delta may end with, becomes U+FFFD."""
        try:
            return _encode(self.event)
        except UnicodeEncodeError:
            return _encode(replace_surrogates(self.event))


class Subscription:
    """An async iterator over the events of some sessions, from its creation on.

    The iteration ends when the subscription is closed, or when too many events were waiting;
    `dropped` is true then.
    """

    def __init__(self, feed: Feed, limit: int) -> None:
        self.dropped = False
        self.sessions: set[str] = set()
        self._feed = feed
        self._limit = limit
        self._waiting: deque[Notice] = deque()
        self._changed = asyncio.Event()
        self._closed = False

    def follow(self, session: str) -> None:
        """Receive the events of another session; does nothing once the subscription is closed."""
        if not self._closed:
            self._feed.subscribers.setdefault(session, {})[self] = None
            self.sessions.add(session)

    def unfollow(self, session: str) -> None:
        """Stop receiving the events of a session."""
        subscribers = self._feed.subscribers.get(session, {})
        subscribers.pop(self, None)
        self.sessions.discard(session)
        if not subscribers:
            self._feed.subscribers.pop(session, None)

    def close(self) -> None:
        """Receive no more events; the iteration ends after those that are waiting."""
        self._closed = True
        for session in tuple(self.sessions):
            self.unfollow(session)
        self._changed.set()

    def offer(self, notice: Notice) -> None:
        """Queue an event, or drop the subscription if too many wait; called by the feed."""
        if len(self._waiting) >= self._limit:
            self.dropped = True
            self._waiting.clear()
            self.close()
        elif not self._closed:
            self._waiting.append(notice)
            self._changed.set()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Notice:
        while not self._waiting:
            if self._closed:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return self._waiting.popleft()


class Feed:
    """The subscriptions by session. Must be used from one event loop only."""

    def __init__(self) -> None:
        self.subscribers: dict[str, dict[Subscription, None]] = {}

    def emit(self, event: RunEvent) -> None:
        """Pass an event to all subscribers of its session; never waits."""
        if subscribers := self.subscribers.get(event.session_id):
            notice = Notice(event)
            for subscription in tuple(subscribers):
                subscription.offer(notice)

    def subscribe(self, *sessions: str, limit: int = LIMIT) -> Subscription:
        """Subscribe to some sessions; the subscription can follow more later."""
        subscription = Subscription(self, limit)
        for session in sessions:
            subscription.follow(session)
        return subscription

    @property
    def followed_sessions(self) -> list[str]:
        """The sessions that subscriptions follow."""
        return list(self.subscribers)

    @property
    def watchers(self) -> int:
        """The number of subscriptions that follow something."""
        return len(set[Subscription]().union(*self.subscribers.values()))
