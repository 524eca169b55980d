"""The lock of a session in one process: held by one thread, and free again whatever interrupts it."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from everlog.errors import SessionBusyError
from everlog.log.fold import MetadataFold
from everlog.stores.postgres.session_cache import CachedSession, SessionCache

SESSION = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


class Interrupted(BaseException):
    """As KeyboardInterrupt."""


@contextmanager
def interrupting() -> Iterator[Callable[[float], None]]:
    """Raise Interrupted in this thread, by a real signal, after a time."""
    armed = False

    def interrupt(*_: object) -> None:
        nonlocal armed
        if armed:  # once: a second one would come while the first is handled
            armed = False
            raise Interrupted

    def arm(seconds: float) -> None:
        nonlocal armed
        armed = seconds > 0
        signal.setitimer(signal.ITIMER_REAL, seconds)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        yield arm
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def is_free(known: CachedSession) -> bool:
    """Whether another thread can have it."""
    found: list[bool] = []

    def look() -> None:
        try:
            with known.hold_lock(0.2):
                found.append(True)
        except SessionBusyError:
            found.append(False)

    other = threading.Thread(target=look)
    other.start()
    other.join()
    return found == [True]


def once(known: CachedSession, memory: SessionCache) -> None:
    with known.hold_lock(1.0):
        pass


def within(known: CachedSession, memory: SessionCache) -> None:
    with known.hold_lock(1.0), known.hold_lock(1.0):
        memory.metadata(SESSION)


@pytest.mark.crash
@pytest.mark.parametrize("use", [once, within])
def test_an_interrupt_at_any_moment_leaves_it_free(use: Callable[[CachedSession, SessionCache], None]) -> None:
    memory, chance = SessionCache(), random.Random(6)
    known = memory.get(SESSION)
    interrupts, end = 0, time.monotonic() + 20
    with interrupting() as arm:
        while interrupts < 3000 and time.monotonic() < end:
            try:
                arm(chance.uniform(1e-6, 60e-6))
                while True:
                    use(known, memory)
            except Interrupted:
                interrupts += 1
            assert is_free(known), f"after {interrupts} interrupts"
    assert interrupts > 100


def test_who_holds_it_may_hold_it_again_and_others_wait_for_the_outermost() -> None:
    memory = SessionCache()
    known = memory.get(SESSION)
    with known.hold_lock(1.0):
        with known.hold_lock(1.0) as again:
            assert again is known
        assert not is_free(known)
        known.is_current, known.fold = True, MetadataFold.empty(SESSION)
        assert memory.metadata(SESSION) is not None
        assert not is_free(known)
    assert is_free(known)


def test_metadata_of_a_session_that_is_being_written_to_is_asked_of_the_database() -> None:
    memory = SessionCache()
    known = memory.get(SESSION)
    known.is_current, known.fold = True, MetadataFold.empty(SESSION)
    found: list[object] = []
    with known.hold_lock(1.0):
        other = threading.Thread(target=lambda: found.append(memory.metadata(SESSION)))
        other.start()
        other.join()
    assert found == [None]
    assert memory.metadata(SESSION) is not None
