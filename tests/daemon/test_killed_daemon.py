"""kill -9 of the daemon while turns run: what it acknowledged is there, and everything goes on."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

import everlog
from tests.daemon.running_daemon import FAST, Daemon, until

SESSIONS = 200
# Two calls of tools, an answer with another, and a long time in which to be killed.
PROMPT = """{name}
!call current_time {{"timezone": "UTC"}}
!call current_time {{"timezone": "Asia/Tokyo"}}
!then
!call current_time {{}}
!wait 30"""


class Acknowledged(NamedTuple):
    """A message that the daemon has taken."""

    session: str
    text: str
    run: str


async def _fill(daemon: Daemon, acknowledged: int) -> list[Acknowledged]:
    """Send messages to many sessions at once, and kill the daemon while it works on them."""
    taken: list[Acknowledged] = []
    async with httpx2.AsyncClient(base_url=daemon.address, headers=daemon.bearer, trust_env=False, timeout=60) as http:
        made = [await http.post("/api/sessions", json={}) for _ in range(SESSIONS)]
        ids = [answer.json()["id"] for answer in made]

        async def talk(session: str) -> None:
            for at in range(3):
                text = PROMPT.format(name=f"message {at} of {session}") if at == 0 else f"!say {at}"
                try:
                    answer = await http.post(f"/api/sessions/{session}/messages?wait=false", json={"content": text})
                except httpx2.TransportError:
                    return
                assert answer.status_code == 202, answer.text
                taken.append(Acknowledged(session, text, answer.json()["runId"]))

        talking = [asyncio.create_task(talk(session)) for session in ids]
        while len(taken) < acknowledged:
            await asyncio.sleep(0.002)
        daemon.process.send_signal(signal.SIGKILL)
        await asyncio.gather(*talking)
    return taken


def _recovered(daemon: Daemon) -> list[dict[str, Any]]:
    """The sessions that a start has recovered, as the log says."""
    return [line for line in daemon.log() if line["event"] == "recovered"]


def _kinds(session: everlog.Session) -> list[str]:
    return [one.kind for one in session.records() if isinstance(one, everlog.Event)]


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.parametrize("acknowledged", [100, 3 * SESSIONS])
def test_what_was_acknowledged_is_there_and_turns_go_on(start: Callable[..., Daemon], acknowledged: int) -> None:
    first = start()
    taken = asyncio.run(_fill(first, acknowledged))
    first.process.wait()

    with everlog.open_store(first.root, create=True) as store:
        unfinished = store.list(unfinished=True, limit=500)
        running = sum(row.metadata.run is not None for row in unfinished)
        held = {}
        for session in {one.session for one in taken}:
            records = store.session(session).records()
            held[session] = {one.run_id for one in records if isinstance(one, everlog.Message)} | {
                one.data["runId"] for one in records if isinstance(one, everlog.Event) and one.kind == "queued"
            }
        lost = [one for one in taken if one.run not in held[one.session]]
        assert lost == [], "acknowledged before the kill"

    second = start(config=FAST.replace("drain_seconds = 5", "drain_seconds = 60"))
    # The log of the start is written after the daemon has told its address.
    until(lambda: len(_recovered(second)) >= len(unfinished))
    recovered = _recovered(second)
    assert len(recovered) == len(unfinished)
    assert sum(line["interrupted"] is not None for line in recovered) == running > 0
    waiting = sum(line["waiting"] for line in recovered)
    _await_quiet(second)
    with second.client() as client:
        for session in sorted(held)[:20]:
            assert client.send(session, "!say on we go").messages[-1]["content"][0]["text"] == ("on we go")
    assert second.stop() == 0

    with everlog.open_store(first.root, create=True) as store:
        answered = 0
        for session in held:
            own = store.session(session)
            said = own.messages()
            calls = {call.id for one in said for call in one.tool_calls}
            assert calls == {one.tool_call_id for one in said if one.tool_call_id}
            texts = [one.text for one in said if one.role == "user"]
            assert all(one.text in texts for one in taken if one.session == session)
            order = [one.text for one in said if one.role == "user" and one.text.startswith("!say")]
            assert order[:2] == sorted(order[:2]), "in the order they were sent"
            assert not own.metadata.unfinished and own.verify() == ()
            answered += _kinds(own).count("turn_end")
    assert answered >= waiting


def _await_quiet(daemon: Daemon) -> None:
    deadline = time.monotonic() + 90
    with daemon.client() as client:
        while True:
            health = client.health()
            if not health["running"] and not health["waiting"]:
                return
            assert time.monotonic() < deadline, health
            time.sleep(0.1)


@pytest.mark.crash
def test_a_daemon_that_answers_before_it_writes_would_have_lost_messages(tmp_path: Path) -> None:
    """The naive twin: it keeps what it takes in memory and writes it when the turn has ended."""
    program = f"""
import json, os, signal, sys
import everlog
store = everlog.open_store({str(tmp_path)!r})
session = store.create()
taken = [f"message {{at}}" for at in range(5)]
print(json.dumps({{"session": session.id, "taken": taken}}), flush=True)  # acknowledged
os.kill(os.getpid(), signal.SIGKILL)  # in the middle of the first turn
for text in taken:
    session.append(everlog.user(text))
"""
    import subprocess
    import sys

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    told = json.loads(done.stdout)
    with everlog.open_store(tmp_path, create=True) as store:
        kept = [one.text for one in store.session(told["session"]).messages()]
    assert [text for text in told["taken"] if text not in kept] == told["taken"]
