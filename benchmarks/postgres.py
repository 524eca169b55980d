"""PostgreSQL: appends against bare INSERTs, a context out of 200 MB, and a million sessions.

The server is a real one, from the wheel that the tests use, and syncs each commit. Both sides of a
ratio are measured in turns, on the same server.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg

import everlog
from benchmarks.report import Figure, middle
from everlog.app import open_store
from everlog.ids import UlidGenerator
from everlog.log import line_codec
from everlog.log.fold import MetadataFold
from everlog.model import AnyRecord, Compaction, Meta
from everlog.ports import SessionRow
from everlog.session import Store
from everlog.settings import PostgresSettings, SessionSettings, Settings
from everlog.stores.postgres.id_columns import rid_of, sid_of
from everlog.stores.postgres.metadata_rows import _listing_values
from everlog.stores.postgres.name_claims import _claim_rows
from everlog.stores.postgres.part_layout import KINDS
from tests.stores.postgres.server import Server

SESSIONS = 1_000_000
KILOBYTE = 790  # of text, for a line of about 1 KB
BLOCK, BLOCKS = 50, 30
CLIENTS, EACH, ROUNDS = 16, 100, 9
TAIL = 300_000
_REAL = {
    "fsync": "on", "shared_buffers": "1GB", "max_wal_size": "8GB", "max_connections": "120",
    "checkpoint_timeout": "30min",
}  # fmt: skip
_BARE = "INSERT INTO bare (sid, seq, body) VALUES (%s, %s, %s)"


def measure(folder: Path, count: int = SESSIONS) -> list[Figure]:
    """All figures about PostgreSQL."""
    with Server(_REAL) as server:
        return [
            *_one_client(server),
            *_many_clients(server),
            *_sizes(server, "everlog"),
            *_contexts(server),
            *_million(server, count),
        ]


def _store(server: Server, schema: str = "everlog") -> Store:
    own = PostgresSettings(schema=schema, pool_size=CLIENTS + 4)
    settings = Settings(postgres=own, session=SessionSettings(total_bytes=0))
    return open_store(server.url, settings=settings)


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


# --- appends --------------------------------------------------------------------------------


def _bare(url: str, line: bytes, each: int) -> Callable[[], None]:
    """A loop of INSERTs of the same bytes, each its own commit, on a connection of its own."""
    connection = psycopg.connect(url, autocommit=True)
    sid, seq = uuid4(), 0

    def write() -> None:
        nonlocal seq
        for _ in range(each):
            seq += 1
            connection.execute(_BARE, (sid, seq, line))

    return write


def _ours(store: Store, each: int) -> Callable[[], None]:
    session = store.create(sender=uuid4().hex)
    message = everlog.user("x" * KILOBYTE)

    def write() -> None:
        for _ in range(each):
            session.append(message)

    return write


def _one_client(server: Server) -> list[Figure]:
    with server.connect() as connection:
        connection.execute("CREATE TABLE bare (sid uuid, seq bigint, body bytea, PRIMARY KEY (sid, seq))")
    with _store(server) as store:
        line = store.create().append(everlog.user("x" * KILOBYTE)).line
        works = (_bare(server.url, line, BLOCK), _ours(store, BLOCK), _bare(server.url, line, BLOCK))
        for warm in works:
            warm()
        times = [tuple(map(_timed, works)) for _ in range(BLOCKS)]
    ratio = middle([(a + b) / 2 / mine for a, mine, b in times])
    apart = abs(middle([a for a, _, _ in times]) / middle([b for _, _, b in times]) - 1)
    each = middle([mine for _, mine, _ in times]) / BLOCK * 1000
    note = f"lines of {len(line)} bytes, {each:.2f} ms each; the two bare loops differ by {apart:.1%}"
    return [
        Figure(
            "PostgreSQL: append, one client, against a bare INSERT with commit",
            "≥ 0.80 ×",
            f"{ratio:.2f} ×",
            ratio >= 0.80,
            note,
        )
    ]


def _together(works: list[Callable[[], None]]) -> float:
    barrier = threading.Barrier(len(works) + 1)

    def run(work: Callable[[], None]) -> None:
        barrier.wait()
        work()

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    barrier.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start


def _client(url: str, line: bytes, gate: Any, kinds: list[str]) -> None:
    """A process that appends, or inserts, each time all others are ready."""
    settings = Settings(postgres=PostgresSettings(pool_size=2))
    with open_store(url, settings=settings) as store:
        works = {"ours": _ours(store, EACH), "bare": _bare(url, line, EACH)}
        for work in works.values():
            work()  # warm
        for kind in kinds:
            gate.wait()
            works[kind]()
            gate.wait()


def _in_processes(server: Server, line: bytes) -> list[tuple[float, float]]:
    spawn = multiprocessing.get_context("spawn")
    gate = spawn.Barrier(CLIENTS + 1)
    kinds = ["bare", "ours"] * ROUNDS
    arguments = (server.url, line, gate, kinds)
    processes = [spawn.Process(target=_client, args=arguments) for _ in range(CLIENTS)]
    for process in processes:
        process.start()
    times: list[float] = []
    for _ in kinds:
        gate.wait(300)
        start = time.perf_counter()
        gate.wait(300)
        times.append(time.perf_counter() - start)
    for process in processes:
        process.join(60)
    return list(zip(times[::2], times[1::2], strict=True))


def _many_clients(server: Server) -> list[Figure]:
    with _store(server) as store:
        line = store.create().append(everlog.user("x" * KILOBYTE)).line
        bare = [_bare(server.url, line, EACH) for _ in range(CLIENTS)]
        ours = [_ours(store, EACH) for _ in range(CLIENTS)]
        _together(bare), _together(ours)
        threads = [(_together(bare), _together(ours)) for _ in range(ROUNDS)]
    processes = _in_processes(server, line)
    figures = []
    for what, times in (("threads", threads), ("processes", processes)):
        ratio = middle([theirs / mine for theirs, mine in times])
        a_second = CLIENTS * EACH / middle([mine for _, mine in times])
        bare_second = CLIENTS * EACH / middle([theirs for theirs, _ in times])
        figures.append(
            Figure(
                f"PostgreSQL: append, 16 {what}, against 16 bare INSERT clients",
                "≥ 0.6 ×",
                f"{ratio:.2f} ×",
                ratio >= 0.6,
                f"{a_second:,.0f} against {bare_second:,.0f} a second",
            )
        )
    return figures


# --- a long session -------------------------------------------------------------------------


def _session(store: Store, size: int) -> everlog.Session:
    """About `size` bytes, of which the last compaction leaves 300 KB to be read."""
    session = store.create(sender=f"{size}")
    batch = [everlog.user("x" * 1500) for _ in range(200)]
    written = 0
    while written < size - TAIL:
        written += sum(len(record.line) + 1 for record in session.append_many(batch))
    kept = session.metadata.through.seq + 1
    session.append(Compaction(strategy="extractive", summary="all that", first_kept_seq=kept))
    session.append_many([everlog.user("y" * 1500) for _ in range(TAIL // 1700)])
    return session


def _contexts(server: Server) -> list[Figure]:
    with _store(server) as store:
        small, large = _session(store, 1_000_000), _session(store, 200_000_000)
        few, many = [], []
        for session in (small, large):
            session.context()
        for _ in range(25):
            few.append(_timed(small.context))
            many.append(_timed(large.context))
        messages = len(large.context().messages)
    ratio = middle(many) / middle(few)
    return [
        Figure(
            "PostgreSQL: context of a 200 MB session against 1 MB with the same tail",
            "≤ 2 ×",
            f"{ratio:.2f} ×",
            ratio <= 2,
            f"{middle(many) * 1000:.1f} ms, {messages} messages",
        )
    ]


# --- a million sessions ---------------------------------------------------------------------


def _made(count: int) -> Iterator[tuple[MetadataFold, list[bytes], list[AnyRecord]]]:
    """Sessions as the store would leave them: a birth line, a question, a name each."""
    moment = 1_700_000_000.0
    new_id = UlidGenerator(lambda: moment)
    for number in range(count):
        moment += 1
        tally = MetadataFold.empty(new_id())
        key = f"agent:main:telegram:direct:{number}"
        birth = Meta(
            set={
                "agent": "main", "sender": f"user-{number % 1000}", "key": f"sk_v1_{number:032x}",
                "aliases": [key], "generations": {key: 1}, "chat": 1, "current": 1,
                "name": f"Session {number}",
            }
        )  # fmt: skip
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(moment))
        said = everlog.user("What pods are running?", id=f"a{number}", timestamp=stamp)
        rows: list[bytes] = []
        records: list[AnyRecord] = [birth, said]
        for seq, record in enumerate(records):
            rows.append(line_codec.build_line(line_codec.encode(record)[1], record.record_type, seq))
            tally.add(line_codec.as_stored(record, seq, rows[-1], plain=False))
        yield tally, rows, records


_TABLES: dict[str, tuple[list[str], list[str]]] = {
    "session": (
        ["sid", "head", "bytes", "part_bytes", "part_first"],
        ["uuid", "int8", "int8", "int8", "int8"],
    ),
    "rec": (
        ["sid", "seq", "rid", "epoch", "part", "kind", "body"],
        ["uuid", "int8", "uuid", "int8", "int4", "int2", "bytea"],
    ),
    "listing": (
        ["sid", "seq", "active", "bytes", "parts", "unfinished", "agent", "sender", "source",
         "title", "metadata"],
        ["uuid", "int8", "int8", "int8", "int4", "bool", "text", "text", "text", "text", "bytea"],
    ),
    "claim": (["name", "generation", "sid", "chat"], ["bytea", "int8", "uuid", "int8"]),
}  # fmt: skip


def _rows(tally: MetadataFold, bodies: list[bytes], records: list[AnyRecord]) -> dict[str, list[Any]]:
    size = sum(map(len, bodies)) + len(bodies)
    metadata = tally.metadata(1, size)
    sid: UUID = sid_of(metadata.id)
    listed = _listing_values(SessionRow(metadata, size, 1))
    return {
        "session": [(sid, 1, size, size, 1)],
        "rec": [
            (sid, seq, rid_of(record.id), 0, 1, KINDS[record.record_type], body)
            for seq, (record, body) in enumerate(zip(records, bodies, strict=True))
        ],
        "listing": [tuple(listed[name] for name in _TABLES["listing"][0])],
        "claim": [tuple(one.values()) for one in _claim_rows(metadata, sid)],
    }


def _fill(server: Server, schema: str, count: int) -> None:
    """Load sessions with COPY, one connection for each table."""
    with ExitStack() as stack:
        copies = {}
        for table, (columns, types) in _TABLES.items():
            connection = stack.enter_context(server.connect())
            cursor = stack.enter_context(connection.cursor())
            names = ", ".join(columns)
            statement = f"COPY {schema}.{table} ({names}) FROM STDIN (FORMAT BINARY)"
            copies[table] = stack.enter_context(cursor.copy(statement))
            copies[table].set_types(types)
        for made in _made(count):
            for table, rows in _rows(*made).items():
                for row in rows:
                    copies[table].write_row(row)
    with server.connect() as connection:
        connection.execute(f"UPDATE {schema}.stripe SET sessions = {count} WHERE number = 0")
        connection.execute("VACUUM ANALYZE")


def _million(server: Server, count: int) -> list[Figure]:
    schema = "million"
    with _store(server, schema) as store:
        store.list(limit=1)  # makes the tables
        _fill(server, schema, count)
        chance = random.Random(5)
        names = [f"agent:main:telegram:direct:{chance.randrange(count)}" for _ in range(500)]
        newest = [_timed(lambda: store.list(limit=50)) for _ in range(60)]
        page = store.list(limit=50)
        assert (len(page), page.total) == (50, count)
        deep = [_timed(lambda: store.list(limit=50, cursor=page.next)) for _ in range(30)]
        found = [_timed(lambda name=name: store.port.resolve(name)) for name in names]  # type: ignore[misc]
        being_written = [store.session(row.id) for row in page[:8]]
        message = everlog.user("one more")
        current = []
        for _ in range(30):
            for session in being_written:
                session.append(message)
            current.append(_timed(lambda: store.list(limit=50)))
    return [
        Figure(
            f"PostgreSQL: newest 50 of {count:,} sessions",
            "≤ 10 ms",
            f"{middle(newest) * 1000:.2f} ms",
            middle(newest) <= 0.010,
            f"the next 50: {middle(deep) * 1000:.2f} ms; 8 of them being written and shown "
            f"current: {middle(current) * 1000:.1f} ms",
        ),
        Figure(
            f"PostgreSQL: a session by its alias among {count:,}",
            "≤ 2 ms",
            f"{middle(found) * 1000:.2f} ms",
            middle(found) <= 0.002,
            f"slowest of 500: {max(found) * 1000:.1f} ms",
        ),
        *_sizes(server, schema),
    ]


def _sizes(server: Server, schema: str) -> list[Figure]:
    """Bytes for each session and each record, without and with indexes."""
    with server.connect() as connection:
        connection.execute("VACUUM ANALYZE")
        rows = connection.execute(
            """SELECT c.relname, pg_table_size(c.oid), pg_indexes_size(c.oid)
            FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname = %s AND c.relkind = 'r'""",
            (schema,),
        ).fetchall()
        sizes = {name: (table, indexes) for name, table, indexes in rows}
        counts = {
            name: connection.execute(f"SELECT count(*) FROM {schema}.{name}").fetchone()[0]  # type: ignore[index]
            for name in ("session", "listing", "claim", "rec")
        }
        body = connection.execute(
            f"SELECT avg(octet_length(body)), avg(pg_column_size(body)) FROM {schema}.rec"
        ).fetchone()
    assert body is not None
    wanted = ("rec",) if schema == "everlog" else ("session", "listing", "claim", "rec")
    figures = []
    for name in wanted:
        table, indexes = (size / counts[name] for size in sizes[name])
        note = f"{counts[name]:,} rows"
        if name == "rec":
            note += f", lines of {body[0]:.0f} bytes on average, {body[1]:.0f} as they are stored"
        figures.append(
            Figure(
                f"PostgreSQL: bytes of a row of `{name}`, without and with its indexes",
                "–",
                f"{table:.0f}, {table + indexes:.0f}",
                None,
                note,
            )
        )
    return figures


if __name__ == "__main__":
    from benchmarks.report import table

    print(table(measure(Path("."), int(os.environ.get("SESSIONS", SESSIONS)))))
