"""Lines on their way to another store: which number a line that cannot be read takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from everlog.log import line_codec
from everlog.log.raw_lines import LEFT_OUT, LocatedLine, number_lines
from everlog.model import Damaged, user
from everlog.ports import RawLine


def _line(seq: int) -> bytes:
    return line_codec.build_line(line_codec.encode(user("x"))[1], "message", seq)


def _found(*bodies: bytes | None) -> list[LocatedLine]:
    return [LocatedLine(1, number * 100, number * 100 + 9, body) for number, body in enumerate(bodies)]


def _seqs(*bodies: bytes | None) -> list[int | str]:
    return [one.seq if isinstance(one, RawLine) else one.problem for one in number_lines(_found(*bodies))]


def test_a_line_that_cannot_be_read_takes_the_number_that_is_free() -> None:
    assert _seqs(_line(1), b"?", _line(3)) == [1, 2, 3]
    assert _seqs(_line(1), b"?", b"", _line(9)) == [1, 2, 3, 9]
    assert _seqs(_line(1), b"?", b"?") == [1, 2, 3]


def test_the_first_line_is_that_of_the_birth_if_nothing_else_fits() -> None:
    assert _seqs(b"?", _line(1)) == [0, 1]
    assert _seqs(b"?", _line(2)) == [1, 2]


def test_a_line_without_a_free_number_is_named_and_left_out() -> None:
    first, named, second = _seqs(_line(1), b"put in between", _line(2))
    assert (first, second) == (1, 2)
    assert isinstance(named, str) and named.startswith(LEFT_OUT) and "not valid JSON" in named


def test_a_number_that_stands_twice_is_carried_once() -> None:
    assert _seqs(_line(1), _line(2), _line(2), _line(3)) == [
        1, 2, f"{LEFT_OUT}: seq 2 follows 2", 3,
    ]  # fmt: skip


def test_a_line_that_is_too_long_to_be_read_is_left_out_and_keeps_its_number_free() -> None:
    assert _seqs(_line(1), None, b"?", _line(4)) == [
        1, f"{LEFT_OUT}: the line is too long", 3, 4,
    ]  # fmt: skip


@given(st.lists(st.one_of(st.integers(0, 12).map(_line), st.sampled_from([b"", b"?", None]))))
def test_every_line_is_carried_in_order_or_named(bodies: list[bytes | None]) -> None:
    found = _found(*bodies)
    told = list(number_lines(found))
    carried = [one for one in told if isinstance(one, RawLine)]
    named = [one for one in told if isinstance(one, Damaged)]
    assert len(carried) + len(named) == len(bodies)
    seqs = [one.seq for one in carried]
    assert seqs == sorted(set(seqs))
    kept = iter(body for body in bodies if body is not None)
    assert all(any(one.body == body for body in kept) for one in carried)  # the order stays
    for one in carried:
        assert isinstance(one.entry, Damaged) or one.entry.seq == one.seq
    assert {one.start for one in named} <= {one.start for one in found}
    assert all(one.problem.startswith(LEFT_OUT) for one in named)
