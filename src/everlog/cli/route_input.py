"""What `route` is asked: JSON lines, each a message and perhaps a routing of its own.

A line that is not as it should be is an error that names line and field; nothing is guessed. A
null counts as not given.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from everlog.errors import EverlogError, FormatError
from everlog.identity.route import ListedAgent, Router, Routing
from everlog.identity.scope import Inbound
from everlog.settings import DispatchRule


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line; what it does not give is the configuration's."""

    context: Inbound
    session_key: str = ""
    dimensions: tuple[str, ...] | None = None
    identity_links: dict[str, tuple[str, ...]] | None = None
    agents: tuple[ListedAgent, ...] | None = None
    rules: tuple[DispatchRule, ...] | None = None


class Asked(NamedTuple):
    """A message, the key that came with it, and the router that it asks for."""

    router: Router
    inbound: Inbound
    session_key: str


def stdin(routing: Routing) -> Iterator[Asked]:
    """The lines of stdin, each as soon as it is there; blank ones are passed over."""
    if sys.stdin is None:
        return
    if sys.stdin.isatty():
        print('type one {"context": {…}} per line, then Ctrl-D', file=sys.stderr)
    configured = Router(routing)
    for number, row in enumerate(sys.stdin.buffer, 1):
        if number == 1:
            row = row.removeprefix(b"\xef\xbb\xbf")
        if row.strip():
            try:
                line = _parse(row)
                own = _own(line)
                router = Router(replace(routing, **own)) if own else configured
            except EverlogError as error:
                raise type(error)(f"line {number}: {error.message}", hint=error.hint) from error
            yield Asked(router, line.context, line.session_key)


def inbound(text: str) -> Inbound:
    """One context given as an option."""
    try:
        return msgspec.convert(_without_nulls(msgspec.json.decode(text)), Inbound)
    except (RecursionError, ValueError) as error:
        raise FormatError(f"--context: {error}") from error


def _parse(row: bytes) -> Line:
    try:
        return msgspec.convert(_without_nulls(msgspec.json.decode(row)), Line)
    except RecursionError as error:
        raise FormatError("nested too deeply") from error
    except ValueError as error:  # malformed JSON, invalid UTF-8, or a wrong field
        raise FormatError(str(error)) from error


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def _own(line: Line) -> dict[str, Any]:
    """The routing that a line gives itself."""
    given = {name: getattr(line, name) for name in Routing.__struct_fields__}
    return {name: value for name, value in given.items() if value is not None}
