"""The live feed: what runs tell, given to everybody who watches.

Nobody who watches can hold up a run. One who does not keep up is dropped from the feed, and told
so; nothing is lost by it, since every message is in the log and can be read from there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import cached_property

import msgspec

from everlog.log.line_codec import clean, encode_other
from everlog.wire.events import RunEvent

LIMIT = 1_000  # events that may wait for one who watches

_encode = msgspec.json.Encoder(enc_hook=encode_other).encode


class Notice:
    """An event, and its bytes on the wire, made once for all who get them."""

    def __init__(self, event: RunEvent) -> None:
        self.event = event

    @cached_property
    def wire(self) -> bytes:
        """The event as JSON; half a character, as deltas may end with, becomes U+FFFD."""
        try:
            return _encode(self.event)
        except UnicodeEncodeError:
            return _encode(clean(self.event))


class Subscription:
    """The events of some sessions, from the moment it was made; iterate over it.

    The iteration ends when the subscription is closed, or, with `dropped` true, when too much
    was waiting.
    """

    def __init__(self, feed: Feed, limit: int) -> None:
        self.dropped = False
        self.sessions: set[str] = set()
        self._feed = feed
        self._limit = limit
        self._waiting: deque[Notice] = deque()
        self._some = asyncio.Event()
        self._closed = False

    def follow(self, session: str) -> None:
        """Get the events of one more session; of none, once it is closed."""
        if not self._closed:
            self._feed.add(session, self)

    def leave(self, session: str) -> None:
        """No longer get those of a session."""
        self._feed.remove(session, self)

    def close(self) -> None:
        """Get no more events."""
        self._closed = True
        self._feed.forget(self)
        self._some.set()

    def offer(self, notice: Notice) -> None:
        """Called by the feed."""
        if len(self._waiting) >= self._limit:
            self.dropped = True
            self._waiting.clear()
            self.close()
        elif not self._closed:
            self._waiting.append(notice)
            self._some.set()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Notice:
        while not self._waiting:
            if self._closed:
                raise StopAsyncIteration
            self._some.clear()
            await self._some.wait()
        return self._waiting.popleft()


class Feed:
    """Who watches which session. Used from one event loop only."""

    def __init__(self) -> None:
        self._watching: dict[str, dict[Subscription, None]] = {}
        self._everything: dict[Subscription, None] = {}

    def emit(self, event: RunEvent) -> None:
        """Tell everybody who watches the event's session."""
        watching = self._watching.get(event.session_id)
        if not watching and not self._everything:
            return
        notice = Notice(event)
        for one in (*(watching or ()), *self._everything):
            one.offer(notice)

    def subscribe(self, *sessions: str, limit: int = LIMIT) -> Subscription:
        """Watch some sessions; more can be added."""
        made = Subscription(self, limit)
        for session in sessions:
            self.add(session, made)
        return made

    def everything(self, *, limit: int = LIMIT) -> Subscription:
        """Watch all sessions."""
        made = Subscription(self, limit)
        self._everything[made] = None
        return made

    def add(self, session: str, who: Subscription) -> None:
        """Let somebody watch a session."""
        self._watching.setdefault(session, {})[who] = None
        who.sessions.add(session)

    def remove(self, session: str, who: Subscription) -> None:
        """Let somebody watch a session no more."""
        watching = self._watching.get(session, {})
        watching.pop(who, None)
        who.sessions.discard(session)
        if not watching:
            self._watching.pop(session, None)

    def forget(self, who: Subscription) -> None:
        """Let somebody watch nothing any more."""
        self._everything.pop(who, None)
        for session in tuple(who.sessions):
            self.remove(session, who)

    @property
    def followed(self) -> list[str]:
        """The sessions that somebody watches by name."""
        return list(self._watching)

    @property
    def watchers(self) -> int:
        """How many watch something."""
        some = {one for watching in self._watching.values() for one in watching}
        return len(some.union(self._everything))
