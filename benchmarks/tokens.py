"""The token estimate: how far off it is on each kind of text, and how fast it is."""

from __future__ import annotations

import base64
import json
import random
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import corpus
from benchmarks.report import Figure
from everlog.context.tokens import TokenCounter, estimate_text, exact_counter

CORPUS = Path(__file__).resolve().parents[2] / "shared" / "corpus"
LOW, HIGH = -0.10, 0.35
RATE = 100  # MB/s


def measure(_: Path) -> list[Figure]:
    """All figures about counting tokens."""
    real = exact_counter()
    figures = [_error(kind, text, real) for kind, text in _texts()]
    return [*figures, *_speed(real)]


def _texts() -> Iterator[tuple[str, str]]:
    library = Path(sysconfig.get_paths()["stdlib"])
    dice = random.Random(7)
    code = "\n".join(p.read_text(errors="replace") for p in sorted(library.glob("a*.py"))[:12])
    yield "English (this project's pages)", _pages()
    yield "Python (the standard library)", code
    yield "JSON", json.dumps([_row(dice) for _ in range(400)])
    yield "indented JSON", json.dumps([_row(dice) for _ in range(400)], indent=2)
    yield "directory listing", subprocess.check_output(["ls", "-l", library], text=True)
    yield "paths", "\n".join(str(p) for p in sorted(library.rglob("*.py"))[:800])
    yield "hex", "\n".join(dice.randbytes(32).hex() for _ in range(400))
    yield "base64", base64.b64encode(dice.randbytes(20_000)).decode()
    yield from _sessions()


def _pages() -> str:
    pages = Path(__file__).resolve().parents[1].glob("docs/*.md")
    return "\n".join(page.read_text() for page in sorted(pages))


def _row(dice: random.Random) -> dict[str, object]:
    return {"id": dice.randrange(10**8), "name": f"n{dice.randrange(999)}", "ok": True, "x": None}


def _sessions() -> Iterator[tuple[str, str]]:
    """Real tool results, where some lie beside the project."""
    for file in sorted((CORPUS / "claude-code").glob("*-*.jsonl")):
        messages = corpus.claude_code(file)
        for role in ("toolResult", "assistant"):
            text = "\n".join(message.text for message in messages if message.role == role)
            yield f"{role}s of a real session ({file.stem[:8]})", text


def _error(kind: str, text: str, real: TokenCounter) -> Figure:
    true = real(text)
    error = estimate_text(text) / true - 1
    chars = len(text) / 4 / true - 1
    return Figure(
        f"estimate against o200k: {kind}",
        "−10 % … +35 %",
        f"{error:+.0%}",
        LOW <= error <= HIGH,
        f"{true:,} tokens; characters / 4: {chars:+.0%}",
    )


def _speed(real: TokenCounter) -> list[Figure]:
    text = _pages()
    figures = []
    for characters in (1_000, 4_000, 1_000_000):
        long = text * (1 + characters // len(text))
        pieces = [long[at : at + characters] for at in range(0, len(long), characters)]
        theirs = max(_rate(real, pieces) for _ in range(3))
        ours = max(_rate(estimate_text, pieces) for _ in range(25))
        figures.append(
            Figure(
                f"estimating messages of {characters:,} characters",
                f"≥ {RATE} MB/s",
                f"{ours:.0f} MB/s",
                ours >= RATE,
                f"{ours / theirs:.0f} × the exact counter; best of 25 rounds on one core",
            )
        )
    return figures


def _rate(count: TokenCounter, pieces: list[str]) -> float:
    size = sum(len(piece.encode()) for piece in pieces)
    start = time.perf_counter()
    for piece in pieces:
        count(piece)
    return size / (time.perf_counter() - start) / 1e6
