"""Ids: their form, their order, also when the clock goes back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from everlog import ids
from everlog.ids import TimestampSource, UuidGenerator, epoch_ms, timestamp
from everlog.testing import FakeClock


def test_ids_grow_strictly_whatever_the_clock_does() -> None:
    clock = FakeClock()
    new = ids.UlidGenerator(clock)
    made = []
    for jump in (0, 0, -7200, 0, 400_000_000, -400_000_000, 1, 0):
        clock.now += jump
        made += [new() for _ in range(50)]
    assert made == sorted(set(made))
    assert all(ids.is_ulid(one) for one in made)


@given(st.integers(0, 2**48 - 1))
def test_the_time_is_in_the_id(ms: int) -> None:
    assert ids.milliseconds(ids.encode(ms << 80)) == ms


def test_only_the_canonical_form_is_an_id() -> None:
    good = ids.encode(123 << 80)
    assert ids.is_ulid(good)
    for bad in (good.lower()[:-1] + "a", good[:-1], good + "0", good[:-1] + "U", good + "\n", ""):
        assert not ids.is_ulid(bad)


def test_uuids_are_distinct_and_of_version_4() -> None:
    import uuid

    new = UuidGenerator()
    made = [new() for _ in range(1000)]
    assert len(set(made)) == 1000
    assert {uuid.UUID(one).version for one in made} == {4}
    assert {uuid.UUID(one).variant for one in made} == {uuid.RFC_4122}


@given(st.floats(0, 4e9))
def test_stamps_are_timestamps(seconds: float) -> None:
    stamps = TimestampSource(lambda: seconds)
    assert stamps() == timestamp(seconds) == stamps()
    assert epoch_ms(timestamp(seconds)) == int(seconds * 1000)
