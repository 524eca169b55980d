"""A daemon on the directories of the ULID format: what its program began goes on, and stays readable to it."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.daemon.foreign_daemon import append_lines, objects, send
from tests.daemon.running_daemon import FAST, Daemon, until
from tests.test_spec_003 import FOREIGN, ULID, put_by_hand

Start = Callable[..., Daemon]
NEW = {"channel": "telegram", "chat_type": "direct", "chat_id": "7", "sender_id": "7"}
LONG = "It is grey and round. " * 200
CONFIG = FAST + "[compaction]\nkeep_recent_tokens = 1024\n"


def say(daemon: Daemon, text: str) -> None:
    answer = daemon.call("POST", f"/api/sessions/{ULID}/messages", {"content": text})
    assert answer.status_code == 200, answer.text


def history(log: Path) -> list[str]:
    """What that format's program loads: every message in the order of seq, which never has a gap."""
    records = objects(log)
    assert [record["seq"] for record in records] == list(range(records[0]["seq"], records[0]["seq"] + len(records)))
    messages = [record for record in records if record["recordType"] == "message"]
    assert all(isinstance(message["content"], list) for message in messages)
    return ["".join(block.get("text", "") for block in message["content"]) for message in messages]


def test_sessions_put_into_the_home_go_on(start: Start, tmp_path: Path) -> None:
    folder = put_by_hand(tmp_path / "root")
    log = folder / "session.jsonl"
    before = log.read_bytes()
    daemon = start(config=CONFIG)
    listed = daemon.call("GET", f"/api/sessions/{ULID}").json()["metadata"]
    assert (listed["name"], listed["source"]) == (FOREIGN["name"], "cron")
    say(daemon, "!say welcome back")
    new = send(daemon, "!say hello", NEW)
    assert new != ULID

    # Its own program appends meanwhile: a line with the next seq and nothing of ours.
    seq = objects(log)[-1]["seq"] + 1
    line: dict[str, Any] = {"recordType": "message", "schemaVersion": 1, "seq": seq, "role": "user"}
    stamp = "2025-02-11T11:00:00Z"
    append_lines(log, [{**line, "content": [{"type": "text", "text": "typed meanwhile"}], "timestamp": stamp}])
    say(daemon, "!say heard")
    assert history(log)[-5:] == ["!say welcome back", "welcome back", "typed meanwhile", "!say heard", "heard"]

    body = {"content": "wait for me\n!call current_time {}\n!then\n!wait 60"}
    assert daemon.call("POST", f"/api/sessions/{ULID}/messages?wait=false", body).status_code == 202
    until(lambda: objects(log)[-1].get("role") == "toolResult")
    daemon.stop(signal.SIGKILL)

    again = start(config="")
    for number in range(4):
        say(again, f"!say pebble {number}. {LONG}")
    compacted = again.call("POST", f"/api/sessions/{ULID}/compact", {"focus": ""}).json()
    assert compacted["compacted"], compacted
    assert send(again, "!say again", NEW) == new
    assert again.call("PATCH", f"/api/sessions/{ULID}", {"name": "Disks again"}).status_code == 200
    assert again.stop() == 0

    assert log.read_bytes().startswith(before)
    assert body["content"] in history(log) and "heard" in history(log)
    marker = next(record for record in objects(log) if record["recordType"] == "compaction")
    assert marker["firstKeptSeq"] < marker["seq"] and marker["summary"]
    metadata = json.loads((folder / "metadata.json").read_bytes())
    assert (metadata["name"], metadata["cronJobId"]) == ("Disks again", FOREIGN["cronJobId"])
    assert metadata["createdAt"] == FOREIGN["createdAt"]
    assert metadata["messageCount"] == len(history(log))
