"""The routes, over a real connection: ulid-spec S7.4, S7.5, S7.7, S7.8, S7.10 among them."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from urllib.parse import quote

import pytest

from everlog.app import open_store
from everlog.client import Client
from tests.daemon.running_daemon import Daemon, until

NOBODY = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


def texts(messages: list[dict[str, Any]]) -> list[str]:
    return [block["text"] for one in messages for block in one["content"] if block["type"] == "text"]


# --- sessions -------------------------------------------------------------------------------


def test_a_session_is_made_with_a_name_and_without(daemon: Daemon) -> None:
    named = daemon.call("POST", "/api/sessions", {"name": "Fix tests", "systemPrompt": "Be brief."})
    assert named.status_code == 200 and set(named.json()) == {"id", "name"}
    whole = daemon.call("GET", f"/api/sessions/{named.json()['id']}").json()
    assert whole["messages"] == [] and whole["metadata"]["name"] == "Fix tests"
    assert whole["metadata"]["systemPromptOverride"] == "Be brief."
    assert daemon.call("POST", "/api/sessions", {}).json()["name"] == "New Session"


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (None, "/: the body is missing"),
        ({"name": 5}, "/name: "),
        ({"name": ""}, "/name: "),
        ({"name": None}, "/name: "),
        ({"nmae": "x"}, "nmae"),
        ({"systemPrompt": {}}, "/systemPrompt: "),
        ([], "/"),
    ],
)
def test_a_body_that_is_not_right_says_where(daemon: Daemon, body: Any, detail: str) -> None:
    answer = daemon.call("POST", "/api/sessions", body)
    assert answer.status_code == 400
    problem = answer.json()
    assert problem["error"] == "Validation failed" and detail in problem["details"][0]


def test_s7_4_a_turn_advances_count_and_time(client: Client) -> None:
    made = client.create(title="s7.4")
    before = client.session(made.id).metadata
    client.send(made.id, "!say one")
    after = client.session(made.id).metadata
    assert (before["messageCount"], after["messageCount"]) == (0, 2)
    assert after["lastMessageAt"] > before["lastMessageAt"]
    listed = {one.id: one for one in client.sessions(limit=500).sessions}[made.id]
    assert (listed.message_count, listed.last_message_at) == (2, after["lastMessageAt"])


def _has_moved(since: int) -> bool:
    return time.time_ns() // 1_000_000 > since // 1_000_000


def test_s7_5_the_list_is_sorted_by_the_last_message(client: Client) -> None:
    ids = [client.create(title=f"s7.5 {number}", sender="s75").id for number in range(3)]
    for one in (ids[1], ids[0]):
        client.send(one, "!say x")
        sent = time.time_ns()
        until(partial(_has_moved, sent))  # the clock of the log counts milliseconds
    listed = client.sessions(sender="s75").sessions
    assert [one.id for one in listed][:2] == [ids[0], ids[1]]
    times = [one.last_message_at for one in client.sessions(limit=500).sessions]
    assert times == sorted(times, reverse=True)


def test_the_list_is_paged_by_its_link(daemon: Daemon, client: Client) -> None:
    made = {client.create(sender="paged & more").id for _ in range(5)}
    where, seen = f"/api/sessions?limit=2&sender={quote('paged & more')}", []
    while where:
        answer = daemon.call("GET", where)
        assert answer.headers["x-total-count"] == "5"
        seen += [one["id"] for one in answer.json()]
        link = answer.headers.get("link", "")
        assert not link or link.endswith('>; rel="next"')
        where = link.partition(">")[0].removeprefix("<")
    assert len(seen) == 5 and set(seen) == made


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=501", "limit=x", "cursor=x", "cursor=", "since=yesterday", "limit=1e9"]
)
def test_a_listing_that_makes_no_sense_is_400(daemon: Daemon, client: Client, query: str) -> None:
    client.create()
    answer = daemon.call("GET", f"/api/sessions?{query}")
    assert answer.status_code == 400 and answer.json()["error"]


def test_the_list_is_narrowed(client: Client) -> None:
    made = client.create(title="Zebra crossing", agent="painter", sender="zed")
    assert [one.id for one in client.sessions(agent="painter").sessions] == [made.id]
    assert [one.id for one in client.sessions(title="zebra").sessions] == [made.id]
    assert client.sessions(sender="zed", since="2999-01-01T00:00:00Z").sessions == []


PATHS: tuple[tuple[str, str, Any], ...] = (
    ("GET", "", None),
    ("DELETE", "", None),
    ("PATCH", "", {}),
    ("GET", "/messages", None),
    ("GET", "/context", None),
    ("POST", "/messages", {"content": "x"}),
    ("POST", "/compact", {}),
    ("POST", "/fork", {}),
    ("POST", "/rewind", {"toSeq": 0}),
    ("POST", "/cancel", {}),
    ("DELETE", "/messages/1", None),
    ("POST", "/messages/1/restore", None),
)


@pytest.mark.parametrize("name", ["abc", "01ARZ3ND", "../x", "%2e%2e%2fetc", "a%00b", "%ff", "x" * 600, "%20"])
def test_s7_8_a_bad_id_is_400_on_every_route(daemon: Daemon, name: str) -> None:
    quoted = quote(name, safe="%")
    for method, rest, said in PATHS:
        answer = daemon.call(method, f"/api/sessions/{quoted}{rest}", said)
        assert answer.status_code == 400, (method, rest)
        assert answer.json()["error"] == "Invalid session ID"


@pytest.mark.parametrize("name", [NOBODY, "agent:main:nobody", "sk_v1_" + "0" * 64])
def test_an_unknown_session_is_404_on_every_route(daemon: Daemon, name: str) -> None:
    for method, rest, said in PATHS:
        answer = daemon.call(method, f"/api/sessions/{quote(name)}{rest}", said)
        assert answer.status_code == 404, (method, rest)
        assert answer.json()["error"] == "Session not found"


def test_ids_keys_and_aliases_are_accepted_alike_and_prefixes_are_not(daemon: Daemon) -> None:
    key, alias = "agent:main:telegram/group/7", "agent:main:ünïcode %2F"
    with open_store(daemon.root, create=True) as store:
        made = store.create(key=key, aliases=[alias], title="named")
    assert daemon.call("GET", f"/api/sessions/{made.id[:25]}").status_code == 400
    for name in (made.id, key, alias):
        answer = daemon.call("GET", f"/api/sessions/{quote(name, safe='')}")
        assert answer.status_code == 200 and answer.json()["metadata"]["id"] == made.id
    ran = daemon.call("POST", f"/api/sessions/{quote(key, safe='')}/messages", {"content": "!say x"})
    assert ran.status_code == 200


def test_a_session_is_changed_and_its_prompt_taken_back(client: Client) -> None:
    made = client.create()
    changed = client.update(made.id, title="Other", model="offline", system_prompt="x")
    assert (changed.name, changed.model) == ("Other", "offline")
    assert client.session(made.id).metadata["systemPromptOverride"] == "x"
    client.update(made.id, system_prompt=None)
    assert "systemPromptOverride" not in client.session(made.id).metadata
    assert client.update(made.id).name == "Other"


def test_a_model_that_cannot_be_used_is_refused_and_not_kept_when_it_is_checked(daemon: Daemon, client: Client) -> None:
    made = client.create()
    before = client.sessions().total
    for method, path in (("POST", "/api/sessions"), ("PATCH", f"/api/sessions/{made.id}")):
        said = {"name": "Other", "model": "nobody:knows"}
        answer = daemon.call(method, f"{path}?check=true", said)
        assert (answer.status_code, answer.json()["code"]) == (400, "SettingsError")
        assert answer.json()["hint"]
    assert client.sessions().total == before
    assert client.session(made.id).metadata["model"] == ""
    assert client.session(made.id).metadata.get("name") is None
    assert client.update(made.id, model="nobody:knows").model == "nobody:knows", "as it was asked"


def test_a_deleted_session_is_gone(daemon: Daemon, client: Client) -> None:
    made = client.create()
    answer = daemon.call("DELETE", f"/api/sessions/{made.id}")
    assert (answer.status_code, answer.content) == (204, b"")
    assert daemon.call("GET", f"/api/sessions/{made.id}").status_code == 404


# --- messages -------------------------------------------------------------------------------


def test_a_turn_is_waited_for_and_answers_what_it_stored(daemon: Daemon, client: Client) -> None:
    made = client.create()
    answer = daemon.call("POST", f"/api/sessions/{made.id}/messages", {"content": "!say hello", "cwd": "/tmp"})
    assert answer.status_code == 200 and set(answer.json()) == {"runId", "messages", "usage"}
    ran = answer.json()
    assert texts(ran["messages"]) == ["!say hello", "hello"]
    assert ran["messages"][0]["cwd"] == "/tmp" and "crc" not in ran["messages"][0]
    assert client.session(made.id).messages == ran["messages"]


def test_blocks_are_content_too(client: Client) -> None:
    made = client.create()
    picture = {"type": "image", "mimeType": "image/png", "data": "aGk="}
    ran = client.send(made.id, [{"type": "text", "text": "!say seen"}, picture])
    assert ran.messages[0]["content"][1] == picture


@pytest.mark.parametrize("content", ["", [], None, 5, [{"type": "text"}], [{"type": "toolCall", "id": "1"}], ["x"], {}])
def test_content_that_is_none_is_400(daemon: Daemon, client: Client, content: Any) -> None:
    made = client.create()
    answer = daemon.call("POST", f"/api/sessions/{made.id}/messages", {"content": content})
    assert answer.status_code == 400
    assert client.session(made.id).messages == []


def test_s7_10_messages_at_once_queue_and_are_answered_in_order(client: Client) -> None:
    made = client.create()
    runs = [client.submit(made.id, f"!wait 0.05\n!say {number}") for number in range(4)]
    assert runs[0].position == 0 and [one.position for one in runs[1:]] == [1, 2, 3]
    until(lambda: len(client.session(made.id).messages) == 8)
    said = client.session(made.id).messages
    assert [one["role"] for one in said] == ["user", "assistant"] * 4
    assert texts(said)[1::2] == ["0", "1", "2", "3"]


def test_a_full_queue_is_429_and_the_message_is_not_kept(daemon: Daemon, client: Client) -> None:
    made = client.create()
    where = f"/api/sessions/{made.id}/messages?wait=false"
    client.submit(made.id, "!wait 30")
    codes = [daemon.call("POST", where, {"content": "!wait 30"}).status_code for _ in range(9)]
    assert codes == [202] * 8 + [429]
    answer = daemon.call("POST", where, {"content": "one too many"})
    assert answer.json()["code"] == "QueueFullError" and "retry-after" in answer.headers
    assert client.sessions(limit=1).sessions[0].waiting == 8
    while client.cancel(made.id):
        pass


def test_sessions_run_side_by_side(daemon: Daemon, client: Client) -> None:
    ids = [client.create().id for _ in range(10)]

    def ask(one: str) -> str:
        with daemon.client() as own:
            return texts(own.send(one, f"!wait 2\n!say {one}").messages)[1]

    started = time.monotonic()
    with ThreadPoolExecutor(10) as pool:
        assert list(pool.map(ask, ids)) == ids
    assert time.monotonic() - started < 18  # one after the other takes twenty


def test_a_client_that_goes_away_does_not_stop_the_run(daemon: Daemon, client: Client) -> None:
    made = client.create()
    body = b'{"content":"!wait 0.5\\n!say still here"}'
    with socket.create_connection(("127.0.0.1", daemon.port)) as raw:
        raw.sendall(
            f"POST /api/sessions/{made.id}/messages HTTP/1.1\r\nHost: 127.0.0.1:{daemon.port}\r\n"
            f"Authorization: Bearer {daemon.token}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        until(lambda: len(client.session(made.id).messages) == 1)
    until(lambda: len(client.session(made.id).messages) == 2)
    assert texts(client.session(made.id).messages)[1] == "still here"


def test_a_run_is_cancelled_and_whoever_waits_is_told(daemon: Daemon, client: Client) -> None:
    made = client.create()
    assert client.cancel(made.id) is False
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(daemon.call, "POST", f"/api/sessions/{made.id}/messages", {"content": "!wait 30"})
        until(lambda: client.cancel(made.id))
        answer = waiting.result()
    assert answer.status_code == 409 and answer.json()["code"] == "RunCancelledError"
    assert texts(client.send(made.id, "!say next").messages)[1] == "next"


def test_what_cannot_happen_during_a_turn_is_409(daemon: Daemon, client: Client) -> None:
    made = client.create()
    client.send(made.id, "!say x")
    client.submit(made.id, "!wait 30")
    where = f"/api/sessions/{made.id}"
    for method, rest, said in (("DELETE", "", None), ("POST", "/compact", None), ("POST", "/rewind", {"toSeq": 1})):
        answer = daemon.call(method, where + rest, said)
        assert (answer.status_code, answer.json()["code"]) == (409, "SessionBusyError"), rest
    assert client.sessions(limit=1).sessions[0].running is True
    assert client.cancel(made.id) is True


@pytest.mark.parametrize(
    ("script", "status", "code"),
    [
        ("!fail transient", 503, "ProviderUnavailableError"),
        ("!fail denied", 502, "ProviderDeniedError"),
        ("!fail refused", 422, "ProviderRefusedError"),
        ("!fail overflow", 413, "ContextOverflowError"),
    ],
)
def test_a_provider_that_fails_has_its_status(
    daemon: Daemon, client: Client, script: str, status: int, code: str
) -> None:
    made = client.create()
    answer = daemon.call("POST", f"/api/sessions/{made.id}/messages", {"content": script})
    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_history_is_paged_by_seq(client: Client) -> None:
    made = client.create()
    for number in range(3):
        client.send(made.id, f"!say {number}")
    whole = client.session(made.id).messages
    seen: list[dict[str, Any]] = []
    after: int | None = 0
    while after is not None:
        page = client.messages(made.id, after=after, limit=4)
        assert len(page.messages) <= 4
        seen += page.messages
        after = page.next
    assert seen == whole and len(whole) == 6


def test_history_leaves_out_what_was_deleted_and_shows_it_when_asked(client: Client) -> None:
    made = client.create()
    client.send(made.id, "!say one")
    client.send(made.id, "!say two")
    first = client.session(made.id).messages[0]["seq"]
    hidden = client.delete_message(made.id, first)
    assert hidden.deletes == (first,)
    assert first not in [one["seq"] for one in client.messages(made.id).messages]
    log = client.messages(made.id, everything=True).messages
    assert [one["recordType"] for one in log] == ["message"] * 4 + ["tombstone"]
    assert log[0]["seq"] == first
    assert client.restore_message(made.id, first).restores == (first,)
    assert client.messages(made.id).messages[0]["seq"] == first


def test_a_rewind_goes_back_and_a_fork_goes_its_own_way(client: Client) -> None:
    made = client.create(title="trunk")
    client.send(made.id, "!say one")
    client.send(made.id, "!say two")
    fork = client.fork(made.id, at=2)
    assert fork.name == "trunk" and len(client.session(fork.id).messages) == 2
    assert client.rewind(made.id, 2).to_seq == 2
    assert len(client.session(made.id).messages) == 2


@pytest.mark.parametrize(
    ("method", "rest", "said"),
    [
        ("DELETE", "/messages/999", None),
        ("DELETE", "/messages/0", None),
        ("DELETE", "/messages/-1", None),
        ("DELETE", "/messages/" + "9" * 40, None),
        ("DELETE", "/messages/x", None),
        ("POST", "/messages/999/restore", None),
        ("POST", "/rewind", {"toSeq": 999}),
        ("POST", "/fork", {"at": 999}),
    ],
)
def test_a_message_that_is_not_there_is_404(daemon: Daemon, client: Client, method: str, rest: str, said: Any) -> None:
    made = client.create()
    assert daemon.call(method, f"/api/sessions/{made.id}{rest}", said).status_code == 404


def test_the_context_is_what_the_model_would_be_sent(client: Client) -> None:
    made = client.create()
    client.send(made.id, "!say one")
    context = client.context(made.id)
    assert "!say one" in texts(context.messages) and context.tokens > 0
    assert context.window > context.tokens and context.left_out == []


def test_a_compaction_that_has_nothing_to_do_says_so(daemon: Daemon, client: Client) -> None:
    made = client.create()
    client.send(made.id, "!say one")
    for said in (None, {}, {"focus": "files"}):
        answer = daemon.call("POST", f"/api/sessions/{made.id}/compact", said)
        assert answer.status_code == 200
        assert answer.json()["compacted"] is False and answer.json()["reason"]


def test_a_long_session_is_compacted(daemon: Daemon, client: Client) -> None:
    made = client.create()
    for number in range(6):
        client.send(made.id, f"!say {'a long answer ' * 2000}\nplease remember {number}")
    done = client.compact(made.id)
    assert done.compacted and done.record is not None and done.tokens_freed > 0
    assert done.record["recordType"] == "compaction" and "crc" not in done.record
    log = client.messages(made.id, limit=500, everything=True).messages
    assert log[-1] == done.record
    assert len(client.session(made.id).messages) == 12  # nothing is lost by it


# --- channels, cron, pages ------------------------------------------------------------------


def test_an_inbound_message_is_routed_answered_and_finds_its_session_again(client: Client) -> None:
    where = {"channel": "telegram", "chat_id": "42", "chat_type": "direct", "sender_id": "7"}
    first = client.inbound(where, "!say hello")
    assert first.reply == "hello" and first.key.startswith("sk_v1_")
    second = client.inbound({**where, "topic_id": None}, "!say again")
    assert second.session_id == first.session_id
    other = client.inbound(where, "!say new", new_chat=True)
    assert other.session_id != first.session_id
    later = client.inbound(where, "!say later", wait=False)
    assert later.reply is None and later.session_id == other.session_id


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"context": {}},
        {"context": {}, "text": ""},
        {"context": {}, "text": "x", "content": "x"},
        {"context": {"chanel": "x"}, "text": "x"},
        {"context": {"mentioned": "yes?"}, "text": "x"},
        {"context": {}, "text": "x", "sesion_key": "x"},
    ],
)
def test_an_inbound_message_that_is_not_right_is_400(daemon: Daemon, said: Any) -> None:
    assert daemon.call("POST", "/api/inbound", said).status_code == 400


def test_s7_7_a_job_that_is_run_has_a_session_tagged_with_it(client: Client) -> None:
    made = client.run("night/ly")
    until(lambda: client.session(made).metadata["messageCount"] == 2)
    metadata = client.session(made).metadata
    assert (metadata["source"], metadata["cronJobId"]) == ("cron", "night/ly")
    assert metadata["name"].startswith("[cron] night/ly — ")
    assert made in [one.id for one in client.sessions(source="cron").sessions]
    until(lambda: client.cron()[0].get("lastStatus") == "success")
    assert client.cron()[0]["lastSessionId"] == made


def test_a_job_rests_and_goes_on(daemon: Daemon, client: Client) -> None:
    answer = daemon.call("POST", "/api/cron/night%2Fly/pause")
    assert (answer.status_code, answer.json()) == (200, {"ok": True})
    assert client.cron()[0]["paused"] is True
    client.resume("night/ly")
    assert client.cron()[0]["paused"] is False
    for verb in ("pause", "resume", "run"):
        assert daemon.call("POST", f"/api/cron/nobody/{verb}").status_code == 404


def test_health_counts(client: Client) -> None:
    client.create()
    health = client.health()
    assert health["ok"] is True and health["sessions"] >= 1 and health["jobs"] == 1


def test_the_page_shows_sessions_and_escapes_them(daemon: Daemon, client: Client) -> None:
    client.create(title="<script>alert(1)</script>")
    page = daemon.call("GET", "/")
    assert page.headers["content-type"].startswith("text/html")
    assert "<script>alert" not in page.text and "&lt;script&gt;" in page.text


def test_an_unknown_path_or_method_has_our_kind_of_error(daemon: Daemon) -> None:
    for method, path, status in (
        ("GET", "/api/nothing", 404),
        ("PUT", "/api/sessions", 405),
        ("GET", "/docs/nothing", 404),
    ):
        answer = daemon.call(method, path)
        assert answer.status_code == status
