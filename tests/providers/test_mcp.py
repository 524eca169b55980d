"""Tools of real MCP servers: one that is started, and one that is reached over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ProviderUnavailable, SettingsError
from holdfast.model import Image
from holdfast.ports import Toolset
from holdfast.providers.mcp import McpServer
from holdfast.settings import McpSettings

SERVER = Path(__file__).with_name("mcp_server.py")
STDIO = McpSettings(command=sys.executable, args=(str(SERVER),), env={"GIVEN": "a-value"})


@contextlib.asynccontextmanager
async def connected(settings: McpSettings, name: str = "things") -> AsyncIterator[McpServer]:
    server = McpServer(name, settings)
    try:
        yield server
    finally:
        await server.close()


async def _offers_its_tools(server: McpServer) -> None:
    toolset: Toolset = server
    tools = {tool.name: tool for tool in await toolset.tools()}
    assert set(tools) == {
        f"things__{name}" for name in ("add", "variable", "pid", "picture", "fail", "die")
    }
    add = tools["things__add"]
    assert add.description == "Add two numbers."
    assert set(add.parameters["properties"]) == {"a", "b"}
    assert add.reads is True
    assert tools["things__variable"].reads is False


async def _answers(server: McpServer) -> None:
    assert (await server.call("things__add", {"a": 2, "b": 3})).content == "5"
    picture = await server.call("things__picture", {})
    assert picture.content == (Image("image/png", "iVBORw0KGgo="),)
    assert picture.is_error is False
    for name, arguments in (("fail", {}), ("add", {"a": "x"})):
        failed = await server.call(f"things__{name}", arguments)
        assert failed.is_error and isinstance(failed.content, str) and failed.content
    unknown = await server.call("things__nothing", {})
    assert unknown.is_error and "no tool" in str(unknown.content)


async def _answers_at_once(server: McpServer) -> None:
    calls = [server.call("things__add", {"a": n, "b": n}) for n in range(20)]
    answers = await asyncio.gather(*calls)
    assert [answer.content for answer in answers] == [str(2 * n) for n in range(20)]


CHECKS: list[Callable[[McpServer], Coroutine[Any, Any, None]]] = [
    _offers_its_tools,
    _answers,
    _answers_at_once,
]


def test_a_server_that_is_started_lends_its_tools_until_it_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "secret")

    async def variable(server: McpServer, name: str) -> object:
        return (await server.call("things__variable", {"name": name})).content

    async def run() -> int:
        async with connected(STDIO) as server:
            for check in CHECKS:
                await check(server)
            assert await variable(server, "GIVEN") == "a-value"
            assert await variable(server, "SOME_API_KEY") == "(not set)"
            pid = await server.call("things__pid", {})
            return int(str(pid.content))

    pid = asyncio.run(run())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_server_that_died_is_started_again_and_its_last_call_is_not() -> None:
    async def run() -> None:
        async with connected(STDIO) as server:
            with pytest.raises(ProviderUnavailable, match="things"):
                await server.call("things__die", {})
            assert (await server.call("things__add", {"a": 1, "b": 1})).content == "2"

    asyncio.run(run())


@pytest.mark.parametrize(
    "settings",
    [
        McpSettings(command="/no/such/command"),
        McpSettings(command=sys.executable, args=("-c", "raise SystemExit('out of order')")),
        McpSettings(url="http://127.0.0.1:9/mcp", headers={"authorization": "Bearer secret-token"}),
    ],
)
def test_a_server_that_is_not_there_is_unavailable(settings: McpSettings) -> None:
    async def run() -> None:
        async with connected(settings) as server:
            for _ in range(2):
                with pytest.raises(ProviderUnavailable) as raised:
                    await server.tools()
                assert "secret-token" not in str(raised.value)

    asyncio.run(run())


def test_a_command_or_a_url_and_not_both() -> None:
    for settings in (McpSettings(), McpSettings(command="x", url="http://x")):
        with pytest.raises(SettingsError):
            McpServer("things", settings)


def test_a_name_is_one_that_every_provider_takes_and_none_twice() -> None:
    server = McpServer("a.b", STDIO)
    taken: dict[str, Any] = {}
    for tool in ("x/y", "x.y", "z" * 100, "z" * 90):
        taken[server._name(tool, taken)] = tool
    assert len(taken) == 4
    assert all(len(name) <= 64 and name.replace("_", "").isalnum() for name in taken)
    assert "a_b__x_y" in taken


@contextlib.contextmanager
def _serving(port: int) -> Any:
    """The server on a port, once it answers."""
    process = subprocess.Popen(
        [sys.executable, str(SERVER), str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if b"running on" in line:
                break
        yield process
    finally:
        process.terminate()
        process.stderr.close()
        process.wait()


def test_a_server_over_http_lends_its_tools_and_may_come_back() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = McpSettings(url=f"http://127.0.0.1:{port}/mcp", headers={"x-test": "1"})

    async def run() -> None:
        async with connected(settings) as server:
            with _serving(port):
                for check in CHECKS:
                    await check(server)
            with pytest.raises(ProviderUnavailable):
                await server.call("things__variable", {"name": "HOME"})
            with _serving(port):
                assert (await server.call("things__add", {"a": 1, "b": 1})).content == "2"

    asyncio.run(run())
