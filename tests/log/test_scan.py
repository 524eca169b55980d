"""Lines out of bytes: forwards, backwards, by bisection."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.log import line_codec, scan
from everlog.log.parts import part_name, part_number, split_at_boundary
from everlog.model import Event
from tests.examples import examples


def _pread(data: bytes) -> scan.Pread:
    return lambda length, offset: data[offset : offset + length]


pieces = st.lists(st.binary(max_size=40) | st.just(b"\n") | st.integers(1, 9).map(lambda n: b"x" * n * 50_000))


@given(pieces.map(b"".join))
@settings(max_examples=examples(300), deadline=None)
def test_forwards_and_backwards_see_the_same_lines(data: bytes) -> None:
    terminated = data[: data.rfind(b"\n") + 1]
    expected = terminated.split(b"\n")[:-1]
    forwards = list(scan.forward(_pread(data), 0, len(data)))
    backwards = list(scan.backward(_pread(data), len(data)))
    assert [line for _, _, line in forwards] == expected
    assert list(reversed(backwards)) == forwards
    for start, stop, line in forwards:
        assert data[start:stop] == line
    assert scan.find_terminated_end(_pread(data), len(data)) == len(terminated)


def test_a_line_over_the_cap_is_named_and_not_held() -> None:
    data = b"a\n" + b"x" * 1_000_000 + b"\nb\n"
    forwards = list(scan.forward(_pread(data), 0, len(data), cap=500_000))
    assert forwards == [(0, 1, b"a"), (2, 1_000_002, None), (1_000_003, 1_000_004, b"b")]
    assert list(reversed(list(scan.backward(_pread(data), len(data), cap=500_000)))) == forwards


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=120), st.data())
@settings(max_examples=examples(100), deadline=None)
def test_bisection_never_starts_behind_the_record(sizes: list[int], data: st.DataObject) -> None:
    rows = [
        line_codec.build_line(line_codec.encode(Event(kind="x" * size, timestamp="t"))[1], "event", seq)
        for seq, size in enumerate(sizes, 1)
    ]
    log = b"".join(row + b"\n" for row in rows)
    wanted = data.draw(st.integers(1, len(sizes) + 1))
    start = scan.seek(_pread(log), len(log), wanted)
    assert start == 0 or log[start - 1 : start] == b"\n"
    found = [line_codec.peek_seq(line or b"") for _, _, line in scan.forward(_pread(log), start, len(log))]
    assert found == list(range(found[0] or 0, len(sizes) + 1)) if found else wanted > len(sizes)
    if wanted <= len(sizes):
        assert wanted in found
        assert len(log) - start <= len(log) - log.index(rows[wanted - 1]) + 70_000


def test_part_names_are_exact() -> None:
    assert [part_name(n) for n in (1, 2, 10)] == ["session.jsonl", "session_part2.jsonl", "session_part10.jsonl"]
    for name in ("session_part1.jsonl", "session_part02.jsonl", "session.jsonl.bak", "x", "session_part0.jsonl"):
        assert part_number(name) is None
    assert part_number("session_part10.jsonl") == 10


@given(st.lists(st.binary(max_size=60).filter(lambda b: b"\n" not in b)), st.integers(0, 200), st.integers(1, 150))
def test_lines_are_laid_into_parts_in_order_and_within_the_limit(rows: list[bytes], used: int, limit: int) -> None:
    groups = split_at_boundary(rows, used, limit)
    assert [row for group in groups for row in group] == rows
    for number, group in enumerate(groups):
        size = sum(len(row) + 1 for row in group) + (used if number == 0 else 0)
        assert size <= limit or len(group) <= (1 if number or not used else 0)
