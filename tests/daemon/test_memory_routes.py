"""`/api/memory`, over a real connection."""

from __future__ import annotations

from typing import Any

import pytest

from tests.daemon.running_daemon import Daemon


def test_a_note_is_written_listed_and_taken_away(daemon: Daemon) -> None:
    whose = "/api/memory?agent=writer"
    assert daemon.call("GET", whose).json() == {"agent": "writer", "index": "", "notes": []}
    given = {"text": "The staging host is blue.", "category": "project"}
    made = daemon.call("POST", whose, given)
    assert (made.status_code, made.json()) == (200, {"file": "the-staging-host-is-blue.md"})
    told = daemon.call("GET", whose).json()
    assert "the-staging-host-is-blue.md" in told["index"]
    (note,) = told["notes"]
    assert note["text"] == given["text"] and note["category"] == "project"
    assert note["byPerson"] is True and note["confidence"] == 1.0
    gone = daemon.call("DELETE", "/api/memory/the-staging-host-is-blue.md?agent=writer")
    assert gone.status_code == 204
    assert daemon.call("GET", whose).json()["notes"] == []
    assert daemon.call("GET", whose).json()["index"].strip() == ""


def test_without_a_name_it_is_the_memory_of_the_default_agent(daemon: Daemon) -> None:
    assert daemon.call("GET", "/api/memory").json()["agent"] == "main"


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/api/memory?agent=..%2Fx", None, 400),
        ("GET", "/api/memory?agent=projects", None, 400),
        ("POST", "/api/memory", {"text": ""}, 400),
        ("POST", "/api/memory", {"text": "  "}, 400),
        ("POST", "/api/memory", {"text": "x", "category": "gossip"}, 400),
        ("POST", "/api/memory", {"txet": "x"}, 400),
        ("DELETE", "/api/memory/nothing.md", None, 404),
        ("DELETE", "/api/memory/MEMORY.md", None, 404),
        ("DELETE", "/api/memory/..%2F..%2Fconfig.toml", None, 404),
    ],
)
def test_nonsense_is_refused(daemon: Daemon, method: str, path: str, body: Any, status: int) -> None:
    answer = daemon.call(method, path, body)
    assert answer.status_code == status
    assert answer.json()["error"]
