"""A log cut at any byte of its end, or in any state of a part boundary, goes on without a loss."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.crash.checker import violations
from tests.crash.children import summary
from tests.crash.control import Options
from tests.crash.sample_records import clone, grow, parts, torn_bytes

pytestmark = pytest.mark.crash

BEFORE = ["1*30", "1*30"]
LAST = {"singles": ["1*20", "1*20"], "batch": ["3*20"]}


@pytest.mark.parametrize("last", LAST)
def test_a_log_cut_at_any_byte_of_its_last_two_records_loses_nothing(last: str, tmp_path: Path) -> None:
    found, cuts = cut_everywhere("everlog", tmp_path, BEFORE, LAST[last])
    assert not found, summary(found)
    assert cuts > 300


def test_a_log_without_metadata_cut_at_every_third_byte_loses_nothing(tmp_path: Path) -> None:
    found, cuts = cut_everywhere("everlog", tmp_path, BEFORE, ["1*20"], metadata=False, step=3)
    assert not found, summary(found)
    assert cuts > 100


def test_a_first_record_cut_at_any_byte_leaves_a_session_that_goes_on(tmp_path: Path) -> None:
    found, cuts = cut_everywhere("everlog", tmp_path, [], ["1*20"])
    assert not found, summary(found)
    assert cuts > 300


def test_the_control_passes_the_same_cuts(tmp_path: Path) -> None:
    found, _ = cut_everywhere("Careful", tmp_path, BEFORE, LAST["singles"])
    assert not found, summary(found)


@pytest.mark.parametrize(
    ("twin", "complaint"),
    [("Buffered", "is not the last"), ("NeverSeals", "is not the last"), ("CutsAndForgets", "not set aside")],
)
def test_a_twin_that_does_not_seal_or_set_aside_fails_the_same_cuts(twin: str, complaint: str, tmp_path: Path) -> None:
    found, cuts = cut_everywhere(twin, tmp_path, BEFORE, LAST["singles"])
    assert len([one for one in found if complaint in one]) > cuts / 2


def cut_everywhere(
    kind: str, folder: Path, before: Sequence[str], last: Sequence[str], *, metadata: bool = True, step: int = 1
) -> tuple[list[str], int]:
    """Cut at every byte of the last two lines; the violations, and how many cuts there were."""
    base = folder / "base"
    acked = grow(kind, base, before)  # its metadata is older than what is cut
    if not metadata:
        for path in base.rglob("metadata.json"):
            path.unlink()
    source = clone(base, folder / "source")
    acked |= grow(kind, source, last, start=len(acked))
    (log,) = parts(kind, source)
    data = log.read_bytes()
    ends = [at + 1 for at, byte in enumerate(data) if byte == 10]
    found, cuts = [], range(ends[-3] if len(ends) > 2 else 0, len(data) + 1, step)
    for at in cuts:
        state = clone(base, folder / f"cut{at}")
        (state / log.relative_to(source)).write_bytes(data[:at])
        whole = data[:at].count(b"\n") - (kind == "everlog")  # its first line has seq 0
        there = {name: seq for name, seq in acked.items() if seq <= whole}
        torn = [] if at + 1 in ends else torn_bytes(data[:at])  # a newline alone is added
        found += [f"cut at {at}: {one}" for one in violations(kind, state, there, torn=torn)]
        shutil.rmtree(state)
    return found, len(cuts)


# --- part boundaries

ROOM = 600  # bytes left in the old part: for one record of the batch
NEW = ["missing", "empty", "torn", "whole"]


@pytest.mark.parametrize("last", ["1*700", "3*300"], ids=["single", "batch"])
@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "not-sealed"])
@pytest.mark.parametrize("new", NEW)
def test_any_state_of_a_part_boundary_goes_on_without_a_loss(new: str, sealed: bool, last: str, tmp_path: Path) -> None:
    found = at_boundary("everlog", tmp_path, new, sealed=sealed, last=last)
    assert not found, summary(found)


@pytest.mark.parametrize("new", ["missing", "empty"])
def test_a_torn_tail_before_a_part_boundary_is_set_aside_or_reported(new: str, tmp_path: Path) -> None:
    found = at_boundary("everlog", tmp_path, new, sealed=False, last="3*300", old_torn=True)
    if new == "missing":
        assert not found, summary(found)
    # Behind a boundary nothing is cut: no crash leaves a torn tail there. It is reported.
    assert [one for one in found if "session.jsonl: torn tail" not in one] == []


def test_a_torn_tail_of_a_sealed_part_is_reported_and_the_log_goes_on(tmp_path: Path) -> None:
    found = at_boundary("everlog", tmp_path, "missing", sealed=True, last="3*300", old_torn=True)
    assert found
    assert [one for one in found if "session.jsonl: torn tail" not in one] == []


@pytest.mark.parametrize("new", NEW)
def test_the_control_passes_the_same_boundaries(new: str, tmp_path: Path) -> None:
    found = at_boundary("Careful", tmp_path, new, sealed=False, last="3*300")
    assert not found, summary(found)


@pytest.mark.parametrize(
    ("twin", "complaint"), [("NeverSeals", "is not the last"), ("CutsAndForgets", "not set aside")]
)
def test_a_twin_that_does_not_seal_fails_at_a_torn_new_part(twin: str, complaint: str, tmp_path: Path) -> None:
    found = at_boundary(twin, tmp_path, "torn", sealed=False, last="1*700")
    assert [one for one in found if complaint in one]


def test_a_twin_that_keeps_a_pointer_to_its_part_fails_when_the_pointer_is_empty(tmp_path: Path) -> None:
    root = tmp_path / "root"
    small = Options(part_bytes=1000)
    acked = grow("PointsAtPart", root, ["1*700"] * 3, small)
    assert not violations("PointsAtPart", clone(root, tmp_path / "whole"), acked, options=small)
    (root / "twin" / "current").write_bytes(b"")
    assert violations("PointsAtPart", root, acked, options=small)


def at_boundary(kind: str, folder: Path, new: str, *, sealed: bool, last: str, old_torn: bool = False) -> list[str]:
    """A log whose last append crossed into a new part, in a state of that moment."""
    base = folder / "base"
    acked = grow(kind, base, ["1*200", "1*200"])
    (old,) = parts(kind, base)
    before = old.read_bytes()
    small = Options(part_bytes=len(before) + ROOM)
    grown = acked | grow(kind, base, [last], small, start=len(acked))
    old, part = parts(kind, base)
    whole, after = part.read_bytes(), old.read_bytes()
    if new == "whole":
        acked = grown
    if old_torn:
        after = after[: (len(before) + len(after)) // 2]
        assert len(after) > len(before), "the batch went into both parts"
    found = []
    sizes = {"torn": range(1, len(whole) - 1, 11), "empty": [0]}
    for size in sizes.get(new, [len(whole)]):
        state = clone(base, folder / f"state{size}")
        for path in state.rglob("metadata.json"):
            path.unlink()  # it is written later
        old, part = parts(kind, state)
        old.chmod(0o600)
        old.write_bytes(after)
        old.chmod(0o400 if sealed else 0o600)
        part.write_bytes(whole[:size])
        if new == "missing":
            part.unlink()
        torn = torn_bytes(whole[:size]) if new == "torn" else []
        if old_torn and not sealed and new == "missing":
            torn += torn_bytes(after)
        found += violations(kind, state, acked, options=small, torn=torn)
        shutil.rmtree(state)
    return found
