"""A root of its own for each test, and terminals on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from everlog.app import open_store
from everlog.session import Store
from tests.daemon.running_daemon import Daemon
from tests.providers.fake_server import Answer, chunk
from tests.terminal.terminal import Terminal

# Fast, and nothing of its own accord: no titles by a model, no notes.
CONFIG = """
[agents.main]
[agents.poet]
[daemon]
port = 0
drain_seconds = 5
[session]
durability = "os"
[turn]
titles = false
retry_seconds = 0.01
[memory]
extract = false
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where the sessions go, with settings that make tests fast."""
    made = tmp_path / "root"
    made.mkdir()
    (made / "config.toml").write_text(CONFIG)
    return made


@pytest.fixture
def store(root: Path) -> Iterator[Store]:
    """The library on the same root."""
    with open_store(root, create=True) as opened:
        yield opened


@pytest.fixture
def terminal(root: Path) -> Iterator[Callable[..., Terminal]]:
    """Start `everlog …` on terminals of the test's own."""
    made: list[Terminal] = []

    def begin(*arguments: str, **how: Any) -> Terminal:
        made.append(Terminal(root, *arguments, **how))
        return made[-1]

    yield begin
    for one in made:
        one.close()


@pytest.fixture
def daemon(root: Path) -> Iterator[Callable[..., Daemon]]:
    """Start daemons on the test's root."""
    made: list[Daemon] = []

    def begin(config: str = "") -> Daemon:
        made.append(Daemon(root, config=config))
        return made[-1]

    yield begin
    for one in made:
        one.stop()


@pytest.fixture
def half() -> Iterator[tuple[threading.Event, Answer]]:
    """An answer that comes in two halves, the second when the test says so."""
    going_on = threading.Event()

    def pieces() -> Iterator[str]:
        words = "# A heading\n\nThe first paragraph.\n\n- an item\n- the ta"
        yield chunk({"role": "assistant", "content": words})
        going_on.wait(60)
        yield chunk({"role": "assistant", "content": "il of a list\n\nThe last paragraph."})
        yield chunk(finish="stop")
        yield "data: [DONE]\n\n"

    yield going_on, Answer(body=pieces())
    going_on.set()
