"""The connection to the index: what was asked of it does not stand in the way of what comes."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import everlog
from everlog.index.database import Database

OTHER = """
import sys, everlog
with everlog.open_store(sys.argv[1], create=True) as store:
    store.create(sender="other").append(everlog.user("hello"))
    store.list()
"""


def test_a_question_that_an_error_broke_off_does_not_keep_others_changes_away(tmp_path: Path) -> None:
    with everlog.open_store(tmp_path, create=True) as store:
        for number in range(3):
            store.create(sender=f"{number}")
        store.list()
    database = Database(tmp_path / "index.db", print)

    def ask() -> None:
        with database.read_cursor() as cursor:
            next(cursor.execute("SELECT id FROM session"))
            raise LookupError

    with pytest.raises(LookupError) as kept:
        ask()
    subprocess.run([sys.executable, "-c", OTHER, str(tmp_path)], check=True)
    with database.write_transaction() as cursor:
        cursor.execute("DELETE FROM mark WHERE id = ''")
    assert kept.traceback, "as somebody keeps it who tells of it later"
    database.close()


def test_those_who_make_a_new_index_at_once_all_get_it(tmp_path: Path) -> None:
    """On a connection each, as processes have them; one alone in the way is refused at once."""
    gate = threading.Barrier(4)

    def ask(number: int) -> None:
        for attempt in range(100):
            database = Database(tmp_path / f"{attempt}.db", print)
            gate.wait(60)
            with database.read_cursor() as cursor:
                assert cursor.execute("SELECT count(*) FROM session").fetchall() == [(0,)]
            database.close()

    with ThreadPoolExecutor(4) as pool:
        try:
            list(pool.map(ask, range(4)))
        finally:
            gate.abort()


def test_an_index_in_memory_gives_way_to_a_file_that_others_make(tmp_path: Path) -> None:
    reports: list[str] = []
    (tmp_path / "index.db").mkdir()  # nothing can be made of this
    database = Database(tmp_path / "index.db", reports.append)

    def mark(owner: str) -> list[object]:
        with database.write_transaction() as cursor:
            cursor.execute("INSERT OR IGNORE INTO mark VALUES ('a', ?)", (owner,))
        with database.read_cursor() as cursor:
            return [row[0] for row in cursor.execute("SELECT owner FROM mark")]

    assert database.run(lambda: mark("in memory")) == ["in memory"]
    (tmp_path / "index.db").rmdir()
    other = Database(tmp_path / "index.db", print)
    with other.read_cursor() as cursor:
        assert cursor.execute("SELECT count(*) FROM mark").fetchall() == [(0,)]
    assert database.run(lambda: mark("in the file")) == ["in the file"]
    assert database.switches == 2
    assert [report.rpartition("/")[2].partition(",")[0] for report in reports] == [
        "index.db cannot be written",
        "index.db can be written again",
    ]
    other.close()
    database.close()
