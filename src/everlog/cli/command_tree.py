"""The tree of commands; a command's module is imported when the command is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Any

import click

from everlog.cli.options import location_options

_SUGGESTIONS = 2  # commands that an unknown name is answered with


SYNONYMS = {  # what a user may type → the command that does it
    "sessions migrate": "import",
    "ls": "sessions list",
    "delete": "sessions rm",
    "remove": "sessions rm",
    "resume": "chat --resume",
    "daemon": "serve",
}


class LazyGroup(click.Group):
    """A group that lists its commands by name and imports each on first use."""

    def __init__(
        self,
        *arguments: Any,
        locations: Mapping[str, str],
        aliases: Mapping[str, str] = MappingProxyType({}),
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.locations = locations  # command name → "module:attribute" in everlog.cli
        self.aliases = aliases  # further names that are not listed

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of `locations`."""
        return list(self.locations)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; None if there is none of that name."""
        location = self.locations.get(cmd_name) or self.aliases.get(cmd_name)
        if location is None:
            return None
        module, attribute = location.split(":")
        command = getattr(import_module(f"everlog.cli.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is named; of an unknown name, suggest commands of any group."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            group = ctx.command_path.partition(" ")[2]
            suggestions = suggest_commands(args[0], group)
            if not suggestions:
                raise
            quoted = " or ".join(f"`everlog {path}`" for path in suggestions)
            raise click.UsageError(f"No such command {args[0]!r}; did you mean {quoted}?") from error


def suggest_commands(name: str, group: str) -> Sequence[str]:
    """Return the commands that a name may stand for: of this name in any group, else of a similar one here."""
    if synonym := SYNONYMS.get(f"{group} {name}".strip()) or SYNONYMS.get(name):
        return (synonym,)
    paths = list(_command_paths())
    same_name = [path for path in paths if path.rpartition(" ")[2] == name]
    if same_name:
        return same_name[:_SUGGESTIONS]
    from difflib import get_close_matches  # takes 5 ms

    inner = {path.rpartition(" ")[2]: path for path in paths if path.rpartition(" ")[0] == group}
    similar = get_close_matches(name, inner, n=1)
    further = {path.rpartition(" ")[2]: path for path in reversed(paths)}
    return [inner[match] for match in similar] or [further[match] for match in get_close_matches(name, further, n=1)]


def _command_paths() -> Iterator[str]:
    """Yield the words of every command, those of the first level first."""
    yield from root.locations
    for name, location in root.locations.items():
        group = globals().get(name) if location.startswith("command_tree:") else None
        yield from (f"{name} {command}" for command in (group.locations if isinstance(group, LazyGroup) else ()))


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
    locations: Mapping[str, str], cls: type[LazyGroup] = LazyGroup, **options: Any
) -> Callable[[Callable[..., Any]], click.Group]:
    """Make a group of commands that are imported on first use."""
    return lambda function: click.group(cls=cls, locations=locations, **options)(location_options()(function))


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
        "route": "route:route",
        "import": "import_export:import_",
        "export": "import_export:export",
        "archive": "command_tree:archive",
        "store": "command_tree:store",
        "doctor": "doctor:doctor",
        "config": "command_tree:config",
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
    ID you can give a key, an alias, or the first six or more characters of one of these. Exit
    codes: 0 for success, 1 for a failure with one line on stderr, 2 for wrong usage.
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
    },
    aliases={"import": "import_export:import_", "export": "import_export:export"},
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
