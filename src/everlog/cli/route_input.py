"""The input of `everlog route`: JSON lines, each with a message and optionally its own routing.

An invalid line is an error that names line and field; nothing is guessed. A null counts as absent.
Only the command loads this module: what it imports would slow down the help.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from everlog.errors import EverlogError, FormatError
from everlog.identity.route import ListedAgent, Router, Routing
from everlog.identity.scope import Inbound
from everlog.settings import DispatchRule

T = TypeVar("T")


class RouteLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line; absent fields are taken from the configuration."""

    context: Inbound
    session_key: str = ""
    dimensions: tuple[str, ...] | None = None
    identity_links: dict[str, tuple[str, ...]] | None = None
    agents: tuple[ListedAgent, ...] | None = None
    rules: tuple[DispatchRule, ...] | None = None


def read_lines(routing: Routing) -> Iterator[tuple[Router, Inbound, str]]:
    """Yield router, message and its own key for each line of stdin; blank lines are skipped."""
    if sys.stdin is None:
        return
    if sys.stdin.isatty():
        print('type one {"context": {…}} per line, then Ctrl-D', file=sys.stderr)
    default_router = Router(routing)
    for number, row in enumerate(sys.stdin.buffer, 1):
        if number == 1:
            row = row.removeprefix(b"\xef\xbb\xbf")
        if row.strip():
            try:
                line = _parse(row, RouteLine)
                fields = {name: getattr(line, name) for name in Routing.__struct_fields__}
                overrides = {name: value for name, value in fields.items() if value is not None}
                router = Router(replace(routing, **overrides)) if overrides else default_router
            except EverlogError as error:
                raise type(error)(f"line {number}: {error.message}", hint=error.hint) from error
            yield router, line.context, line.session_key


def parse_context(text: str) -> Inbound:
    """Parse a context from the `--context` option; raises FormatError."""
    return _parse(text, Inbound, "--context: ")


def _parse(data: bytes | str, type: type[T], prefix: str = "") -> T:
    try:
        return msgspec.convert(_without_nulls(msgspec.json.decode(data)), type)
    except RecursionError as error:
        raise FormatError(f"{prefix}nested too deeply") from error
    except ValueError as error:  # malformed JSON, invalid UTF-8, or a wrong field
        raise FormatError(f"{prefix}{error}") from error


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
