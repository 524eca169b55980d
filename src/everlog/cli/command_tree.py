"""The tree of commands; a command's module is imported when the command is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import click

from everlog.cli.options import location_options


class LazyGroup(click.Group):
    """A group that lists its commands by name and imports each on first use."""

    def __init__(self, *arguments: Any, locations: Mapping[str, str], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.locations = locations  # command name → "module:attribute" in everlog.cli

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of `locations`."""
        return list(self.locations)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; None if there is none of that name."""
        if cmd_name not in self.locations:
            return None
        module, attribute = self.locations[cmd_name].split(":")
        command = getattr(import_module(f"everlog.cli.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command


class DefaultCommandGroup(LazyGroup):
    """A group with `add` as the default command: an argument that is no command is a source."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert `add` if no command is given."""
        first = 0
        while first < len(args) and args[first].startswith(("--home", "--store")):
            first += 1 if "=" in args[first] else 2
        if ctx.resilient_parsing and first >= len(args):
            return super().parse_args(ctx, args)  # shell completion
        if first >= len(args) or args[first] not in {*self.locations, "-h", "--help"}:
            args = [*args[:first], "add", *args[first:]]
        return super().parse_args(ctx, args)


def lazy_group(
    locations: Mapping[str, str], cls: type[LazyGroup] = LazyGroup
) -> Callable[[Callable[..., Any]], click.Group]:
    """Make a group of commands that are imported on first use."""
    return lambda function: click.group(cls=cls, locations=locations)(location_options()(function))


def _print_version(ctx: click.Context, _: click.Parameter, is_set: bool) -> None:
    if is_set:
        from everlog import __version__

        click.echo(f"everlog {__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    locations={
        "chat": "chat.command:chat",
        "serve": "serve:serve",
        "page": "serve:page",
        "status": "serve:status",
        "sessions": "command_tree:sessions",
        "memory": "command_tree:memory",
        "cron": "command_tree:cron",
        "archive": "command_tree:archive",
        "store": "command_tree:store",
        "route": "route:route",
        "config": "command_tree:config",
        "doctor": "doctor:doctor",
        "completion": "completion:completion",
    },
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@location_options(from_environment=True)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
def root() -> None:
    """The durable session layer for AI agents.

    Every message is stored in plain files and is on disk before a command returns. Instead of an
    ID you can give a key, an alias, or the first six or more characters of the id. Exit codes: 0
    for success, 1 for a failure with one line on stderr, 2 for wrong usage.
    """


@lazy_group(
    {
        "list": "sessions:list_sessions",
        "show": "sessions:show",
        "browse": "sessions:browse",
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
    }
)
def sessions() -> None:
    """List, read, write and maintain sessions."""


@lazy_group(
    {
        "show": "memory:show",
        "search": "memory:search",
        "add": "memory:add",
        "edit": "memory:edit",
        "extract": "memory:extract",
        "dream": "memory:dream",
        "undo": "memory:undo",
        "clear": "memory:clear",
    }
)
def memory() -> None:
    """Read, write and consolidate memory."""


@lazy_group({"list": "cron:list_jobs", "pause": "cron:pause", "resume": "cron:resume", "run": "cron:run"})
def cron() -> None:
    """List, pause, resume and run the jobs of the running daemon."""


@lazy_group(
    {"add": "archive:add", "list": "archive:list_", "restore": "archive:restore", "verify": "archive:verify"},
    DefaultCommandGroup,
)
def archive() -> None:
    """Archive the session files of other programs.

    `everlog archive [SOURCE…]` is short for `everlog archive add [SOURCE…]`. Write a folder that is
    named like a command as ./NAME.
    """


@lazy_group(
    {
        "init": "store:init",
        "copy": "store:copy",
        "migrate": "store:migrate",
        "stats": "store:stats",
        "verify": "store:verify",
    }
)
def store() -> None:
    """Maintain the store of the sessions: a directory or a database."""


@lazy_group({"show": "config:show"})
def config() -> None:
    """Show the configuration."""
