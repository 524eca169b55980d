"""A watcher brings rows up to date while programs without marks write."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import everlog
from everlog.model import user
from everlog.settings import SessionSettings, Settings
from everlog.stores.file.file_store import FileStore

pytest.importorskip("watchfiles")

LINE = (
    b'{"recordType":"message","schemaVersion":1,"seq":2,"role":"user","content":[],'
    b'"timestamp":"2030-01-01T00:00:00Z"}\n'
)


def test_a_line_added_by_another_program_is_listed_as_it_happens(tmp_path: Path) -> None:
    root = tmp_path / "root"
    settings = Settings(session=SessionSettings(durability="os"))
    with everlog.open_store(root, create=True, settings=settings) as store:
        session = store.create()
        session.append(user("x"))
    store = everlog.open_store(root, create=True, settings=settings)
    assert store.list()[0].metadata.message_count == 1
    port = store.port
    assert isinstance(port, FileStore)
    stop, seen = threading.Event(), threading.Event()
    changed: set[str] = set()

    def watch() -> None:
        for sessions in port.watch(stop):
            changed.update(sessions)
            if session.id in changed:
                seen.set()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        log = root / "sessions" / session.id / "session.jsonl"
        for _ in range(100):  # until the watcher is up and has seen one of them
            with open(log, "ab") as file:
                file.write(LINE)
            if seen.wait(0.2):
                break
        assert seen.is_set()
        assert store.list()[0].metadata.message_count > 1
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()
