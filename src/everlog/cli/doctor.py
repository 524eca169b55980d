"""`everlog doctor`: is this root sound, and are its derived data up to date?

It mends nothing but the index, which may be brought up to date at any time. The bytes of the
logs are `everlog sessions verify`'s to check.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import click

from everlog.cli import output
from everlog.cli.options import chosen_root, chosen_store, json_option, open_root, root_option


class Check(NamedTuple):
    """One thing that was looked at."""

    name: str
    ok: bool
    detail: str


@click.command()
@click.option("--watch", is_flag=True, help="Keep the index up to date until Ctrl-C.")
@json_option
@root_option()
def doctor(watch: bool, as_json: bool) -> int:
    """Check the root, its settings and its index.

    The index is brought up to date. Exits 1 if something is wrong. With --watch it goes on: what
    any program adds to a session is listed as it happens, and named here.
    """
    root = chosen_root()
    checks = [_versions()]
    if chosen_store() is not None:
        checks.append(_guarded("database", _database))
    else:
        checks.append(_root(root))
    if root.is_dir() and chosen_store() is None:
        checks += [
            _guarded("settings", lambda: _settings(root)),
            _guarded("sessions", lambda: _sessions(root)),
            _guarded("index", _index),
            _guarded("leftovers", _leftovers),
        ]
    wrong = [check for check in checks if not check.ok]
    if as_json:
        found = [check._asdict() for check in checks]
        output.put_json({"root": str(root), "ok": not wrong, "checks": found})
    else:
        for check in checks:
            print(f"{'ok   ' if check.ok else 'WRONG'}  {check.name:9}  {check.detail}")
    if wrong:
        sys.stdout.flush()
        output.warn(f"wrong: {', '.join(check.name for check in wrong)}")
        return 1
    if watch:
        _watch()
    return 0


def _watch() -> None:
    """Name sessions as they change, one a line."""
    import threading

    with open_root() as store:
        watch = getattr(store.port, "watch", None)
        if watch is None:
            raise click.UsageError("this kind of store cannot be watched")
        for sessions in watch(threading.Event()):
            for session in sorted(sessions):
                print(session, flush=True)


def _guarded(name: str, look: Callable[[], Check]) -> Check:
    """A check that cannot be made is one that fails."""
    from everlog.errors import EverlogError

    try:
        return look()
    except (EverlogError, OSError) as error:
        return Check(name, False, output.one_line(str(error)))


def _versions() -> Check:
    import apsw
    import msgspec

    from everlog import __version__

    python = ".".join(str(number) for number in sys.version_info[:3])
    return Check(
        "versions",
        True,
        f"everlog {__version__}, Python {python}, SQLite {apsw.sqlite_lib_version()}, "
        f"apsw {apsw.apsw_version()}, msgspec {msgspec.__version__}",
    )


def _root(root: Path) -> Check:
    shown = output.one_line(str(root))
    try:
        status = os.stat(root)
    except OSError as error:
        hint = " (everlog sessions new makes it)" if isinstance(error, FileNotFoundError) else ""
        return Check("root", False, f"{shown}: {error.strerror}{hint}")
    mode = stat.S_IMODE(status.st_mode)
    problems = []
    if not stat.S_ISDIR(status.st_mode):
        return Check("root", False, f"{shown}: not a directory")
    if status.st_uid != os.geteuid():
        problems.append(f"belongs to uid {status.st_uid}, not to you ({os.geteuid()})")
    if mode & 0o022:
        problems.append(f"mode {mode:04o} lets others write (chmod 700 {shown})")
    if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        problems.append("you may not write there")
    return Check("root", not problems, f"{shown}: {'; '.join(problems) or f'mode {mode:04o}'}")


def _settings(root: Path) -> Check:
    from everlog.app import load_settings

    load_settings(root)
    file = root / "config.toml"
    state = f"{file}: valid" if file.exists() else "defaults, there is no config.toml"
    return Check("settings", True, output.one_line(state))


def _sessions(root: Path) -> Check:
    """Every entry must be a session's directory that nobody else can open."""
    from everlog.ids import is_ulid

    count, strange, open_to_others = 0, [], []
    try:
        entries = os.scandir(root / "sessions")
    except FileNotFoundError:
        return Check("sessions", True, "none yet")
    with entries:
        for entry in entries:
            if not is_ulid(entry.name) or not entry.is_dir(follow_symlinks=False):
                strange.append(entry.name)
                continue
            count += 1
            if entry.stat(follow_symlinks=False).st_mode & 0o077:
                open_to_others.append(entry.name)
    problems = [
        f"{output.plural(len(names), 'entry').replace('entrys', 'entries')} {what}, "
        f"such as {output.one_line(min(names))[:60]}"
        for names, what in (
            (strange, "in sessions/ that are no session directories and are not used"),
            (open_to_others, "that others can open (chmod 700)"),
        )
        if names
    ]
    return Check("sessions", not problems, "; ".join([output.plural(count, "session"), *problems]))


def _database() -> Check:
    """Whether it can be reached, with tables that this everlog understands."""
    with open_root() as store:
        count = store.list(limit=1).total
        return Check("database", True, f"{store.port!r}: {output.plural(count, 'session')}")


def _index() -> Check:
    with open_root() as store:
        sweep = getattr(store.port, "sweep", None)
        if sweep is None:
            return Check("index", True, "this store has none")
        with output.progress("reading sessions") as tell:
            done = sweep(tell)
    mended = done.refreshed + done.removed
    state = "up to date"
    if mended:
        state = f"brought up to date ({done.refreshed} read again, {done.removed} gone)"
    return Check("index", True, f"{output.plural(done.sessions, 'session')}, {state}")


def _leftovers() -> Check:
    """What a crash left in the staging and trash directories is dead weight, not damage."""
    with open_root() as store:
        leftovers = getattr(store.port, "leftovers", None)
        found: list[str] = list(leftovers()) if leftovers is not None else []
    if not found:
        return Check("leftovers", True, "none")
    listed = output.one_line(", ".join(sorted(found)[:3]))
    return Check("leftovers", True, f"{len(found)}, safe to delete if nothing runs: {listed}")
