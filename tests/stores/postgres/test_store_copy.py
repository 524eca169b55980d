"""`everlog store copy`: the same bytes wherever a session lives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from everlog.app import load_formats
from everlog.errors import ConflictError, FormatError, StoreFailedError
from everlog.interop.import_paths import import_paths
from everlog.interop.store_copy import CopyReport, copy
from everlog.log.line_codec import decode
from everlog.model import Damaged, Event, Metadata, assistant, user
from everlog.ports import RawLine
from everlog.session import Session, Store
from everlog.settings import Settings
from everlog.stores.file.file_store import FileStore
from everlog.stores.postgres.postgres_store import PostgresStore
from tests.interop.test_import_paths import agent_home
from tests.stores.postgres.open_stores import Stores
from tests.stores.postgres.sample_sessions import SMALL, fill, logs
from tests.test_spec_003 import ALL_FACTS, ULID, facts

COUNT = 60
AnyStore = FileStore | PostgresStore


@pytest.fixture
def roots(tmp_path: Path) -> Iterator[list[FileStore]]:
    """Three stores of files; the first is to be filled."""
    made = [FileStore(tmp_path / name, SMALL) for name in ("first", "second", "third")]
    yield made
    for one in made:
        one.close()


def _lines(home: FileStore | PostgresStore, session: str) -> list[tuple[int, bytes]]:
    return [(one.part, one.body) for one in home.lines(session) if isinstance(one, RawLine)]


def _facts(home: FileStore | PostgresStore) -> list[object]:
    """What is known of all sessions, but for where their logs end (torn tails, lines left out)."""
    rows = home.list(limit=10_000, order="created").sessions
    return [replace(row.metadata, through=replace(row.metadata.through, bytes=0)) for row in rows]


def test_files_to_a_database_and_back_are_the_same_bytes(
    roots: list[FileStore], stores: Stores, tmp_path: Path
) -> None:
    damaged = fill(tmp_path / "first", COUNT)
    first, second, third = roots
    database = stores.new(SMALL)
    out, back = copy(first, database), copy(database, second)
    assert (out.sessions, out.copied, out.refused) == (COUNT, COUNT, [])
    assert (back.sessions, back.copied, back.refused) == (COUNT, COUNT, [])
    assert {one.session for one in out.damage} == damaged.keys()
    kept = {one for one, what in damaged.items() if what not in ("left out", "torn")}
    assert {one.session for one in out.damage if one.left_out} == {
        one for one, what in damaged.items() if what == "left out"
    }
    # Each way round the lines are the same, and where no line was left out the files are.
    exact = {one for one in logs(tmp_path / "first") if one[:26] not in damaged or one[:26] in kept}
    before, after = logs(tmp_path / "first"), logs(tmp_path / "second")
    assert before.keys() == after.keys()
    assert {name for name in before if before[name] == after[name]} >= exact
    for session in first.ids():
        assert _lines(first, session) == _lines(database, session) == _lines(second, session)
    assert any(name.endswith("part3.jsonl") for name in before)
    whole = [one for one in database.ids() if one not in damaged]
    for session in whole:
        assert first.metadata(session) == database.metadata(session) == second.metadata(session)
        assert first.parts(session) == database.parts(session) == second.parts(session)
        assert database.verify(session) == ()
    # From the copy on, everything is as from the start.
    copy(second, third)
    assert logs(tmp_path / "third") == after
    assert _facts(second) == _facts(third)


def test_names_chats_and_claims_come_along(roots: list[FileStore], stores: Stores, tmp_path: Path) -> None:
    fill(tmp_path / "first", COUNT)
    first, second, _ = roots
    database = stores.new(SMALL)
    copy(first, database)
    copy(database, second)
    named = {name for row in first.list(limit=1000) for name in row.metadata.names}
    assert len(named) > 20
    threads = {row.metadata.thread for row in first.list(limit=1000)}
    for home in (database, second):
        assert {name: home.resolve(name) for name in named} == {name: first.resolve(name) for name in named}
        assert {one: home.chats(one) for one in threads} == {one: first.chats(one) for one in threads}
        assert home.list(limit=1).total == COUNT
    # And a session goes on there as it would have here.
    session = first.resolve("key-0")
    one, other = (home.append(session, [user("more", id="a", timestamp="t")]) for home in (first, database))
    assert [record.line for record in one] == [record.line for record in other]


def test_what_came_since_is_brought_over_and_nothing_twice(roots: list[FileStore], stores: Stores) -> None:
    first, second, _ = roots
    database = stores.new(SMALL)
    grown, empty, quiet = (first.create({"sender": str(number)}).id for number in range(3))
    first.append(grown, [user("one", id="same"), assistant("x" * 2500)])
    first.append(quiet, [user("quiet")])
    for target in (database, second):
        assert copy(first, target).copied == 3
    first.append(grown, [user("y" * 2000), user("three", id="late")])
    first.append(empty, [user("at last")])
    first.update(grown, {"name": "Grown"})
    for target in (database, second):
        again = copy(first, target)
        # The first line of a log is that of its birth.
        assert (again.grown, again.same, again.copied, again.lines) == (2, 1, 0, 5)
        assert copy(first, target).same == 3
        assert target.metadata(grown) == first.metadata(grown)
        assert target.metadata(empty) == first.metadata(empty)
        assert target.parts(grown) == first.parts(grown)
        assert target.verify(grown) == ()
        (retried,) = target.append(grown, [user("three", id="late")])
        assert retried.seq == 4


def test_a_session_that_differs_is_refused_and_left_alone(roots: list[FileStore], stores: Stores) -> None:
    first, second, _ = roots
    database = stores.new(SMALL)
    session, other = first.create({"sender": "a"}).id, first.create({"sender": "b"}).id
    for one in (session, other):
        first.append(one, [user("one")])
    for target in (database, second):
        copy(first, target)
        target.append(session, [user("only there")])
        before = _lines(target, session)
        longer = copy(first, target)
        assert (longer.same, len(longer.refused)) == (1, 1)
        assert "the target has more records, from 2 on" in longer.refused[0].problem
        assert _lines(target, session) == before
    first.append(session, [user("only here")])
    first.append(other, [user("both")])
    for target in (database, second):
        before = _lines(target, session)
        moved = copy(first, target)
        assert moved.grown == 1
        assert [one.session for one in moved.refused] == [session]
        assert "record 2 is another one in the target" in moved.refused[0].problem
        assert _lines(target, session) == before


def test_only_the_sessions_that_were_named_are_copied(roots: list[FileStore], stores: Stores) -> None:
    first, _, _ = roots
    database = stores.new(SMALL)
    session = first.create({"key": "wanted"}).id
    first.create({"key": "other"})
    assert copy(first, database, ["wanted", session]).sessions == 1
    assert list(database.ids()) == [session]


def test_a_log_without_a_birth_record_keeps_the_facts_beside_it(
    roots: list[FileStore], stores: Stores, tmp_path: Path
) -> None:
    first, second, _ = roots
    database = stores.new(SMALL)
    session = first.create({"agent": "theirs", "model": "m"}).id
    first.close()
    part = tmp_path / "first" / "sessions" / session / "session.jsonl"
    part.write_bytes(
        b'{"recordType":"message","role":"user","seq":1,"schemaVersion":1,'
        b'"content":[{"type":"text","text":"hi"}],"timestamp":"2025-01-01T00:00:00Z"}\n'
    )
    copy(first, database)
    copy(database, second)
    for home in (database, second):
        known = home.metadata(session)
        assert (known.agent, known.model, known.message_count) == ("theirs", "m", 1)
    assert logs(tmp_path / "first") == logs(tmp_path / "second")


def test_such_facts_are_kept_by_a_repair_and_by_a_fork(roots: list[FileStore], stores: Stores, tmp_path: Path) -> None:
    first, second, _ = roots
    database = stores.new(SMALL)
    made = {"agent": "theirs", "sender": "bob", "model": "m", "name": "Title", "key": "k"}
    session = first.create(made | {"aliases": ["also"]}).id
    first.close()
    part = tmp_path / "first" / "sessions" / session / "session.jsonl"
    part.write_bytes(
        b'{"recordType":"message","role":"user","seq":1,"schemaVersion":1,'
        b'"content":[{"type":"text","text":"hi"}],"timestamp":"2025-01-01T00:00:00Z"}\n'
    )
    copy(first, database)
    copy(first, second)
    for home in (database, second):
        fork = home.fork(session)
        for known in (fork, home.metadata(fork.id)):
            assert (known.agent, known.sender, known.model) == ("theirs", "bob", "m")
            assert (known.title, known.key, known.aliases) == ("Title", None, ())
        before = home.metadata(session)
        home.repair(session)
        assert home.metadata(session) == before
        assert before.title == "Title"
        assert home.resolve("k") == home.resolve("also") == session
        home.append(session, [user("more")])
        home.repair(session)
        assert home.metadata(session).key == "k"


def test_a_session_that_comes_in_again_is_not_taken_for_the_one_before(roots: list[FileStore], stores: Stores) -> None:
    first, _, _ = roots
    database = stores.new(SMALL)
    session = first.create().id
    first.append(session, [user("one"), user("two")])
    copy(first, database)
    other = stores.again(database)
    assert other.update(session, {"name": "the one before", "key": "old"}).through.seq == 3
    database.delete(session)
    first.update(session, {"name": "now"})
    assert copy(first, database).copied == 1
    assert (other.metadata(session).title, other.metadata(session).key) == ("now", None)
    other.append(session, [user("three")])
    assert other.metadata(session).title == "now"
    other.close()
    assert stores.again(database).list()[0].metadata.title == "now"


def test_a_session_that_is_written_to_is_copied_up_to_a_record(roots: list[FileStore], stores: Stores) -> None:
    first, _, _ = roots
    database = stores.new(SMALL)
    session = first.create().id
    first.append(session, [user("first")])
    stop = threading.Event()

    def write() -> None:
        for number in range(1500):
            if stop.is_set():
                return
            first.append(session, [user(f"{number} " * 50), Event(kind="x", data={})])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(5):
            moved = copy(first, database)
            assert moved.ok
            got = _lines(database, session)
            assert got == _lines(first, session)[: len(got)]
    finally:
        stop.set()
        writer.join()
    copy(first, database)
    assert _lines(database, session) == _lines(first, session)
    assert database.verify(session) == ()


def test_lines_of_a_newer_version_make_the_copy_read_only_too(
    roots: list[FileStore], stores: Stores, tmp_path: Path
) -> None:
    first, second, _ = roots
    database = stores.new(SMALL)
    session = first.create().id
    first.append(session, [user("one")])
    first.close()
    with open(tmp_path / "first" / "sessions" / session / "session.jsonl", "ab") as file:
        file.write(b'{"recordType":"message","schemaVersion":7,"seq":2,"what":1}\n')
    for target in (database, second):
        copy(first, target)
        assert target.metadata(session).newest_schema == 7
        with pytest.raises(FormatError, match="newer"):
            target.append(session, [user("two")])
        with pytest.raises(FormatError, match="newer"):
            target.fork(session)
        assert list(target.ids()) == [session]
        before = target.fork(session, 1).id
        assert target.append(before, [user("two")])[0].seq == 3


def test_an_id_that_was_used_again_is_no_duplicate(stores: Stores) -> None:
    here, there = stores.new(), stores.new()
    session = here.create().id
    for _ in range(2):
        here.append(session, [user("the same", id="again")])
        here.append(session, [user(str(number)) for number in range(1100)])
    copy(here, there)
    assert _lines(here, session) == _lines(there, session)
    here.append(session, [user("the same", id="again")])
    assert copy(here, there).grown == 1
    assert _lines(here, session) == _lines(there, session)


class _Failing:
    """A store of files whose lines end with an error, as those of a disk that dies."""

    def __init__(self, own: FileStore, after: int) -> None:
        self._own, self._left = own, after

    def __getattr__(self, name: str) -> object:
        return getattr(self._own, name)

    def lines(self, session: str) -> Iterator[RawLine | Damaged]:
        for line in self._own.lines(session):
            self._left -= 1
            if self._left < 0:
                raise StoreFailedError("the disk is gone")
            yield line


def test_an_error_in_the_middle_leaves_whole_sessions_and_the_next_run_goes_on(
    roots: list[FileStore], stores: Stores, tmp_path: Path
) -> None:
    fill(tmp_path / "first", 12)
    first, second, _ = roots
    for target in (stores.new(SMALL), second):
        done = 0
        for after in (1, 30, 90, 200, 400):
            with pytest.raises(StoreFailedError):
                copy(_Failing(first, after), target)  # type: ignore[arg-type]
            ids = list(target.ids())
            assert len(ids) >= done
            done = len(ids)
            for session in ids:
                assert _lines(target, session) == _lines(first, session)
        assert 0 < done < 12
        assert copy(first, target).sessions == 12
        for session in first.ids():
            assert _lines(target, session) == _lines(first, session)
    assert os.listdir(tmp_path / "second" / "tmp") == []


def test_an_error_while_lines_are_added_takes_them_back(roots: list[FileStore], stores: Stores, tmp_path: Path) -> None:
    first, second, _ = roots
    session = first.create().id
    first.append(session, [user("x" * 500)])
    for target in (stores.new(SMALL), second):
        copy(first, target)
        before, parts = _lines(target, session), target.parts(session)
        first.append(session, [user(f"{number} " * 400) for number in range(12)])
        rest = [one for one in first.lines(session) if isinstance(one, RawLine)][len(before) :]

        def broken(rest: list[RawLine] = rest) -> Iterator[RawLine]:
            yield from rest[:-2]
            raise StoreFailedError("the disk is gone")

        with pytest.raises(StoreFailedError):
            target.adopt(first.metadata(session), broken, after=len(before) - 1)
        assert _lines(target, session) == before
        assert target.parts(session) == parts
        assert target.append(session, []) == []
        assert copy(first, target).grown == 1
        assert _lines(target, session) == _lines(first, session)
    assert logs(tmp_path / "first") == logs(tmp_path / "second")


def test_lines_that_a_crash_left_half_written_are_set_aside_and_written_again(
    roots: list[FileStore], tmp_path: Path
) -> None:
    first, second, _ = roots
    session = first.create().id
    first.append(session, [user("one")])
    copy(first, second)
    first.append(session, [user("two"), user("three")])
    second.close()
    whole = [one.body for one in first.lines(session) if isinstance(one, RawLine)]
    log = tmp_path / "second" / "sessions" / session / "session.jsonl"
    with open(log, "ab") as file:
        file.write(whole[2] + b"\n" + whole[3][:40])
    assert copy(first, second).grown == 1
    assert logs(tmp_path / "first") == logs(tmp_path / "second")
    assert second.verify(session) == ()


class _Careless:
    """A store that says it took a session over, and lost a byte of it."""

    def __init__(self, own: FileStore | PostgresStore) -> None:
        self._own = own

    def __getattr__(self, name: str) -> object:
        return getattr(self._own, name)

    def adopt(self, source: Metadata, lines: Callable[[], Iterator[RawLine]], after: int | None = None) -> None:
        def changed() -> Iterator[RawLine]:
            for one in lines():
                yield one._replace(body=one.body.replace(b"two", b"tvo"))

        self._own.adopt(source, changed, after)


def test_a_store_that_keeps_something_else_is_found_out(roots: list[FileStore], stores: Stores) -> None:
    first, second, _ = roots
    session = first.create().id
    first.append(session, [user("one"), user("two")])
    for target in (stores.new(SMALL), second):
        moved = copy(first, _Careless(target))  # type: ignore[arg-type]
        assert [one.session for one in moved.refused] == [session]
        assert "differs at record 2" in moved.refused[0].problem


@pytest.mark.parametrize("way", ["to a database", "to files"])
def test_a_copy_that_is_killed_goes_on_with_the_next_run(
    way: str, roots: list[FileStore], stores: Stores, tmp_path: Path
) -> None:
    fill(tmp_path / "first", COUNT)
    first, second, _ = roots
    database = stores.new(SMALL)
    settings = {"EVERLOG_POSTGRES_SCHEMA": database.database.settings.schema, "EVERLOG_SESSION_DURABILITY": "os"}
    there: FileStore | PostgresStore
    if way == "to files":
        copy(first, database)
        source, target, there = stores.server.url, str(tmp_path / "second"), second
    else:
        source, target, there = str(tmp_path / "first"), stores.server.url, database
    command = [sys.executable, "-m", "everlog", "store", "copy", source, target]
    environment = {**os.environ, **settings, "EVERLOG_HOME": str(tmp_path / "home")}
    counts = [0]
    for goal in (5, 20, 40):
        with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as running:
            deadline = time.monotonic() + 60
            while len(list(there.ids())) < goal and running.poll() is None:
                assert time.monotonic() < deadline
            running.send_signal(signal.SIGKILL)
        counts.append(len(list(there.ids())))
        for session in there.ids():
            assert _lines(there, session) == _lines(first, session)
    assert 0 < counts[1] < COUNT
    done = subprocess.run([*command, "--json"], env=environment, capture_output=True, check=False, timeout=120)
    moved = msgspec.json.decode(done.stdout, type=CopyReport)
    assert moved.refused == []
    assert moved.sessions == COUNT
    assert moved.same >= counts[-1]
    for session in first.ids():
        assert _lines(there, session) == _lines(first, session)
    assert not (tmp_path / "second" / "tmp").exists() or not os.listdir(tmp_path / "second" / "tmp")


def test_a_store_refuses_a_session_that_it_has(roots: list[FileStore], stores: Stores) -> None:
    first, second, _ = roots
    database = stores.new(SMALL)
    session = first.create().id
    first.append(session, [user("one")])
    carried = [one for one in first.lines(session) if isinstance(one, RawLine)]
    for target in (database, second):
        target.adopt(first.metadata(session), lambda: iter(carried))
        with pytest.raises(ConflictError):
            target.adopt(first.metadata(session), lambda: iter(carried))
        with pytest.raises(ConflictError):
            target.adopt(first.metadata(session), lambda: iter(carried), after=7)
        assert len(_lines(target, session)) == 2
        assert decode(_lines(target, session)[1][1]).record is not None


def test_what_is_kept_is_counted_alike(roots: list[FileStore], stores: Stores, tmp_path: Path) -> None:
    fill(tmp_path / "first", 12, seed=3)
    first, _, _ = roots
    database = stores.new(Settings())
    whole = [one for one in first.ids() if not first.verify(one)]
    copy(first, database, whole)
    held = database.disk_usage(3)
    rows = [row for row in first.list(limit=100) if row.id in whole]
    assert held.sessions == len(whole)
    assert held.bytes == sum(row.bytes for row in rows)
    assert held.records == sum(row.metadata.through.seq for row in rows)
    assert [one.bytes for one in held.biggest] == sorted((row.bytes for row in rows), reverse=True)[:3]
    assert {"rec", "session", "listing"} <= {room.name for room in held.rooms}
    assert all(room.indexes > 0 for room in held.rooms if room.name in ("rec", "session"))
    files = first.disk_usage()
    assert {room.name for room in files.rooms} >= {"sessions", "index.db"}


class _Deleting:
    """A target at which a session is deleted, here or there, just as it is taken over."""

    def __init__(self, target: AnyStore, gone: str, where: AnyStore) -> None:
        self._target, self._gone, self._where = target, gone, where

    def __getattr__(self, name: str) -> object:
        return getattr(self._target, name)

    def adopt(self, source: Metadata, lines: Callable[[], Iterator[RawLine]], after: int | None = None) -> None:
        if source.id == self._gone:
            self._where.delete(source.id)
        self._target.adopt(source, lines, after)


def test_a_session_that_is_deleted_meanwhile_is_told_and_the_others_are_copied(
    roots: list[FileStore], stores: Stores
) -> None:
    first, second, third = roots
    ids = [first.create().id for _ in range(5)]
    for one in ids:
        first.append(one, [user("x")])
    copy(first, third)
    source: AnyStore
    for source in (first, stores.new(SMALL)):
        copy(third, source)
        target: AnyStore = stores.new(SMALL)
        moved = copy(source, _Deleting(target, ids[1], source))  # type: ignore[arg-type]
        assert [one.session for one in moved.refused] == [ids[1]]
        assert "deleted" in moved.refused[0].problem
        assert (moved.copied, list(target.ids())) == (4, list(source.ids()))
    for target in (stores.new(SMALL), second):
        copy(third, target)
        for one in ids:
            third.append(one, [user("more")])
        moved = copy(third, _Deleting(target, ids[2], target))  # type: ignore[arg-type]
        assert ([one.session for one in moved.refused], moved.grown) == ([ids[2]], 4)
        assert copy(third, target).copied == 1


def test_a_directory_of_another_program_is_imported_into_a_database_with_its_metadata(
    stores: Stores, tmp_path: Path
) -> None:
    sessions = agent_home(tmp_path)
    database = stores.new(Settings())
    (result,) = import_paths(database, [sessions], load_formats()).files
    assert (result.id, result.stored, result.lost, result.problem) == (ULID, 5, 0, "")
    session = Session(Store(database), ULID)
    assert facts(session) == ALL_FACTS and session.verify() == ()
    session.append(user("and now?"))
    assert facts(Session(Store(stores.again(database)), ULID)) == ALL_FACTS
    (again,) = import_paths(database, [sessions], load_formats()).files
    assert (again.id, again.stored, again.already_there) == (ULID, 0, 5)
