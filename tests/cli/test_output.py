"""What is drawn beside the answers: bars, and spans of time."""

from __future__ import annotations

import os
import pty
import sys

import pytest

from everlog.cli import output


def drawn(monkeypatch: pytest.MonkeyPatch, *steps: int, after: float = 0, no_color: str = "") -> str:
    """What a bar writes to a terminal for some steps of three."""
    outer, inner = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", no_color)
    with os.fdopen(inner, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        with output.progress("verifying", delay=after) as tell:
            for done in steps:
                tell(done, 3)
        terminal.write("end")
        terminal.flush()
        seen = b""
        while not seen.endswith(b"end"):
            seen += os.read(outer, 1 << 16)
    os.close(outer)
    return seen.decode().removesuffix("end")


def test_a_bar_is_drawn_while_work_goes_on_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = drawn(monkeypatch, 1, 2, 3)
    assert "verifying" in seen and seen.endswith("\x1b[1A\x1b[2K")  # up, and the line is empty


def test_what_is_done_at_once_draws_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn(monkeypatch, 1, 2, 3, after=60) == ""
    assert drawn(monkeypatch, 3) == ""


def test_no_color_has_a_line_without_any_escape_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = drawn(monkeypatch, 1, 2, 3, no_color="1")
    assert seen.startswith("\rverifying 33 %\rverifying 66 %") and "\x1b" not in seen
    assert seen.endswith(f"\r{' ' * len('verifying 100 %')}\r")


@pytest.mark.parametrize(
    ("milliseconds", "told"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1_000, "1.0 s"),
        (9_949, "9.9 s"),
        (9_960, "10 s"),
        (59_499, "59 s"),
        (59_500, "1 min"),
        (61_000, "1 min 1 s"),
        (3_600_000, "1 h"),
    ],
)
def test_a_span_of_time_is_told_in_a_readable_unit(milliseconds: int, told: str) -> None:
    assert output.duration(milliseconds) == told
