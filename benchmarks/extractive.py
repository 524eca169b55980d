"""The built-in summary: what it keeps of real sessions, and how long it takes.

The sessions lie beside the repository (`../shared/corpus`) and are not part of it; without them
only the time is measured. What counts as an error line is defined here, apart from the code that
looks for them: of results marked as failed the lines that match, or else the first line; of
other results those that match, unless the tool shows files or pages.
"""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import everlog
from benchmarks.corpus import claude_code, pi
from benchmarks.report import Figure, middle
from everlog.context.compaction.extractive import summarise
from everlog.context.compaction.file_operations import collect_file_ops
from everlog.model import Message, ToolCall

CORPUS = Path(__file__).parents[2] / "shared" / "corpus"
LIMIT = 4_000
LAST = 20
_ERROR = re.compile(
    r"\b\w*(?:Error|Exception)\b: |\berror(?:\[\w+\]| \w+\d+)?: |\bFAILED\b|\bpanicked at\b"
    r"|\bfatal: |^\s*\*\* \(|\b[1-9]\d* failures?\b|\b[Ee]xit(?:ed with)? code [1-9]"
)
_SHOWS = re.compile(r"read|glob|grep|write|edit|web|task$", re.IGNORECASE)
_TIME = re.compile(r"^\[?(?:\d{4}-\d\d-\d\dT?)?\s*\d\d:\d\d:\d\d\S*\s*")
_INJECTED = ("<", "Caveat:", "[Request interrupted", "/")


def measure(folder: Path) -> list[Figure]:
    """All figures about the built-in summary."""
    del folder  # nothing is written
    found: list[Figure] = []
    for path, read in _sessions():
        found += _kept(path, read(path))
    return [*found, _speed()]


def _sessions() -> Iterator[tuple[Path, Callable[[Path], list[Message]]]]:
    for path in sorted(CORPUS.glob("claude-code/*.jsonl")):
        if path.stat().st_size > 1_000_000:
            yield path, claude_code
    for path in sorted(CORPUS.glob("pi/*.jsonl")):
        yield path, pi


def _kept(path: Path, messages: list[Message]) -> list[Figure]:
    ops = collect_file_ops(messages)
    summary = summarise(messages, ops=ops, limit=LIMIT)
    flat = " ".join(summary.split())
    name = f"{path.parent.name} {path.stem[:8]}"
    changed = sum(f"\n{file}\n" in summary for file in ops.modified)
    errors = _last_errors(messages)
    kept = sum(line in flat for line in errors)
    goals = _goals(messages)
    asked = [goals[0], *goals[-3:]] if goals else []
    quoted = sum(goal in flat for goal in asked)
    tokens = _tokens(summary)
    return [
        Figure(
            f"built-in summary of {name}: changed files named",
            "all",
            f"{changed} of {len(ops.modified)}",
            changed == len(ops.modified),
        ),
        Figure(f"… of the last {LAST} error lines", "90 %", f"{kept} of {len(errors)}", kept >= 0.9 * len(errors)),
        Figure("… first and latest requests", "all", f"{quoted} of {len(asked)}", quoted == len(asked)),
        Figure(
            "… o200k tokens",
            f"≤ {LIMIT}",
            "not counted" if tokens is None else f"{tokens}",
            None if tokens is None else tokens <= LIMIT,
        ),
    ]


def _last_errors(messages: list[Message]) -> list[str]:
    found: dict[str, None] = {}
    for message in messages:
        if message.role != "toolResult":
            continue
        printed = [line for line in message.text.splitlines() if line.strip()]
        hits = [line for line in printed if _ERROR.search(line)]
        if message.is_error:
            hits = hits or printed[:1]
        elif _SHOWS.search(message.tool_name or ""):
            hits = []
        for line in hits:
            key = " ".join(_TIME.sub("", line.strip()).split())[:150]
            found.pop(key, None)
            found[key] = None
    return list(found)[-LAST:]


def _goals(messages: list[Message]) -> list[str]:
    texts = [message.text.strip() for message in messages if message.role == "user"]
    return [" ".join(text.split())[:100] for text in texts if text and not text.startswith(_INJECTED)]


def _tokens(text: str) -> int | None:
    try:
        splintr = importlib.import_module("splintr")
    except ImportError:
        return None
    return len(splintr.Tokenizer.from_pretrained("o200k_base").encode(text))


def _speed() -> Figure:
    messages: list[Message] = []
    for number in range(2_500):
        call = ToolCall(f"c{number}", "bash", {"command": f"make part{number}"})
        messages += [
            everlog.user(f"Please do part {number}. It must stay fast."),
            everlog.assistant([call]),
            everlog.tool_result(call.id, f"cc part{number}.c\nerror: part {number} is broken\n" + "ok\n" * 300),
            everlog.assistant(f"Part {number} is done. I chose a list because it is short."),
        ]
    times = []
    for _ in range(3):
        start = time.perf_counter()
        summarise(messages, ops=collect_file_ops(messages))
        times.append(time.perf_counter() - start)
    took = middle(times)
    return Figure("built-in summary of 10,000 messages", "≤ 2 s", f"{took:.2f} s", took <= 2)
