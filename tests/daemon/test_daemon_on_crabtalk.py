"""A daemon on CrabTalk's files: users go on where they were, new ones begin there, and CrabTalk reads it all."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from everlog.daemon.crabtalk.proto import crabtalk_pb2 as pb
from tests.daemon.crabtalk_client import connected
from tests.daemon.foreign_daemon import append_lines, names, objects, send
from tests.daemon.running_daemon import FAST, Daemon, until
from tests.foreign.foreign_directories import crabtalk_file, made

KNOWN = {"channel": "telegram", "chat_type": "direct", "chat_id": "12345", "sender_id": "tg:12345"}
LONG = b"".join(
    b'{"role":"user","content":"Pebble %d. %b"}\n{"role":"assistant","content":"Sorted %d."}\n'
    % (number, b"It is grey and round. " * 200, number)
    for number in range(40)
)
NEW = {**KNOWN, "chat_id": "777", "sender_id": "tg:777"}
Start = Callable[..., Daemon]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    files = {
        "crab_user_1.jsonl": crabtalk_file(),
        "crab_tg-12345_1_old-times.jsonl": crabtalk_file(sender="tg:12345", title="Old times"),
        "crab_tg-12345_2.jsonl": crabtalk_file(sender="tg:12345") + LONG,
        "crab_tg-12345_3.jsonl": crabtalk_file(sender="tg-12345"),  # somebody else, whose name looks the same
    }
    return made(tmp_path / "crabtalk", files)


def replay(file: Path) -> list[tuple[str, str]]:
    """The context that CrabTalk loads: from the last marker on, which is the user's."""
    head, *lines = objects(file)
    assert list(head) == ["agent", "created_by", "created_at", "title", "uptime_secs"]
    loaded: list[tuple[str, str]] = []
    for line in lines:
        if "compact" in line:
            loaded = [("user", line["compact"])]
        else:
            loaded.append((line["role"], line.get("content", "")))
    return loaded


def test_users_of_crabtalk_go_on_and_new_ones_begin_in_its_files(start: Start, place: Path) -> None:
    daemon = start("127.0.0.1", f"crabtalk:{place}")
    assert send(daemon, "!say welcome back", KNOWN) == "crab_tg-12345_2"
    assert send(daemon, "!say hello", NEW) == "crab_tg-777_1"
    (known,) = until(lambda: list(place.glob("crab_tg-12345_2_hello*.jsonl")))  # its title
    append_lines(known, [{"role": "user", "content": "typed in CrabTalk meanwhile"}])
    assert send(daemon, "!say heard", KNOWN) == "crab_tg-12345_2"
    until(lambda: any(name.startswith("crab_tg-777_1_say") for name in names(place)))  # its title
    assert send(daemon, "!say still here", NEW) == "crab_tg-777_1"

    (renamed,) = place.glob("crab_tg-777_1_*.jsonl")
    assert objects(renamed)[0]["title"] and objects(renamed)[0]["created_by"] == "tg:777"
    assert [text for _, text in replay(known)][82:] == [
        *("!say welcome back", "welcome back", "typed in CrabTalk meanwhile", "!say heard", "heard")
    ]
    assert (place / "crab_tg-12345_3.jsonl").read_bytes() == crabtalk_file(sender="tg-12345")

    # Killed in a turn: the message and what it had answered stay, and the turn is closed.
    body = {"context": KNOWN, "text": "wait for me\n!call current_time {}\n!then\n!wait 60"}
    assert daemon.call("POST", "/api/inbound?wait=false", body).status_code == 202
    until(lambda: "tool_calls" in objects(known)[-1] or objects(known)[-1]["role"] == "tool")
    daemon.stop(signal.SIGKILL)
    append_lines(known, [{"role": "user", "content": "typed while it was down"}])

    again = start("127.0.0.1", f"crabtalk:{place}", config="")
    assert send(again, "!say recovered", KNOWN) == "crab_tg-12345_2"
    texts = [text for _, text in replay(known)]
    assert "wait for me\n!call current_time {}\n!then\n!wait 60" in texts
    assert texts.index("typed while it was down") < texts.index("!say recovered") == len(texts) - 2
    compacted = again.call("POST", "/api/sessions/crab_tg-12345_2/compact", {"focus": ""}).json()
    assert compacted["compacted"], compacted
    assert replay(known)[0][0] == "user" and len(replay(known)) < len(texts)
    assert any(line.get("content") == "welcome back" for line in objects(known)), "it is archived in place"
    assert again.stop() == 0
    assert objects(known)[0]["created_at"] == "2026-03-01T08:00:00+00:00"
    assert not [name for name in names(place) if not name.endswith(".jsonl")], "nothing of ours is there"
    assert not (place.parent / "root" / "sessions").exists()


def test_a_resumed_session_is_current_in_every_way_of_reaching_it(start: Start, place: Path) -> None:
    daemon = start("127.0.0.1", str(place))  # the format is seen by the files

    async def resume_and_send(socket: Path) -> None:
        async with connected(socket) as crab:
            listed = (await crab.call(list_conversations=pb.ListConversationsMsg(sender="tg:12345"))).conversation_list
            assert {(item.seq, item.title) for item in listed.conversations} == {(1, "Old times"), (2, "")}
            path = next(item.file_path for item in listed.conversations if item.seq == 1)
            reply = await crab.send("!say old again", sender="tg:12345", agent="crab", resume_file=path)
            assert (reply.content, reply.session) == ("old again", 1)
            assert (await crab.send("!say by number", session=reply.session)).session == 1
            await crab.send("!say by name", sender="tg:12345", resume_file="crab_tg-12345_1_old-times.jsonl")
            opened = (await crab.call(sessions=pb.Sessions())).sessions.sessions
            assert [(item.agent, item.created_by, item.message_count) for item in opened] == [("crab", "tg:12345", 8)]
            for outside in ("../crabtalk/crab_user_1.jsonl", str(place / "crab_user_1.jsonl"), "/etc/passwd"):
                assert (await crab.refusal(send=pb.SendMsg(content="x", resume_file=outside))).code == 400

    asyncio.run(resume_and_send(daemon.root / "run" / "everlog.sock"))
    assert send(daemon, "!say over HTTP", KNOWN) == "crab_tg-12345_1"
    daemon.stop()
    again = start("127.0.0.1", str(place), config="")
    assert send(again, "!say after a restart", KNOWN) == "crab_tg-12345_1"
    assert again.call("POST", "/api/sessions/crab_tg-12345_2/resume").status_code == 200

    async def send_without_a_name(socket: Path) -> None:
        async with connected(socket) as crab:
            await crab.send("!say the other one", sender="tg:12345")
            await crab.send("!say a new one", sender="tg:12345", new_chat=True)

    asyncio.run(send_without_a_name(again.root / "run" / "everlog.sock"))
    assert send(again, "!say in the new one", KNOWN) == "crab_tg-12345_4"
    assert ("assistant", "the other one") in replay(next(place.glob("crab_tg-12345_2*.jsonl")))


@pytest.mark.parametrize(
    "config", ['[session]\ndimensions = ["chat"]', '[session]\ndm_scope = "global"', "[session]\ndimensions = []"]
)
def test_sessions_that_crabtalk_cannot_tell_apart_are_refused_at_the_start(
    start: Start, place: Path, config: str
) -> None:
    daemon: Any = start("127.0.0.1", f"crabtalk:{place}", config=f"{FAST.split('[session]')[0]}{config}\n")
    assert daemon.said["error"] == "SettingsError" and "sender" in daemon.said["message"]
    assert daemon.process.wait() == 1


def test_one_name_on_two_channels_is_two_senders(start: Start, place: Path) -> None:
    daemon = start("127.0.0.1", f"crabtalk:{place}")
    assert send(daemon, "!say hello", KNOWN) == "crab_tg-12345_2"
    assert send(daemon, "!say who are you", {**KNOWN, "channel": "slack"}) == "crab_slack-tg-12345_1"
    assert send(daemon, "!say hello", KNOWN) == "crab_tg-12345_2"
