"""A real model, small and on this machine: what the fakes say of a server is true of one.

`make test-llm` fetches what it needs; without that these tests skip.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from everlog.errors import ContextOverflowError, ProviderUnavailableError
from everlog.model import Text, assistant, tool_result, user
from everlog.ports import Delta, Request, ToolSpec
from everlog.providers.models import Models, connect
from everlog.settings import ProviderSettings, Settings
from tests.llm.serve import WINDOW

pytestmark = pytest.mark.llm

MODEL = Path(os.environ.get("EVERLOG_TEST_GGUF", ""))
Result = TypeVar("Result")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a server that runs the model."""
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed: make test-llm")
    if not MODEL.is_file():
        pytest.skip("EVERLOG_TEST_GGUF names no model file: make test-llm")
    command = [sys.executable, "-m", "tests.llm.serve", str(MODEL)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, stderr=subprocess.DEVNULL, **pipes) as server:  # type: ignore[call-overload]
        try:
            yield server.stdout.readline().strip()
        finally:
            server.stdin.close()
            server.wait()


def with_model(address: str, use: Callable[[Models], Awaitable[Result]]) -> Result:
    settings = Settings(provider={"local": ProviderSettings(base_url=f"{address}/v1", window=WINDOW)})

    async def run() -> Result:
        provider = connect("local:smollm2", settings, {})
        assert isinstance(provider, Models)
        try:
            return await use(provider)
        finally:
            await provider.close()

    return asyncio.run(run())


def test_it_answers_in_pieces_with_its_usage(address: str) -> None:
    told: list[Delta] = []
    request = Request(
        messages=(user("What is the capital of France?"),),
        system="You answer in one short sentence.",
        max_tokens=40,
        temperature=0.0,
    )
    reply = with_model(address, lambda model: model.complete(request, told.append))
    assert "Paris" in reply.text
    assert "".join(delta.text for delta in told) == reply.text
    assert len(told) > 2
    assert reply.model == "local:smollm2"
    assert reply.stop_reason in ("stop", "length")
    usage = reply.usage
    assert usage is not None
    assert usage.output_tokens > 0
    assert usage.total_tokens > usage.output_tokens
    assert usage.cost == 0.0


def test_a_long_answer_ends_where_it_is_told_to(address: str) -> None:
    request = Request(messages=(user("Tell me a long story."),), max_tokens=8, temperature=0.0)
    reply = with_model(address, lambda model: model.complete(request))
    assert reply.stop_reason == "length"
    assert reply.usage is not None and reply.usage.output_tokens == 8


def test_a_conversation_with_tools_and_neighbours_of_one_role_is_taken(address: str) -> None:
    call = {"type": "toolCall", "id": "c1", "name": "look", "arguments": {"n": 1}}
    request = Request(
        messages=(
            user("Look."),
            assistant([Text("I look."), call], model="elsewhere:m"),
            tool_result("c1", "nothing there", is_error=True),
            user("Well?"),
            user("Say it in one word."),
        ),
        tools=(ToolSpec("look", "Look at it."),),
        max_tokens=8,
    )
    reply = with_model(address, lambda model: model.complete(request))
    assert reply.content


def test_what_does_not_fit_is_an_overflow(address: str) -> None:
    request = Request(messages=(user("word " * 4 * WINDOW),), max_tokens=8)

    async def overflow(model: Models) -> None:
        assert model.window("local:smollm2") == WINDOW
        with pytest.raises(ContextOverflowError):
            await model.complete(request)
        reply = await model.complete(Request(messages=(user("Hello"),), max_tokens=4))
        assert reply.content  # and the next one is answered

    with_model(address, overflow)


def test_a_call_that_is_cancelled_leaves_the_model_free(address: str) -> None:
    async def cancelled(model: Models) -> None:
        begun = asyncio.Event()
        long = Request(messages=(user("Count to a thousand."),), max_tokens=1500)
        task = asyncio.create_task(model.complete(long, lambda delta: begun.set()))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        reply = await model.complete(Request(messages=(user("Hello"),), max_tokens=4))
        assert reply.content

    with_model(address, cancelled)


def test_a_server_that_is_gone_is_unavailable() -> None:
    async def gone(model: Models) -> None:
        with pytest.raises(ProviderUnavailableError):
            await model.complete(Request(messages=(user("Hello"),)))

    with_model("http://127.0.0.1:9", gone)
