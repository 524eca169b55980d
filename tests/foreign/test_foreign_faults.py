"""What other programs, full disks and damage do between any two steps of a live store."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pytest

from everlog.errors import ConflictError, EverlogError, NotFoundError, StoreFailedError, StoreFullError
from everlog.interop.foreign.foreign_store import ForeignStore
from everlog.interop.foreign.mirrored_session import MAX_ATTEMPTS
from everlog.interop.formats.cersei import FORMAT as cersei
from everlog.interop.formats.crabtalk import FORMAT as crabtalk
from everlog.interop.formats.foreign_format import ForeignFormat
from everlog.interop.formats.picoclaw import FORMAT as picoclaw
from everlog.interop.import_target import BATCH
from everlog.model import AnyRecord, Compaction, assistant, user
from everlog.ports import Reporting
from everlog.session import Store
from everlog.stores.file.file_store import FileStore
from everlog.stores.in_memory import InMemoryStore
from everlog.testing.foreign_store_suite import open_foreign_store
from tests.foreign.foreign_directories import SESSIONS, cersei_file, crabtalk_file, made, picoclaw_files

EVERY = pytest.mark.parametrize("dialect", sorted(SESSIONS))


class _Meddled:
    """A dialect during one of whose verbs something else happens."""

    def __init__(self, dialect: Any, verb: str, happens: Callable[[], None]) -> None:
        self._dialect = dialect
        self._verb = verb
        self._happens = happens

    def __getattr__(self, name: str) -> Any:
        own = getattr(self._dialect, name)
        if name != self._verb:
            return own

        def call(*arguments: Any, **named: Any) -> Any:
            self._happens()
            return own(*arguments, **named)

        return call


def meddled(dialect: Any, verb: str, happens: Callable[[], None]) -> ForeignFormat:
    return cast("ForeignFormat", _Meddled(dialect, verb, happens))


class Failing(FileStore):
    """A store whose disk is full for some appends, counted from 1."""

    full: Sequence[int] = ()
    count = 0

    def append(self, *arguments: Any, **named: Any) -> list[AnyRecord]:
        self.count += 1
        if self.count in self.full:
            raise StoreFullError("no space left")
        return super().append(*arguments, **named)


@contextmanager
def on_failing(root: Path, home: Path, dialect: Any, full: Sequence[int]) -> Iterator[tuple[Store, Failing]]:
    mirror = Failing(home)
    mirror.full = full
    with Store(
        ForeignStore(root, [dialect], mirror, home, companion_store=InMemoryStore(), back_up=lambda paths: None)
    ) as store:
        yield store, mirror


def module(dialect: str) -> Any:
    return import_module(f"everlog.interop.formats.{dialect}").FORMAT


def said(store: Store, session: str) -> list[str]:
    return [one.text for one in store.session(session).messages()]


def said_anew(root: Path, home: Path, dialect: str) -> list[str]:
    """What the files say to a process that knows nothing."""
    with open_foreign_store(root, home, module(dialect)) as store:
        return said(store, SESSIONS[dialect][1])


def transcript(root: Path, dialect: str) -> Path:
    return root / next(iter(SESSIONS[dialect][0]))


# --- programs that write at the same time


@pytest.mark.parametrize("times", [1, MAX_ATTEMPTS + 1])
@EVERY
def test_a_line_that_comes_while_ours_is_made_is_not_lost(tmp_path: Path, dialect: str, times: int) -> None:
    files, session = SESSIONS[dialect]
    root = made(tmp_path / "root", files)
    came: list[str] = []

    def write() -> None:
        if len(came) < times:
            came.append(f"theirs {len(came)}")
            with open_foreign_store(root, tmp_path / f"their-{len(came)}", module(dialect)) as other:
                other.session(session).append(user(came[-1]))

    with open_foreign_store(root, tmp_path / "home", meddled(module(dialect), "encode_record", write)) as store:
        known = said(store, session)
        stored = store.session(session).append(user("ours"))
        assert store.session(session).messages()[-1].seq == stored.seq
        new = said(store, session)[len(known) :]
        # In a tree, what comes at the very moment that we write is a branch, which ours leaves.
        left = came[MAX_ATTEMPTS - 1 :] if dialect in ("claude", "pi") else []
        assert new == [*(text for text in came if text not in left), "ours"]
        store.session(session).append(user("more"))
        shown = said(store, session)
        assert {*came} - {*shown} <= {*left[:1]}
    assert said_anew(root, tmp_path / "fresh", dialect) == shown
    data = transcript(root, dialect).read_bytes()
    assert all(text.encode() in data for text in (*came, "ours", "more"))


@pytest.mark.parametrize("end", [b"", b"\r", b" "])
def test_a_last_line_that_only_lacks_its_newline_is_a_line(tmp_path: Path, end: bytes) -> None:
    root = made(tmp_path / "root", {"crab_user_1.jsonl": crabtalk_file()[:-1] + end})
    with open_foreign_store(root, tmp_path / "home", crabtalk) as store:
        store.session("crab_user_1").append(user("ours"))
        assert said(store, "crab_user_1") == ["hello", "hi there", "ours"]


def test_what_a_program_writes_while_lines_are_reclaimed_is_kept(tmp_path: Path) -> None:
    root = made(tmp_path / "root", picoclaw_files("agent:main:main"))
    file = root / "agent_main_main.jsonl"
    line = file.read_bytes().splitlines(keepends=True)[0].replace(b"hello", b"theirs")

    def keep(paths: Sequence[Path]) -> None:
        with file.open("ab") as opened:
            opened.write(line)

    mirror = FileStore(tmp_path / "home")
    with Store(
        ForeignStore(root, [picoclaw], mirror, tmp_path / "home", companion_store=InMemoryStore(), back_up=keep)
    ) as store:
        session = store.session("agent_main_main")
        session.append(Compaction(first_kept_seq=2, summary="They greeted."))
        with pytest.raises(ConflictError, match="by another program"):
            session.reclaim()
    assert line in file.read_bytes()


# --- disks that are full


@EVERY
def test_what_could_not_be_mirrored_is_mirrored_the_next_time(tmp_path: Path, dialect: str) -> None:
    files, session = SESSIONS[dialect]
    root = made(tmp_path / "root", files)
    with on_failing(root, tmp_path / "home", module(dialect), ()) as (store, mirror):
        known = said(store, session)
        mirror.full = (mirror.count + 1, mirror.count + 2)
        with open_foreign_store(root, tmp_path / "other", module(dialect)) as other:
            other.session(session).append(user("theirs"))
        for _ in mirror.full:  # read from a copy in memory
            assert said(store, session) == [*known, "theirs"]
        reporting = store.port.capability(Reporting)
        assert reporting is not None and any("sessions are read into memory" in report for report in reporting.reports)
        assert said(store, session) == [*known, "theirs"]
        mirror.full = (mirror.count + 1,)
        store.session(session).append(user("ours"))  # it is in the file
        assert said(store, session) == [*known, "theirs", "ours"]
    with open_foreign_store(root, tmp_path / "home", module(dialect)) as store:
        assert said(store, session) == [*known, "theirs", "ours"]


@EVERY
def test_a_first_reading_that_was_cut_short_is_taken_up(tmp_path: Path, dialect: str) -> None:
    files, session = SESSIONS[dialect]
    root = made(tmp_path / "root", files)
    with open_foreign_store(root, tmp_path / "other", module(dialect)) as store:
        one = store.session(session)
        kept = one.append(assistant("kept"))
        one.append(Compaction(first_kept_seq=kept.seq, summary="They talked."))
        one.append_many([user(f"number {number}") for number in range(BATCH)])
        known = said(store, session)
    failing = on_failing(root, tmp_path / "home", module(dialect), (2, 3))
    with failing as (store, _):
        assert said(store, session) == known
    with open_foreign_store(root, tmp_path / "home", module(dialect)) as store:
        assert said(store, session) == known


def test_a_line_is_taken_back_if_the_file_beside_it_cannot_be_written(tmp_path: Path) -> None:
    root = made(tmp_path / "root", picoclaw_files("agent:main:main"))
    beside = root / "agent_main_main.meta.json"
    before = transcript(root, "picoclaw").read_bytes()

    def spoil() -> None:
        beside.unlink()
        (beside / "in the way").mkdir(parents=True)

    dialect = meddled(picoclaw, "encode_record", spoil)
    with open_foreign_store(root, tmp_path / "home", dialect) as store:
        said(store, "agent_main_main")
        with pytest.raises(EverlogError):
            store.session("agent_main_main").append(user("ours"))
    assert transcript(root, "picoclaw").read_bytes() == before


# --- files that change under our hands


@EVERY
def test_a_file_that_vanishes_while_it_is_read_is_not_found(tmp_path: Path, dialect: str) -> None:
    files, session = SESSIONS[dialect]
    root = made(tmp_path / "root", files)
    vanish = meddled(module(dialect), "read_tail", transcript(root, dialect).unlink)
    with open_foreign_store(root, tmp_path / "home", vanish) as store:
        with suppress(NotFoundError):  # what was read before it went is as good
            assert said(store, session)[-1] == "hi there"
        with pytest.raises(NotFoundError):
            said(store, session)


def test_a_folder_in_the_place_of_a_file_is_an_error_of_ours(tmp_path: Path) -> None:
    root = made(tmp_path / "root", {"s-1.jsonl": cersei_file("s-1")})
    with open_foreign_store(root, tmp_path / "home", cersei) as store:
        said(store, "s-1")
        (root / "s-1.jsonl").unlink()
        (root / "s-1.jsonl").mkdir()
        for action in (
            lambda: said(store, "s-1"),
            lambda: store.session("s-1").append(user("x")),
            lambda: store.session("s-1").metadata,
        ):
            with pytest.raises(StoreFailedError):
                action()


def test_a_directory_that_vanished_is_told_and_not_made_again(tmp_path: Path) -> None:
    root = made(tmp_path / "root", {"crab_user_1.jsonl": crabtalk_file()})
    with open_foreign_store(root, tmp_path / "home", crabtalk) as store:
        assert store.list().total == 1
        root.rename(tmp_path / "away")
        for action in (store.list, lambda: said(store, "crab_user_1"), store.create):
            with pytest.raises(StoreFailedError, match="cannot be read"):
                action()
        assert not root.exists()
        (tmp_path / "away").rename(root)
        assert said(store, "crab_user_1") == ["hello", "hi there"]


def test_an_empty_transcript_gets_the_line_about_it_before_another(tmp_path: Path) -> None:
    root = made(tmp_path / "root", {"crab_tg-1_2_a-title.jsonl": b""})
    with open_foreign_store(root, tmp_path / "home", crabtalk) as store:
        store.session("crab_tg-1_2").append(user("x"))
        assert said(store, "crab_tg-1_2") == ["x"]
        store.session("crab_tg-1_2").append(user("y"))
        assert said(store, "crab_tg-1_2") == ["x", "y"]
    first, *lines = (root / "crab_tg-1_2_a-title.jsonl").read_bytes().splitlines()
    assert crabtalk.recognises("x.jsonl", first) and first.startswith(b'{"agent":"crab","created_by":"tg-1"')
    assert lines == [b'{"role":"user","content":"x"}', b'{"role":"user","content":"y"}']


def test_two_files_of_one_name_in_a_folder_are_two_sessions(tmp_path: Path) -> None:
    names = ("crab_user_1", "crab_user_1_talk")
    files = {
        f"{name}.jsonl": crabtalk_file().replace(b"hello", text)
        for name, text in zip(names, (b"first", b"other"), strict=True)
    }
    root = made(tmp_path / "root", files)
    with open_foreign_store(root, tmp_path / "home", crabtalk) as store:
        for _ in range(2):
            assert {row.id for row in store.list()} == {"crab_user_1", ":crab_user_1_talk"}
            assert said(store, "crab_user_1") == ["first", "hi there"]
            assert said(store, ":crab_user_1_talk") == ["other", "hi there"]
        store.session(":crab_user_1_talk").append(user("more"))
        assert store.list().total == 2  # it is the newer one now, and each still has its id
        assert said(store, "crab_user_1") == ["first", "hi there"]
        assert said(store, ":crab_user_1_talk") == ["other", "hi there", "more"]


def test_what_is_written_anew_stays_as_its_program_made_it(tmp_path: Path) -> None:
    root = made(tmp_path / "root", picoclaw_files("agent:main:main"))
    beside = root / "agent_main_main.meta.json"
    beside.chmod(0o664)
    with open_foreign_store(root, tmp_path / "home", picoclaw) as store:
        store.session("agent_main_main").append(user("ours"))
    assert stat.S_IMODE(beside.stat().st_mode) == 0o664
    assert sorted(os.listdir(root)) == ["agent_main_main.jsonl", "agent_main_main.meta.json"]


def test_a_session_with_the_longest_name_gets_another_title(tmp_path: Path) -> None:
    root = made(tmp_path / "root", {"crab_user_1.jsonl": crabtalk_file()})
    with open_foreign_store(root, tmp_path / "home", crabtalk) as store:
        store.session("crab_user_1").rename("long " * 100)
        assert max(map(len, os.listdir(root))) > 240
        assert store.session("crab_user_1").rename("short").title == "short"
    assert os.listdir(root) == ["crab_user_1_short.jsonl"]


# --- what is derived


@EVERY
def test_a_mirror_that_is_damaged_is_made_anew(tmp_path: Path, dialect: str) -> None:
    files, session = SESSIONS[dialect]
    root, home = made(tmp_path / "root", files), tmp_path / "home"
    with open_foreign_store(root, home, module(dialect)) as store:
        known = said(store, session)
    for spoil in (lambda data: b"garbage\n" * 3, lambda data: data[: len(data) // 2]):
        with open_foreign_store(root, home, module(dialect)) as store:
            assert said(store, session) == known
            log = max(home.rglob("session.jsonl"), key=lambda one: one.stat().st_mtime_ns)
            log.write_bytes(spoil(log.read_bytes()))
            known = said_after(store, session, known)
    assert said_anew(root, tmp_path / "fresh", dialect) == known


def said_after(store: Store, session: str, known: list[str]) -> list[str]:
    """What a running process shows after damage, at the latest the next time it is asked."""
    said(store, session)
    assert said(store, session) == known
    store.session(session).append(user("one more"))
    assert said(store, session) == [*known, "one more"]
    return [*known, "one more"]


@pytest.mark.parametrize("dialect", ["claude", "cersei"])
def test_a_retry_is_known_by_its_id_in_the_file(tmp_path: Path, dialect: str) -> None:
    files, session = SESSIONS[dialect]
    root = made(tmp_path / "root", files)
    record = user("once", id="6f9619ff-8b86-4011-b42d-00c04fc964ff", run_id="r-1")
    with open_foreign_store(root, tmp_path / "home", module(dialect)) as store:
        store.session(session).append(record)
    before = transcript(root, dialect).read_bytes()
    with open_foreign_store(root, tmp_path / "fresh", module(dialect)) as store:
        assert store.session(session).append(record).text == "once"
        with pytest.raises(ConflictError):
            store.session(session).append(user("other", id=record.id))
    assert transcript(root, dialect).read_bytes() == before


# --- several at once


def test_a_child_does_not_keep_the_lock_of_its_parent(tmp_path: Path) -> None:
    root = made(tmp_path / "root", {"crab_user_1.jsonl": crabtalk_file()})
    inside, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        inside.set()
        go_on.wait(60)

    dialect = meddled(crabtalk, "encode_record", wait)
    with open_foreign_store(root, tmp_path / "home", dialect) as store:
        writer = threading.Thread(target=store.session("crab_user_1").append, args=[user("x")])
        writer.start()
        assert inside.wait(60)
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.close(write)
            os.read(read, 1)  # lives on until its parent is done
            os._exit(0)
        try:
            go_on.set()
            writer.join()
            assert said(store, "crab_user_1")[-1] == "x"
        finally:
            os.close(write)
            os.close(read)
            os.waitpid(child, 0)


def test_of_many_that_make_a_session_at_once_one_does(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with open_foreign_store(root, tmp_path / "home", picoclaw) as store:
        port = store.port
        ids = at_once(lambda: port.create({"key": "agent:main:x"}, unless_held=True).id)
        assert ids == ["agent_main_x"] * 8
    other = tmp_path / "crab"
    other.mkdir()
    with open_foreign_store(other, tmp_path / "home-2", crabtalk) as store:
        port = store.port
        ids = at_once(lambda: port.create({"agent": "crab", "sender": "user"}).id)
        assert sorted(ids) == [f"crab_user_{number}" for number in range(1, 9)]


def at_once(action: Callable[[], str]) -> list[str]:
    """What eight threads get."""
    got: list[str] = []
    threads = [threading.Thread(target=lambda: got.append(action())) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return got


def test_a_key_is_not_held_by_a_session_that_only_begins_with_it(tmp_path: Path) -> None:
    root = made(tmp_path / "root", {"session-10.jsonl": cersei_file("session-10")})
    with open_foreign_store(root, tmp_path / "home", cersei) as store:
        assert store.port.create({"key": "session-1"}, unless_held=True).id == "session-1"
        assert store.port.create({"key": "session-10"}, unless_held=True).id == "session-10"
        assert sorted(os.listdir(root)) == ["session-1.jsonl", "session-10.jsonl"]


@EVERY
def test_a_file_that_was_rewritten_is_counted_once(tmp_path: Path, dialect: str) -> None:
    files, session = SESSIONS[dialect]
    root = made(tmp_path / "root", files)
    file = transcript(root, dialect)
    with open_foreign_store(root, tmp_path / "home", module(dialect)) as store:
        before = store.session(session).metadata.message_count
        lines = file.read_bytes().splitlines(keepends=True)
        file.write_bytes(b"".join(lines[:-1]) + b"\n" + lines[-1])
        said(store, session)
        (row,) = store.list()
        counted = store.session(session).metadata.message_count
        assert counted == before == row.metadata.message_count
