"""The offline model says what it is and follows its small scripts."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from everlog.context.tokens import estimate
from everlog.errors import (
    ContextOverflowError,
    EverlogError,
    ProviderDeniedError,
    ProviderRefusedError,
    ProviderUnavailableError,
)
from everlog.model import Message, Thinking, ToolCall, assistant, tool_result, user
from everlog.ports import Delta, Provider, Request
from everlog.providers.offline_model import NOTICE, WINDOW, OfflineModel


def say(*messages: Message, told: list[Delta] | None = None) -> Message:
    heard: list[Delta] = [] if told is None else told
    return asyncio.run(OfflineModel().complete(Request(messages=messages), heard.append))


def test_it_says_that_no_model_is_configured_and_what_it_was_sent() -> None:
    told: list[Delta] = []
    reply = say(user("hello"), assistant("hi"), user("how do I bake bread?"), told=told)
    assert reply.text == (f"{NOTICE} The conversation has 3 messages; you said last: “how do I bake bread?”")
    assert "config.toml" in NOTICE
    assert (reply.role, reply.model, reply.stop_reason) == ("assistant", "offline", "stop")
    assert "".join(delta.text for delta in told) == reply.text
    assert len(told) == len(reply.text.split())


def test_the_same_request_gets_the_same_answer() -> None:
    messages = (user("one two " * 40), assistant("ok"), user("!call look {}"))
    assert say(*messages) == say(*messages)


def test_usage_is_the_estimate() -> None:
    message = user("hello")
    reply = say(message)
    assert reply.usage is not None
    assert reply.usage.input_tokens == estimate(message)
    assert reply.usage.total_tokens == estimate(message) + estimate(reply)


def test_it_is_a_provider_with_a_window() -> None:
    model: Provider = OfflineModel()
    assert model.window("offline") == WINDOW == 128_000
    assert OfflineModel.offline is True


def test_nobody_said_anything() -> None:
    assert say().text == f"{NOTICE} The conversation has 0 messages."


def test_calls_in_a_row_are_one_message_and_then_waits_for_results() -> None:
    prompt = replace(user('!call look {"n": 1}\n!call rest\n!then\n!call look {"n": 2}'), seq=4)
    first = say(prompt)
    assert first.content == (ToolCall("call_4_1", "look", {"n": 1}), ToolCall("call_4_2", "rest", {}))
    assert first.stop_reason == "toolUse"
    results = (
        replace(tool_result("call_4_1", "one\nmore", tool_name="look"), seq=6),
        replace(tool_result("call_4_2", "no", is_error=True, tool_name="rest"), seq=7),
    )
    second = say(prompt, first, *results)
    assert second.content == (ToolCall("call_7_1", "look", {"n": 2}),)
    third = say(prompt, first, *results, second, replace(tool_result("call_7_1", "two"), seq=9))
    assert third.text == (f"{NOTICE} The tools answered:\n- look: one\n- rest (failed): no\n- call_7_1: two")


def test_ids_of_calls_do_not_come_again_in_messages_that_are_not_stored() -> None:
    prompt = user("!call a\n!then\n!call b")
    first = say(prompt)
    second = say(prompt, first, tool_result("call_1_1", "x"))
    ids = [call.id for call in (*first.tool_calls, *second.tool_calls)]
    assert ids == ["call_1_1", "call_3_1"]


def test_what_was_injected_is_neither_a_prompt_nor_a_step() -> None:
    injected = user("!say from a hook", auto_injected=True)
    prompt = user("!call look")
    first = say(injected, prompt)
    assert first.tool_calls
    answer = say(prompt, first, tool_result("call_1_1", "seen"), injected)
    assert answer.text == f"{NOTICE} The tools answered:\n- call_1_1: seen"


def test_it_says_what_it_is_told_to_say_after_the_calls() -> None:
    prompt = user("!call look\n!say all done")
    first = say(prompt)
    assert not first.text and first.tool_calls
    assert say(prompt, first, tool_result("call_1_1", "x")).text == "all done"
    assert say(user("!say  spaced  out ")).text == "spaced  out"


def test_it_thinks_first() -> None:
    told: list[Delta] = []
    reply = say(user("!think let me see\n!say yes"), told=told)
    assert reply.content[0] == Thinking("let me see")
    assert reply.text == "yes"
    assert [delta.thinking for delta in told] == [True, True, True, False]


def test_it_streams_as_many_words_as_it_is_told() -> None:
    told: list[Delta] = []
    reply = say(user("!stream 250"), told=told)
    assert len(told) == len(reply.text.split()) == 250


def test_others_run_while_it_streams_and_while_it_waits() -> None:
    async def run() -> list[str]:
        order: list[str] = []

        async def other() -> None:
            order.append("other")

        model = OfflineModel()
        task = asyncio.create_task(other())
        await model.complete(Request(messages=(user("!wait 0\n!stream 2"),)), lambda delta: order.append(delta.text))
        await task
        return order

    assert asyncio.run(run())[0] == "other"


def test_a_wait_can_be_cancelled() -> None:
    async def run() -> None:
        async with asyncio.timeout(0.01):
            await OfflineModel().complete(Request(messages=(user("!wait 60"),)))

    with pytest.raises(TimeoutError):
        asyncio.run(run())


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("transient", ProviderUnavailableError),
        ("overflow", ContextOverflowError),
        ("refused", ProviderRefusedError),
        ("denied", ProviderDeniedError),
    ],
)
def test_it_fails_as_it_is_told(word: str, kind: type[EverlogError]) -> None:
    with pytest.raises(kind):
        say(user(f"!fail {word}"))


@pytest.mark.parametrize(
    "line",
    [
        "!call",
        "!call look {not json",
        "!call look [1]",
        "!wait long",
        "!wait 1e9",
        "!stream many",
        "!stream 9999999",
        "!fail badly",
        "!then\n!call look",
    ],
)
def test_a_script_that_makes_no_sense_is_answered_in_words(line: str) -> None:
    reply = say(user(f"please\n!call fine\n{line}" if line[:5] != "!then" else line))
    assert "cannot follow the script" in reply.text
    assert not reply.tool_calls


def test_other_exclamations_are_just_text() -> None:
    assert "“!important !!” " not in say(user("!important !!")).text
    assert "!important !!" in say(user("!important !!")).text


def test_a_summary_of_a_script_runs_no_script() -> None:
    request = Request(messages=(user("!call look"),), purpose="summary")
    assert not asyncio.run(OfflineModel().complete(request)).tool_calls
