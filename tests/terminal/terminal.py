"""A terminal of a known size with a program in it: type, wait for what the screen shows, look."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, Self

import pexpect
import pyte
from pexpect import fdpexpect

from tests.cli.runner import environment

SECONDS = 60.0  # that a condition may take; a machine may be busy
KEYS = {
    "enter": "\r",
    "escape": "\x1b",
    "tab": "\t",
    "backspace": "\x7f",
    "delete": "\x1b[3~",
    "up": "\x1b[A",
    "down": "\x1b[B",
    "right": "\x1b[C",
    "left": "\x1b[D",
    "home": "\x1b[H",
    "end": "\x1b[F",
    "page up": "\x1b[5~",
    "page down": "\x1b[6~",
    "alt enter": "\x1b\r",
    **{f"ctrl {letter}": chr(ord(letter) - 96) for letter in "abcdefghijklmnopqrstuvwxyz"},
}
ALTERNATE = 1049  # the private mode of full-screen programs


class Screen(pyte.HistoryScreen):
    """pyte's, with a second screen for full-screen programs, and an answer to who asks."""

    def __init__(self, columns: int, rows: int, answer: Callable[[str], None]) -> None:
        self._answer = answer
        self._first: tuple[Any, Any] | None = None  # buffer and cursor of the first screen
        self._rows: list[str] = []  # as they were when somebody looked last
        super().__init__(columns, rows, history=100_000, ratio=0.5)

    def write_process_input(self, data: str) -> None:
        """The place of the cursor, when the program wants to know it."""
        self._answer(data)

    def set_mode(self, *modes: int, **how: Any) -> None:
        super().set_mode(*modes, **how)
        if how.get("private") and ALTERNATE in modes and self._first is None:
            lines = {row: dict(line) for row, line in self.buffer.items()}
            self._first = lines, (self.cursor.x, self.cursor.y)
            self.erase_in_display(2)

    def reset_mode(self, *modes: int, **how: Any) -> None:
        super().reset_mode(*modes, **how)
        if how.get("private") and ALTERNATE in modes and self._first is not None:
            lines, (self.cursor.x, self.cursor.y) = self._first
            self._first = None
            self.erase_in_display(2)
            for row, line in lines.items():
                self.buffer[row].update(line)

    def rows(self) -> list[str]:
        """What each row shows, without the spaces at its end; only those that changed are read.

        A test looks at the screen after every few characters, and reading all of it is slow.
        """
        if len(self._rows) != self.lines:
            self._rows = [""] * self.lines
            self.dirty.update(range(self.lines))
        for row in self.dirty:
            if row < self.lines:
                line = self.buffer[row]
                cells = (line[column].data for column in range(max(line, default=-1) + 1))
                self._rows[row] = "".join(cells)[: self.columns].rstrip()
        self.dirty.clear()
        return self._rows

    @property
    def is_alternate(self) -> bool:
        """Whether a full-screen program has it."""
        return self._first is not None


class Terminal:
    """`everlog …` on a terminal of its own."""

    def __init__(
        self, root: Path, *arguments: str, rows: int = 40, columns: int = 100, is_drawn: bool = True, **more: str
    ) -> None:
        """`is_drawn=False` only takes in what is written, which is faster by far."""
        outer, inner = pty.openpty()
        termios.tcsetwinsize(inner, (rows, columns))
        given = {"TERM": "xterm-256color", "COLORTERM": "", **more}
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-m", "tests.terminal.attached_terminal", *arguments],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env=environment(root, **given),
            cwd=Path(__file__).parents[2],
            start_new_session=True,
        )
        os.close(inner)
        self._child: fdpexpect.fdspawn[bytes] = fdpexpect.fdspawn(outer)
        self._outer = outer
        self.raw = bytearray()  # everything that was written to it
        self._gone: list[str] = []  # lines that have left the screen
        self._is_drawn = is_drawn
        self.screen = Screen(columns, rows, self._send)
        self._stream = pyte.ByteStream(self.screen)

    # --- keys

    def type(self, text: str) -> None:
        """Type some text."""
        self._send(text)

    def press(self, *keys: str) -> None:
        """Press keys by their names: `enter`, `ctrl c`, `up` …"""
        for key in keys:
            self._send(KEYS[key])

    def say(self, text: str) -> None:
        """Type some text, see it, and press Enter."""
        self.type(text)
        self.wait_until(lambda: self._ends_with(text), f"{text!r} typed")
        self.press("enter")

    def paste(self, text: str) -> None:
        """Paste some text, as terminals do that tell it from typing."""
        self._send(f"\x1b[200~{text}\x1b[201~")

    def resize(self, *, rows: int, columns: int) -> None:
        """Give its window another size."""
        self.screen.resize(rows, columns)
        termios.tcsetwinsize(self._outer, (rows, columns))

    def send(self, data: bytes) -> None:
        """Send bytes that need not be text."""
        os.write(self._outer, data)

    def _send(self, text: str) -> None:
        try:
            os.write(self._outer, text.encode())
        except OSError:  # it has gone; whoever waits for something will be told so
            pass

    def _ends_with(self, text: str) -> bool:
        last = text.rpartition("\n")[2][-20:].strip()
        return last in self.text

    # --- what there is to see

    @property
    def text(self) -> str:
        """What the screen shows, without the spaces at the ends of lines."""
        return "\n".join(self.screen.rows()).rstrip()

    @property
    def everything(self) -> str:
        """What the screen shows and what has left it at the top."""
        top = self.screen.history.top
        for line in islice(top, len(self._gone), None):
            text = "".join(line[column].data for column in range(self.screen.columns))
            self._gone.append(text.rstrip())
        return "\n".join([*self._gone, self.text])

    @property
    def colours(self) -> list[str]:
        """The escape sequences for colours and styles that were written to it, but for resets."""
        found = re.findall(rb"\x1b\[([0-9;]*)m", self.raw)
        return [one.decode() for one in found if one.strip(b"0;")]

    # --- waiting

    def wait_for(self, *texts: str, seconds: float = SECONDS) -> None:
        """Wait until the screen, or what has left it, shows each of some texts."""
        for text in texts:
            self.wait_until(lambda text=text: text in self.everything, repr(text), seconds=seconds)  # type: ignore[misc]

    def wait_for_words(self, text: str) -> None:
        """Wait until a text is shown, wherever its lines are broken between words."""
        self.wait_until(lambda: text in " ".join(self.everything.split()), repr(text))

    def wait_until(self, met: Callable[[], bool], what: str = "a condition", seconds: float = SECONDS) -> None:
        """Wait until a condition holds; AssertionError with the screen if it does not in time."""
        until = time.monotonic() + seconds
        while not met():
            left = until - time.monotonic()
            if left <= 0:
                raise AssertionError(f"no {what} within {seconds} s on:\n{self.everything}")
            if not self._take(min(left, 0.1)) and not met():
                raise AssertionError(f"it ended without {what}:\n{self.everything}")

    def wait_for_end(self, seconds: float = SECONDS) -> int:
        """Wait for the end of the program; its exit code."""
        until = time.monotonic() + seconds
        while self._take(0.1):
            if time.monotonic() > until:
                raise AssertionError(f"it goes on after {seconds} s:\n{self.everything}")
        return self.process.wait(30)

    def _take(self, seconds: float) -> bool:
        """Take in what comes; whether more may come."""
        try:
            piece = self._child.read_nonblocking(1 << 16, timeout=seconds)
        except pexpect.TIMEOUT:
            return True
        except (pexpect.EOF, OSError):
            return False
        self.raw += piece
        if self._is_drawn:
            self._stream.feed(piece)
        return True

    # --- the end

    def close(self) -> None:
        """End the program if it has not ended."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)
        self._child.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
