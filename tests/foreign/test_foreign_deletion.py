"""Deleted means gone: what the home has of a foreign session goes with it, or with its file."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import everlog
from everlog.app import open_runtime
from everlog.model import Event, user
from everlog.ports import Purgeable
from everlog.runtime.queue_log import DEFAULT_OPTIONS, queued_event
from everlog.session import Store
from tests.foreign.foreign_directories import SESSIONS, cersei_file, crabtalk_file, made
from tests.foreign.test_companion import opened
from tests.foreign.test_foreign_faults import EVERY, transcript
from tests.stores.stored_text import files_with, rare_words

WORDS = rare_words(12, "hidden")


def use(store: Store, session: str) -> None:
    """Leave text of a session everywhere: file, mirror, companion, index, listing."""
    one = store.session(session)
    one.append(user(" ".join(WORDS[:6])))
    one.append(queued_event(user(" ".join(WORDS[6:9]), id="m", run_id="r"), DEFAULT_OPTIONS, "q"))
    one.append(Event(kind="note", data={"text": " ".join(WORDS[9:])}))
    assert store.search(WORDS[2]).total == 1
    store.list()


def purge(store: Store) -> int:
    purgeable = store.port.capability(Purgeable)
    assert purgeable is not None
    return purgeable.purge()


@EVERY
def test_a_deleted_session_is_in_no_file_of_the_home(tmp_path: Path, dialect: str) -> None:
    files, session = SESSIONS[dialect]
    root, home = made(tmp_path / "root", files), tmp_path / "home"
    with opened(root, home, dialect) as store:
        use(store, session)
        assert files_with(home, WORDS)
        with opened(root, home, dialect) as other:  # as another process
            other.search(WORDS[2])
            store.session(session).delete()
            assert not files_with(home, WORDS)
        store.search(WORDS[2])
    assert not files_with(tmp_path, WORDS)


@EVERY
def test_a_file_that_vanished_takes_all_of_it_along(tmp_path: Path, dialect: str) -> None:
    files, session = SESSIONS[dialect]
    root, home = made(tmp_path / "root", files), tmp_path / "home"
    with opened(root, home, dialect) as store:
        use(store, session)
        assert purge(store) == 0 and files_with(home, WORDS)
    for path in root.rglob("*"):
        if path.is_file():
            path.unlink()
    with opened(root, home, dialect) as store:
        assert purge(store) == 1
        assert not files_with(home, WORDS)
        assert purge(store) == 0


def move(root: Path) -> None:
    (root / "deeper").mkdir()
    (root / "s-1.jsonl").rename(root / "deeper" / "s-1.jsonl")


def garble(root: Path) -> None:
    (root / "s-1.jsonl").write_bytes(b"\0" * 100)


def copy(root: Path) -> None:
    (root / "copies").mkdir()
    shutil.copy(root / "s-1.jsonl", root / "copies" / "s-1.jsonl")


@pytest.mark.parametrize("change", [move, garble, copy])
def test_a_file_that_only_moved_keeps_its_companion(tmp_path: Path, change: Callable[[Path], None]) -> None:
    root, home = (
        made(tmp_path / "root", {"s-1.jsonl": cersei_file("s-1"), "s-2.jsonl": cersei_file("s-2")}),
        tmp_path / "h",
    )
    with opened(root, home, "cersei") as store:
        use(store, "s-1")
    kept = (root / "s-1.jsonl").read_bytes()
    change(root)
    for _ in range(2):
        with opened(root, home, "cersei") as store:
            purge(store)
    if change is garble:
        (root / "s-1.jsonl").write_bytes(kept)
    with opened(root, home, "cersei") as store:
        waiting = [store.session(row.id).metadata.waiting for row in store.list()]
        assert sorted(waiting) == sorted([("m",), *[()] * (len(waiting) - 1)])


def test_a_directory_that_is_away_keeps_everything(tmp_path: Path) -> None:
    """An empty mount point, and a folder that cannot be read."""
    files, session = SESSIONS["crabtalk"]
    root, home = made(tmp_path / "root", files), tmp_path / "home"
    with opened(root, home, "crabtalk") as store:
        use(store, session)
        purge(store)
    root.rename(tmp_path / "away")
    root.mkdir()
    with opened(root, home, "crabtalk") as store:
        assert purge(store) == 0
    root.rmdir()
    (tmp_path / "away").rename(root)
    with opened(root, home, "crabtalk") as store:
        assert store.session(session).metadata.waiting == ("m",)


def test_a_joined_store_purges_all_of_its_stores(tmp_path: Path) -> None:
    files = {"crab_user_1.jsonl": crabtalk_file(), "crab_user_2.jsonl": crabtalk_file()}
    root, home = made(tmp_path / "root", files), tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text(f'[[stores]]\nlocation = "crabtalk:{root}"\nmode = "write"\n')
    with everlog.open_store(home=home) as store:
        use(store, "crab_user_1")
    transcript(root, "crabtalk").unlink()
    with everlog.open_store(home=home) as store:
        assert purge(store) == 1
        assert not files_with(home, WORDS)
        assert store.session("crab_user_2").messages()


def test_a_runtime_purges_at_its_start(tmp_path: Path) -> None:
    files = {"crab_user_1.jsonl": crabtalk_file(), "crab_user_2.jsonl": crabtalk_file()}
    root, home = made(tmp_path / "root", files), tmp_path / "home"
    with opened(root, home, "crabtalk") as store:
        use(store, "crab_user_1")
    transcript(root, "crabtalk").unlink()

    async def scenario() -> None:
        runtime = open_runtime(f"crabtalk:{root}", home=home)
        assert not await runtime.start(), "nothing to take over: the session is gone"
        async with asyncio.timeout(60):
            while files_with(home, WORDS):
                await asyncio.sleep(0.05)
        await runtime.drain(5)
        await runtime.store.close()

    asyncio.run(scenario())
