"""What a model said comes back to its own provider as it was."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.model import AnyBlock, Image, Text, Thinking, ToolCall, Usage, assistant, user
from everlog.ports import Request
from tests.examples import examples

words = st.text(st.characters(codec="utf-8"), min_size=1).filter(lambda text: bool(text.strip()))
signatures = st.none() | st.from_regex(r"[A-Za-z0-9+/_]{1,20}", fullmatch=True)
json = st.recursive(
    st.none() | st.booleans() | st.integers() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)
blocks: st.SearchStrategy[AnyBlock] = st.one_of(
    st.builds(Text, words),
    st.builds(
        ToolCall,
        st.from_regex(r"[a-z0-9_-]{1,12}", fullmatch=True),
        st.just("look"),
        st.dictionaries(words, json, max_size=3),
        signatures | st.just('{"google":{"thought_signature":"c2ln"}}'),
    ),
    st.builds(Thinking, st.text(st.characters(codec="utf-8")), words, signatures),
    st.just(Image("image/png", "iVBORw0KGgo=")),
)


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(blocks, min_size=1, max_size=6))
def test_blocks_of_ones_own_survive_the_way_there_and_back(content: list[Any]) -> None:
    from pydantic_ai.messages import ModelResponse

    from everlog.providers import message_conversion

    message = assistant(content, model="own:m")
    request = Request(messages=(user("go"), message))
    _, said = message_conversion.to_model_messages(request, "own", "own")
    assert isinstance(said, ModelResponse)
    said.finish_reason = "stop"
    back = message_conversion.to_message(said, "own:m")
    assert back.content == message.content
    assert back.usage == Usage()


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(blocks, min_size=1, max_size=6))
def test_nothing_that_was_signed_reaches_another(content: list[Any]) -> None:
    from pydantic_ai.messages import ModelResponse, ThinkingPart, ToolCallPart

    from everlog.providers import message_conversion

    request = Request(messages=(user("go"), assistant(content, model="other:m")))
    for message in message_conversion.to_model_messages(request, "own", "own"):
        if isinstance(message, ModelResponse):
            assert message.provider_name is None
            for part in message.parts:
                assert not isinstance(part, ThinkingPart)
                if isinstance(part, ToolCallPart):
                    assert (part.id, part.provider_details) == (None, None)


def test_nothing_of_a_request_is_changed() -> None:
    from everlog.providers import message_conversion

    arguments = {"a": ["\ud800"]}
    request = Request(messages=(user("go"), assistant([ToolCall("c", "look", arguments)])))
    message_conversion.to_model_messages(request, "own", "own")
    assert arguments == {"a": ["\ud800"]}
