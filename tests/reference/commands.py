"""The list of all commands in `docs/cli.md`, from the command line's own tree."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from everlog.cli import command_tree

BEGIN = "<!-- commands: made by make docs -->"
END = "<!-- end of commands -->"


def within(page: str) -> str:
    """The page with the list as it is now."""
    made = "\n".join([BEGIN, "", "| command | does |", "| --- | --- |", *_rows(), "", END])
    return re.sub(f"{BEGIN}.*?{END}", lambda _: made, page, count=1, flags=re.DOTALL)


def _rows() -> Iterator[str]:
    for path, command in _commands(command_tree.root, "everlog"):
        anchor = path.replace(" ", "-")
        brief = command.get_short_help_str(limit=200)
        yield f"| [`{path}`](#{anchor}) | {brief} |"


def _commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    with click.Context(command) as context:
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _commands(inner, f"{path} {name}")
