"""metadata.json and index.db: deleted, emptied, garbled, stale; everything comes back equal."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import apsw
import msgspec
import pytest

import everlog
from everlog.log import line_codec
from everlog.model import Meta, user
from everlog.ports import SessionRow
from everlog.settings import SessionSettings, Settings
from everlog.stores.file.file_store import FileStore

QUICK = Settings(session=SessionSettings(durability="os"))


def _store(root: Path) -> everlog.Store:
    return everlog.open_store(root, create=True, settings=QUICK)


def _file(root: Path, session: str, name: str) -> Path:
    return root / "sessions" / session / name


def _populate(store: everlog.Store, count: int) -> None:
    for number in range(count):
        session = store.create(
            agent=f"a{number % 3}", sender=f"tg:{number % 7}", key=f"sk_v1_{number}" if number % 4 == 0 else None
        )
        session.append_many([user("a"), user("b"), user("c")])
        if number % 2:
            session.rename(f"Title {number} é")
        if number % 3:
            session.tombstone(2)
        if number % 5 == 0:
            session.update(aliases=[f"agent:x:{number}", "agent:shared"])
        session.end_turn(duration_ms=1000 + number)


def _state(store: everlog.Store) -> tuple[list[SessionRow], dict[str, list[int]], dict[str, str]]:
    rows = list(store.walk())
    live = {row.id: [message.seq for message in store.session(row.id).messages()] for row in rows[::10]}
    names = {name: store.session(name).id for row in rows for name in row.metadata.names}
    return rows, live, names


@pytest.mark.slow
def test_deleting_all_derived_files_of_1000_sessions_loses_nothing(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with _store(root) as store:
        _populate(store, 1000)
        before = _state(store)
    assert len(before[0]) == 1000
    for session in os.listdir(root / "sessions"):
        os.unlink(_file(root, session, "metadata.json"))
    for name in os.listdir(root):
        if name.startswith("index.db"):
            os.unlink(root / name)
    with _store(root) as store:
        assert _state(store) == before


@pytest.mark.parametrize("damage", ["missing", "empty", "garbage", "flipped", "other", "array", "odd"])
def test_metadata_is_rebuilt_from_the_log(tmp_path: Path, damage: str) -> None:
    with _store(tmp_path / "root") as store:
        session = store.create(agent="a", model="m")
        session.append_many([user("a"), user("b")])
        session.rename("Title")
    before = session.metadata
    file = _file(tmp_path / "root", session.id, "metadata.json")
    good = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(
            {
                "empty": b"",
                "garbage": os.urandom(300),
                "flipped": good.replace(b'"messageCount":2', b'"messageCount":7'),
                "other": good.replace(session.id.encode(), b"0" * 26),
                "array": b"[1,2,3]",
                "odd": b'{"":5,"agent":[],"through":"x"}',
            }[damage]
        )
    again = _store(tmp_path / "root").session(session.id)
    assert again.metadata == before
    assert again.append(user("c")).seq == 4
    again.store.close()
    kept = msgspec.json.decode(file.read_bytes())
    assert kept["messageCount"] == 3
    assert kept["id"] == session.id


def test_stale_metadata_is_brought_up_by_the_new_bytes_only(tmp_path: Path) -> None:
    with _store(tmp_path / "root") as store:
        session = store.create()
        session.append(user("a"))
    file = _file(tmp_path / "root", session.id, "metadata.json")
    old = file.read_bytes()
    with _store(tmp_path / "root") as store:
        store.session(session.id).append_many([user("b"), user("c")])
        store.session(session.id).rename("New")
        current = store.session(session.id).metadata
    file.write_bytes(old)
    assert _store(tmp_path / "root").session(session.id).metadata == current


@pytest.mark.parametrize("damage", ["missing", "empty", "garbage", "cut", "version", "no table"])
def test_a_broken_index_costs_one_rebuild(tmp_path: Path, damage: str) -> None:
    root = tmp_path / "root"
    with _store(root) as store:
        _populate(store, 30)
        before = _state(store)
    file = root / "index.db"
    for suffix in ("-wal", "-shm"):
        (root / f"index.db{suffix}").unlink(missing_ok=True)
    if damage == "missing":
        file.unlink()
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "garbage":
        file.write_bytes(os.urandom(9000))
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[:5000])
    elif damage == "version":
        connection = apsw.Connection(str(file))
        connection.execute("PRAGMA user_version = 99")
        connection.close()
    else:
        connection = apsw.Connection(str(file))
        connection.execute("DROP TABLE mark")
        connection.close()
    with _store(root) as store:
        assert _state(store) == before


def test_an_index_deleted_under_an_open_store_is_noticed(tmp_path: Path) -> None:
    store = _store(tmp_path / "root")
    session = store.create()
    assert len(store.list()) == 1
    (tmp_path / "root" / "index.db").unlink()
    session.append(user("x"))
    session.rename("still there")
    assert [row.metadata.display_title for row in store.list()] == ["still there"]


def test_no_error_of_the_index_fails_an_append(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store = _store(root)
    session = store.create()
    store.close()
    for name in os.listdir(root):
        if name.startswith("index.db"):
            os.unlink(root / name)
    os.mkdir(root / "index.db")  # nothing can be made of this
    assert session.append(user("x")).seq == 1
    session.rename("y")
    assert session.metadata.display_title == "y"
    port = store.port
    assert isinstance(port, FileStore)
    assert port.reports
    assert [row.metadata.display_title for row in store.list()] == ["y"]


def test_appends_of_another_process_are_listed_at_once(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store = _store(root)
    old, new = store.create(), store.create()
    new.append(user("x"))
    assert store.list()[0].id == new.id
    program = (
        "import sys, everlog, os\n"
        "store = everlog.open_store(sys.argv[1], create=True)\n"
        "store.session(sys.argv[2]).append(everlog.user('from elsewhere'))\n"
        "made = store.create(agent='elsewhere')\n"
        "made.append(everlog.user('y'))\n"
        "os._exit(0)\n"  # as if killed: nothing is saved or closed
    )
    subprocess.run([sys.executable, "-c", program, str(root), old.id], check=True)
    page = store.list()
    assert page.total == 3
    assert [row.metadata.agent for row in page] == ["elsewhere", "main", "main"]
    assert page[1].id == old.id
    assert page[1].metadata.message_count == 1


def test_marks_of_a_dead_process_are_settled_once(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store = _store(root)
    session = store.create()
    program = (
        "import sys, everlog, os\n"
        "everlog.open_store(sys.argv[1], create=True).session(sys.argv[2]).append(everlog.user('x'))\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(root), session.id], check=True)

    def marks() -> int:
        connection = apsw.Connection(str(root / "index.db"))
        try:
            return len(list(connection.execute("SELECT * FROM mark")))
        finally:
            connection.close()

    assert marks() == 1
    assert store.list()[0].metadata.message_count == 1
    assert marks() == 0


def test_lines_that_a_program_without_marks_adds_appear_when_looked_at(tmp_path: Path) -> None:
    root = tmp_path / "root"
    line = (
        b'{"recordType":"message","schemaVersion":1,"seq":2,"role":"user","content":[],'
        b'"timestamp":"2030-01-01T00:00:00Z"}\n'
    )
    with _store(root) as store:
        first, second = store.create(), store.create()
        for session in (first, second):
            session.append(user("x"))
        store.list()
    with _store(root) as store:
        store.list()
        for session in (first, second):
            with open(_file(root, session.id, "session.jsonl"), "ab") as log:
                log.write(line)
        assert store.session(first.id).metadata.message_count == 2
        counts = {row.id: row.metadata.message_count for row in store.list()}
        assert counts == {first.id: 2, second.id: 1}
        port = store.port
        assert isinstance(port, FileStore)
        sweep = port.sweep()
        assert (sweep.sessions, sweep.refreshed) == (2, 1)
        counts = {row.id: row.metadata.message_count for row in store.list()}
        assert counts == {first.id: 2, second.id: 2}


def test_one_session_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with _store(root) as store:
        good, bad = store.create(), store.create()
        good.append(user("x"))
        bad.append(user("y"))
    log = _file(root, bad.id, "session.jsonl")
    log.unlink()
    log.symlink_to("/etc/hostname")
    for name in os.listdir(root):
        if name.startswith("index.db"):
            os.unlink(root / name)
    with _store(root) as store:
        assert [row.id for row in store.list()] == [good.id]


def test_names_survive_a_rebuild_with_their_generations(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with _store(root) as store:
        first = store.create(key="sk_v1_k")
        second = store.create(aliases=["agent:x"])
        third = store.create()
        for session in (first, second, third, first):
            session.update(aliases=["agent:shared"])
    (root / "index.db").unlink()
    with _store(root) as store:
        assert store.session("agent:shared").id == first.id
        assert store.session("sk_v1_k").id == first.id
        assert store.session("sk_v1_k").metadata.generations["agent:shared"] == 4


def test_an_index_that_another_process_holds_does_not_stall_appends(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store = _store(root)
    session = store.create()
    holder = apsw.Connection(str(root / "index.db"))
    holder.execute("BEGIN IMMEDIATE")
    try:
        start = time.monotonic()
        session.append(user("a"))
        session.rename("b")
        assert time.monotonic() - start < 5  # which a patient reader would wait each time
    finally:
        holder.execute("ROLLBACK")
        holder.close()
    session.append(user("c"))
    store.close()
    assert [row.metadata.display_title for row in _store(root).list()] == ["b"]


def test_two_stores_of_one_process_have_marks_of_their_own(tmp_path: Path) -> None:
    one, two = _store(tmp_path / "root"), _store(tmp_path / "root")
    session = one.create()
    session.append(user("a"))
    two.session(session.id).append(user("b"))
    two.close()
    session.append(user("c"))
    assert _store(tmp_path / "root").list()[0].metadata.message_count == 3


def test_facts_that_say_little_are_facts_all_the_same(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with _store(root) as store:
        facts = {"agent": "", "sender": "", "name": "", "chat": 0}
        session = everlog.Session(store, store.port.create(facts).id)
        session.append(user("x"))
        before = session.metadata
        fork = session.fork().metadata
    assert (before.agent, before.sender, before.title, before.chat) == ("", "", "", 0)
    assert (fork.agent, fork.sender, fork.title, fork.chat) == ("", "", "", 1)
    _file(root, session.id, "metadata.json").unlink()
    assert _store(root).session(session.id).metadata == before


def test_large_metadata_is_read_whole(tmp_path: Path) -> None:
    with _store(tmp_path / "root") as store:
        session = store.create(title="T", system_prompt_override="p" * 3_000_000)
    metadata = _store(tmp_path / "root").session(session.id).metadata
    assert metadata.title == "T"
    assert len(metadata.system_prompt_override or "") == 3_000_000


def test_a_claim_whose_process_died_before_its_row_is_found(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store = _store(root)
    session = store.create()
    session.append(user("x"))
    store.list()
    line = line_codec.build_line(
        line_codec.encode(Meta(set={"aliases": ["agent:late"], "generations": {"agent:late": 1}}))[1], "meta", 2
    )
    with open(_file(root, session.id, "session.jsonl"), "ab") as log:
        log.write(line + b"\n")
    assert store.session("agent:late").id == session.id
    other = store.create(aliases=["agent:late"])
    assert other.metadata.generations == {"agent:late": 2}
    assert store.session("agent:late").id == other.id


def test_what_was_read_of_a_session_before_it_was_deleted_makes_no_row_for_it(tmp_path: Path) -> None:
    with _store(tmp_path) as store, _store(tmp_path) as other:
        session = store.create(key="sk_v1_k")
        session.append(user("a"))
        catalogue = FileStore(tmp_path, QUICK)._catalogue
        for put in (
            catalogue.record_read,
            catalogue.put,
            lambda row: catalogue.record_write(row, last=True),
            lambda row: catalogue.index.apply_refresh([(row, None)], []),
        ):
            made = other.create(key="sk_v1_k")
            made.append(user("b"))
            row = catalogue.row(made.id)
            made.delete()
            put(row)
            assert [one.id for one in store.list()] == [session.id]
            assert store.session("sk_v1_k").id == session.id
