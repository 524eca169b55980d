"""Many daemons on one database: any takes any message, and one that dies is replaced."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everlog
from everlog.ids import epoch_ms
from everlog.model import Event, Message
from tests.daemon.daemon_cluster import Many, Sent, check, send_all
from tests.daemon.running_daemon import Daemon, receive, say, until
from tests.stores.postgres.open_stores import shared_server
from tests.stores.postgres.server import Server

# The sizes that are to be reached take a minute or two: EVERLOG_TEST_MANY=full.
FULL = os.environ.get("EVERLOG_TEST_MANY") == "full"
KILLED_LEASE = 6.0  # seconds; long enough for a machine that does much else
SESSIONS, TURNS, RUNNING = (200, 5, 100) if FULL else (60, 3, 30)
# A call that is answered at once, and one that is still under way when its process is killed.
LONG = """!call current_time {"timezone": "UTC"}
!call ask_agent {"agent": "helper", "task": "!wait 50"}
!then
!say it was not killed"""
HELPER = """
[agents.main]
members = ["helper"]
[agents.helper]
description = "helps"
"""


@pytest.fixture
def many(tmp_path: Path) -> Iterator[Many]:
    made = Many(shared_server(), tmp_path)
    yield made
    made.close()


def _session(daemon: Daemon) -> str:
    with daemon.client() as client:
        return client.create().id


def _send(daemon: Daemon, session: str, text: str) -> str:
    """Have a message taken; its run."""
    path = f"/api/sessions/{session}/messages?wait=false"
    answer = daemon.call("POST", path, {"content": text})
    assert answer.status_code == 202, answer.text
    run: str = answer.json()["runId"]
    return run


def _kinds(session: everlog.Session) -> list[str]:
    return [one.kind for one in session.records() if isinstance(one, Event)]


def _texts(session: everlog.Session) -> list[str]:
    return [one.text for one in session.messages()]


@pytest.mark.slow
def test_every_turn_runs_once_and_in_order_on_three_daemons(tmp_path: Path) -> None:
    many = Many(shared_server(), tmp_path, lease=15)  # as long as it is by default
    try:
        _run_in_order(many)
    finally:
        many.close()


def _run_in_order(many: Many) -> None:
    daemons = many.start(3)
    texts = [f"!say answer {number}" for number in range(TURNS)]
    begun = time.monotonic()
    sent = asyncio.run(send_all(daemons, SESSIONS, texts))
    many.await_rest(300)
    took = time.monotonic() - begun
    with many.store() as store:
        ends = check(store, sent)
    assert ends == {"end": SESSIONS * TURNS} and len(sent) == SESSIONS * TURNS
    counts = many.turns()
    assert sum(counts) == SESSIONS * TURNS and all(counts), "and all of them took part"
    print(f"{len(sent)} turns over {SESSIONS} sessions in {took:.1f} s: {counts}")


@pytest.mark.crash
@pytest.mark.slow
def test_all_turns_end_when_one_of_three_daemons_is_killed(tmp_path: Path) -> None:
    many = Many(shared_server(), tmp_path, HELPER, lease=KILLED_LEASE)
    try:
        _kill_one(many)
    finally:
        many.close()


def _kill_one(many: Many) -> None:
    victim, *others = many.start(3)
    # Turns that run on the one that is killed, and messages that wait for them, also elsewhere.
    running = asyncio.run(send_all([victim], RUNNING, [LONG, "!say after it"]))
    elsewhere = asyncio.run(send_all(others, RUNNING, ["!wait 0.2\n!say fine", "!say also"]))
    sessions = [one.session for one in running if one.text == LONG]
    known = sessions[::2]  # to the others: half of the sessions are only the victim's
    for number, session in enumerate(known):
        run = _send(others[number % 2], session, "!say last")
        running.append(Sent(session, "!say last", run, 1 + number % 2))
    with victim.client() as client:
        until(lambda: client.health()["running"] == RUNNING)
    with many.store() as store:  # every call was made, and the slow one of each has no result
        until(lambda: all(len(_said(store, one)) >= 2 for one in sessions))
        assert all(_open_calls(_said(store, one)) for one in sessions)
    victim.stop(signal.SIGKILL)
    killed = time.time()
    many.await_rest(KILLED_LEASE + 60)
    took = time.time() - killed
    with many.store() as store:
        assert check(store, elsewhere) == {"end": 2 * RUNNING}
        ends = check(store, running, interrupted=True)
        assert ends == {"turn_interrupted": RUNNING, "end": RUNNING + len(known)}
        assert not any(_open_calls(_said(store, one)) for one in sessions)
        replaced = sorted(_interrupted(store, one) - killed for one in sessions)
    # By the last renewal, the lease and a look: twice that is slow, three times is not looking.
    assert replaced[-1] < 3 * KILLED_LEASE
    recovered = [one for each in others for one in each.log() if one["event"] == "recovered"]
    assert {one["sessionId"] for one in recovered} >= set(sessions) - set(known)
    assert len({one["sessionId"] for one in recovered}) == len(recovered), "each by one"
    print(
        f"{RUNNING} sessions taken over {replaced[0]:.1f} to {replaced[-1]:.1f} s after the kill"
        f" (half of them in {replaced[RUNNING // 2]:.1f} s), lease {KILLED_LEASE} s;"
        f" all turns had ended after {took:.1f} s"
    )


def _said(store: everlog.Store, session: str) -> list[Message]:
    return store.session(session).messages()


def _interrupted(store: everlog.Store, session: str) -> float:
    """When a turn was found to have been cut short, in seconds of the clock."""
    records = store.session(session).records()
    (found,) = (one for one in records if isinstance(one, Event) and one.kind == "turn_interrupted")
    return (epoch_ms(found.timestamp) or 0) / 1000


def _open_calls(said: list[Message]) -> set[str]:
    results = {one.tool_call_id for one in said}
    return {call.id for one in said for call in one.tool_calls if call.id not in results}


def test_a_message_is_answered_by_whoever_runs_the_turn_that_it_came_into(many: Many) -> None:
    here, there = many.start(2)
    session = _session(here)
    _send(there, session, "!wait 1\n!say one")
    with here.client() as client:
        answer = client.send(session, "!say two")
    assert answer.messages[-1]["content"][0]["text"] == "two"
    assert many.turns() == [0, 2]
    with many.store() as store:
        assert _texts(store.session(session)) == ["!wait 1\n!say one", "one", "!say two", "two"]


def test_who_follows_a_session_on_one_daemon_sees_a_turn_on_another(many: Many) -> None:
    here, there = many.start(2)
    session = _session(here)
    with here.socket() as socket:
        say(socket, type="subscribe", sessionId=session)
        receive(socket, "subscribed")
        for number in range(3):
            with there.client() as client:
                client.send(session, f"!call current_time {{}}\n!then\n!say number {number}")
        seen: list[dict[str, Any]] = [receive(socket, "message") for _ in range(12)]
    assert [one["seq"] for one in seen] == sorted({one["seq"] for one in seen}), "once, in order"
    roles = [one["message"]["role"] for one in seen]
    assert roles == ["user", "assistant", "toolResult", "assistant"] * 3
    assert many.turns() == [0, 3]


def test_news_come_by_looking_when_nothing_is_heard(many: Many) -> None:
    here, there = many.start(2)
    session = _session(here)
    with here.socket() as socket, many.server.connect() as connection:
        say(socket, type="subscribe", sessionId=session)
        receive(socket, "subscribed")
        end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE %s"
        until(lambda: connection.execute(end, (f'LISTEN "{many.schema}%',)).fetchall())
        with there.client() as client:
            client.send(session, "!say heard")
        told = [receive(socket, "message")["message"]["role"] for _ in range(2)]
    assert told == ["user", "assistant"]


def test_a_job_that_is_due_runs_on_one_daemon_and_all_know_how_it_fared(tmp_path: Path) -> None:
    jobs = """
[[cron.jobs]]
id = "often"
schedule = "*/2 * * * * *"
prompt = "!say done"
timezone = "UTC"
"""
    many = Many(shared_server(), tmp_path, jobs)
    try:
        daemons = many.start(3)
        with many.store() as store:
            until(lambda: len(store.list(source="cron")) >= 4, 30)
            assert daemons[0].call("POST", "/api/cron/often/pause").status_code == 200
            # Whatever was begun before it was paused ends; nothing begins after that.
            many.await_rest()
            rows = list(store.list(source="cron", order="created"))
            made = [epoch_ms(row.metadata.created_at) or 0 for row in rows]
            assert len(rows) <= (made[0] - made[-1]) / 2000 + 2, "one run for each time"
            # A daemon creates the session of a run before it submits the message.
            until(lambda: all(_texts(store.session(row.id)) == ["!say done", "done"] for row in rows))
            many.await_rest()
            until(lambda: all(one.call("GET", "/api/cron").json()[0]["lastSessionId"] == rows[0].id for one in daemons))
            until(lambda: all(one.call("GET", "/api/cron").json()[0]["lastStatus"] for one in daemons))
            for one in daemons:
                (job,) = one.call("GET", "/api/cron").json()
                assert job["paused"] and job["lastStatus"] == "success"
                assert job["lastSessionId"] == rows[0].id
            assert sum(many.turns()) == len(rows)
            assert daemons[2].call("POST", "/api/cron/often/resume").status_code == 200
            until(lambda: len(store.list(source="cron")) > len(rows), 30)
    finally:
        many.close()


@pytest.mark.crash
def test_a_daemon_that_was_paused_past_its_lease_writes_nothing_more(many: Many) -> None:
    paused, other = many.start(2)
    session = _session(paused)
    with paused.socket() as socket:
        say(socket, type="subscribe", sessionId=session)
        receive(socket, "subscribed")
        run = _send(paused, session, "!wait 3\n!say too late")
        receive(socket, "run_start")
        paused.process.send_signal(signal.SIGSTOP)
        try:
            with other.client() as client:
                assert client.send(session, "!say in time").messages[-1]["content"][0]["text"] == ("in time")
        finally:
            paused.process.send_signal(signal.SIGCONT)
        told = receive(socket, "error")
        assert (told["runId"], told["code"]) == (run, "ConflictError")
        assert "the turn was lost" in told["message"] and "another process" in told["hint"]
    with paused.client() as client:  # and it goes on with what comes
        client.send(session, "!say again")
    with many.store() as store:
        own = store.session(session)
        assert _texts(own)[1:] == ["!say in time", "in time", "!say again", "again"]
        ends = [kind for kind in _kinds(own) if kind.startswith("turn_")]
        assert ends == ["turn_interrupted", "turn_end", "turn_end"]


def test_what_waits_on_a_daemon_that_is_stopped_is_answered_by_another(many: Many) -> None:
    stopped, other = many.start(2)
    session = _session(stopped)
    _send(stopped, session, "!wait 2\n!say first")
    _send(stopped, session, "!say second")
    assert stopped.stop() == 0
    many.await_rest()
    with many.store() as store:
        assert _texts(store.session(session))[-2:] == ["!say second", "second"]
    with other.client() as client:
        assert client.health()["turns"] == 1


@pytest.mark.crash
def test_a_daemon_outlives_its_database(tmp_path: Path) -> None:
    with Server() as server:
        many = Many(server, tmp_path)
        try:
            (daemon,) = many.start()
            session = _session(daemon)
            with daemon.client() as client:
                client.send(session, "!say before")
                assert client.health()["store"] == "postgresql" and client.health()["reachable"]
            _send(daemon, session, "!wait 4\n!say meanwhile")
            _send(daemon, session, "!say after")
            server.kill()
            refused = daemon.call("GET", "/api/sessions")
            assert refused.status_code == 503
            assert "cannot be reached" in refused.json()["error"] and refused.json()["hint"]
            lost = daemon.call("POST", f"/api/sessions/{session}/messages", {"content": "lost"})
            assert lost.status_code == 503
            health = daemon.call("GET", "/api/health").json()
            assert (health["ok"], health["reachable"]) == (False, False)
            assert "cannot be reached" in health["problem"] and health["hint"]
            page = daemon.call("GET", "/health")
            assert page.status_code == 200 and "The store is unreachable" in page.text
            assert "data-again" in page.text and server.url in page.text
            listing = daemon.call("GET", "/").text
            assert f"<h1>{server.url} cannot be reached</h1>" in listing
            until(lambda: daemon.call("GET", "/api/health").json()["running"] == 0, 60)
            server.start()
            until(lambda: daemon.call("GET", "/api/health").json()["ok"], 30)
            many.await_rest(60)
            with many.store() as store:
                own = store.session(session)
                assert "after" in _texts(own) and "lost" not in _texts(own)
                ends = [kind for kind in _kinds(own) if kind.startswith("turn_")]
                assert ends == ["turn_end", "turn_interrupted", "turn_end"]
            with daemon.client() as client:
                assert client.send(session, "!say on").messages[-1]["content"][0]["text"] == "on"
        finally:
            for one in many.daemons:
                one.stop()
