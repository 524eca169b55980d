"""The tree of commands, whose modules are imported when a command is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from everlog.cli.options import root_option


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports each when it is needed."""

    def __init__(self, *arguments: Any, homes: Mapping[str, str], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.homes = homes  # command name → "module:attribute" in everlog.cli

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order they were given."""
        return list(self.homes)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now."""
        if cmd_name not in self.homes:
            return None
        module, attribute = self.homes[cmd_name].split(":")
        command = getattr(import_module(f"everlog.cli.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from everlog import __version__

        click.echo(f"everlog {__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    homes={
        "chat": "chat.command:chat",
        "serve": "serve:serve",
        "page": "serve:page",
        "status": "serve:status",
        "sessions": "command_tree:sessions",
        "memory": "command_tree:memory",
        "cron": "cron:cron",
        "archive": "archive:archive",
        "store": "store:store",
        "route": "route:route",
        "config": "config:config",
        "doctor": "doctor:doctor",
        "completion": "completion:completion",
    },
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@root_option(envvar="EVERLOG_ROOT")
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version.",
)
def root() -> None:
    """The durable session layer for AI agents.

    Every message is kept in plain files and is on disk before a command returns. Wherever an ID
    is taken, a key, an alias or six or more first characters of the id serve too. Exit codes: 0,
    1 for a failure with one line on stderr, 2 for wrong usage.
    """


@click.group(
    cls=LazyGroup,
    homes={
        "list": "sessions:list_sessions",
        "show": "sessions:show",
        "browse": "sessions_browse:browse",
        "search": "sessions_search:search",
        "stats": "sessions_stats:stats",
        "new": "sessions_write:new",
        "append": "sessions_write:append",
        "context": "sessions_context:context",
        "compact": "sessions_context:compact",
        "rename": "sessions_write:rename",
        "delete-message": "sessions_write:delete_message",
        "rewind": "sessions_write:rewind",
        "fork": "sessions_write:fork",
        "rm": "sessions_maintenance:rm",
        "verify": "sessions_maintenance:verify",
        "repair": "sessions_maintenance:repair",
        "parts": "sessions:parts",
        "prune": "sessions_maintenance:prune",
        "reclaim": "sessions_maintenance:reclaim",
        "import": "sessions_import:import_",
        "export": "sessions_import:export",
        "migrate": "sessions_import:migrate",
    },
)
@root_option()
def sessions() -> None:
    """List, read, write and look after sessions."""


@click.group(
    cls=LazyGroup,
    homes={
        "show": "memory:show",
        "search": "memory:search",
        "add": "memory:add",
        "edit": "memory:edit",
        "extract": "memory_dream:extract",
        "dream": "memory_dream:dream",
        "undo": "memory:undo",
        "clear": "memory:clear",
    },
)
@root_option()
def memory() -> None:
    """Look at what outlives sessions, write it, and put it in order."""
