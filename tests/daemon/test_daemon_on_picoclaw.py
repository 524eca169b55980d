"""A daemon on PicoClaw's workspace: keys, aliases, forum topics, the main session and legacy histories."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import everlog
from everlog.identity.key import main_key
from everlog.identity.route import Router
from everlog.identity.scope import Inbound
from tests.daemon.foreign_daemon import append_lines, names, objects, send
from tests.daemon.running_daemon import Daemon, until
from tests.foreign.foreign_directories import made, picoclaw_files

Start = Callable[..., Daemon]
DIRECT = {"channel": "telegram", "chat_type": "direct", "chat_id": "42", "sender_id": "42"}
OTHER = {**DIRECT, "chat_id": "7", "sender_id": "7"}
FORUM = {"channel": "telegram", "chat_type": "group", "chat_id": "-100", "topic_id": "1", "sender_id": "42"}
MAIN = "agent:main:main"
AT = "2026-03-01T09:00:00Z"


def key(context: dict[str, Any]) -> str:
    return Router().route(Inbound(**context)).session_key


def canonical(context: dict[str, Any], *aliases: str) -> dict[str, bytes]:
    """A session of PicoClaw's with its scope, and the alias of the main session as each has it."""
    routed = Router().route(Inbound(**context))
    files = picoclaw_files(routed.session_key)
    meta = json.loads(files[f"{routed.session_key}.meta.json"])
    scope = {"version": 1, "agent_id": "main", "channel": "telegram", "account": "default", "dimensions": ["chat"]}
    meta |= {"scope": {**scope, "values": routed.scope.values}, "aliases": [MAIN, *aliases]}
    return {**files, f"{routed.session_key}.meta.json": json.dumps(meta, indent=2).encode()}


def shown(place: Path, key: str) -> list[str]:
    """What PicoClaw shows of a session: the lines that are not skipped."""
    stem = key.replace(":", "_").replace("/", "_")
    meta = json.loads((place / f"{stem}.meta.json").read_bytes())
    lines = objects(place / f"{stem}.jsonl")
    assert (meta["key"], meta["count"]) == (key, len(lines))
    return [line["content"] for line in lines[meta["skip"] :]]


def test_legacy_documents_become_sessions_at_the_start_and_skipped_lines_can_be_reclaimed(
    start: Start, tmp_path: Path
) -> None:
    messages = [{"role": role, "content": text} for role, text in (("user", "before"), ("assistant", "long ago"))]
    legacy = {"key": "agent:main:telegram:direct:7", "messages": messages, "summary": "They met.", "created": AT}
    place = made(
        tmp_path / "sessions", {"old.json": json.dumps({**legacy, "updated": AT}).encode(), **canonical(DIRECT)}
    )
    about = place / f"{key(DIRECT)}.meta.json"
    about.write_text(json.dumps({**json.loads(about.read_bytes()), "skip": 1, "summary": "They greeted."}))
    daemon = start("127.0.0.1", str(place))
    assert "old.json" not in names(place) and "old.json.migrated" in names(place)
    assert send(daemon, "!say I remember", OTHER) == key(OTHER)
    assert shown(place, key(OTHER)) == ["before", "long ago", "!say I remember", "I remember"]
    assert json.loads((place / f"{key(OTHER)}.meta.json").read_bytes())["summary"] == "They met."
    assert shown(place, legacy["key"]) == ["before", "long ago"]  # type: ignore[arg-type]
    assert send(daemon, "!say go on", DIRECT) == key(DIRECT)
    context = daemon.call("GET", f"/api/sessions/{key(DIRECT)}/context").json()["messages"]
    assert "They greeted." in json.dumps(context[0]) and "hello" not in json.dumps(context)
    assert daemon.stop() == 0
    with everlog.open_store(place, home=tmp_path / "root") as store:
        assert store.session(key(DIRECT)).reclaim() > 0
    assert shown(place, key(DIRECT)) == ["hi there", "!say go on", "go on"]
    assert json.loads(about.read_bytes())["summary"] == "They greeted."


def test_users_of_picoclaw_go_on_and_new_ones_begin_in_its_files(start: Start, tmp_path: Path) -> None:
    legacy = "agent:main:telegram:direct:7"
    place = made(
        tmp_path / "sessions",
        {**canonical(DIRECT, "agent:main:direct:42"), **canonical(FORUM), **picoclaw_files(legacy)},
    )
    daemon = start("127.0.0.1", f"picoclaw:{place}")
    assert send(daemon, "!say welcome back", DIRECT) == key(DIRECT)
    assert send(daemon, "!say in the topic", FORUM) == key(FORUM)
    assert send(daemon, "!say in another", {**FORUM, "topic_id": "2"}) == key({**FORUM, "topic_id": "2"})
    assert send(daemon, "!say by its old name", DIRECT, session_key="agent:main:direct:42") == key(DIRECT)

    # The name of the main session is not that of somebody's chat, though each of them lists it.
    assert daemon.call("GET", f"/api/sessions/{MAIN}").status_code == 404
    main = send(daemon, "!say to the main session", DIRECT, session_key=MAIN)
    assert main == main_key("main") == send(daemon, "!say noted", OTHER, system=True)
    assert daemon.call("GET", f"/api/sessions/{MAIN}").json()["metadata"]["id"] == main

    # A legacy history goes into the canonical file, once; what is cleared stays cleared.
    assert send(daemon, "!say once more", OTHER) == key(OTHER)
    assert shown(place, key(OTHER)) == ["hello", "hi there", "!say once more", "once more"]
    assert shown(place, legacy) == ["hello", "hi there"]
    meta = json.loads((place / f"{key(OTHER)}.meta.json").read_bytes())
    assert meta["scope"]["values"] == {"chat": "direct:7"} and legacy in meta["aliases"] and MAIN not in meta["aliases"]

    # PicoClaw appends meanwhile; the daemon is killed in a turn.
    line = {"role": "user", "content": "typed in PicoClaw meanwhile", "created_at": AT}
    append_lines(place / f"{key(DIRECT)}.jsonl", [line])
    body = {"context": DIRECT, "text": "wait for me\n!call current_time {}\n!then\n!wait 60"}
    assert daemon.call("POST", "/api/inbound?wait=false", body).status_code == 202
    until(lambda: objects(place / f"{key(DIRECT)}.jsonl")[-1]["role"] == "tool")
    daemon.stop(signal.SIGKILL)
    (place / f"{key(OTHER)}.jsonl").write_bytes(b"")  # /clear
    (place / f"{key(OTHER)}.meta.json").write_bytes(json.dumps({**meta, "count": 0}, indent=2).encode())
    for mirror in (tmp_path / "root" / "live").rglob("session.jsonl"):
        mirror.unlink()

    again = start("127.0.0.1", f"picoclaw:{place}", config="")
    assert send(again, "!say recovered", DIRECT) == key(DIRECT)
    texts = shown(place, key(DIRECT))
    assert texts[2:4] == ["!say welcome back", "welcome back"] and texts[-2:] == ["!say recovered", "recovered"]
    assert texts.index("typed in PicoClaw meanwhile") < texts.index(body["text"])  # type: ignore[arg-type]
    assert send(again, "!say afresh", OTHER) == key(OTHER)
    assert shown(place, key(OTHER)) == ["!say afresh", "afresh"]
    created = again.call("POST", "/api/sessions", {}).json()["id"]
    assert created.startswith("sk_v1_") and f"{created}.meta.json" in names(place)

    # The next chat of a key is a session of its own, until the first is resumed.
    second = send(again, "!say begun", OTHER, new_chat=True)
    assert second != key(OTHER) and send(again, "!say more", OTHER) == second
    assert shown(place, second) == ["!say begun", "begun", "!say more", "more"]
    assert again.call("POST", f"/api/sessions/{key(OTHER)}/resume").status_code == 200
    assert send(again, "!say back", OTHER) == key(OTHER)
    assert again.stop() == 0
    assert {name.rpartition(".")[2] for name in names(place)} == {"jsonl", "json"}, "nothing of ours is there"
