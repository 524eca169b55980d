"""Files of other programs that grow and are damaged, step by step."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everlog.interop.formats.cersei import FORMAT as cersei
from everlog.interop.formats.claude import FORMAT as claude
from everlog.interop.formats.codex import FORMAT as codex
from everlog.interop.formats.crabtalk import FORMAT as crabtalk
from everlog.interop.formats.format_types import InMemorySource
from everlog.interop.formats.gemini import FORMAT as gemini
from everlog.interop.formats.pi import FORMAT as pi
from everlog.interop.formats.picoclaw import FORMAT as picoclaw
from tests.formats import test_claude, test_codex, test_gemini
from tests.formats.claude_session import ID, Session, encode, uuid
from tests.formats.conversations import CONVERSATIONS
from tests.formats.round_trips import golden

FORMATS: Mapping[str, Any] = {module.NAME: module for module in (claude, cersei, crabtalk, picoclaw, pi, codex, gemini)}
TEXTS = ("How many?", "Three.", "And now?", "Four, as you said.", "Thanks", "You are welcome.", "Go on", "Done.")


def _claude_session() -> InMemorySource:
    """Tool calls in parallel, a compaction, a branch that was left, answers with usage."""
    session = Session()
    session.user("Look at both")
    session.call("a", response="m1")
    session.call("b", response="m1", usage={"input_tokens": 1, "output_tokens": 5})
    session.result("b", "second")
    session.result("a", "first")
    left = session.answer("Both are fine.")
    session.user("Are you sure?")
    session.answer("No.")
    session.user("Then look again", parent=left)
    session.answer("Yes.")
    session.compact("They looked at both.")
    session.user("Go on")
    session.answer("Done.", usage={"input_tokens": 9, "output_tokens": 1})
    session.meta("custom-title", customTitle="Looking")
    return InMemorySource(ID, {f"{ID}.jsonl": session.data()})


def _cersei_session() -> InMemorySource:
    """Entries of several messages, deleted before and after they were written, and a summary."""
    common = {"timestamp": "2026-03-01T08:00:00+00:00", "session_id": "s", "cwd": "/w"}

    def entry(kind: str, number: int, content: Any) -> dict[str, Any]:
        return {"type": kind, "uuid": uuid(number), **common, "message": {"role": kind, "content": content}}

    results = [{"type": "tool_result", "tool_use_id": name, "content": f"of {name}"} for name in "ab"]
    calls = [{"type": "tool_use", "id": name, "name": "Bash", "input": {}} for name in "ab"]
    values = [
        entry("user", 1, "go on"),
        entry("assistant", 2, calls),
        {"type": "tombstone", "deleted_uuid": uuid(6), "timestamp": common["timestamp"]},
        entry("user", 3, [*results, {"type": "text", "text": "more"}]),
        entry("assistant", 4, "no more"),
        {"type": "tombstone", "deleted_uuid": uuid(3), "timestamp": common["timestamp"]},
        {"type": "summary", "uuid": uuid(5), **common, "summary": "Both were done.", "messages_compacted": 2},
        entry("user", 6, "not to be shown"),
        entry("user", 7, "go on"),
        entry("assistant", 8, "done so"),
        {"type": "tombstone", "deleted_uuid": uuid(8), "timestamp": common["timestamp"]},
        entry("user", 9, "so long"),
    ]
    return InMemorySource("s", {"s.jsonl": encode(values)})


def _codex_session() -> InMemorySource:
    """Answers whose usage is in later lines, as older and newer versions write it."""
    ((name, data),) = CONVERSATIONS["codex"](TEXTS).items()
    head, *lines = data.splitlines(keepends=True)
    usage = {"input_tokens": 5, "cached_input_tokens": 1, "output_tokens": 2}
    for number in (2, 5, 9):
        total = {"output_tokens": number}
        info = {"total_token_usage": total, "last_token_usage": usage}
        payload = {"type": "token_count", "info": info}
        lines.insert(
            number, encode([{"timestamp": "2026-03-01T08:00:09.000Z", "type": "event_msg", "payload": payload}])
        )
    record = {"timestamp": "2026-03-01T08:00:09.000Z", "type": "token_usage_record", "payload": {"usage": usage}}
    return InMemorySource(name.removesuffix(".jsonl"), {name: b"".join([head, *lines, encode([record])])})


SAMPLES: Mapping[str, Sequence[InMemorySource]] = {
    name: (*others, InMemorySource("", CONVERSATIONS[name](TEXTS)))
    for name, others in {
        "claude": (test_claude.golden(), _claude_session()),
        "cersei": (
            golden("cersei", "7d1f0a52-58c1-4e0e-9d67-2b1f6f0e9a01"),
            golden("cersei", "bare"),
            _cersei_session(),
        ),
        "crabtalk": (golden("crabtalk", "crab_tg-12345_2_fix-the-build"),),
        "picoclaw": (golden("picoclaw", "agent_main_direct_42"),),
        "pi": (
            golden("pi", "2026-01-05T09-00-00-000Z_0198f3c2-7b6e-7d10-8a55-1f2e3d4c5b6a"),
            golden("pi", "2025-11-20T09-00-00-000Z_v1"),
        ),
        "codex": (*test_codex.TestConformance.sessions, _codex_session()),
        "gemini": test_gemini.TestConformance.sessions,
    }.items()
}


class DamagedFile:
    """A transcript on the disk: what is written of a sample, and what happens to it."""

    def __init__(self, top: Path, sample: InMemorySource) -> None:
        first, *others = sample.paths()
        self.path = top / "sessions" / first
        self.path.parent.mkdir()
        for name in others:
            (self.path.parent / name).parent.mkdir(parents=True, exist_ok=True)
            (self.path.parent / name).write_bytes(sample.files[name])
        self.path.write_bytes(b"")
        self.meta_path = self.path.with_name(f"{self.path.stem}.meta.json")
        self.was_damaged = False
        self._rest = sample.files[first]  # not written yet
        self._now = 1_780_000_000

    def apply(self, kind: str, first: int, second: int) -> None:
        """Let one thing happen to the file."""
        getattr(self, kind)(first, second)
        self.was_damaged = self.was_damaged or kind not in GROWTH
        self.touch()

    def touch(self) -> None:
        """Give the files a later time, however fast the steps follow each other."""
        self._now += 1
        for path in (self.path, self.meta_path):
            if path.exists():
                os.utime(path, (self._now, self._now))

    # --- growth

    def grow(self, count: int, _: int) -> None:
        """Append some lines."""
        lines = self._rest.splitlines(keepends=True)
        cut = sum(map(len, lines[: count % (len(lines) + 1)]))
        self._append(cut)

    def grow_bytes(self, count: int, _: int) -> None:
        """Append up to any byte."""
        self._append(count % (len(self._rest) + 1))

    def _append(self, count: int) -> None:
        with self.path.open("ab") as file:
            file.write(self._rest[:count])
        self._rest = self._rest[count:]

    # --- damage

    @property
    def lines(self) -> list[bytes]:
        return self.path.read_bytes().splitlines(keepends=True)

    def _write(self, lines: Sequence[bytes]) -> None:
        self.path.write_bytes(b"".join(lines))

    def tear(self, number: int, count: int) -> None:
        """Lose the end of a line, but not its newline."""
        if lines := self.lines:
            number %= len(lines)
            line = lines[number]
            lines[number] = line[: count % len(line)] + b"\n"
            self._write(lines)

    def flip(self, position: int, bit: int) -> None:
        data = bytearray(self.path.read_bytes())
        if data:
            data[position % len(data)] ^= 1 << bit % 8
            self.path.write_bytes(data)

    def glue(self, number: int, _: int) -> None:
        """Lose a newline."""
        if lines := self.lines:
            number %= len(lines)
            lines[number] = lines[number].rstrip(b"\n")
            self._write(lines)

    def lose(self, number: int, _: int) -> None:
        if lines := self.lines:
            del lines[number % len(lines)]
            self._write(lines)

    def repeat(self, number: int, place: int) -> None:
        """Write a line again, anywhere."""
        if lines := self.lines:
            lines.insert(place % (len(lines) + 1), lines[number % len(lines)])
            self._write(lines)

    def append_again(self, number: int, _: int) -> None:
        """Write a line again, at the end."""
        if lines := self.lines:
            self._write([*lines, lines[number % len(lines)]])

    def exchange(self, first: int, second: int) -> None:
        if lines := self.lines:
            first, second = first % len(lines), second % len(lines)
            lines[first], lines[second] = lines[second], lines[first]
            self._write(lines)

    def nuls(self, position: int, count: int) -> None:
        """Overwrite with NULs."""
        data = self.path.read_bytes()
        position %= len(data) + 1
        count = min(count, len(data) - position)
        self.path.write_bytes(data[:position] + bytes(count) + data[position + count :])

    def rewrite(self, number: int, _: int) -> None:
        """Change a letter that a person wrote; the line keeps its length."""
        if lines := self.lines:
            number %= len(lines)
            lines[number] = lines[number].replace(b"o", b"0", 1 + number % 3)
            self._write(lines)

    def truncate(self, count: int, _: int) -> None:
        """Lose the end of the file; it will be written again."""
        data = self.path.read_bytes()
        count %= len(data) + 1
        self._rest = data[count:] + self._rest
        self.path.write_bytes(data[:count])

    def replace(self, number: int, _: int) -> None:
        """Write the file anew under its name, without some of its lines at the start."""
        lines = self.lines
        temporary = self.path.with_suffix(".tmp")
        temporary.write_bytes(b"".join(lines[number % (len(lines) + 1) :]))
        temporary.rename(self.path)

    # --- metadata beside the lines

    def change_meta(self, skip: int, summary: int) -> None:
        if not self.meta_path.exists():
            return
        try:
            meta = json.loads(self.meta_path.read_bytes())
        except ValueError:
            return
        meta |= {"skip": skip % (len(self.lines) + 2), "summary": ("", "S", "T")[summary % 3]}
        self.meta_path.write_bytes(json.dumps(meta, indent=2).encode())

    def damage_meta(self, position: int, bit: int) -> None:
        if self.meta_path.exists() and (data := bytearray(self.meta_path.read_bytes())):
            data[position % len(data)] ^= 1 << bit % 8
            self.meta_path.write_bytes(data)


GROWTH = ("grow", "grow", "grow", "grow_bytes")
DAMAGE = (
    "tear",
    "flip",
    "glue",
    "lose",
    "repeat",
    "append_again",
    "exchange",
    "nuls",
    "rewrite",
    "truncate",
    "replace",
)
META = ("change_meta", "change_meta", "damage_meta")
