"""The overlay over an index that cannot be written: SQLite on the file, with its changes in memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

import everlog
from everlog.index.index_file import prepare
from everlog.index.overlay import FileStamp, Overlay
from everlog.settings import SessionSettings, Settings

KILLED = """
import os, sys, everlog
store = everlog.open_store(sys.argv[1], create=True)
for number in range(50):
    store.create(title=f"number {number}").append("hello")
store.search("hello")
os._exit(0)
"""
HITS = "SELECT count(*) FROM word WHERE word MATCH 'hello'"


def files(directory: Path) -> dict[str, bytes]:
    """The bytes of an index, without SQLite's shared memory."""
    return {name: (directory / name).read_bytes() for name in ("index.db", "index.db-wal")}


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A root whose index is for the most part in the write-ahead log."""
    subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=True)
    return tmp_path


@pytest.mark.parametrize("is_full", [True, False])
def test_changes_are_read_back_and_the_file_stays_as_it_is(killed: Path, is_full: bool) -> None:
    before = files(killed)
    overlay = Overlay(killed / "index.db", is_full=is_full)
    connection = prepare(overlay.connection)
    assert connection.execute(HITS).get == 50
    with connection:
        connection.execute("DELETE FROM session WHERE title = 'number 7'")
        connection.execute("INSERT INTO passage VALUES (1, 'user', 0, 'hello again', '')")
        connection.execute("INSERT INTO word (rowid, user) VALUES (1, 'hello again')")
    assert connection.execute("SELECT count(*) FROM session").get == 49
    assert connection.execute(HITS).get == 51
    assert connection.execute("PRAGMA integrity_check").get == "ok"
    overlay.close()
    assert files(killed) == before


def test_what_others_write_meanwhile_is_not_seen_in_half(killed: Path) -> None:
    overlay = Overlay(killed / "index.db", is_full=False)
    stamp = FileStamp.of(killed / "index.db")
    quick = Settings(session=SessionSettings(durability="os"))
    with everlog.open_store(killed, settings=quick) as store:
        for number in range(40):
            store.create(title="x" * 400, key=f"sk_v1_{number}").append("hello " * 100)
        store.search("hello")
    connection = overlay.connection
    assert connection.execute("SELECT count(*) FROM session").get == 50
    assert connection.execute("PRAGMA integrity_check").get == "ok"
    assert FileStamp.of(killed / "index.db") != stamp
    overlay.close()
    again = Overlay(killed / "index.db", is_full=False)
    assert again.connection.execute("SELECT count(*) FROM session").get == 90
    again.close()


def test_memory_use_grows_with_what_is_new(tmp_path: Path) -> None:
    with everlog.open_store(tmp_path, create=True) as store:
        session = store.create()
        session.append_many([everlog.user(os.urandom(2000).hex()) for _ in range(300)])
        store.search("hello")
    assert (tmp_path / "index.db").stat().st_size > 1_000_000
    overlay = Overlay(tmp_path / "index.db", is_full=True)
    connection = prepare(overlay.connection)
    connection.execute("PRAGMA cache_size = 10")
    with connection:
        connection.execute("INSERT INTO mark VALUES ('a', 'b')")
    assert overlay.changed_bytes < 100_000
    overlay.close()


def test_a_file_that_is_no_index_or_missing_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(apsw.CantOpenError):
        Overlay(tmp_path / "index.db", is_full=False)
    (tmp_path / "index.db").write_bytes(os.urandom(9000))
    with pytest.raises(apsw.NotADBError):
        Overlay(tmp_path / "index.db", is_full=False)


def test_an_unreadable_write_ahead_log_is_an_error_of_sqlite(killed: Path) -> None:
    (killed / "index.db-wal").unlink()
    (killed / "index.db-wal").mkdir()
    with pytest.raises(apsw.CantOpenError):
        Overlay(killed / "index.db", is_full=True)
