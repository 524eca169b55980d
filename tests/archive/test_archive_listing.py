"""Files that change while they are read, and how they are cut."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.errors import ConflictError, StoreFailedError
from everlog.interop.archive.chunks import MAX_ATTEMPTS, FileContent, group_by_block, read_file, store_block
from everlog.interop.archive.manifest import Chunk
from everlog.interop.archive.objects import BLOCK_BYTES


class Meanwhile:
    """Takes blocks, and does something to the file at some of them."""

    def __init__(self, *deeds: Callable[[], object]) -> None:
        self.deeds = list(deeds)
        self.data: list[bytes] = []

    def __call__(self, data: memoryview, old: Sequence[Chunk]) -> Future[list[Chunk]]:
        self.data.append(bytes(data))
        if self.deeds:
            self.deeds.pop(0)()
        done: Future[list[Chunk]] = Future()
        done.set_result([Chunk(sha256(data).hexdigest(), len(data))])
        return done


def _take(file: Path, submit: Meanwhile) -> tuple[FileContent, bytes]:
    """What was taken of a file, and its bytes."""
    taken = read_file(os.fsencode(file), (), submit)
    data = b"".join(submit.data[-len(taken.blocks) :])
    assert sha256(data).hexdigest() == taken.sha256
    assert len(data) == taken.stat.size
    return taken, data


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Two blocks and a bit."""
    path = tmp_path / "x.jsonl"
    path.write_bytes(os.urandom(2 * BLOCK_BYTES + 100))
    return path


def _write(file: Path, place: int, data: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(place)
        opened.write(data)


def test_a_file_that_grows_is_taken_as_long_as_it_was(file: Path) -> None:
    before = file.read_bytes()
    submit = Meanwhile(*[lambda: _write(file, file.stat().st_size, b"more")] * 3)
    taken, data = _take(file, submit)
    assert data == before
    assert taken.stat.mtime_ns < file.stat().st_mtime_ns  # so that the next run reads it
    assert len(submit.data) == 3  # read once, and once more only to compare


def test_a_file_that_is_rewritten_is_not_taken_half_and_half(file: Path) -> None:

    def rewrite() -> None:
        _write(file, 0, b"new")
        _write(file, 2 * BLOCK_BYTES, b"new")

    _, data = _take(file, Meanwhile(rewrite))
    assert data == file.read_bytes()
    assert data[:3] == data[2 * BLOCK_BYTES :][:3] == b"new"


def test_a_file_that_becomes_shorter_is_taken_as_it_is_then(file: Path) -> None:
    _, data = _take(file, Meanwhile(lambda: os.truncate(file, BLOCK_BYTES + 5)))
    assert data == file.read_bytes() and len(data) == BLOCK_BYTES + 5


def test_a_file_that_changes_every_time_is_left(file: Path) -> None:
    changes = [lambda: _write(file, 0, os.urandom(8))] * 3 * MAX_ATTEMPTS
    with pytest.raises(ConflictError, match="changed during each attempt"):
        _take(file, Meanwhile(*changes))


def test_a_fifo_in_the_place_of_a_file_makes_nobody_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x")
    with pytest.raises(StoreFailedError, match="regular file"):
        read_file(os.fsencode(tmp_path / "x"), (), Meanwhile())


class Kept:
    """Objects in memory."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.written = 0

    def put(self, data: memoryview) -> str:
        name = sha256(data).hexdigest()
        self.written += len(data) if name not in self.objects else 0
        self.objects[name] = bytes(data)
        return name


@given(st.lists(st.integers(0, 40_000), max_size=30), st.booleans())
def test_a_block_that_grows_is_few_pieces_that_make_it(growths: list[int], recheck: bool) -> None:
    kept, data = Kept(), b""
    pieces: list[Chunk] = []
    for seed, growth in enumerate(growths):
        data += bytes([seed]) * growth
        pieces = store_block(memoryview(data), pieces, kept.put, recheck=recheck)
        assert b"".join(kept.objects[one.object] for one in pieces) == data
        assert all(one.size == len(kept.objects[one.object]) for one in pieces)
        assert all(one.size >= 2 * two.size for one, two in pairwise(pieces))
    assert kept.written <= len(data) * (len(bin(len(data) + 1)) + 1)


def test_a_full_block_is_one_piece_wherever_it_came_from() -> None:
    kept, data = Kept(), os.urandom(BLOCK_BYTES)
    grown = store_block(memoryview(data[:-1000]), (), kept.put, recheck=False)
    grown = store_block(memoryview(data[:-10]), grown, kept.put, recheck=False)
    assert len(grown) == 2
    grown = store_block(memoryview(data), grown, kept.put, recheck=False)
    assert grown == store_block(memoryview(data), (), kept.put, recheck=False)


def test_a_block_that_no_longer_begins_as_it_did_is_stored_as_a_whole() -> None:
    kept = Kept()
    old = store_block(memoryview(b"abcdef"), (), kept.put, recheck=False)
    new = store_block(memoryview(b"Xbcdefg"), old, kept.put, recheck=False)
    assert [kept.objects[one.object] for one in new] == [b"Xbcdefg"]
    shorter = store_block(memoryview(b"abc"), old, kept.put, recheck=False)
    assert [kept.objects[one.object] for one in shorter] == [b"abc"]


def test_pieces_are_sorted_into_their_blocks() -> None:
    full, part, rest = Chunk("a", BLOCK_BYTES), Chunk("b", 1000), Chunk("c", 10)
    assert group_by_block([full, full, part, rest]) == [[full], [full], [part, rest]]
    assert group_by_block([]) == []
