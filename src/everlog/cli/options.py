"""What commands have in common: where the store is, `--json`, and how times are given."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from everlog.cli.completion_source import complete_session
from everlog.cli.output import progress, warn

if TYPE_CHECKING:
    from pathlib import Path

    from everlog.session import Store

F = TypeVar("F", bound=Callable[..., Any])

_ROOT = "everlog.root"
_DIALECT = "everlog.dialect"
_STORE = "everlog.store"
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def root_option(**settings: Any) -> Callable[[F], F]:
    """`--root`, `--dialect` and `--store`, on every level: the innermost one given counts."""
    root = click.option(
        "--root",
        metavar="DIR",
        expose_value=False,
        callback=_remember_root,
        help="Where the sessions are (or EVERLOG_ROOT; default ~/.everlog).",
        **settings,
    )
    dialect = click.option(
        "--dialect",
        metavar="NAME",
        expose_value=False,
        callback=_remember_dialect,
        help="Whose files DIR holds: native, claude, cersei, crabtalk, picoclaw, pi, or auto.",
    )
    store = click.option(
        "--store",
        metavar="URL",
        expose_value=False,
        callback=_remember_store,
        envvar="EVERLOG_STORE" if settings else None,
        help="A database with the sessions (or EVERLOG_STORE): postgresql://…",
    )
    return lambda command: root(dialect(store(command)))


session_argument = click.argument("session_id", metavar="ID", shell_complete=complete_session)
json_option = click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")


def _remember_root(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    _refuse_empty(ctx, param, value)
    if value is not None:
        ctx.meta[_ROOT] = value


def _refuse_empty(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """What is empty is a variable that nobody set: it must not mean another place in silence."""
    if value == "":
        raise click.BadParameter("it is empty", ctx=ctx, param=param)
    variable = param.envvar
    if value is None and isinstance(variable, str) and os.environ.get(variable) == "":
        raise click.BadParameter(f"{variable} is empty: set or unset it", ctx=ctx, param=param)


def _remember_dialect(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        from everlog.app import LIVE_FORMATS

        if value not in ("native", "auto", *LIVE_FORMATS):
            known = ", ".join(("native", *LIVE_FORMATS, "auto"))
            raise click.BadParameter(f"{value!r} is none of {known}", ctx=ctx, param=param)
        ctx.meta[_DIALECT] = value


def _remember_store(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    _refuse_empty(ctx, param, value)
    if value is not None:
        from everlog.app import DATABASES

        if value.partition("://")[0] not in DATABASES:  # which may have a password in it
            raise click.BadParameter("it begins with postgresql://", ctx=ctx, param=param)
        ctx.meta[_STORE] = value


def chosen_store() -> str | None:
    """The address of a database, if the user chose one."""
    store: str | None = click.get_current_context().meta.get(_STORE)
    return store


def _path(given: str) -> Path:
    from pathlib import Path

    from everlog.errors import SettingsError

    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", given):  # which may have a password in it
        raise SettingsError(
            "the root is a directory, and was given as an address",
            hint="--store, or EVERLOG_STORE, takes that of a database: postgresql://…",
        )
    path = os.path.expanduser(given)
    if path.startswith("~"):
        raise SettingsError(f"{given}: there is no such home directory", hint="give --root DIR")
    return Path(path)


def chosen_root() -> Path:
    """The root of ours, by option, environment or default.

    Where the sessions are those of another program, this has the settings and what is derived.
    """
    from everlog.app import DEFAULT_ROOT, is_foreign

    root = _path(click.get_current_context().meta.get(_ROOT, DEFAULT_ROOT))
    if chosen_foreign() is None:
        return root
    home = _path(os.environ.get("EVERLOG_ROOT") or DEFAULT_ROOT)
    return _path(DEFAULT_ROOT) if home.resolve() == root.resolve() or is_foreign(home) else home


def chosen_foreign() -> tuple[Path, str] | None:
    """A directory of another program and its dialect, if the user chose one."""
    from everlog.app import DEFAULT_ROOT, is_foreign

    meta = click.get_current_context().meta
    path, dialect = _path(meta.get(_ROOT, DEFAULT_ROOT)), meta.get(_DIALECT)
    if dialect == "native" or _STORE in meta:
        return None
    if dialect is None and not is_foreign(path):
        return None
    return path, dialect or "auto"


@contextmanager
def open_root() -> Iterator[Store]:
    """The store that the user chose; what it had to recover is told at the end, on stderr."""
    from everlog.app import open_store

    home, foreign = chosen_root(), chosen_foreign()
    where: str | Path
    where, dialect = foreign or (chosen_store() or home, "native")
    with (
        progress("indexing sessions") as tell,
        open_store(where, dialect=dialect, home=home, progress=tell) as store,
    ):
        yield store
        for report in getattr(store.port, "reports", ()):
            warn(report)


def age(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Seconds out of `30d`, `12h`, `2w`, `45m` or `90s`."""
    if value is None:
        return None
    match = re.fullmatch(r"([0-9]{1,9})([smhdw])", value.strip())
    if match is None:
        raise click.BadParameter(
            f"{value!r} is not an age such as 30d, 12h, 2w or 45m", ctx=ctx, param=param
        )
    return float(match[1]) * _SECONDS[match[2]]


def moment(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """A time as the files write it, out of ISO 8601 (UTC unless it says otherwise) or an age."""
    from everlog.ids import epoch_ms, timestamp

    if value is None:
        return None
    text = value.strip()
    try:
        if re.fullmatch(r"[0-9]{1,9}[smhdw]", text):
            seconds = age(ctx, param, text) or 0.0
            return timestamp(max(time.time() - seconds, 0))
        milliseconds = epoch_ms(text)
        if milliseconds is not None:
            return timestamp(milliseconds / 1000)
    except (ValueError, OverflowError, OSError):
        pass  # a year that no calendar of ours has
    raise click.BadParameter(
        f"{value!r} is neither a time such as 2025-01-31T08:00 nor an age such as 7d",
        ctx=ctx,
        param=param,
    )
