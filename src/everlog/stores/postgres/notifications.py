"""Which sessions have gone on, told from process to process: NOTIFY and LISTEN.

It only makes others look sooner: whoever follows a session reads what is new from the database, by
seq, and looks once a second even if it hears nothing. So a word that is lost, a pooler that lets
none through, and a database that knows no LISTEN make news late and nothing else.

Nothing is told inside an append, since a NOTIFY makes commits wait for each other: a thread tells
what was gathered, at most once in 50 ms, on one of 64 channels for each session.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from uuid import uuid4

from psycopg import Notify

from everlog.errors import EverlogError, SettingsError
from everlog.stores.file.log_tail import Report
from everlog.stores.postgres.connections import Database, Link
from everlog.stores.postgres.id_columns import sid_of, stripe_of
from everlog.stores.postgres.statements import load

CHANNELS = 64
PAUSE = 0.05  # seconds between two tellings
LOOK = 0.25  # seconds after which a listener looks whom to listen for
SOONEST, LATEST = 0.5, 30.0  # seconds before it connects again
MOST = 250  # sessions in one telling of a channel: a payload has 8,000 bytes at most

Heard = Callable[[frozenset[str]], None]


class News:
    """Tells and hears, once somebody listens in this process."""

    def __init__(self, database: Database, report: Report) -> None:
        self._database = database
        self._report = report
        self._schema = database.settings.schema
        self._sql = load("sharing", self._schema)
        self.latest = LATEST
        self.reset()

    def reset(self) -> None:
        """Begin anew, as after a fork: threads stayed behind."""
        self._myself = uuid4().hex
        self._changed = threading.Condition()
        self._gathered: set[str] = set()
        self._teller: threading.Thread | None = None
        self._listening: Listening | None = None
        self._telling = False
        self._stop = threading.Event()

    def appended(self, session: str) -> None:
        """A session has gone on here. Costs nothing where nobody listens."""
        if self._telling and session not in self._gathered:
            with self._changed:
                self._gathered.add(session)
                self._changed.notify()

    def listen(self, heard: Heard) -> Listening:
        """Call `heard`, in a thread, with sessions that have gone on elsewhere.

        Nothing in it means that some may have: look at all.
        """
        self.close()
        self._stop = threading.Event()
        self._telling = True
        self._teller = threading.Thread(target=self._tell, name="everlog-teller", daemon=True)
        self._teller.start()
        self._listening = Listening(self, heard, self._stop)
        return self._listening

    def close(self) -> None:
        """Tell and hear no more."""
        self._telling = False
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
        hearing = None if self._listening is None else self._listening.thread
        for thread in (self._teller, hearing):
            if thread is not None and thread is not threading.current_thread():
                thread.join()
        self._teller = self._listening = None

    # --- telling

    def _tell(self) -> None:
        stop = self._stop
        refused = False
        while True:
            with self._changed:
                while not self._gathered and not stop.is_set():
                    self._changed.wait()
            if stop.wait(PAUSE):
                return
            with self._changed:
                sessions, self._gathered = self._gathered, set()
            before, refused = refused, False
            try:
                self._send(sessions)
            except EverlogError as error:  # they look by themselves
                # It has no such thing, or lets nobody in while another server takes over.
                refused = isinstance(error, SettingsError)
                if not (refused and before):
                    self._report(f"others hear later of what is new: {error.message}")
                if refused:
                    stop.wait(self.latest)

    def _send(self, sessions: Collection[str]) -> None:
        shards: dict[int, list[str]] = {}
        for one in sessions:
            shards.setdefault(shard_of(one), []).append(one)
        told = [
            (self.channel(shard), " ".join([self._myself, *some[at : at + MOST]]))
            for shard, some in shards.items()
            for at in range(0, len(some), MOST)
        ]
        values = {"channels": [one[0] for one in told], "payloads": [one[1] for one in told]}
        self._database.once(lambda link: link.execute(self._sql["tell"], values))

    # --- hearing

    def channel(self, shard: int) -> str:
        """What sessions of a shard are told on."""
        return f"{self._schema}_{shard}"

    def heard(self, notify: Notify) -> list[str]:
        """The sessions of a telling, unless it is one of ours."""
        teller, *sessions = notify.payload.split(" ")
        return [] if teller == self._myself else sessions

    def attend(self, link: Link, before: frozenset[int], after: frozenset[int]) -> None:
        """Listen for some shards in place of others."""
        for shard in before - after:
            link.execute(f'UNLISTEN "{self.channel(shard)}"')
        for shard in after - before:
            link.execute(f'LISTEN "{self.channel(shard)}"')

    def connected(self, work: Callable[[Link], None]) -> None:
        """Run something on a connection of its own."""
        self._database.prepared(work)

    def report(self, text: str) -> None:
        """Tell whoever looks after the store."""
        self._report(text)


class Listening:
    """Hears of some sessions; which ones may change at any time."""

    def __init__(self, news: News, heard: Heard, stop: threading.Event) -> None:
        self._news = news
        self._heard = heard
        self._stop = stop
        self._shards: frozenset[int] = frozenset()
        self._pause = SOONEST  # seconds, twice as long each time that nothing could be heard
        self._refused = False  # and that was told
        self.thread = threading.Thread(target=self._run, name="everlog-listener", daemon=True)
        self.thread.start()

    def attend(self, sessions: Collection[str]) -> None:
        """Hear of these, and of none besides that does not share a channel with them."""
        self._shards = frozenset(shard_of(one) for one in sessions)

    def stop(self) -> None:
        """Hear nothing more."""
        self._news.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                if self._shards:
                    self._news.connected(self._hear)
            except SettingsError as error:  # for good, or while another server takes over
                if not self._refused:
                    self._news.report(f"news of other processes come late: {error.message}")
                self._pause, self._refused = self._news.latest, True
            except EverlogError:  # whoever asks the store for something is told
                self._pause = min(2 * self._pause, self._news.latest)
            self._stop.wait(self._pause if self._shards else LOOK)

    def _hear(self, link: Link) -> None:
        """Listen until nobody is interested any more."""
        shards: frozenset[int] = frozenset()
        while (wanted := self._shards) and not self._stop.is_set():
            if wanted != shards:
                self._news.attend(link, shards, wanted)
                self._pause, self._refused = SOONEST, False  # from here on it is another loss
                more, shards = wanted - shards, wanted
                if more:
                    self._heard(frozenset())  # what came before is not told
            found: set[str] = set()
            for notify in link.notifies(timeout=LOOK, stop_after=1):
                found.update(self._news.heard(notify))
            if found:
                self._heard(frozenset(found))


def shard_of(session: str) -> int:
    """The channel of a session."""
    return stripe_of(sid_of(session).bytes) % CHANNELS
