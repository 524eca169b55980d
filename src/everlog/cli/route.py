"""`everlog route`: print how messages would be routed, and why. Nothing is stored.

An invalid line of the input is an error that names line and field; nothing is guessed. A null
counts as absent.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, TypeVar

import click
import msgspec
from msgspec.structs import asdict, replace

from everlog.cli import output
from everlog.cli.options import chosen_root, command
from everlog.errors import EverlogError, FormatError
from everlog.identity.route import ListedAgent, Router, Routing
from everlog.identity.scope import Inbound
from everlog.settings import DispatchRule

T = TypeVar("T")


@command()
@click.option("--explain", "with_reasons", is_flag=True, help="Explain each decision in words.")
def route(with_reasons: bool, as_json: bool) -> None:
    """Print the agent, scope and key that messages are routed to.

    Reads JSON lines from stdin, each {"context": {"channel": …, "chat_id": …}, …}, and prints one
    JSON line for each. A line can override the configuration with dimensions, identity_links,
    agents and rules. Stops at the first invalid line.
    """
    from everlog.app import load_settings
    from everlog.identity.explain import explain

    for router, inbound, key in _read_lines(Routing.of(load_settings(chosen_root()))):
        routed = router.route(inbound, key)
        if not with_reasons:
            output.print_json(routed)
        else:
            reasons = explain(router, inbound, key)
            output.print_answer({**asdict(routed), "why": reasons}, " ".join(reasons), as_json)
        sys.stdout.flush()  # a caller that sends line by line gets each answer at once


class RouteLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line; absent fields are taken from the configuration."""

    context: Inbound
    session_key: str = ""
    dimensions: tuple[str, ...] | None = None
    identity_links: dict[str, tuple[str, ...]] | None = None
    agents: tuple[ListedAgent, ...] | None = None
    rules: tuple[DispatchRule, ...] | None = None


def _read_lines(routing: Routing) -> Iterator[tuple[Router, Inbound, str]]:
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
