"""What only its own provider understands goes back to it unchanged, and to no other."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from everlog.errors import ProviderRefusedError, ProviderUnavailableError
from everlog.model import Message, Text, Thinking, ToolCall, Usage, assistant, tool_result, user
from everlog.ports import Delta, Request, ToolSpec, ignore_delta
from everlog.providers.models import connect
from everlog.settings import ProviderSettings, Settings
from tests.providers.fake_server import Answer, FakeServer, chat, claude, event

# Models grow old, and the vendors' libraries say so.
pytestmark = pytest.mark.filterwarnings("ignore:The model:DeprecationWarning")

LOOK = (ToolSpec("look", "Look at it."),)


def ask(server: FakeServer, model: str, *messages: Message, told: list[Delta] | None = None, **fields: Any) -> Message:
    """One call of a model whose provider is called like the interface that it speaks."""
    settings = Settings(
        provider={
            api: ProviderSettings(api=api, base_url=server.url, api_key="a-secret-of-the-tests")
            for api in ("openai", "openai-responses", "anthropic", "google")
        }
    )

    async def run() -> Message:
        provider = connect(model, settings, {})
        try:
            return await provider.complete(
                Request(messages=messages, **fields), told.append if told is not None else ignore_delta
            )
        finally:
            await provider.close()

    return asyncio.run(run())


# --- Anthropic ------------------------------------------------------------------------------

CLAUDE = "anthropic:claude-sonnet-4-5"
THOUGHT = claude(
    (
        {"type": "thinking", "thinking": "", "signature": ""},
        [
            {"type": "thinking_delta", "thinking": "Let me"},
            {"type": "thinking_delta", "thinking": " look."},
            {"type": "signature_delta", "signature": "c2lnbmVk"},
        ],
    ),
    ({"type": "redacted_thinking", "data": "aGlkZGVu"}, []),
    ({"type": "text", "text": ""}, [{"type": "text_delta", "text": "I look."}]),
    (
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}},
        [{"type": "input_json_delta", "partial_json": '{"n": 1}'}],
    ),
    stop="tool_use",
)


def test_anthropic_gets_its_signed_thinking_back() -> None:
    told: list[Delta] = []
    with FakeServer(THOUGHT, claude(({"type": "text", "text": "done"}, []))) as server:
        reply = ask(server, CLAUDE, user("look"), tools=LOOK, told=told)
        done = ask(
            server,
            CLAUDE,
            user("look"),
            reply,
            tool_result("toolu_1", "not there", is_error=True),
            user("well?"),
            system="Be brief.",
            tools=LOOK,
        )
        sent = server.sent[1]
    assert reply.content == (
        Thinking("Let me look.", "c2lnbmVk"),
        Thinking("", "aGlkZGVu", "redacted_thinking"),
        Text("I look."),
        ToolCall("toolu_1", "look", {"n": 1}),
    )
    assert reply.stop_reason == "tool_use"
    assert [delta.thinking for delta in told] == [True, True, False]
    assert done.text == "done"
    assert sent.path.startswith("/v1/messages")
    assert any("a-secret-of-the-tests" in value for value in sent.headers.values())
    assert "Be brief." in json.dumps(sent.body["system"])
    first, said, results = sent.body["messages"]
    assert first["role"] == "user"
    assert said == {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Let me look.", "signature": "c2lnbmVk"},
            {"type": "redacted_thinking", "data": "aGlkZGVu"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"n": 1}},
        ],
    }
    assert results["role"] == "user"
    result, words = results["content"]
    assert (result["type"], result["tool_use_id"], result["is_error"]) == ("tool_result", "toolu_1", True)
    assert words["text"] == "well?"


def test_anthropic_counts_what_its_cache_gave_and_a_conversation_is_cached() -> None:
    answer = claude(({"type": "text", "text": "hi"}, []))
    with FakeServer(answer, answer) as server:
        reply = ask(server, CLAUDE, user("one"), assistant("two"), user("three"))
        ask(server, CLAUDE, user("summarise this"), purpose="summary")
        conversation, single = (sent.body for sent in server.sent)
    usage = reply.usage
    assert usage is not None and usage.cost > 0
    assert usage == Usage(
        input_tokens=10, output_tokens=7, total_tokens=107, cache_read_tokens=60, cache_write_tokens=30, cost=usage.cost
    )
    assert "cache_control" in json.dumps(conversation)
    assert "cache_control" not in json.dumps(single)


def test_an_answer_of_anthropic_that_is_cut_off_or_refused_is_no_answer() -> None:
    text = ({"type": "text", "text": "half"}, [{"type": "text_delta", "text": " a"}])
    overloaded = event("error", error={"type": "overloaded_error", "message": "Overloaded"})
    refused: list[tuple[Answer, type[Exception]]] = [
        (claude(text, cut=True), ProviderUnavailableError),
        (claude(text, stop="refusal"), ProviderRefusedError),
        (Answer(529, {"type": "error", "error": {"message": "busy"}}), ProviderUnavailableError),
        (Answer(200, [overloaded]), ProviderUnavailableError),
    ]
    for answer, kind in refused:
        with FakeServer(answer) as server, pytest.raises(kind):
            ask(server, CLAUDE, user("hello"))


# --- Google ---------------------------------------------------------------------------------

GEMINI = "google:gemini-3-pro-preview"


def gemini(*parts: dict[str, Any]) -> Answer:
    """An answer of Google's, in one event."""
    data = {
        "candidates": [{"content": {"role": "model", "parts": list(parts)}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15},
    }
    return Answer(body=[f"data: {json.dumps(data)}\r\n\r\n"])


def test_google_gets_the_signature_of_a_call_back() -> None:
    call = {"functionCall": {"id": "f1", "name": "look", "args": {"n": 1}}}
    signed = gemini({"text": "Hm.", "thought": True}, {**call, "thoughtSignature": "c2lnbmVk"})
    with FakeServer(signed, gemini({"text": "done"}), gemini({"text": "done"})) as server:
        reply = ask(server, GEMINI, user("look"), tools=LOOK)
        seen = tool_result("f1", "seen")
        done = ask(server, GEMINI, user("look"), reply, seen, tools=LOOK)
        other = Message(role="assistant", content=reply.content, model="elsewhere:m")
        ask(server, GEMINI, user("look"), other, seen, tools=LOOK)
        own, foreign = (json.dumps(sent.body["contents"]) for sent in server.sent[1:])
    assert reply.content == (Thinking("Hm."), ToolCall("f1", "look", {"n": 1}, "c2lnbmVk"))
    assert done.text == "done"
    assert '"c2lnbmVk"' in own and '"look"' in own and "seen" in own
    assert "c2lnbmVk" not in foreign and "Hm." not in foreign


# --- OpenAI's Responses ---------------------------------------------------------------------

GPT = "openai-responses:gpt-5"


def response(**fields: Any) -> dict[str, Any]:
    """A response as OpenAI describes it."""
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "gpt-5",
        "status": "completed",
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        **fields,
    }


def reasoned(*items: dict[str, Any]) -> Answer:
    """A stream of whole items."""
    usage = {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 15,
    }
    events = [event("response.created", response=response(status="in_progress"))]
    for index, item in enumerate(items):
        empty = {**item, "arguments": ""} if item["type"] == "function_call" else item
        events.append(event("response.output_item.added", output_index=index, item=empty))
        for part in item.get("content", ()):
            at = {"item_id": item["id"], "output_index": index, "content_index": 0}
            delta = {"delta": part["text"], "logprobs": []}
            events.append(event("response.content_part.added", part={**part, "text": ""}, **at))
            events.append(event("response.output_text.delta", **delta, **at))
        events.append(event("response.output_item.done", output_index=index, item=item))
    whole = response(output=list(items), usage=usage)
    events.append(event("response.completed", response=whole))
    return Answer(body=[text.replace('"type"', f'"sequence_number": {n}, "type"', 1) for n, text in enumerate(events)])


REASONING: dict[str, Any] = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "ZW5jcnlwdGVk"}
CALL: dict[str, Any] = {
    "id": "fc_1",
    "type": "function_call",
    "call_id": "call_1",
    "name": "look",
    "arguments": '{"n": 1}',
    "status": "completed",
}
SAID: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "done", "annotations": []}],
}


def test_openai_gets_its_encrypted_reasoning_back() -> None:
    with FakeServer(reasoned(REASONING, CALL), reasoned(SAID), reasoned(SAID)) as server:
        reply = ask(server, GPT, user("look"), tools=LOOK)
        seen = tool_result("call_1", "seen")
        ask(server, GPT, user("look"), reply, seen, tools=LOOK)
        other = Message(role="assistant", content=reply.content, model="elsewhere:m")
        ask(server, GPT, user("look"), other, seen, tools=LOOK)
        own, foreign = (sent.body["input"] for sent in server.sent[1:])
    assert reply.content == (Thinking("", "ZW5jcnlwdGVk", "rs_1"), ToolCall("call_1", "look", {"n": 1}, "fc_1"))
    assert reply.usage is not None and reply.usage.total_tokens == 15
    assert [item.get("type", "message") for item in own] == [
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
    ]
    assert own[1]["encrypted_content"] == "ZW5jcnlwdGVk" and own[1]["id"] == "rs_1"
    assert own[2]["call_id"] == "call_1" and own[2]["id"] == "fc_1"
    assert "rs_1" not in json.dumps(foreign) and "fc_1" not in json.dumps(foreign)


# --- any other ------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [None, "offline", "openai:gpt-5", "claude-sonnet-4-5"])
def test_what_another_provider_signed_is_left_out(model: str | None) -> None:
    foreign = assistant(
        [Thinking("private", "c2lnbmVk", "rs_1"), Text("I look."), ToolCall("c1", "look", {}, "Z29vZ2xl")], model=model
    )
    conversation = (user("look"), foreign, tool_result("c1", "seen"))
    answers = {
        CLAUDE: claude(({"type": "text", "text": "done"}, [])),
        "openai:gpt-5": chat("done"),
        GPT: reasoned(SAID),
        GEMINI: gemini({"text": "done"}),
    }
    for target, answer in answers.items():
        if target == model:
            continue
        with FakeServer(answer) as server:
            ask(server, target, *conversation, tools=LOOK)
            sent = json.dumps(server.sent[0].body)
        assert "I look." in sent and "seen" in sent
        assert "private" not in sent and "c2lnbmVk" not in sent and "Z29vZ2xl" not in sent
