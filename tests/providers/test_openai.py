"""Models behind OpenAI's chat completions: what goes over the wire, and what comes of it."""

from __future__ import annotations

import asyncio
from itertools import repeat
from typing import Any

import msgspec
import pytest

from everlog.errors import (
    ContextOverflowError,
    EverlogError,
    ProviderDeniedError,
    ProviderError,
    ProviderRefusedError,
    ProviderUnavailableError,
)
from everlog.log.line_codec import encode
from everlog.model import (
    File,
    Image,
    Message,
    OtherBlock,
    Text,
    Thinking,
    ToolCall,
    Usage,
    assistant,
    tool_result,
    user,
)
from everlog.ports import Delta, Request, ToolSpec, ignore_delta
from everlog.providers.models import Models, connect
from everlog.settings import ProviderSettings, Settings
from tests.providers.fake_server import Answer, FakeServer, chat, chunk, refusal

KEY = "a-very-secret-key-of-the-tests"


def models(server: FakeServer, **table: Any) -> Models:
    settings = Settings(provider={"local": ProviderSettings(base_url=f"{server.url}/v1", api_key=KEY, **table)})
    made = connect("local:m", settings, {})
    assert isinstance(made, Models)
    return made


def ask(server: FakeServer, *messages: Message, told: list[Delta] | None = None, **fields: Any) -> Message:
    """One call, and the connection closed behind it."""

    async def run() -> Message:
        provider = models(server)
        try:
            request = Request(messages=messages or (user("hello"),), **fields)
            return await provider.complete(request, ignore_delta if told is None else told.append)
        finally:
            await provider.close()

    return asyncio.run(run())


def test_an_answer_is_told_in_pieces_and_has_its_usage() -> None:
    told: list[Delta] = []
    with FakeServer(chat("Hello", " there", "!")) as server:
        reply = ask(server, told=told)
    assert reply.content == (Text("Hello there!"),)
    assert [delta.text for delta in told] == ["Hello", " there", "!"]
    assert (reply.role, reply.model, reply.stop_reason) == ("assistant", "local:m", "stop")
    assert reply.usage == Usage(input_tokens=40, output_tokens=7, total_tokens=107, cache_read_tokens=60)


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        {"prompt_tokens": 10**30, "completion_tokens": 10**25, "total_tokens": 10**30},
        {"prompt_tokens": 1.5, "completion_tokens": 2.5, "total_tokens": 1e300},
        {"prompt_tokens": -5, "completion_tokens": -7, "total_tokens": -12},
        {"prompt_tokens": "12", "completion_tokens": None, "total_tokens": []},
    ],
)
@pytest.mark.filterwarnings("ignore")  # the libraries wonder too
def test_a_count_that_is_none_takes_no_answer_away(usage: dict[str, Any] | None) -> None:
    words = chunk({"role": "assistant", "content": "Hello"})
    body = [words, chunk(finish="stop"), chunk(usage=usage), "data: [DONE]\n\n"]
    with FakeServer(Answer(body=body)) as server:
        reply = ask(server)
    assert reply.text == "Hello" and reply.usage is not None
    for count in msgspec.structs.astuple(reply.usage)[:-1]:
        assert isinstance(count, int) and 0 <= count < 100
    _, line = encode(reply)
    assert b"Hello" in line


def test_an_answer_without_an_end_is_given_up() -> None:
    piece = chunk({"role": "assistant", "content": "x" * 1_000_000})
    with FakeServer(Answer(body=repeat(piece))) as server, pytest.raises(ProviderError) as raised:
        ask(server)
    assert type(raised.value) is ProviderError and "characters" in str(raised.value)


@pytest.mark.parametrize("api", ["openai", "openai-responses", "anthropic", "google"])
@pytest.mark.parametrize("status", [302, 307, 308])
def test_a_redirect_does_not_carry_the_key_away(api: str, status: int) -> None:
    async def run(provider: Models) -> None:
        try:
            await provider.complete(Request(messages=(user("hello"),)))
        finally:
            await provider.close()

    with FakeServer(chat("no")) as other:
        elsewhere = {"location": f"{other.url.replace('127.0.0.1', 'localhost')}/v1"}
        moved = FakeServer(Answer(status, {}, elsewhere))
        with moved as server, pytest.raises(ProviderError):
            asyncio.run(run(models(server, api=api)))
        assert other.sent == []


def test_the_request_is_sent_whole() -> None:
    parameters = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    with FakeServer(chat("done")) as server:
        ask(
            server,
            user("first"),
            assistant([Text("let me see"), ToolCall("c1", "look", {"n": 1})], model="local:m"),
            tool_result("c1", "seen"),
            assistant([ToolCall("c2", "look", {"n": 2}), ToolCall("c3", "rest", {})]),
            tool_result("c2", "no such thing", is_error=True),
            tool_result("c3", ""),
            user("go on"),
            system="You are brief.",
            tools=(ToolSpec("look", "Look at it.", parameters), ToolSpec("rest")),
            max_tokens=50,
            temperature=0.5,
        )
        sent = server.sent[0]
    assert sent.path == "/v1/chat/completions"
    assert sent.headers["authorization"] == f"Bearer {KEY}"
    assert sent.body["model"] == "m"
    assert sent.body["stream"] is True
    assert sent.body["temperature"] == 0.5
    assert sent.body["max_tokens"] == 50
    assert "max_completion_tokens" not in sent.body
    assert [tool["function"] for tool in sent.body["tools"]] == [
        {"name": "look", "description": "Look at it.", "parameters": parameters},
        {"name": "rest", "description": "", "parameters": {"type": "object", "properties": {}}},
    ]
    system, first, call, seen, calls, failed, rested, last = sent.body["messages"]
    assert system == {"role": "system", "content": "You are brief."}
    assert first == {"role": "user", "content": "first"}
    assert call["content"] == "let me see"
    assert call["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"n":1}'}
    assert seen == {"role": "tool", "tool_call_id": "c1", "content": "seen"}
    assert [one["id"] for one in calls["tool_calls"]] == ["c2", "c3"]
    assert failed["content"] == '{"error":"no such thing"}'
    assert rested["content"] == "(empty)"
    assert last == {"role": "user", "content": "go on"}


def test_neighbours_of_one_role_are_one_message_or_stand_apart_as_the_interface_allows() -> None:
    with FakeServer(chat("done")) as server:
        ask(
            server,
            user("one"),
            user("two"),
            assistant("three"),
            assistant([OtherBlock({"type": "odd"}), Text(" ")]),
            assistant("four"),
            user([Text(""), Text("five"), OtherBlock({"type": "odd"})]),
            user([OtherBlock({"type": "odd"})]),
        )
        sent = server.sent[0].body["messages"]
    assert [message["role"] for message in sent] == ["user", "user", "assistant", "user"]
    assert sent[2]["content"] == "three\n\nfour"
    assert sent[3]["content"] == "five"


def test_images_and_files_are_sent_as_what_they_are() -> None:
    png = "iVBORw0KGgo="
    with FakeServer(chat("done")) as server:
        ask(
            server,
            user(
                [
                    Text("look"),
                    Image("image/png", png),
                    Image("image/jpeg", f"data:image/jpeg;base64,{png}"),
                    Image(url="https://example.org/a.png"),
                    File("notes.txt", "text/plain", "aGVsbG8="),
                    File("a.pdf", "", "JVBERi0="),
                    File("a.zip", "application/zip", "UEsDBA=="),
                    Image("image/png", "not base64!"),
                    Image(),
                ]
            ),
        )
        content = server.sent[0].body["messages"][0]["content"]
    assert [item["type"] for item in content] == [
        "text",
        "image_url",
        "image_url",
        "image_url",
        "text",
        "file",
        "text",
        "text",
    ]
    assert content[1]["image_url"]["url"] == f"data:image/png;base64,{png}"
    assert content[2]["image_url"]["url"] == f"data:image/png;base64,{png}"  # what it really is
    assert content[3]["image_url"]["url"] == "https://example.org/a.png"
    assert "hello" in content[4]["text"] and "notes.txt" in content[4]["text"]
    assert content[6]["text"] == "[a.zip: 4 bytes of application/zip, which cannot be shown]"
    assert content[7]["text"] == "[an attachment: it could not be decoded]"


def test_an_image_in_a_tool_result_reaches_the_model() -> None:
    with FakeServer(chat("done")) as server:
        ask(
            server,
            user("look"),
            assistant([ToolCall("c1", "look", {})]),
            tool_result("c1", [Text("here"), Image("image/png", "iVBORw0KGgo=")]),
        )
        sent = server.sent[0].body["messages"]
    assert "here" in sent[2]["content"]
    assert any(item["type"] == "image_url" for item in sent[3]["content"])


def test_an_id_that_another_provider_made_is_one_that_this_one_takes() -> None:
    odd = "functions.look:0"
    conversation = [user("look"), assistant([ToolCall(odd, "look", {})]), tool_result(odd, "seen")]
    own = assistant([ToolCall(odd, "look", {})], model="local:m")
    with FakeServer(chat("done"), chat("done")) as server:
        ask(server, *conversation)
        ask(server, conversation[0], own, conversation[2])
        foreign, same = (sent.body["messages"] for sent in server.sent)
    call, result = foreign[1]["tool_calls"][0]["id"], foreign[2]["tool_call_id"]
    assert call == result and call.startswith("call_") and len(call) == 29
    assert same[1]["tool_calls"][0]["id"] == same[2]["tool_call_id"] == odd


@pytest.mark.parametrize(
    "words",
    [
        "image input is not supported - hint: you may need to provide the mmproj",
        "Invalid content type. image_url is only supported by certain models.",
        "m is not a multimodal model",
        "this model is missing data required for image input",
        "No endpoints found that support image input",
    ],
)
def test_a_model_that_sees_nothing_is_told_so_once_and_then_sent_words(words: str) -> None:
    async def run(server: FakeServer) -> None:
        provider = models(server)
        request = Request(messages=(user([Text("look"), Image("image/png", "iVBORw0KGgo=")]),))
        for _ in range(2):
            assert (await provider.complete(request)).text == "I see"
        await provider.close()

    with FakeServer(refusal(500, words), chat("I see"), chat("I see")) as server:
        asyncio.run(run(server))
        first, *others = (str(sent.body["messages"]) for sent in server.sent)
    assert "image_url" in first
    for sent in others:
        assert "image_url" not in sent and "look" in sent and "cannot see" in sent


def test_a_lone_surrogate_is_replaced_before_sending() -> None:
    with FakeServer(chat("done")) as server:
        ask(
            server,
            user("a\ud800b \ud83d\ude00"),
            assistant([ToolCall("c1", "say", {"x\udc00": ["\udc00"]})]),
            tool_result("c1", "\ud800"),
            system="\udfff",
        )
        sent = server.sent[0].body["messages"]
    assert sent[1]["content"] == "a\ufffdb \U0001f600"
    assert sent[2]["tool_calls"][0]["function"]["arguments"] == '{"x\ufffd":["\ufffd"]}'


def test_calls_that_come_in_pieces_are_put_together() -> None:
    def call(index: int, **function: str) -> str:
        start = {"id": f"call_{index}", "type": "function"} if "name" in function else {}
        return chunk({"tool_calls": [{"index": index, "function": function, **start}]})

    told: list[Delta] = []
    body = [
        chunk({"content": "I look."}),
        call(0, name="look", arguments='{"n":'),
        call(0, arguments=" 1}"),
        call(1, name="rest", arguments=""),
        call(2, name="bad", arguments='{"n'),
        chunk(finish="tool_calls"),
        "data: [DONE]\n\n",
    ]
    with FakeServer(Answer(body=body)) as server:
        reply = ask(server, told=told)
    assert reply.content == (
        Text("I look."),
        ToolCall("call_0", "look", {"n": 1}),
        ToolCall("call_1", "rest", {}),
        ToolCall("call_2", "bad", {"INVALID_JSON": '{"n'}),
    )
    assert reply.stop_reason == "tool_calls"
    assert [delta.text for delta in told] == ["I look."]


def test_reasoning_is_told_as_thinking_and_goes_back_to_its_provider_alone() -> None:
    told: list[Delta] = []
    body = [
        chunk({"reasoning_content": "Hm"}),
        chunk({"reasoning_content": "."}),
        chunk({"content": "Yes"}),
        chunk(finish="stop"),
        "data: [DONE]\n\n",
    ]
    with FakeServer(Answer(body=body), chat("more"), chat("more")) as server:
        reply = ask(server, told=told)
        ask(server, user("a"), reply, user("b"))
        other = Message(role="assistant", content=reply.content, model="elsewhere:m")
        ask(server, user("a"), other, user("b"))
        same, foreign = (sent.body["messages"][1] for sent in server.sent[1:])
    assert reply.content == (Thinking("Hm.", None, "reasoning_content"), Text("Yes"))
    assert told == [Delta("Hm", thinking=True), Delta(".", thinking=True), Delta("Yes")]
    assert same == {"role": "assistant", "content": "Yes", "reasoning_content": "Hm."}
    assert foreign == {"role": "assistant", "content": "Yes"}


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (refusal(401, f"Incorrect API key provided: {KEY}"), ProviderDeniedError),
        (refusal(403, "not allowed"), ProviderDeniedError),
        (refusal(404, "no such model"), ProviderRefusedError),
        (refusal(400, "some parameter is wrong"), ProviderRefusedError),
        (refusal(400, "This model's maximum context length is 8192 tokens."), ContextOverflowError),
        (refusal(413, "Request exceeds the maximum size"), ContextOverflowError),
        (refusal(429, "slow down", retry_after="7"), ProviderUnavailableError),
        (refusal(500, "oops"), ProviderUnavailableError),
        (refusal(503, "overloaded"), ProviderUnavailableError),
        (Answer(502, ["<html>Bad gateway</html>"]), ProviderUnavailableError),
        (Answer(200, [chunk({"content": "half a"})], cut=True), ProviderUnavailableError),
        (Answer(200, [chunk({"content": "half a"})]), ProviderUnavailableError),
        (Answer(200, ['data: {"error": {"message": "boom"}}\n\n']), ProviderUnavailableError),
        (chat("I will", finish="content_filter"), ProviderRefusedError),
        (chat(), ProviderUnavailableError),
    ],
)
def test_each_failure_is_one_of_ours_and_is_not_tried_again(answer: Answer, kind: type[EverlogError]) -> None:
    with FakeServer(answer, chat("never asked")) as server:
        with pytest.raises(kind) as raised:
            ask(server)
        assert len(server.sent) == 1
    error: BaseException | None = raised.value
    assert type(error) is kind
    assert raised.value.message.startswith(f"local:m at {server.url}/v1: ") and raised.value.hint
    while error is not None:
        assert KEY not in f"{error} {error!r}"
        error = error.__cause__


def test_a_provider_that_asks_to_wait_is_heard() -> None:
    with (
        FakeServer(refusal(429, "slow down", retry_after="7")) as server,
        pytest.raises(ProviderUnavailableError) as raised,
    ):
        ask(server)
    assert raised.value.retry_after == 7.0


def test_a_server_that_is_not_there_is_unavailable() -> None:
    with FakeServer() as server:
        pass
    with pytest.raises(ProviderUnavailableError) as raised:
        ask(server)
    assert raised.value.message.startswith(f"local:m at {server.url}/v1: ")
    assert "running and reachable: base_url in [provider.local]" in raised.value.hint


def test_an_error_names_where_its_key_is_from_and_no_password_of_its_address() -> None:
    with FakeServer(refusal(401, "wrong key")) as server:
        address = server.url.replace("://", "://name:password@")
        table = ProviderSettings(base_url=f"{address}/v1", api_key_env="MY_KEY")
        provider = connect("local:m", Settings(provider={"local": table}), {"MY_KEY": KEY})
        with pytest.raises(ProviderDeniedError) as raised:
            asyncio.run(provider.complete(Request(messages=(user("hello"),))))
    assert raised.value.message.startswith(f"local:m at {server.url}/v1: HTTP 401: wrong key")
    assert raised.value.hint == "check the key (MY_KEY) and the account"


def test_a_call_that_is_cancelled_ends_as_cancelled() -> None:
    async def run() -> None:
        arrived = asyncio.Event()
        loop = asyncio.get_running_loop()

        def slow() -> Any:
            yield chunk({"content": "one"})
            loop.call_soon_threadsafe(arrived.set)
            yield from (chunk({"content": "."}) for _ in range(200_000))

        with FakeServer(Answer(200, slow())) as server:
            provider = models(server)
            task = asyncio.create_task(provider.complete(Request(messages=(user("hello"),))))
            await arrived.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await provider.close()

    asyncio.run(run())


def test_one_provider_serves_other_models_and_other_loops() -> None:
    with FakeServer(chat("a"), chat("b"), chat("c")) as server:
        provider = models(server)

        async def say(model: str) -> Message:
            try:
                return await provider.complete(Request(messages=(user("hello"),), model=model))
            finally:
                await provider.close()

        assert asyncio.run(say("")).model == "local:m"
        assert asyncio.run(say("local:other/model:1")).model == "local:other/model:1"
        assert asyncio.run(say("offline")).model == "offline"
        assert [sent.body["model"] for sent in server.sent] == ["m", "other/model:1"]
