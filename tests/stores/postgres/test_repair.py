"""Repair: what is counted is counted anew, whatever others do meanwhile; verify sees what is not."""

from __future__ import annotations

import threading

from everlog.model import user
from everlog.settings import SessionSettings, Settings
from tests.stores.postgres.open_stores import Stores
from tests.stores.postgres.test_metadata_rows import ask

SMALL = Settings(session=SessionSettings(part_bytes=900))


def test_a_part_that_is_counted_nowhere_is_found_and_counted_again(stores: Stores) -> None:
    store = stores.new(SMALL)
    session = store.create().id
    for _ in range(9):
        store.append(session, [user("x" * 200)])
    before = store.parts(session)
    ask(stores, store, "DELETE FROM everlog.part WHERE part = 2")
    (wrong,) = store.verify(session)
    assert wrong.file == before[1].file and f"{before[1].bytes} bytes" in wrong.problem
    (told,) = store.repair(session)
    assert "recounted" in told
    assert store.parts(session) == before
    assert store.verify(session) == ()


def test_repair_beside_another_who_appends_changes_nothing_that_is_right(stores: Stores) -> None:
    store = stores.new(SMALL)
    session = store.create().id
    store.append(session, [user("first")])
    other = stores.again(store)
    done = threading.Event()
    wrong: list[BaseException] = []

    def write() -> None:
        try:
            while not done.is_set():
                other.append(session, [user("x" * 200)])
        except BaseException as error:
            wrong.append(error)

    writing = threading.Thread(target=write)
    writing.start()
    try:
        told = {one for _ in range(6) for one in store.repair(session)}
    finally:
        done.set()
        writing.join()
    assert not wrong and not told
    (size,) = ask(stores, store, "SELECT bytes FROM everlog.session")[0]
    assert sum(one.bytes for one in store.parts(session)) == size
    assert store.verify(session) == ()
