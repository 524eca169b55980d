"""A daemon on the files of Cersei, Claude Code and pi: a caller's key finds its session, in their format."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.foreign_daemon import append_lines, objects, send
from tests.daemon.running_daemon import FAST, Daemon, until
from tests.foreign.foreign_directories import SESSIONS, made

Start = Callable[..., Daemon]
CALLER = {"channel": "telegram", "chat_type": "direct", "chat_id": "7", "sender_id": "7"}
CONFIG = FAST + "[compaction]\nkeep_recent_tokens = 1024\n"
LONG = "It is grey and round. " * 200
ENTRY = {"timestamp": "2026-03-01T09:00:00+00:00", "cwd": "/w", "is_sidechain": False}


def texts(lines: list[dict[str, Any]]) -> list[str]:
    """What is said in a transcript of any of them, in the order of its lines."""
    contents = (line.get("message", {}).get("content", "") for line in lines if "message" in line)
    parts = (content if isinstance(content, list) else [{"text": content}] for content in contents)
    return [part["text"] for content in parts for part in content if part.get("text")]


def transcript(place: Path, session: str) -> Path:
    (file,) = place.rglob(f"*{session}.jsonl")
    return file


@pytest.mark.parametrize("program", ["cersei", "claude", "pi"])
def test_a_key_of_the_caller_finds_its_session_there_again(start: Start, tmp_path: Path, program: str) -> None:
    files, known = SESSIONS[program]
    place = made(tmp_path / "place", files)
    daemon = start("127.0.0.1", f"{program}:{place}", config=CONFIG)
    assert send(daemon, "!say welcome back", CALLER, session_key=known) == known
    own = send(daemon, "!say hello", CALLER)
    named = send(daemon, "!say mine", CALLER, session_key="my/own key")
    other = send(daemon, "!say hi", {**CALLER, "chat_id": "8", "sender_id": "8"})
    assert len({known, own, named, other}) == 4
    assert {"!say welcome back", "welcome back"} <= set(texts(objects(transcript(place, known))))
    assert texts(objects(transcript(place, own))) == ["!say hello", "hello"]

    file = transcript(place, own)
    if program == "cersei":  # the program itself appends meanwhile
        entry = {"type": "user", "uuid": "00000009-0000-4000-8000-000000000000", "session_id": own, **ENTRY}
        append_lines(file, [{**entry, "message": {"role": "user", "content": "typed meanwhile"}}])
    body = {"context": CALLER, "text": "wait for me\n!call current_time {}\n!then\n!wait 60"}
    assert daemon.call("POST", "/api/inbound?wait=false", body).status_code == 202
    until(lambda: b"tool_result" in file.read_bytes() or b"toolResult" in file.read_bytes())
    daemon.stop(signal.SIGKILL)

    again = start("127.0.0.1", f"{program}:{place}", config="")
    assert send(again, "!say recovered", CALLER) == own
    assert send(again, "!say still mine", CALLER, session_key="my/own key") == named
    assert send(again, "!say next", CALLER, new_chat=True) not in (known, own, named, other)
    assert again.call("POST", f"/api/sessions/{own}/resume").status_code == 200
    assert send(again, "!say back", CALLER) == own
    found = texts(objects(file))
    assert found[0] == "!say hello" and found[-4:] == ["!say recovered", "recovered", "!say back", "back"]
    assert body["text"] in found and ("typed meanwhile" in found) == (program == "cersei")

    for number in range(4):
        assert send(again, f"!say pebble {number}. {LONG}", CALLER) == own
    before = again.call("GET", f"/api/sessions/{own}/context").json()["tokens"]
    compacted = again.call("POST", f"/api/sessions/{own}/compact", {"focus": ""}).json()
    assert compacted["compacted"], compacted
    assert again.call("GET", f"/api/sessions/{own}/context").json()["tokens"] < before / 2
    assert len(texts(objects(file))) > len(found), "what is summarised stays in the file"
    assert again.stop() == 0
    assert {path.suffix for path in place.rglob("*") if path.is_file()} <= {".jsonl", ".txt"}
