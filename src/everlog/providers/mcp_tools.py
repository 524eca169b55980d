"""Tools of an MCP server: a command to start, or a URL.

The server is connected on first use. Its connection runs in its own task, since the library's
scopes must be exited by the task that entered them. A dead server is restarted before the next
call; a call that was running when it died is only retried if the tool is read-only, since its
effects are unknown. A server that hangs is given up after a timeout and then not contacted for a
while, so that the next caller does not wait as long again.
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
from everlog.ports import ToolOutput, ToolSpec
from everlog.providers.provider_errors import redact_keys
from everlog.settings import McpSettings

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import CallToolResult

Result = TypeVar("Result")

START_SECONDS = 60.0  # to start; some servers download themselves first
LIST_SECONDS = 20.0  # to list the tools
CLOSE_SECONDS = 10.0  # to shut down
HANG_PAUSE_SECONDS = 60.0  # during which a server that hung is not contacted
MAX_TOOLS = 10_000  # of one server
MAX_NAME_LENGTH = 64  # of a tool, accepted by every provider
_STDERR_LINES = 20  # the last lines of a server's standard error
_STDERR_LINE_CHARS = 2_000
_INVALID_PARAMS, _CONNECTION_CLOSED = -32602, -32000


class McpServer:
    """The toolset of an MCP server; its tools are named `SERVER__TOOL`."""

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
            raise SettingsError(f"[mcp.{name}] needs either a command or a url")
        self.name = name
        self._settings = settings
        self._connection: _Connection | None = None
        self._connecting = asyncio.Lock()
        self._start_seconds = start_seconds
        self._list_seconds = list_seconds
        self._close_seconds = close_seconds
        self._clock = clock
        self._closing: list[_Connection] = []  # failed to start; some may still be closing
        self._last_hang: tuple[float, str] | None = None  # when, and the error
        self._tools: dict[str, tuple[str, ToolSpec]] = {}  # by our name: the server's name

    def __repr__(self) -> str:
        return f"McpServer({self.name!r})"

    async def tools(self) -> Sequence[ToolSpec]:
        """List the tools of the server; asks it each time."""

        async def list_tools(client: Client) -> dict[str, tuple[str, ToolSpec]]:
            specs: dict[str, tuple[str, ToolSpec]] = {}
            names = _ToolNames(self.name)
            cursor: str | None = None
            async with self._track_hang(), _time_limit(self._list_seconds, "list its tools"):
                while True:
                    page = await client.list_tools(cursor=cursor)
                    for tool in page.tools:
                        name = names.allocate(tool.name)
                        read_only = bool(tool.annotations and tool.annotations.read_only_hint)
                        spec = ToolSpec(name, tool.description or "", tool.input_schema, read_only)
                        specs[name] = tool.name, spec
                    if len(specs) > MAX_TOOLS:
                        raise _HangError(f"it offers more than {MAX_TOOLS:,} tools")
                    cursor = page.next_cursor
                    if not cursor:
                        return specs

        self._tools = await self._send(list_tools, retry=True)
        return [tool for _, tool in self._tools.values()]

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolOutput:
        """Run a tool. An error of the tool is its output; an error of the server is raised."""
        if name not in self._tools:
            await self.tools()
        if name not in self._tools:
            return ToolOutput(f"{self.name} has no tool {name!r}", is_error=True)
        server_name, tool = self._tools[name]

        async def call_tool(client: Client) -> ToolOutput:
            from mcp import MCPError  # noqa: PLC0415 - loaded by now

            try:
                return _to_answer(await client.call_tool(server_name, arguments))
            except MCPError as error:
                if error.code == _INVALID_PARAMS:  # the model's mistake, which it can correct
                    return ToolOutput(error.message, is_error=True)
                raise

        return await self._send(call_tool, retry=tool.reads)

    async def close(self) -> None:
        """End the server's process or session; a later call reconnects."""
        async with self._connecting:
            await self._drop()
            for connection in self._closing:
                await connection.close(self._close_seconds)
            self._closing.clear()

    async def _send(self, request: Callable[[Client], Awaitable[Result]], retry: bool) -> Result:
        """Send a request; if the connection is lost, retry once where that is safe."""
        for first_attempt in (True, False):
            connection = await self._connect()
            try:
                return await request(connection.client)
            except Exception as error:
                # The server never saw a request in a terminated session.
                terminated = "session terminated" in str(error).lower()
                # A server that answers with an error is kept.
                is_lost = connection.lost.is_set() or getattr(error, "code", None) in (None, _CONNECTION_CLOSED)
                if not (terminated or is_lost):
                    raise self._unavailable(error, connection.stderr_lines) from error
                async with self._connecting:
                    if self._connection is connection:
                        await self._drop()
                if isinstance(error, _HangError) or not (first_attempt and (retry or terminated)):
                    raise self._unavailable(error, connection.stderr_lines) from error
        raise AssertionError("the second attempt returns or raises")

    async def _connect(self) -> _Connection:
        async with self._connecting:
            if self._connection is not None and self._connection.lost.is_set():
                await self._drop()
            if self._connection is None:
                hang = self._last_hang
                if hang is not None and self._clock() - hang[0] < HANG_PAUSE_SECONDS:
                    raise self._unavailable(_HangError(hang[1]), ())
                connection = _Connection(self._settings)
                try:
                    self._closing = [item for item in self._closing if not item.is_closed]
                    self._closing.append(connection)
                    async with self._track_hang():
                        await connection.open(self._start_seconds)
                    self._closing.remove(connection)
                except ImportError as error:
                    raise SettingsError(f"[mcp.{self.name}] needs mcp", hint="pip install 'everlog[agent]'") from error
                except Exception as error:
                    raise self._unavailable(error, connection.stderr_lines) from error
                self._connection = connection
            return self._connection

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close(self._close_seconds)

    @asynccontextmanager
    async def _track_hang(self) -> AsyncIterator[None]:
        """Record that the server hung, for later calls; clear the record on success."""
        try:
            yield
        except _HangError as error:
            self._last_hang = self._clock(), str(error)
            raise
        self._last_hang = None

    def _unavailable(self, error: Exception, stderr_lines: Sequence[str]) -> ProviderUnavailableError:
        while isinstance(error, ExceptionGroup):  # from a task group
            error = error.exceptions[0]
        secrets = [*self._settings.env.values(), *self._settings.headers.values()]
        last_line = f"; last line on stderr: {stderr_lines[-1]}" if stderr_lines else ""
        message = redact_keys(f"{str(error) or type(error).__name__}{last_line}", secrets)
        return ProviderUnavailableError(f"the MCP server {self.name!r} failed: {message}")


class _HangError(Exception):
    """The server did not answer in time, or answered without end."""


@asynccontextmanager
async def _time_limit(seconds: float, action: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise _HangError(f"it did not {action} within {seconds:g} s") from error


class _ToolNames:
    """Unique names for a server's tools that all providers accept."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._used: dict[str, int] = {}  # name → the last suffix tried

    def allocate(self, tool: str) -> str:
        """Return a new name for a tool."""
        full_name = re.sub(r"[^A-Za-z0-9_-]", "_", f"{self._server}__{tool}")[:MAX_NAME_LENGTH]
        name = full_name
        while name in self._used:
            self._used[full_name] += 1
            suffix = f"_{self._used[full_name]}"
            name = f"{full_name[: MAX_NAME_LENGTH - len(suffix)]}{suffix}"
        self._used[name] = 1
        return name


class _Connection:
    """A connected client, kept open by a task until it is closed."""

    client: Client

    def __init__(self, settings: McpSettings) -> None:
        self.stderr_lines: deque[str] = deque(maxlen=_STDERR_LINES)
        self.lost = asyncio.Event()  # the server closed its end
        self._settings = settings
        self._done = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self, seconds: float) -> None:
        """Connect; every error is raised here."""
        ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(ready), name="mcp")
        try:
            async with _time_limit(seconds, "start"):
                self.client = await asyncio.shield(ready)
        except BaseException:
            # Only once: cancelled again during shutdown, the library leaves the server running.
            self._task.cancel()
            await asyncio.wait([self._task])
            raise

    @property
    def is_closed(self) -> bool:
        """Return whether the task has ended."""
        return self._task is None or self._task.done()

    async def close(self, seconds: float) -> None:
        """Disconnect and wait for the server to end; one that does not end is left running."""
        self._done.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=seconds)
            self._task.cancel()
            await asyncio.wait([self._task], timeout=seconds)

    async def _run(self, ready: asyncio.Future[Client]) -> None:
        try:
            from mcp import Client  # noqa: PLC0415 - an extra, and half a second

            async with AsyncExitStack() as stack:
                transport = _watch_transport(await self._transport(stack), self.lost)
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
            errors = stack.enter_context(os.fdopen(_open_stderr_pipe(self.stderr_lines), "w"))
            server = StdioServerParameters(command=settings.command, args=list(settings.args), env=settings.env)
            return stdio_client(server, errlog=errors)
        import httpx2  # noqa: PLC0415 - comes with mcp

        # No read timeout: a tool may take long, and the agent has its own limit.
        timeout = httpx2.Timeout(30.0, read=None)
        http = httpx2.AsyncClient(headers=settings.headers, timeout=timeout)
        await stack.enter_async_context(http)
        return streamable_http_client(settings.url, http_client=http)


def _open_stderr_pipe(stderr_lines: deque[str]) -> int:
    """Return a file descriptor for a server's standard error; its last lines are kept."""
    read_end, write_end = os.pipe()

    def listen() -> None:
        with open(read_end, encoding="utf-8", errors="replace") as lines:
            chunks = iter(lambda: lines.readline(_STDERR_LINE_CHARS), "")  # a line may be endless
            stderr_lines.extend(text for chunk in chunks if (text := chunk.strip()))

    threading.Thread(target=listen, name="mcp-stderr", daemon=True).start()
    return write_end


@asynccontextmanager
async def _watch_transport(
    transport: AbstractAsyncContextManager[Any], lost: asyncio.Event
) -> AsyncIterator[tuple[Any, Any]]:
    """Wrap a transport so that `lost` is set when the server closes it; later calls reconnect."""
    async with transport as (reading, writing):
        yield _WatchedStream(reading, lost), writing


class _WatchedStream:
    """A message stream that sets an event when it ends."""

    def __init__(self, stream: Any, lost: asyncio.Event) -> None:
        self._stream = stream
        self._lost = lost

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> _WatchedStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._stream.__aexit__(*error)

    def __aiter__(self) -> _WatchedStream:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except BaseException:
            self._lost.set()
            raise


def _to_answer(result: CallToolResult) -> ToolOutput:
    blocks: list[AnyBlock] = [_to_block(item) for item in result.content]
    if not blocks and result.structured_content is not None:
        blocks = [Text(msgspec.json.encode(result.structured_content).decode())]
    failed = bool(result.is_error)
    if all(isinstance(block, Text) for block in blocks):
        text = "\n".join(block.text for block in blocks if isinstance(block, Text))
        return ToolOutput(text, is_error=failed)
    return ToolOutput(tuple(blocks), is_error=failed)


def _to_block(item: Any) -> AnyBlock:
    """Convert an item of a result; a link becomes its address."""
    match item.type:
        case "text":
            return Text(item.text)
        case "image":
            return Image(item.mime_type, item.data)
        case "audio":
            return File(mime_type=item.mime_type, data=item.data)
        case "resource":
            resource = item.resource
            if hasattr(resource, "text"):
                return Text(resource.text)
            return File(str(resource.uri), resource.mime_type or "", resource.blob)
        case _:
            return Text(str(getattr(item, "uri", item)))
