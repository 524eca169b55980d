"""What commands share: the location of the store, `--json`, sessions, filters, times and ages."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import click

from everlog.cli.output import is_terminal, one_line, progress, shorten, warn

if TYPE_CHECKING:
    from pathlib import Path

    from click.shell_completion import CompletionItem

    from everlog.aio import AsyncSession, AsyncStore
    from everlog.client import Client
    from everlog.ports import Store as Port
    from everlog.session import Session, Store

F = TypeVar("F", bound=Callable[..., Any])

_HOME, _STORE = "--home", "--store"
_COMPLETED_SESSIONS = 50  # offered
_TITLE_WIDTH = 60  # columns of a title beside an offered session
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def _location_option(
    name: str, metavar: str, help: str, check: Callable[[str], str] = lambda value: "", envvar: str | None = None
) -> Callable[[F], F]:
    """Return an option that is remembered for this command and those below it.

    `check` returns why a value is refused. An empty value is an unset shell variable, and must not
    select the default.
    """

    def remember(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
        if value is None:
            is_empty = envvar is not None and os.environ.get(envvar) == ""
            problem = f"{envvar} is empty: set or unset it" if is_empty else ""
        else:
            problem = check(value) if value else "the value is empty"
        if problem:
            raise click.BadParameter(problem, ctx=ctx, param=param)
        if value is not None:
            ctx.meta[name] = value

    return click.option(name, metavar=metavar, expose_value=False, callback=remember, help=help, envvar=envvar)


def _location_options(*, from_environment: bool = False) -> tuple[Callable[[F], F], ...]:
    home_help = "Use the settings, memory and sessions in DIR (or EVERLOG_HOME; default ~/.everlog)."
    store_help = "Use the sessions in DIR, FORMAT:DIR or postgresql://… instead (or EVERLOG_STORE)."
    home_variable, store_variable = ("EVERLOG_HOME", "EVERLOG_STORE") if from_environment else (None, None)
    return (
        _location_option(_HOME, "DIR", home_help, _check_home, envvar=home_variable),
        _location_option(_STORE, "LOCATION", store_help, _check_store, store_variable),
    )


def _check_home(value: str) -> str:
    # Not quoted: it may have a password.
    is_address = re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", value)
    return "must be a directory; --store takes an address" if is_address else ""


def _check_store(value: str) -> str:
    from everlog.app import FORMATS
    from everlog.errors import SettingsError
    from everlog.interop.locations import parse_location

    try:
        parse_location(value, FORMATS)
    except SettingsError as error:
        return f"{error.message} ({error.hint})" if error.hint else error.message
    return ""


def location_options(*, from_environment: bool = False) -> Callable[[F], F]:
    """Add `--home` and `--store`; of nested commands, the innermost value counts."""
    home, store = _location_options(from_environment=from_environment)
    return lambda command: home(store(command))


def command(name: str | None = None) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command, with `--json` and the location of the store as its last options."""

    def make(function: Callable[..., Any]) -> click.Command:
        made = click.command(name)(function)
        for option in (json_option, *_location_options()):
            option(made)
        return made

    return make


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def chosen_home() -> Path:
    """Return our own directory, from the option, the environment or the default."""
    from everlog.app import default_home
    from everlog.interop.locations import directory

    return directory(click.get_current_context().meta.get(_HOME) or default_home())


def chosen_location() -> str | None:
    """Return the location of the store by option or environment; None: that of the settings, or the home."""
    location: str | None = click.get_current_context().meta.get(_STORE)
    return location


@contextmanager
def open_chosen_store() -> Iterator[Store]:
    """Open the store that the user selected; at the end, warn of what it had to recover."""
    from everlog.app import open_store

    with (
        progress("indexing sessions") as on_progress,
        open_store(chosen_location(), home=chosen_home(), progress=on_progress) as store,
    ):
        yield store
        warn_of_reports(store.port)


def warn_of_reports(port: Port) -> None:
    """Print what a store did or could not do beside its calls."""
    from everlog.ports import Reporting

    reporting = port.capability(Reporting)
    for report in () if reporting is None else dict.fromkeys(reporting.reports):
        warn(report)


@contextmanager
def open_session(name: str) -> Iterator[Session]:
    """Open the selected store and find a session in it."""
    with open_chosen_store() as store:
        yield find_session(store, name)


def connect_daemon() -> Client:
    """Connect to the daemon of the selected home. Raises NotFoundError if none is running."""
    from everlog.client import Client

    return Client.of(chosen_home())


def find_session(store: Store, name: str) -> Session:
    """Return a session by its id, the first characters of its id, its key or an alias."""
    from everlog.session import Session

    return Session(store, store.port.resolve(name, prefix=True))


def confirm_prefix(session: Session, name: str, action: str, *, yes: bool) -> None:
    """Ask before a destructive action on a session that is named by the beginning of its id only."""
    from everlog.errors import NotFoundError

    if yes:
        return
    try:
        session.store.port.resolve(name)
    except NotFoundError:
        if not is_terminal(sys.stdin):
            raise click.UsageError(f"{name} is the beginning of {session.id}: give the whole id, or --yes") from None
        title = one_line(session.metadata.display_title)
        click.confirm(f"{action} {session.id} ({title})?", abort=True, err=True)


yes_option = click.option("--yes", is_flag=True, help="Do not ask when ID is only the beginning of an id.")


async def find_async_session(store: AsyncStore, name: str) -> AsyncSession:
    """Return a session for asynchronous code, by what `find_session` takes."""
    from everlog.aio import AsyncSession

    return AsyncSession(store, await store.call(find_session, store.sync, name))


# --- completion by the shell, at every press of Tab: it reads listings and creates nothing on disk


def complete_session(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a session id; the last active sessions first, with their titles."""
    from click.shell_completion import CompletionItem

    with _open_existing(ctx) as store:
        rows = store.walk() if store is not None else iter(())
        matches = (row for row in rows if row.id.startswith(incomplete))
        return [
            CompletionItem(row.id, help=shorten(one_line(row.metadata.display_title), _TITLE_WIDTH))
            for row in islice(matches, _COMPLETED_SESSIONS)
        ]


def complete_agent(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete an agent from the settings and the newest sessions."""
    from click.shell_completion import CompletionItem

    with _open_existing(ctx) as store:
        if store is None:
            return []
        agents = {"main", *store.settings.agents}
        agents |= {row.metadata.agent for row in store.list(limit=500)}
    return [CompletionItem(name) for name in sorted(agents) if name.startswith(incomplete) and name == one_line(name)]


@contextmanager
def _open_existing(ctx: click.Context) -> Iterator[Store | None]:
    """Open the store that the words typed so far select; None if it does not exist."""
    from everlog.app import open_store
    from everlog.errors import EverlogError

    with ctx.scope(cleanup=False):
        location, home = chosen_location(), chosen_home()
    try:
        store = open_store(location, home=home)
    except EverlogError:
        yield None
        return
    with store:
        yield store


session_argument = click.argument("session_id", metavar="ID", shell_complete=complete_session)
optional_session_argument = click.argument(
    "session_id", metavar="[ID]", required=False, shell_complete=complete_session
)


# --- filters, times and ages


def filter_options(verb: str) -> Callable[[F], F]:
    """Add `--agent`, `--sender` and `--source`, which say what to `verb` only."""
    agent = click.option("--agent", shell_complete=complete_agent, help=f"{verb} only sessions of this agent.")
    sender = click.option("--sender", help=f"{verb} only sessions with this sender.")
    source = click.option("--source", help=f"{verb} only sessions from this source: interactive, cron, …")
    return lambda function: agent(sender(source(function)))


def limit_option(maximum: int | None, default: int, things: str) -> Callable[[F], F]:
    """Add `--limit`."""
    number = click.IntRange(1, maximum)
    return click.option(
        "--limit", type=number, default=default, show_default=True, help=f"Show at most this many {things}."
    )


def time_option(name: str, help: str, **settings: Any) -> Callable[[F], F]:
    """Add an option that takes a time or an age."""
    return click.option(name, callback=parse_time, metavar="TIME", help=help, **settings)


def parse_age(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Parse an age such as `30d`, `12h`, `2w`, `45m` or `90s` into seconds."""
    if value is None:
        return None
    match = re.fullmatch(r"([0-9]{1,9})([smhdw])", value.strip())
    if match is None:
        raise click.BadParameter(f"{value!r} is not an age such as 30d, 12h, 2w or 45m", ctx=ctx, param=param)
    return float(match[1]) * _SECONDS[match[2]]


def parse_time(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Parse ISO 8601 (UTC by default) or an age into a timestamp as stored in the files."""
    from everlog.ids import epoch_ms, timestamp

    if value is None:
        return None
    text = value.strip()
    try:
        if re.fullmatch(r"[0-9]{1,9}[smhdw]", text):
            seconds = parse_age(ctx, param, text) or 0.0
            return timestamp(max(time.time() - seconds, 0))
        milliseconds = epoch_ms(text)
        if milliseconds is not None:
            return timestamp(milliseconds / 1000)
    except (ValueError, OverflowError, OSError):
        pass  # a year out of range
    raise click.BadParameter(
        f"{value!r} is neither a time such as 2025-01-31T08:00 nor an age such as 7d", ctx=ctx, param=param
    )
