"""What a power cut makes of the last blocks: NUL bytes, lost heads, lost newlines.

A torn end with NUL bytes is set aside and its number given away again; a last line that is
broken without them may have been acknowledged, so it stays and keeps its number.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.checker import violations
from tests.crash.children import summary
from tests.crash.interfaces import open_log
from tests.crash.sample_records import clone, grow, parts

pytestmark = pytest.mark.crash

BLOCK = 4096
# From the bytes of the log before, and of the last line with its newline, what is found after
# the cut; everything behind the log before must have been set aside.
TAILS: dict[str, Callable[[bytes], bytes]] = {
    "nothing but NUL": lambda line: bytes(len(line)),
    "one NUL": lambda line: b"\0",
    "a block of NUL": lambda line: bytes(BLOCK),
    "NUL and a newline": lambda line: bytes(len(line) - 1) + b"\n",
    "a block of NUL and a newline": lambda line: bytes(BLOCK) + b"\n",
    "the head, then NUL": lambda line: line[:100] + bytes(len(line) - 100),
    "the head, then NUL, then the newline": lambda line: line[:100] + bytes(len(line) - 101) + b"\n",
    "the head lost": lambda line: bytes(100) + line[100:],
    "the first byte lost": lambda line: b"\0" + line[1:],
    "the middle lost": lambda line: line[:50] + bytes(50) + line[100:],
    "only the end": lambda line: bytes(len(line) - 20) + line[-20:],
    "the crc lost": lambda line: line[:-19] + bytes(18) + b"\n",
    "a whole block lost": lambda line: line[:BLOCK] + bytes(BLOCK) + line[2 * BLOCK :],
    "the last block lost": lambda line: line[:-BLOCK] + bytes(BLOCK),
    "two lines of NUL": lambda line: bytes(300) + b"\n" + bytes(300) + b"\n",
    "NUL, newline, NUL": lambda line: bytes(300) + b"\n" + bytes(300),
    "NUL, newline, a beginning": lambda line: bytes(300) + b"\n" + line[:100],
    "a beginning": lambda line: line[:100],
    "an opening brace": lambda line: b"{",
}
SAMPLE = b"x" * 20000 + b"\n"


@pytest.mark.parametrize("tail", TAILS)
def test_a_torn_end_is_set_aside_and_its_number_given_away_again(tail: str, root: Path) -> None:
    found = with_tail("everlog", root, TAILS[tail])
    assert not found, summary(found)


@pytest.mark.parametrize("tail", TAILS)
def test_the_control_sets_the_same_ends_aside(tail: str, root: Path) -> None:
    found = with_tail("Careful", root, TAILS[tail])
    assert not found, summary(found)


@pytest.mark.parametrize("tail", [name for name in TAILS if TAILS[name](SAMPLE).endswith(b"\n")])
def test_a_twin_that_trusts_newlines_keeps_what_is_broken(tail: str, root: Path) -> None:
    assert with_tail("TrustsNewlines", root, TAILS[tail])


@pytest.mark.parametrize("tail", TAILS)
def test_a_twin_without_crc_and_seal_fails_on_every_end(tail: str, root: Path) -> None:
    assert with_tail("Buffered", root, TAILS[tail])


def with_tail(kind: str, root: Path, tail: Callable[[bytes], bytes]) -> list[str]:
    """Put an end behind a log in place of its last record."""
    acked = grow(kind, root, ["1*300", "1*300"])
    (path,) = parts(kind, root)
    before = path.read_bytes()
    other = clone(root, root.with_name("other"))
    grow(kind, other, ["1*20000"], start=2)
    (longer,) = parts(kind, other)
    end = tail(longer.read_bytes()[len(before) :])
    path.write_bytes(before + end)
    return violations(kind, root, acked, torn=[end])


def test_a_broken_last_line_without_nul_stays_and_keeps_its_number(root: Path) -> None:
    acked = grow("everlog", root, ["1*300", "1*300", "1*300"])
    (path,) = parts("everlog", root)
    data = bytearray(path.read_bytes())
    data[-200] ^= 1
    path.write_bytes(data)
    (lost,) = [name for name, seq in acked.items() if seq == 3]
    del acked[lost]

    log = open_log("everlog", root)
    assert log.append("after") == 4
    log.close()
    assert path.read_bytes().startswith(bytes(data)), "nothing was cut"
    assert not list(root.rglob("torn.*"))
    found = violations("everlog", root, acked, expected=r"crc does not match \(seq 3\)")
    assert found == ["altered: seq 4"]  # "after" is no payload


def test_a_twin_without_crc_takes_the_broken_line_for_good(root: Path) -> None:
    grow("Buffered", root, ["1*300"])
    (path,) = parts("Buffered", root)
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    found = violations("Buffered", root, {})
    assert found == ["altered: seq 1"]
