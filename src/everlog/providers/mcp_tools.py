"""Tools of an MCP server: a command that is started, or a URL.

The server is reached when it is first needed. Its connection lives in a task of its own, since the
library's scopes must be left by the task that entered them. A server that was found dead is started
again before the next call; a call that was under way when it died is not made again unless the tool
only reads, for nobody knows what it did. One that hangs is given up after a while, and then left
alone for a while: whoever waits next is not to wait as long again.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from everlog.errors import ProviderUnavailableError, SettingsError
from everlog.model import AnyBlock, File, Image, Text
from everlog.ports import Tool, ToolAnswer
from everlog.providers.provider_errors import without_keys
from everlog.settings import McpSettings

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import CallToolResult

Result = TypeVar("Result")

START_SECONDS = 60.0  # for a server to come up; some fetch themselves first
LIST_SECONDS = 20.0  # for a server to say what it offers
CLOSE_SECONDS = 10.0  # for a server to end
REST_SECONDS = 60.0  # during which a server that hung is not asked again
TOOLS = 10_000  # of one server
NAME_LENGTH = 64  # what every provider takes as the name of a tool
_LINES = 20  # of what a server says on its standard error
_LINE = 2_000  # characters of one
_INVALID_PARAMS, _CONNECTION_CLOSED = -32602, -32000


class McpServer:
    """A toolset that lives in an MCP server; its tools are called `SERVER__TOOL`."""

    def __init__(
        self,
        name: str,
        settings: McpSettings,
        *,
        start_seconds: float = START_SECONDS,
        list_seconds: float = LIST_SECONDS,
        close_seconds: float = CLOSE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if bool(settings.command) == bool(settings.url):
            raise SettingsError(f"[mcp.{name}] needs a command or a url, and not both")
        self.name = name
        self._settings = settings
        self._connection: _Connection | None = None
        self._connecting = asyncio.Lock()
        self._start_seconds = start_seconds
        self._list_seconds = list_seconds
        self._close_seconds = close_seconds
        self._clock = clock
        self._ending: list[_Connection] = []  # that did not come up; perhaps not all gone yet
        self._hung: tuple[float, str] | None = None  # since when, and what it did not do
        self._tools: dict[str, tuple[str, Tool]] = {}  # by our name: the server's, and the tool

    def __repr__(self) -> str:
        return f"McpServer({self.name!r})"

    async def tools(self) -> Sequence[Tool]:
        """What the server offers, asked anew each time."""

        async def listed(client: Client) -> dict[str, tuple[str, Tool]]:
            found: dict[str, tuple[str, Tool]] = {}
            names = _Names(self.name)
            cursor: str | None = None
            async with self._remembered(), _limit(self._list_seconds, "say what it offers"):
                while True:
                    page = await client.list_tools(cursor=cursor)
                    for tool in page.tools:
                        name = names.of(tool.name)
                        reads = bool(tool.annotations and tool.annotations.read_only_hint)
                        told = Tool(name, tool.description or "", tool.input_schema, reads)
                        found[name] = tool.name, told
                    if len(found) > TOOLS:
                        raise _Hung(f"it offers more than {TOOLS:,} tools")
                    cursor = page.next_cursor
                    if not cursor:
                        return found

        self._tools = await self._ask(listed, again=True)
        return [tool for _, tool in self._tools.values()]

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolAnswer:
        """Run a tool. What it says of its failure is its answer; a server that fails raises."""
        if name not in self._tools:
            await self.tools()
        if name not in self._tools:
            return ToolAnswer(f"{self.name} has no tool {name!r}", is_error=True)
        theirs, tool = self._tools[name]

        async def called(client: Client) -> ToolAnswer:
            from mcp import MCPError  # noqa: PLC0415 - loaded by now

            try:
                return _answer(await client.call_tool(theirs, arguments))
            except MCPError as error:
                if error.code == _INVALID_PARAMS:  # the model's mistake, and the model can mend it
                    return ToolAnswer(error.message, is_error=True)
                raise

        return await self._ask(called, again=tool.reads)

    async def close(self) -> None:
        """End the server's process, or its session; a later call begins anew."""
        async with self._connecting:
            await self._drop()
            for connection in self._ending:
                await connection.close(self._close_seconds)
            self._ending.clear()

    async def _ask(self, question: Callable[[Client], Awaitable[Result]], again: bool) -> Result:
        """Ask the server; once more, of a new one, if it was lost and asking twice is harmless."""
        for first in (True, False):
            connection = await self._connected()
            try:
                return await question(connection.client)
            except Exception as error:
                forgotten = "session terminated" in str(error).lower()  # it never saw the question
                if not (forgotten or _is_loss(error, connection)):
                    raise self._unavailable(error, connection.said) from error
                async with self._connecting:
                    if self._connection is connection:
                        await self._drop()
                if isinstance(error, _Hung) or not (first and (again or forgotten)):
                    raise self._unavailable(error, connection.said) from error
        raise AssertionError("the second try returns or raises")

    async def _connected(self) -> _Connection:
        async with self._connecting:
            if self._connection is not None and self._connection.lost.is_set():
                await self._drop()
            if self._connection is None:
                if self._hung is not None and self._clock() - self._hung[0] < REST_SECONDS:
                    raise self._unavailable(_Hung(self._hung[1]), ())
                connection = _Connection(self._settings)
                try:
                    self._ending = [one for one in self._ending if not one.ended]
                    self._ending.append(connection)
                    async with self._remembered():
                        await connection.open(self._start_seconds)
                    self._ending.remove(connection)
                except ImportError as error:
                    raise SettingsError(
                        f"[mcp.{self.name}] needs mcp", hint="pip install 'everlog[agent]'"
                    ) from error
                except Exception as error:
                    raise self._unavailable(error, connection.said) from error
                self._connection = connection
            return self._connection

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close(self._close_seconds)

    @asynccontextmanager
    async def _remembered(self) -> AsyncIterator[None]:
        """Remember a server that hung for those who come next."""
        try:
            yield
        except _Hung as error:
            self._hung = self._clock(), str(error)
            raise
        self._hung = None

    def _unavailable(self, error: Exception, said: Sequence[str]) -> ProviderUnavailableError:
        while isinstance(error, ExceptionGroup):  # of a task group, about what went wrong in it
            error = error.exceptions[0]
        secrets = [*self._settings.env.values(), *self._settings.headers.values()]
        last = f"; it said last: {said[-1]}" if said else ""
        words = without_keys(f"{str(error) or type(error).__name__}{last}", secrets)
        return ProviderUnavailableError(f"the MCP server {self.name!r} failed: {words}")


class _Hung(Exception):
    """A server that would have been waited for for ever."""


@asynccontextmanager
async def _limit(seconds: float, doing: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise _Hung(f"it did not {doing} within {seconds:g} s") from error


class _Names:
    """Our names of a server's tools: what all providers take, and none twice."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._taken: dict[str, int] = {}  # name → how many wanted it, for each to be tried once

    def of(self, tool: str) -> str:
        """The name of one more tool."""
        whole = re.sub(r"[^A-Za-z0-9_-]", "_", f"{self._server}__{tool}")[:NAME_LENGTH]
        name = whole
        while name in self._taken:
            self._taken[whole] += 1
            end = f"_{self._taken[whole]}"
            name = f"{whole[: NAME_LENGTH - len(end)]}{end}"
        self._taken[name] = 1
        return name


def _is_loss(error: Exception, connection: _Connection) -> bool:
    """Whether the server is gone; one that merely answers with an error keeps its state."""
    code = getattr(error, "code", None)
    return connection.lost.is_set() or code is None or code == _CONNECTION_CLOSED


class _Connection:
    """A connected client, held by a task until it is closed."""

    client: Client

    def __init__(self, settings: McpSettings) -> None:
        self.said: deque[str] = deque(maxlen=_LINES)
        self.lost = asyncio.Event()  # the server closed its end
        self._settings = settings
        self._done = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self, seconds: float) -> None:
        """Connect; whatever goes wrong is raised here."""
        ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold(ready), name="mcp")
        try:
            async with _limit(seconds, "start"):
                self.client = await asyncio.shield(ready)
        except BaseException:
            # Once only: cancelled again while it ends its server, the library leaves that running.
            self._task.cancel()
            await asyncio.wait([self._task])
            raise

    @property
    def ended(self) -> bool:
        """Whether nothing of it is left."""
        return self._task is None or self._task.done()

    async def close(self, seconds: float) -> None:
        """Disconnect, and wait until the server is gone; one that does not go is left."""
        self._done.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=seconds)
            self._task.cancel()
            await asyncio.wait([self._task], timeout=seconds)

    async def _hold(self, ready: asyncio.Future[Client]) -> None:
        try:
            from mcp import Client  # noqa: PLC0415 - an extra, and half a second

            async with AsyncExitStack() as stack:
                transport = _watched(await self._transport(stack), self.lost)
                client = await stack.enter_async_context(Client(transport))
                ready.set_result(client)
                await self._done.wait()
        except Exception as error:
            self.lost.set()
            if not ready.done():
                ready.set_exception(error)
        finally:
            ready.cancel()

    async def _transport(self, stack: AsyncExitStack) -> AbstractAsyncContextManager[Any]:
        from mcp.client.stdio import StdioServerParameters, stdio_client  # noqa: PLC0415
        from mcp.client.streamable_http import streamable_http_client  # noqa: PLC0415

        settings = self._settings
        if settings.command:
            errors = stack.enter_context(os.fdopen(_listener(self.said), "w"))
            server = StdioServerParameters(
                command=settings.command, args=list(settings.args), env=settings.env
            )
            return stdio_client(server, errlog=errors)
        import httpx2  # noqa: PLC0415 - comes with mcp

        # An answer may take as long as the tool does; the engine has its own limit.
        waiting = httpx2.Timeout(30.0, read=None)
        http = httpx2.AsyncClient(headers=settings.headers, timeout=waiting)
        await stack.enter_async_context(http)
        return streamable_http_client(settings.url, http_client=http)


def _listener(said: deque[str]) -> int:
    """A descriptor for a server's standard error, of which the last lines are kept."""
    reading, writing = os.pipe()

    def listen() -> None:
        with open(reading, encoding="utf-8", errors="replace") as lines:
            pieces = iter(lambda: lines.readline(_LINE), "")  # a line may have no end
            said.extend(text for piece in pieces if (text := piece.strip()))

    threading.Thread(target=listen, name="mcp-stderr", daemon=True).start()
    return writing


@asynccontextmanager
async def _watched(
    transport: AbstractAsyncContextManager[Any], lost: asyncio.Event
) -> AsyncIterator[tuple[Any, Any]]:
    """The transport, which tells when the server's end is closed: a call then is not even sent."""
    async with transport as (reading, writing):
        yield _Watched(reading, lost), writing


class _Watched:
    """A stream of messages that tells when it ends."""

    def __init__(self, stream: Any, lost: asyncio.Event) -> None:
        self._stream = stream
        self._lost = lost

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> _Watched:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._stream.__aexit__(*error)

    def __aiter__(self) -> _Watched:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except BaseException:
            self._lost.set()
            raise


def _answer(result: CallToolResult) -> ToolAnswer:
    blocks: list[AnyBlock] = [_block(item) for item in result.content]
    if not blocks and result.structured_content is not None:
        blocks = [Text(msgspec.json.encode(result.structured_content).decode())]
    failed = bool(result.is_error)
    if all(isinstance(block, Text) for block in blocks):
        text = "\n".join(block.text for block in blocks if isinstance(block, Text))
        return ToolAnswer(text, is_error=failed)
    return ToolAnswer(tuple(blocks), is_error=failed)


def _block(item: Any) -> AnyBlock:
    """A piece of a result; a link is told of by its address."""
    match item.type:
        case "text":
            return Text(item.text)
        case "image":
            return Image(item.mime_type, item.data)
        case "audio":
            return File(mime_type=item.mime_type, data=item.data)
        case "resource":
            found = item.resource
            if hasattr(found, "text"):
                return Text(found.text)
            return File(str(found.uri), found.mime_type or "", found.blob)
        case _:
            return Text(str(getattr(item, "uri", item)))
