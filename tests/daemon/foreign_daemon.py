"""A daemon on the files of another program, and that program meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.daemon.running_daemon import Daemon

ANSWER_SECONDS = 60


def send(daemon: Daemon, text: str, context: dict[str, Any], **more: Any) -> str:
    """Send a message as a channel does, wait for the answer, and return the session."""
    answer = daemon.call("POST", "/api/inbound", {"context": context, "text": text, **more})
    assert answer.status_code == 200, answer.text
    found: str = answer.json()["sessionId"]
    return found


def append_lines(file: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Append lines as the program itself does: it opens the file, writes and closes it."""
    with file.open("ab") as opened:
        for line in lines:
            opened.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")


def objects(file: Path) -> list[dict[str, Any]]:
    """The lines of a file, each of which must be a whole object."""
    data = file.read_bytes()
    assert not data or data.endswith(b"\n")
    return [json.loads(line) for line in data.splitlines()]


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())
