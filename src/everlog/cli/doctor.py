"""`everlog doctor`: check a root and its derived data.

It changes nothing but the index, which may be updated at any time. The bytes of the logs are
checked by `everlog sessions verify`.
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
from everlog.cli.options import chosen_root, chosen_store, command, open_root


class Check(NamedTuple):
    """The result of one check."""

    name: str
    ok: bool
    detail: str


@command()
@click.option("--watch", is_flag=True, help="Keep the index up to date until Ctrl-C.")
def doctor(watch: bool, as_json: bool) -> int:
    """Check the root, its settings and its index.

    Updates the index. Exits 1 if a check fails. With --watch it keeps running: whenever any program
    changes a session, the index is updated and the session's id is printed.
    """
    root = chosen_root()
    checks = [_versions()]
    if chosen_store() is not None:
        checks.append(_run_check("database", _database))
    else:
        checks.append(_root(root))
    if root.is_dir() and chosen_store() is None:
        checks += [
            _run_check("settings", lambda: _settings(root)),
            _run_check("sessions", lambda: _sessions(root)),
            _run_check("index", _index),
            _run_check("leftovers", _leftovers),
        ]
    failures = [check for check in checks if not check.ok]
    if as_json:
        results = [check._asdict() for check in checks]
        output.print_json({"root": str(root), "ok": not failures, "checks": results})
    else:
        for check in checks:
            print(f"{'ok   ' if check.ok else 'FAIL '}  {check.name:9}  {check.detail}")
    if failures:
        output.warn(f"failed: {', '.join(check.name for check in failures)}")
        return 1
    if watch:
        _watch_sessions()
    return 0


def _watch_sessions() -> None:
    """Print the ids of sessions as they change, one per line."""
    import threading

    from everlog.ports import Watchable

    with open_root() as store:
        watchable = store.port.capability(Watchable)
        if watchable is None:
            raise click.UsageError("this store cannot be watched")
        for sessions in watchable.watch(threading.Event()):
            for session_id in sorted(sessions):
                print(session_id, flush=True)


def _run_check(name: str, check: Callable[[], Check]) -> Check:
    """Run a check; one that raises an error counts as failed."""
    from everlog.errors import EverlogError

    try:
        return check()
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
    path = output.one_line(str(root))
    try:
        status = os.stat(root)
    except OSError as error:
        hint = " (everlog sessions new creates it)" if isinstance(error, FileNotFoundError) else ""
        return Check("root", False, f"{path}: {error.strerror}{hint}")
    mode = stat.S_IMODE(status.st_mode)
    problems = []
    if not stat.S_ISDIR(status.st_mode):
        return Check("root", False, f"{path}: not a directory")
    if status.st_uid != os.geteuid():
        problems.append(f"belongs to uid {status.st_uid}, not to you ({os.geteuid()})")
    if mode & 0o022:
        problems.append(f"mode {mode:04o} lets others write (chmod 700 {path})")
    if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        problems.append("you have no write permission")
    return Check("root", not problems, f"{path}: {'; '.join(problems) or f'mode {mode:04o}'}")


def _settings(root: Path) -> Check:
    from everlog.app import load_settings

    load_settings(root)
    file = root / "config.toml"
    state = f"{file}: valid" if file.exists() else "defaults (no config.toml)"
    return Check("settings", True, output.one_line(state))


def _sessions(root: Path) -> Check:
    """Check that every entry is a session's directory that other users cannot open."""
    from everlog.ids import is_ulid

    count, stray_entries, open_to_others = 0, [], []
    try:
        entries = os.scandir(root / "sessions")
    except FileNotFoundError:
        return Check("sessions", True, "none yet")
    with entries:
        for entry in entries:
            if not is_ulid(entry.name) or not entry.is_dir(follow_symlinks=False):
                stray_entries.append(entry.name)
                continue
            count += 1
            if entry.stat(follow_symlinks=False).st_mode & 0o077:
                open_to_others.append(entry.name)
    problems = [
        f"{output.plural(len(names), 'entry').replace('entrys', 'entries')} {problem}, "
        f"such as {output.one_line(min(names))[:60]}"
        for names, problem in (
            (stray_entries, "in sessions/ that are not session directories and are ignored"),
            (open_to_others, "that other users can open (chmod 700)"),
        )
        if names
    ]
    return Check("sessions", not problems, "; ".join([output.plural(count, "session"), *problems]))


def _database() -> Check:
    """Check that the database can be reached and has tables of this version."""
    with open_root() as store:
        count = store.list(limit=1).total
        return Check("database", True, f"{store.port!r}: {output.plural(count, 'session')}")


def _index() -> Check:
    from everlog.ports import Sweepable

    with open_root() as store:
        sweepable = store.port.capability(Sweepable)
        if sweepable is None:
            return Check("index", True, "this store has no index")
        with output.progress("reading sessions") as on_progress:
            report = sweepable.sweep(on_progress)
    changed = report.refreshed + report.removed
    state = "up to date"
    if changed:
        state = f"updated ({report.refreshed} read again, {report.removed} removed)"
    return Check("index", True, f"{output.plural(report.sessions, 'session')}, {state}")


def _leftovers() -> Check:
    """List what a crash left in the staging and trash directories: garbage, not damage."""
    from everlog.ports import Sweepable

    with open_root() as store:
        sweepable = store.port.capability(Sweepable)
        paths = [] if sweepable is None else sweepable.leftovers()
    if not paths:
        return Check("leftovers", True, "none")
    listed = output.one_line(", ".join(sorted(paths)[:3]))
    return Check("leftovers", True, f"{len(paths)}, safe to delete while no everlog process is running: {listed}")
