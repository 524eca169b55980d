"""Tools of real MCP servers: one that is started, and one that is reached over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from everlog.errors import ProviderUnavailableError, SettingsError
from everlog.model import Image
from everlog.ports import Toolset
from everlog.providers.mcp_tools import MAX_TOOLS, McpServer, _ToolNames
from everlog.settings import McpSettings

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
    assert set(tools) == {f"things__{name}" for name in ("add", "variable", "pid", "picture", "fail", "die")}
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


CHECKS: list[Callable[[McpServer], Coroutine[Any, Any, None]]] = [_offers_its_tools, _answers, _answers_at_once]


def test_a_server_that_is_started_lends_its_tools_until_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
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
            with pytest.raises(ProviderUnavailableError, match="things"):
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
                with pytest.raises(ProviderUnavailableError) as raised:
                    await server.tools()
                assert "secret-token" not in str(raised.value)

    asyncio.run(run())


def test_a_command_or_a_url_and_not_both() -> None:
    for settings in (McpSettings(), McpSettings(command="x", url="http://x")):
        with pytest.raises(SettingsError):
            McpServer("things", settings)


def test_a_name_is_one_that_every_provider_takes_and_none_twice() -> None:
    names = _ToolNames("a.b")
    tools = ("x/y", "x.y", "x_y_2", "z" * 100, "z" * 90, *["t" * 100] * 12_000)
    taken = {names.allocate(tool) for tool in tools}
    assert len(taken) == len(tools)
    assert all(len(name) <= 64 and name.replace("_", "").isalnum() for name in taken)
    assert "a_b__x_y" in taken


# --- servers that are broken or mean harm ---------------------------------------------------

ODD = """
import json, os, signal, sys, time

def send(asked, **answer):
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)

def tool(name):
    return {"name": name, "inputSchema": {"type": "object"}}

def listed(asked):
    send(asked, result={"tools": [tool("t")]})

def called(asked):
    send(asked, result={"content": [{"type": "text", "text": "ok"}]})

def serve(listed=listed, called=called):
    for line in sys.stdin:
        asked = json.loads(line)
        kind = asked.get("method")
        if "id" not in asked:
            continue
        if kind == "initialize":
            version = asked["params"]["protocolVersion"]
            info = {"name": "odd", "version": "1"}
            result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
            send(asked, result=result)
        elif kind == "tools/list":
            listed(asked)
        elif kind == "tools/call":
            called(asked)
        else:
            send(asked, error={"code": -32601, "message": "no"})
"""


def odd(script: str) -> McpSettings:
    return McpSettings(command=sys.executable, args=("-c", f"{ODD}\n{script}"))


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("time.sleep(600)", "did not start within"),
        ("sys.stdout.buffer.write(b'\\xff\\n'); sys.stdout.flush(); serve()", "did not start"),
        ("serve(listed=lambda asked: None)", "did not list its tools within"),
    ],
)
def test_a_server_that_hangs_is_given_up_and_then_left_alone(script: str, reason: str) -> None:
    now = [0.0]

    async def run() -> None:
        server = McpServer("odd", odd(script), start_seconds=2.0, list_seconds=0.5, clock=lambda: now[0])
        try:
            with pytest.raises(ProviderUnavailableError, match=reason):
                await server.tools()
            async with asyncio.timeout(0.4):  # those who come next do not wait again
                for _ in range(20):
                    with pytest.raises(ProviderUnavailableError, match=reason):
                        await server.tools()
            now[0] = 1_000.0
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):  # but later it is tried again
                    await server.tools()
        finally:
            await server.close()

    asyncio.run(run())


def test_a_server_that_never_stops_listing_is_given_up() -> None:
    script = """
def page(asked):
    tools = [tool("t" * 80)] * 2_000
    send(asked, result={"tools": tools, "nextCursor": "more"})
serve(listed=page)"""

    async def run() -> None:
        async with connected(odd(script)) as server:
            with pytest.raises(ProviderUnavailableError, match=f"more than {MAX_TOOLS:,} tools"):
                await server.tools()

    asyncio.run(run())


def test_what_is_no_message_is_passed_over() -> None:
    script = """
def noisy(asked):
    print("hello", "{", chr(0), "[" * 1000, sep="\\n", flush=True)
    listed(asked)
sys.stderr.write("x" * 5_000_000)
serve(listed=noisy)"""

    async def run() -> None:
        async with connected(odd(script)) as server:
            assert (await server.call("things__t", {})).content == "ok"

    asyncio.run(run())


def test_a_server_that_does_not_end_is_not_waited_for() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Speaks MCP over HTTP until it is asked to end, and then nothing."""
        with contextlib.closing(writer):
            while head := await reader.readuntil(b"\r\n\r\n"):
                if head.startswith(b"DELETE"):
                    await reader.read()
                    return
                if head.startswith(b"GET"):
                    writer.write(b"HTTP/1.1 405 No\r\nContent-Length: 0\r\n\r\n")
                    continue
                size = int(head.lower().partition(b"content-length:")[2].split()[0])
                asked = json.loads(await reader.readexactly(size))
                body = b""
                if "id" in asked:
                    result: dict[str, Any] = {"tools": []}
                    if asked["method"] == "initialize":
                        result = {
                            "protocolVersion": asked["params"]["protocolVersion"],
                            "capabilities": {"tools": {}},
                            "serverInfo": {"name": "odd", "version": "1"},
                        }
                    answer = {"jsonrpc": "2.0", "id": asked["id"], "result": result}
                    body = json.dumps(answer).encode()
                writer.write(
                    b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nMcp-Session-Id: s\r\n"
                    b"Content-Length: %d\r\n\r\n%s" % (b"200 OK", len(body), body)
                )

    async def run() -> None:
        listening = await asyncio.start_server(refuse, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        settings = McpSettings(url=f"http://127.0.0.1:{port}/mcp")
        server = McpServer("odd", settings, close_seconds=0.5)
        assert await server.tools() == []
        async with asyncio.timeout(20):
            await server.close()
        listening.close()

    asyncio.run(run())


# --- over HTTP ------------------------------------------------------------------------------


@contextlib.contextmanager
def _serving(port: int) -> Any:
    """The server on a port, once it answers."""
    process = subprocess.Popen(
        [sys.executable, str(SERVER), str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
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
            with pytest.raises(ProviderUnavailableError):
                await server.call("things__variable", {"name": "HOME"})
            with _serving(port):
                assert (await server.call("things__add", {"a": 1, "b": 1})).content == "2"

    asyncio.run(run())
