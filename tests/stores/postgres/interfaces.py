"""What the fault tests write to: our store, a control, and twins of it that are wrong on purpose.

The control is as little as keeps every promise, in plain SQL; each twin leaves one care out, so that every
test is seen to fail.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol
from zlib import crc32

import psycopg

from everlog.errors import ConflictError, SessionBusyError, StoreFailedError
from everlog.ids import UlidGenerator
from everlog.log import line_codec
from everlog.model import Message, user
from everlog.settings import PostgresSettings, SessionSettings, Settings
from everlog.stores.postgres.id_columns import sid_of
from everlog.stores.postgres.postgres_store import PostgresStore

Link = psycopg.Connection[tuple[Any, ...]]
WORD = "cargo"  # is in every text, so that a wire can tell an append


class Row(NamedTuple):
    """A record as it is stored."""

    seq: int
    epoch: int
    name: str
    text: str


class Ack(NamedTuple):
    """A record that was acknowledged."""

    session: str
    name: str
    seq: int
    epoch: int  # of the turn it was written under; 0: of none


class Again(Exception):
    """It may have been stored or not; to be tried again under the same name."""


class Refused(Exception):
    """The turn is another's by now."""


class Turn(Protocol):
    """The right to write under an epoch."""

    @property
    def epoch(self) -> int: ...

    def release(self) -> None: ...


class Face(Protocol):
    """What a writer and the checker need."""

    def create(self) -> str: ...

    def append(self, session: str, name: str, turn: Turn | None = None) -> Ack: ...

    def take(self, session: str) -> Turn | None: ...

    def rows(self, session: str) -> list[Row]: ...

    def complaints(self, session: str) -> list[str]: ...

    def close(self) -> None: ...


def text_of(name: str) -> str:
    """The text that belongs to a name: of any size up to some kilobytes, and known to the checker."""
    chance = random.Random(crc32(name.encode()))
    return f"{WORD} of {name}: " + "x" * int(chance.random() ** 4 * 20_000)


class Everlog:
    """Our store."""

    def __init__(self, url: str, schema: str, lease: float = 15.0) -> None:
        own = PostgresSettings(schema=schema, lease_seconds=lease, pool_size=8, wait_seconds=1.0, statement_seconds=5.0)
        much = SessionSettings(total_bytes=0)  # a quick machine fills 200 MB in half a minute
        self.store = PostgresStore(url, Settings(postgres=own, session=much))
        self._schema = schema

    def create(self) -> str:
        return self.store.create().id

    def append(self, session: str, name: str, turn: Turn | None = None) -> Ack:
        record = user(text_of(name), id=name)
        try:
            (stored,) = self.store.append(session, [record], lease=turn)  # type: ignore[arg-type]
        except ConflictError as error:
            raise Refused(str(error)) from error
        except (StoreFailedError, SessionBusyError) as error:
            raise Again(str(error)) from error
        assert isinstance(stored, Message) and stored.text == text_of(name)
        return Ack(session, name, stored.seq or 0, turn.epoch if turn else 0)

    def take(self, session: str) -> Turn | None:
        try:
            return self.store.lease(session)
        except SessionBusyError:
            return None
        except StoreFailedError as error:
            raise Again(str(error)) from error

    def rows(self, session: str) -> list[Row]:
        asked = f"SELECT seq, epoch, body FROM {self._schema}.rec WHERE sid = %s AND seq > 0 ORDER BY seq"

        def ask(link: Link) -> list[Row]:
            found = []
            for seq, epoch, body in link.execute(asked, (sid_of(session),)):
                record = line_codec.decode(bytes(body)).record
                if isinstance(record, Message):
                    found.append(Row(seq, epoch, record.id, record.text))
                else:
                    found.append(Row(seq, epoch, "", ""))  # nobody wrote such a one
            return found

        return self.store.database.run_idempotent(ask)

    def complaints(self, session: str) -> list[str]:
        """What it finds wrong itself, in the log and in what is derived from it."""
        found = [f"{one.file} {one.seq}: {one.problem}" for one in self.store.verify(session)]
        count = len(list(self.store.read(session)))
        listed = {row.id: row.metadata.message_count for row in self.store.list(limit=500)}
        if listed.get(session) != count or self.store.metadata(session).message_count != count:
            found.append(f"the listing has {listed.get(session)} of {count} messages")
        return found

    def close(self) -> None:
        self.store.close()


class Held(NamedTuple):
    """A turn of the control."""

    face: Careful
    session: str
    epoch: int

    def release(self) -> None:
        self.face.give_back(self)


class Careful:
    """The control: compare-and-set on the head and the epoch, and a name that is unique."""

    synchronous = "on"

    def __init__(self, url: str, schema: str, lease: float = 15.0) -> None:
        self._url = url
        self._schema = schema
        self._lease = lease
        self._own = threading.local()
        self._warned = threading.local()
        self._links: list[Link] = []

    def make(self) -> None:
        """The tables; once."""
        with psycopg.connect(self._url, autocommit=True) as link:
            link.execute(f"CREATE SCHEMA {self._schema}")
            link.execute(
                f"""CREATE TABLE {self._schema}.s (sid text PRIMARY KEY, head bigint DEFAULT 0,
                epoch bigint DEFAULT 0, until timestamptz DEFAULT 'epoch')"""
            )
            link.execute(
                f"""CREATE TABLE {self._schema}.r (sid text, seq bigint, name text, epoch bigint, body text,
                PRIMARY KEY (sid, seq))"""
            )

    def create(self) -> str:
        session = UlidGenerator(time.time)()
        self._run(f"INSERT INTO {self._schema}.s (sid) VALUES (%s)", session)
        return session

    def append(self, session: str, name: str, turn: Turn | None = None) -> Ack:
        while True:
            stored = self._find(session, name)
            if stored is not None:
                return Ack(session, name, stored, turn.epoch if turn else 0)
            ((head, epoch),) = self._run(f"SELECT head, epoch FROM {self._schema}.s WHERE sid = %s", session)
            if turn is not None and self._is_late(turn, epoch):
                raise Refused(f"the epoch is {epoch}")
            rows = self._run(
                f"""WITH s AS (UPDATE {self._schema}.s SET head = head + 1 WHERE sid = %s AND head = %s
                    AND epoch = %s RETURNING head)
                INSERT INTO {self._schema}.r (sid, seq, name, epoch, body)
                SELECT %s, s.head, %s, %s, %s FROM s RETURNING seq""",
                *(session, head, epoch, session, name, turn.epoch if turn else epoch, text_of(name)),
            )
            if rows:
                return Ack(session, name, rows[0][0], turn.epoch if turn else 0)

    def _is_late(self, turn: Turn, epoch: int) -> bool:
        return epoch != turn.epoch

    def _find(self, session: str, name: str) -> int | None:
        """Where a record is that may have been stored without an answer."""
        rows = self._run(f"SELECT seq FROM {self._schema}.r WHERE sid = %s AND name = %s", session, name)
        if rows:  # acknowledged behind a commit of its own
            self._run(f"UPDATE {self._schema}.s SET head = head WHERE sid = %s", session)
        return rows[0][0] if rows else None

    def take(self, session: str) -> Turn | None:
        rows = self._run(
            f"""UPDATE {self._schema}.s SET epoch = epoch + 1,
                until = clock_timestamp() + %s * interval '1 second'
            WHERE sid = %s AND until < clock_timestamp() RETURNING epoch""",
            *(self._lease, session),
        )
        return Held(self, session, rows[0][0]) if rows else None

    def give_back(self, turn: Held) -> None:
        self._run(
            f"UPDATE {self._schema}.s SET until = 'epoch' WHERE sid = %s AND epoch = %s", *(turn.session, turn.epoch)
        )

    def rows(self, session: str) -> list[Row]:
        asked = f"SELECT seq, epoch, name, body FROM {self._schema}.r WHERE sid = %s ORDER BY seq"
        return [Row(*row) for row in self._run(asked, session)]

    def complaints(self, session: str) -> list[str]:
        return []

    def close(self) -> None:
        for link in self._links:
            link.close()

    def _run(self, statement: str, *values: Any) -> list[Any]:
        link: Link | None = getattr(self._own, "link", None)
        try:
            if link is None or link.closed:
                link = self._own.link = psycopg.connect(self._url, autocommit=True, connect_timeout=2)
                link.add_notice_handler(self._notice)
                link.execute("SELECT set_config('synchronous_commit', %s, false)", (self.synchronous,))
                self._links.append(link)
            self._warned.now = False
            cursor = link.execute(statement, values)
            rows = cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            if link is not None:
                link.close()
            raise Again(str(error)) from error
        if self._warned.now:
            raise Again("acknowledged with a warning")
        return rows

    def _notice(self, notice: psycopg.errors.Diagnostic) -> None:
        self._warned.now = True


# --- twins


class AcknowledgesEarly(Careful):
    """Takes a commit for one that the server has only promised to write down soon."""

    synchronous = "off"


class RetriesWithoutNames(Careful):
    """Writes again what got no answer, without looking whether it is there."""

    def _find(self, session: str, name: str) -> int | None:
        return None


class ForgetsTheEpoch(Careful):
    """Writes for as long as it believes to have the turn."""

    def _is_late(self, turn: Turn, epoch: int) -> bool:
        return False


class CommitsHere(Careful):
    """Does not wait for the standby."""

    synchronous = "local"


class TrustsWarnings(Careful):
    """Takes a commit with a warning for one."""

    def _notice(self, notice: psycopg.errors.Diagnostic) -> None:
        pass


def _all(kind: type[Careful]) -> Iterator[type[Careful]]:
    yield kind
    for one in kind.__subclasses__():
        yield from _all(one)


TWINS = {kind.__name__: kind for kind in _all(Careful)}  # and the control


def open_face(kind: str, url: str, schema: str, lease: float = 15.0) -> Face:
    """Our store, the control or a twin."""
    return (TWINS.get(kind) or Everlog)(url, schema, lease)


def new_sessions(kind: str, url: str, schema: str, count: int) -> list[str]:
    """Tables, and empty sessions in them."""
    face: Face = Careful(url, schema) if kind in TWINS else Everlog(url, schema)
    try:
        if isinstance(face, Careful):  # whatever the twin does later, it has sessions to begin with
            face.make()
        return [face.create() for _ in range(count)]
    finally:
        face.close()
