"""State shared by the processes on one database, apart from its sessions: notifications, unowned turns, jobs.

Notifications tell that sessions have grown, by NOTIFY and LISTEN. They only make others look sooner:
a follower of a session reads new records from the database, by seq, and polls once a second without
notifications. So a lost notification, a pooler that blocks them, and a database without LISTEN
cause delays and nothing else.

Nothing is sent inside an append, since NOTIFY serializes commits: a thread sends what was queued,
at most once in 50 ms, on one of 64 channels, chosen by session.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from socket import gethostname
from uuid import uuid4

from psycopg import Notify

from everlog.errors import ConflictError, EverlogError, SettingsError
from everlog.ports import SharedBetweenMachines
from everlog.stores.file.log_tail import Report
from everlog.stores.postgres.connections import Connection, Database
from everlog.stores.postgres.id_columns import session_of, sid_of, stripe_of
from everlog.stores.postgres.metadata_rows import storable_text

MAX_CLOCK_SKEW = 60_000  # milliseconds
CHANNELS = 64
SEND_INTERVAL = 0.05  # seconds
POLL_INTERVAL = 0.25  # seconds after which a listener checks its sessions
MIN_PAUSE, MAX_PAUSE = 0.5, 30.0  # seconds before it reconnects
MAX_SESSIONS = 250  # in one notification: a payload is limited to 8,000 bytes

OnChange = Callable[[frozenset[str]], None]


class Notifications:
    """Sender and listener of one process; inactive until `listen` is called."""

    def __init__(self, database: Database, report: Report) -> None:
        self.database = database
        self.report = report
        self._schema = database.settings.schema
        self.max_pause = MAX_PAUSE
        self.reset()

    def reset(self) -> None:
        """Start over, as after a fork, which does not copy threads."""
        self._sender_id = uuid4().hex
        self._queue_changed = threading.Condition()
        self._queued: set[str] = set()
        self._sender: threading.Thread | None = None
        self._listener: Listener | None = None
        self._active = False
        self._stop = threading.Event()

    def announce(self, session: str) -> None:
        """Queue a notification that a session has grown; does nothing while inactive."""
        if self._active and session not in self._queued:
            with self._queue_changed:
                self._queued.add(session)
                self._queue_changed.notify()

    def listen(self, on_change: OnChange) -> Listener:
        """Call `on_change`, in a thread, with sessions that have grown in other processes.

        An empty set means that any session may have grown: check all.
        """
        self.close()
        self._stop = threading.Event()
        self._active = True
        self._sender = threading.Thread(target=self._send_loop, name="everlog-notify", daemon=True)
        self._sender.start()
        self._listener = Listener(self, on_change, self._stop)
        return self._listener

    def close(self) -> None:
        """Stop sending and listening."""
        self._active = False
        self._stop.set()
        with self._queue_changed:
            self._queue_changed.notify_all()
        listening = None if self._listener is None else self._listener.thread
        for thread in (self._sender, listening):
            if thread is not None and thread is not threading.current_thread():
                thread.join()
        self._sender = self._listener = None

    # --- sending

    def _send_loop(self) -> None:
        stop = self._stop
        is_refused = False
        while True:
            with self._queue_changed:
                while not self._queued and not stop.is_set():
                    self._queue_changed.wait()
            if stop.wait(SEND_INTERVAL):
                return
            with self._queue_changed:
                sessions, self._queued = self._queued, set()
            was_refused, is_refused = is_refused, False
            try:
                self._send(sessions)
            except EverlogError as error:  # the others poll anyway
                # No NOTIFY on this database, or a failover in progress.
                is_refused = isinstance(error, SettingsError)
                if not (is_refused and was_refused):
                    self.report(f"notifications to other processes are delayed: {error.message}")
                if is_refused:
                    stop.wait(self.max_pause)

    def _send(self, sessions: Collection[str]) -> None:
        shards: dict[int, list[str]] = {}
        for session in sessions:
            shards.setdefault(shard_of(session), []).append(session)
        messages = [
            (self.channel(shard), " ".join([self._sender_id, *ids[start : start + MAX_SESSIONS]]))
            for shard, ids in shards.items()
            for start in range(0, len(ids), MAX_SESSIONS)
        ]
        values = {"channels": [c for c, _ in messages], "payloads": [p for _, p in messages]}
        self.database.run_once(lambda connection: connection.run("notify", values))

    # --- listening

    def channel(self, shard: int) -> str:
        """Return the channel of a shard."""
        return f"{self._schema}_{shard}"

    def parse(self, notify: Notify) -> list[str]:
        """Return the sessions of a notification; none if this process sent it."""
        sender, *sessions = notify.payload.split(" ")
        return [] if sender == self._sender_id else sessions

    def switch_channels(self, connection: Connection, before: frozenset[int], after: frozenset[int]) -> None:
        """Listen to the channels of `after` instead of those of `before`."""
        for shard in before - after:
            connection.execute(f'UNLISTEN "{self.channel(shard)}"')
        for shard in after - before:
            connection.execute(f'LISTEN "{self.channel(shard)}"')


class Listener:
    """Listener for some sessions, which may change at any time."""

    def __init__(self, notifications: Notifications, on_change: OnChange, stop: threading.Event) -> None:
        self._notifications = notifications
        self._on_change = on_change
        self._stop = stop
        self._shards: frozenset[int] = frozenset()
        self._pause = MIN_PAUSE  # seconds, doubled each time the connection fails
        self._is_refused = False  # and that was reported
        self.thread = threading.Thread(target=self._run, name="everlog-listen", daemon=True)
        self.thread.start()

    def watch(self, sessions: Collection[str]) -> None:
        """Listen for these sessions; others that share a channel with them are reported too."""
        self._shards = frozenset(map(shard_of, sessions))

    def stop(self) -> None:
        """Stop listening."""
        self._notifications.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                if self._shards:
                    self._notifications.database.run_separately(self._listen)
            except SettingsError as error:  # permanent, or a failover in progress
                if not self._is_refused:
                    self._notifications.report(f"notifications from other processes are delayed: {error.message}")
                self._pause, self._is_refused = self._notifications.max_pause, True
            except EverlogError:  # callers of the store see the error themselves
                self._pause = min(2 * self._pause, self._notifications.max_pause)
            self._stop.wait(self._pause if self._shards else POLL_INTERVAL)

    def _listen(self, connection: Connection) -> None:
        """Listen until no session is left to listen for."""
        shards: frozenset[int] = frozenset()
        while (target := self._shards) and not self._stop.is_set():
            if target != shards:
                self._notifications.switch_channels(connection, shards, target)
                self._pause, self._is_refused = MIN_PAUSE, False  # the next loss starts over
                added, shards = target - shards, target
                if added:
                    self._on_change(frozenset())  # earlier changes were not notified
            sessions: set[str] = set()
            for notify in connection.notifies(timeout=POLL_INTERVAL, stop_after=1):
                sessions.update(self._notifications.parse(notify))
            if sessions:
                self._on_change(frozenset(sessions))


def shard_of(session: str) -> int:
    """Return the shard of a session, which has its own channel."""
    return stripe_of(sid_of(session).bytes) % CHANNELS


class SharedState(Notifications, SharedBetweenMachines):
    """What the processes on one database share: notifications of growth, unowned turns, jobs."""

    @property
    def address(self) -> str:
        """Return the address of the database, without a password."""
        return str(self.database.address)

    @property
    def lease_seconds(self) -> float:
        """Return how long a lease lasts whose process does not renew it."""
        return self.database.settings.lease_seconds

    # --- sessions

    def unowned(self, limit: int) -> list[str]:
        """Return sessions that may be unfinished and whose turn nobody holds, in any order."""
        rows = self.database.fetch_all("unowned", {"limit": limit})
        return [session_of(row[0]) for row in rows]

    def heads(self, sessions: Collection[str]) -> dict[str, int]:
        """Return the last seq of each session that exists."""
        values = {"sids": [sid_of(session) for session in sessions]}
        rows = self.database.fetch_all("heads", values)
        return {session_of(sid): head for sid, head in rows}

    # --- jobs

    def take_due(self, job: str, due: int) -> bytes | None:
        """Claim the run of a job for a time; return its state, or None if another process has it.

        ConflictError if the time is too far ahead of the server's clock: no other process could run
        the job until then.
        """
        values = {"name": storable_text(job), "due": due, "taker": uuid4()}

        def work(connection: Connection) -> bytes | None:
            now = connection.value("server_clock")
            if due > now + MAX_CLOCK_SKEW:
                raise ConflictError(
                    f"job {job!r} is not due: the clock of {gethostname()} is"
                    f" {(due - now) / 86_400_000:.1f} days ahead of that of {self.address}",
                    hint="correct the clock of that machine, for example by NTP; until then other"
                    " machines run the jobs",
                )
            latest = {"latest": now + MAX_CLOCK_SKEW}
            claim = connection.run("claim_job", values | latest)
            return None if (row := claim.fetchone()) is None else bytes(row[0])

        return self.database.run_idempotent(work)

    def jobs(self) -> dict[str, bytes]:
        """Return the state of each job."""
        rows = self.database.fetch_all("list_jobs")
        return {name: bytes(state) for name, state in rows}

    def change_job(self, job: str, change: Callable[[bytes], bytes]) -> bytes:
        """Change the state of a job atomically; return the new state."""

        def work(connection: Connection) -> bytes:
            name = {"name": storable_text(job)}
            connection.run("insert_job", name)
            row = connection.run("lock_job", name).fetchone()
            state = change(bytes(row[0]) if row else b"")
            connection.run("update_job", {**name, "fared": state})
            return state

        return self.database.run_transaction(work)
