"""Check-ups on a real store with real damage."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

import everlog
from everlog.aio import AsyncStore
from everlog.app import open_runtime
from everlog.errors import NotFoundError, SessionBusyError
from everlog.runtime.integrity_check import IntegrityCheck
from everlog.wire.responses import IntegrityStatus

T = TypeVar("T")


def make(root: Path, count: int = 3) -> list[str]:
    with everlog.open_store(root, create=True) as store:
        made = [store.create(title=f"number {number}") for number in range(count)]
        for session in made:
            for text in ("one", "two", "three"):
                session.append(everlog.user(text))
        return [session.id for session in made]


def damage(root: Path, session: str) -> None:
    """Flip a bit in the middle of a log."""
    log = root / "sessions" / session / "session.jsonl"
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(content)


def on(root: Path, act: Callable[[IntegrityCheck], Awaitable[T]]) -> T:
    async def run() -> T:
        async with AsyncStore(everlog.open_store(root, create=True)) as store:
            checkup = IntegrityCheck(store)
            try:
                return await act(checkup)
            finally:
                await checkup.task.stop()

    return asyncio.run(run())


async def ended(checkup: IntegrityCheck) -> IntegrityStatus:
    async with asyncio.timeout(60):
        while checkup.progress.running:
            await asyncio.sleep(0)
    return checkup.progress


def test_a_checkup_finds_what_is_damaged_and_nothing_else(tmp_path: Path) -> None:
    ids = make(tmp_path)
    damage(tmp_path, ids[1])

    async def look(checkup: IntegrityCheck) -> IntegrityStatus:
        checkup.start()
        return await ended(checkup)

    found = on(tmp_path, look)
    assert (found.done, found.of, found.failure) == (3, 3, "")
    assert {one.session for one in found.damage} == {ids[1]}
    assert found.damage[0].file == "session.jsonl"


def test_one_is_under_way_at_a_time(tmp_path: Path) -> None:
    make(tmp_path)

    async def look(checkup: IntegrityCheck) -> tuple[IntegrityStatus, IntegrityStatus]:
        first = checkup.start()
        await asyncio.sleep(0)
        return first, checkup.start()

    first, second = on(tmp_path, look)
    assert first.running and second.started_at == first.started_at


def test_a_checkup_that_is_stopped_says_so(tmp_path: Path) -> None:
    make(tmp_path)

    async def look(checkup: IntegrityCheck) -> IntegrityStatus:
        checkup.start()
        await asyncio.sleep(0)
        await checkup.task.stop()
        return checkup.progress

    stopped = on(tmp_path, look)
    assert not stopped.running and stopped.failure == "the check was cancelled"


def test_a_repair_keeps_the_damaged_bytes_and_says_what_is_left(tmp_path: Path) -> None:
    session = make(tmp_path, 1)[0]
    damage(tmp_path, session)
    log = tmp_path / "sessions" / session / "session.jsonl"
    before = log.read_bytes()

    async def act(checkup: IntegrityCheck) -> tuple[list[str], int, int]:
        checkup.start()
        await ended(checkup)
        made = await checkup.repair(session)
        assert checkup.repairs[session] is made
        return list(made.done), len(made.left), len(checkup.progress.damage)

    done, left, known = on(tmp_path, act)
    assert any("a copy is in damaged" in step for step in done)
    assert left == known == 1
    assert log.read_bytes().startswith(before)


def test_a_torn_tail_is_gone_after_a_repair(tmp_path: Path) -> None:
    session = make(tmp_path, 1)[0]
    with (tmp_path / "sessions" / session / "session.jsonl").open("ab") as log:
        log.write(b'{"recordType":"message"')

    async def act(checkup: IntegrityCheck) -> tuple[int, int]:
        found = await checkup.verify(session)
        assert checkup.progress.damage
        made = await checkup.repair(session)
        return len(found), len(made.left) + len(checkup.progress.damage)

    assert on(tmp_path, act) == (1, 0)


def test_no_repair_during_a_turn(tmp_path: Path) -> None:
    session = make(tmp_path, 1)[0]
    with (
        everlog.open_store(tmp_path, create=True) as other,
        other.session(session).lease(),
        pytest.raises(SessionBusyError),
    ):
        on(tmp_path, lambda checkup: checkup.repair(session))


def test_a_session_that_was_deleted_has_nothing_wrong_with_it_any_more(tmp_path: Path) -> None:
    here, elsewhere = make(tmp_path, 2)
    damage(tmp_path, here)
    damage(tmp_path, elsewhere)

    async def scenario() -> None:
        runtime = open_runtime(home=tmp_path, create=True)
        runtime.integrity_check.start()
        found = await ended(runtime.integrity_check)
        assert {one.session for one in found.damage} == {here, elsewhere}
        await runtime.edits.delete(await runtime.store.session(here))
        assert {one.session for one in runtime.integrity_check.progress.damage} == {elsewhere}
        everlog.open_store(tmp_path, create=True).session(elsewhere).delete()
        with pytest.raises(NotFoundError):
            await runtime.integrity_check.repair(elsewhere)
        assert runtime.integrity_check.progress.damage == []
        await runtime.drain(5)
        await runtime.store.close()

    asyncio.run(scenario())
