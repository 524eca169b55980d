"""Events beyond runs: the listing has changed, or another process appended to a session.

Runs of this daemon emit their own events. Other processes append to the same files, and foreign
programs to theirs, without a notification: while there are subscribers, the newest sessions and
the followed ones are polled every second. Without subscribers nothing is polled.

On a database, daemons notify each other of changed sessions, so that followed sessions are polled
sooner. The events themselves are always read from the log, by seq, so none is lost.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial

from everlog.agent.worker_threads import call_in_loop
from everlog.daemon.json_log import log_event
from everlog.errors import EverlogError, NotFoundError
from everlog.ports import ChangeSubscription, SharedBetweenMachines
from everlog.runtime.background_task import BackgroundTask
from everlog.runtime.feed import Notice, Subscription
from everlog.runtime.remote_events import RemoteEvents
from everlog.runtime.runtime import Runtime
from everlog.session import Session
from everlog.wire.events import ListingChanged, RunEvent, SessionChanged, StreamDelta, ThinkingDelta

POLL_SECONDS = 1.0
DEBOUNCE_SECONDS = 0.1  # between a wake-up and the poll
COMPARED_ROWS = 60  # newest sessions of the listing


RowState = tuple[object, ...]


class ListingWatcher:
    """Polls the listing and the followed sessions while there are subscribers."""

    def __init__(self, runtime: Runtime, poll_seconds: float = POLL_SECONDS) -> None:
        self._runtime = runtime
        self._poll_seconds = poll_seconds
        self._subscribers: dict[Subscription, bool] = {}  # to the listing → whether notified yet
        self._remote_events: dict[str, RemoteEvents] = {}  # by followed session
        self._rows: dict[str, RowState] = {}
        self._total = 0
        self._changed_here: set[str] = set()  # sessions with events since the last comparison
        self._compare_now = False  # something happened in this daemon: do not wait for the poll
        self._compared_at = 0.0
        self._task = BackgroundTask(
            "listing", self._poll, interval=poll_seconds, debounce=DEBOUNCE_SECONDS, on_failure=_log_failure
        )
        self._sharing = runtime.store.sync.port.capability(SharedBetweenMachines)
        self._listener: ChangeSubscription | None = None

    def start(self) -> None:
        """Start polling."""
        self._runtime.listeners.append(self._on_event)
        self._task.start()
        if self._sharing is not None:
            loop = asyncio.get_running_loop()
            self._listener = self._sharing.listen(partial(call_in_loop, loop, self._on_remote_sessions))

    async def stop(self) -> None:
        """Stop polling."""
        if self._listener is not None:
            await self._runtime.store.call(self._listener.stop)
            self._listener = None
        await self._task.stop()

    def watch(self, subscriber: Subscription) -> None:
        """Notify a subscriber of changes to the listing, first at once: it may have changed."""
        self._subscribers[subscriber] = False
        self._compare_now = True
        self._task.wake()

    def follow(self, session: str, seq: int) -> None:
        """Emit events for records after `seq` that other processes append to a session."""
        self._remote_events.setdefault(session, RemoteEvents(self._open(session), seq))
        self._update_listener()

    def _update_listener(self) -> None:
        if self._listener is not None:
            self._listener.watch(self._runtime.feed.followed_sessions)

    def unwatch(self, subscriber: Subscription) -> None:
        """Stop notifying a subscriber of the listing."""
        self._subscribers.pop(subscriber, None)

    def _on_event(self, event: RunEvent) -> None:
        """Note an event of this daemon: the listing may have changed, and the log has grown."""
        if isinstance(event, StreamDelta | ThinkingDelta):
            return
        if event.session_id in self._remote_events:
            self._remote_events[event.session_id].note_reported(event)
        self._changed_here.add(event.session_id)
        if isinstance(event, SessionChanged) and event.change == "deleted":
            self._remote_events.pop(event.session_id, None)  # already reported
        self._compare_now = True
        self._task.wake()

    def _on_remote_sessions(self, sessions: frozenset[str]) -> None:
        """Note changes by other daemons: only those to followed sessions are urgent."""
        if not sessions or not sessions.isdisjoint(self._runtime.feed.followed_sessions):
            self._task.wake()

    async def _poll(self) -> None:
        self._update_listener()
        now = time.monotonic()
        if self._compare_now or now - self._compared_at >= self._poll_seconds:
            self._compare_now, self._compared_at = False, now
            await self._compare_listing()
        await self._emit_remote_events()

    # --- the listing

    async def _compare_listing(self) -> None:
        changed_here, self._changed_here = self._changed_here, set()
        if not self._subscribers:
            self._rows = {}
            return
        page = await self._runtime.store.list(limit=COMPARED_ROWS)
        rows: dict[str, RowState] = {
            row.id: (row.metadata.through, row.metadata.title, self._runtime.current(row.id) is not None)
            for row in page
        }
        before, self._rows = self._rows, rows
        total, self._total = self._total, page.total
        candidates = (before.keys() | changed_here) - rows.keys() - {""}
        deleted = await self._runtime.store.call(self._deleted_sessions, candidates)
        changed = [session for session in rows if rows[session] != before.get(session)]
        changed += changed_here & candidates
        # Only the newest sessions are compared; deletions of others show in the total.
        newest = max(before, default="")  # ids sort by creation time
        created = sum(session > newest for session in rows)
        lost = bool(before) and page.total < total + created - len(deleted)
        event = ListingChanged(session_id=changed[0] if changed else "", gone=deleted, lost=lost)
        notice = Notice(event)
        for subscriber, is_notified in tuple(self._subscribers.items()):
            if not is_notified or changed or deleted or total != self._total:
                self._subscribers[subscriber] = True
                subscriber.offer(notice)

    def _deleted_sessions(self, sessions: set[str]) -> tuple[str, ...]:
        """Return the sessions that are deleted, not merely too old for the first page."""
        deleted = []
        for session in sessions:
            try:
                self._runtime.store.sync.port.metadata(session)
            except NotFoundError:
                deleted.append(session)
        return tuple(deleted)

    # --- appends by other processes

    async def _emit_remote_events(self) -> None:
        followed = self._runtime.feed.followed_sessions
        self._remote_events = {
            session: remote for session, remote in self._remote_events.items() if session in followed
        }
        for session_id in await self._runtime.store.call(self._sessions_to_read, followed):
            remote = self._remote_events.setdefault(session_id, RemoteEvents(self._open(session_id)))
            # A turn emits its own events; the session is polled again afterwards.
            for event in await remote.poll(self._runtime.store, partial(self._runtime.is_busy, session_id)):
                self._runtime.feed.emit(event)

    def _sessions_to_read(self, followed: list[str]) -> list[str]:
        """Return the sessions that may have grown: all, unless the store knows which have."""
        if self._sharing is None or not followed:
            return followed
        heads = self._sharing.heads(followed)
        read_seqs = {name: remote.seq for name, remote in self._remote_events.items() if not remote.is_deleted}
        deleted = [session_id for session_id in followed if session_id not in heads and session_id in read_seqs]
        return deleted + [session_id for session_id, head in heads.items() if read_seqs.get(session_id, -1) < head]

    def _open(self, session: str) -> Session:
        return Session(self._runtime.store.sync, session)


def _log_failure(error: Exception) -> None:
    if isinstance(error, EverlogError):  # of the store; requests report it to their clients
        log_event("refresh_failed", level="warning", error=error.message)
    else:
        log_event("refresh_failed", level="error", error=f"{type(error).__name__}: {error}")
