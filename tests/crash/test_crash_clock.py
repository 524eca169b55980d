"""A clock that goes back, stands still or jumps: order is seq, and ids grow."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import cycle, pairwise
from pathlib import Path

import pytest

import everlog
from everlog.session import Store
from everlog.stores.file.file_store import FileStore
from tests.crash.control import Options
from tests.crash.interfaces import Log
from tests.crash.twin import TWINS

pytestmark = pytest.mark.crash

NOW = datetime(2026, 5, 17, 12, tzinfo=UTC).timestamp()
CLOCKS = {
    "two hours back": [NOW, NOW + 1, NOW - 7200, NOW - 7199],
    "behind 2038": [NOW, 2**31 - 1, 2**31, 2**31 + 1, NOW],
    "standing still": [NOW],
    "an empty battery": [NOW, 0.0, 1.5],
    "to and fro": [NOW, NOW - 0.001, NOW + 86_400, NOW - 86_400, NOW + 0.5],
}


@pytest.mark.parametrize("clock", CLOCKS)
def test_messages_come_in_the_order_of_their_appends_whatever_the_clock_says(clock: str, root: Path) -> None:
    store = Store(FileStore(root, clock=ticking(clock)))
    session = store.create()
    said = [f"message {n}" for n in range(24)]
    for text in said[:16]:
        session.append(everlog.user(text))
    session.append_many([everlog.user(text) for text in said[16:]])
    times = [message.timestamp for message in session.messages()]
    store.close()
    assert times != sorted(times) or clock == "standing still"

    with Store(FileStore(root, clock=ticking(clock))) as again:
        session = again.session(session.id)
        session.append(everlog.user("after"))
        assert [message.text for message in session.messages()] == [*said, "after"]
        assert [message.seq for message in session.messages()] == list(range(1, 26))
        assert [message.text for message in session.context().messages] == [*said, "after"]
        assert session.verify() == ()
        assert session.metadata.message_count == 25
        assert [row.metadata.message_count for row in again.list()] == [25]


@pytest.mark.parametrize("clock", CLOCKS)
def test_session_ids_grow_whatever_the_clock_says(clock: str, root: Path) -> None:
    with Store(FileStore(root, clock=ticking(clock))) as store:
        ids = [store.create().id for _ in range(20)]
        assert all(one < other for one, other in pairwise(ids))
        latest = store.latest()
        assert latest is not None and latest.id == ids[-1]
        assert len(store.list()) == 20


def test_the_control_keeps_the_order(root: Path) -> None:
    assert append_and_read(TWINS["Careful"](root, Options(), ticking("two hours back")))


def test_a_twin_that_orders_by_time_turns_a_conversation_around(root: Path) -> None:
    assert not append_and_read(TWINS["OrdersByTime"](root, Options(), ticking("two hours back")))


def append_and_read(log: Log) -> bool:
    """Whether messages come back in their order."""
    said = [f"message {n}" for n in range(8)]
    for text in said:
        log.append(text)
    read = [text for _, text in log.messages()]
    log.close()
    return read == said


def ticking(clock: str) -> Callable[[], float]:
    """A clock that shows these times one after the other."""
    times = cycle(CLOCKS[clock])
    return lambda: next(times)
