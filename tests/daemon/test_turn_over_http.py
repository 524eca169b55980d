"""A turn through everything: daemon, engine, a provider over HTTP, its tools, its failures."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from everlog.errors import ProviderDeniedError
from tests.daemon.running_daemon import FAST, Daemon, receive, say
from tests.providers.fake_server import Answer, FakeServer, chat, chunk, claude, refusal

Start = Callable[..., Daemon]


def config(server: FakeServer, api: str = "openai", titles: str = "false") -> str:
    return FAST.replace("[turn]", f'[turn]\nmodel = "there:m"\ntitles = {titles}') + (
        f'[provider.there]\napi = "{api}"\nbase_url = "{server.url}/v1"\napi_key = "k"\n'
        f'[provider.other]\nbase_url = "{server.url}/v1"\napi_key = "k"\n'
    )


def calling(name: str, arguments: dict[str, Any]) -> Answer:
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"index": 0, "id": "call_1", "type": "function", "function": function}
    return Answer(
        body=[chunk({"role": "assistant", "tool_calls": [call]}), chunk(finish="tool_calls"), "data: [DONE]\n\n"]
    )


def test_a_turn_streams_calls_a_tool_is_tried_again_and_gets_its_title(start: Start) -> None:
    script = [
        refusal(429, "slow down", retry_after="0"),
        calling("current_time", {"timezone": "UTC"}),
        chat("It is ", "noon."),
        chat("Asking for the time"),
    ]
    with FakeServer(*script) as server:
        daemon = start(config=config(server, titles="true"))
        with daemon.client() as client, daemon.socket() as socket:
            session = client.create().id
            say(socket, type="send_message", sessionId=session, content="What time is it?")
            seen: list[dict[str, Any]] = []
            while not seen or seen[-1]["type"] != "session_renamed":
                seen.append(receive(socket))
            kinds = [one["type"] for one in seen]
            shown = [one for one in kinds if one not in ("message", "stream_delta")]
            assert shown == ["run_start", "status", "tool_start", "tool_result", "message_complete", "session_renamed"]
            text = "".join(one["text"] for one in seen if one["type"] == "stream_delta")
            assert text == "It is noon."
            whole = client.session(session)
            assert whole.metadata["name"] == "Asking for the time"
            assert whole.metadata["model"] == "there:m"
            assert whole.metadata["metrics"]["totalTokens"]["totalTokens"] >= 107
            roles = [one["role"] for one in whole.messages]
            assert roles == ["user", "assistant", "toolResult", "assistant"]
        sent = [one.body for one in server.sent]
        assert sent[0]["messages"] == sent[1]["messages"], "the same call again"
        told = sent[2]["messages"]
        assert [one["role"] for one in told][-3:] == ["user", "assistant", "tool"]
        assert told[-3]["content"] == "What time is it?"
        assert any("<environment>" in str(one["content"]) for one in told)
        tools = {tool["function"]["name"] for tool in sent[0]["tools"]}
        assert tools == {"current_time", "recall", "remember", "forget"}


def test_a_key_that_is_not_accepted_is_told_and_not_tried_again(start: Start) -> None:
    with FakeServer(refusal(401, "bad key"), chat("better")) as server:
        daemon = start(config=config(server))
        with daemon.client() as client:
            session = client.create().id
            with pytest.raises(ProviderDeniedError):
                client.send(session, "hello")
            assert len(server.sent) == 1
            assert client.send(session, "again").messages[-1]["content"][0]["text"] == "better"
        assert [one["content"] for one in server.sent[1].body["messages"] if one["role"] == "user"][-1:] == ["again"]


def test_a_context_that_is_too_large_for_the_model_is_sent_once_more_smaller(start: Start) -> None:
    long = refusal(400, "This model's maximum context length is 100 tokens")
    summary = chat("## Goal\nx\n")
    with FakeServer(*[chat("word " * 300)] * 6, long, *[summary] * 2, chat("fits")) as server:
        daemon = start(config=config(server))
        with daemon.client() as client:
            session = client.create().id
            for _ in range(6):
                client.send(session, "word " * 300)
            answer = client.send(session, "and now?")
            assert answer.messages[-1]["content"][0]["text"] in ("fits", "## Goal\nx\n")


def test_another_model_is_not_sent_what_only_the_first_understands(start: Start) -> None:
    thought = (
        {"type": "thinking", "thinking": "", "signature": ""},
        [{"type": "thinking_delta", "thinking": "hm"}, {"type": "signature_delta", "signature": "SIGNED"}],
    )
    said = ({"type": "text", "text": ""}, [{"type": "text_delta", "text": "yes"}])
    with FakeServer(claude(thought, said), claude(said), chat("from another")) as server:
        daemon = start(config=config(server, api="anthropic"))
        with daemon.client() as client:
            session = client.create().id
            client.send(session, "is it?")
            client.send(session, "sure?")
            assert "SIGNED" in json.dumps(server.sent[1].body), "its own maker gets it back"
            client.update(session, model="other:m")
            client.send(session, "and you?")
            assert "SIGNED" not in json.dumps(server.sent[2].body)
            assert server.sent[2].body["model"] == "m"
            assert client.session(session).metadata["model"] == "other:m"


def test_a_stop_in_the_middle_of_a_stream_keeps_what_was_said(start: Start) -> None:
    stopped = threading.Event()

    def slowly() -> Any:
        yield chunk({"role": "assistant", "content": "the first half"})
        stopped.wait(30)
        yield chunk(finish="stop")

    with FakeServer(Answer(body=slowly()), chat("on")) as server:
        daemon = start(config=config(server))
        with daemon.client() as client, daemon.socket() as socket:
            session = client.create().id
            say(socket, type="send_message", sessionId=session, content="go")
            delta = receive(socket, "stream_delta")
            say(socket, type="cancel", sessionId=session, runId=delta["runId"])
            assert receive(socket, "error")["code"] == "RunCancelledError"
            stopped.set()
            last = client.session(session).messages[-1]
            assert last["content"][0]["text"] == "the first half"
            assert last["stopReason"] == "cancelled"
            assert client.send(session, "go on").messages[-1]["content"][0]["text"] == "on"
