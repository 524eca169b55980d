"""A small MCP server that the tests start: over stdio, or over HTTP on the port that it is given."""

from __future__ import annotations

import base64
import os
import sys
from typing import Any

from mcp.server.mcpserver import Image, MCPServer
from mcp_types import ToolAnnotations

server = MCPServer("things")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def variable(name: str) -> str:
    """A variable of the server's environment."""
    return os.environ.get(name, "(not set)")


@server.tool()
def pid() -> int:
    """The server's process."""
    return os.getpid()


@server.tool()
def picture() -> Image:
    """A very small picture."""
    return Image(data=base64.b64decode("iVBORw0KGgo="), format="png")


@server.tool()
def fail() -> str:
    """Goes wrong."""
    raise ValueError("this went wrong")


@server.tool()
def die() -> str:
    """Ends the server."""
    os._exit(3)


def main(arguments: list[str]) -> None:
    """Serve until the client is gone, or for ever."""
    options: dict[str, Any] = {"port": int(arguments[0])} if arguments else {}
    if options:
        server.run("streamable-http", **options)
    else:
        server.run("stdio")


if __name__ == "__main__":
    main(sys.argv[1:])
