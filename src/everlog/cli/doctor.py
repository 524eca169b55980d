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
from typing import Any

import click

from everlog.cli import output
from everlog.cli.options import chosen_foreign, chosen_root, chosen_store, command, open_root


@command()
@click.option("--watch", is_flag=True, help="Keep the index up to date until Ctrl-C.")
def doctor(watch: bool, as_json: bool) -> int:
    """Check the root, its settings and its index.

    Updates the index. Exits 1 if a check fails. With --watch it keeps running: whenever any program
    changes a session, the index is updated and the session's id is printed.
    """
    root = chosen_root()
    checks: dict[str, Callable[[], str]] = {"versions": _versions}
    if chosen_store() is not None:
        checks["database"] = _database
    else:
        checks["root"] = lambda: _root(root)
        if root.is_dir():
            checks["settings"] = lambda: _settings(root)
            checks["sessions"] = lambda: _sessions(root)
            checks |= {"index": _index, "leftovers": _leftovers}
    if chosen_foreign() is not None:
        checks["files"] = _files
    results = [_run_check(name, check) for name, check in checks.items()]
    failed = [result["name"] for result in results if not result["ok"]]
    if as_json:
        output.print_json({"root": str(root), "ok": not failed, "checks": results})
    else:
        for result in results:
            print(f"{'ok   ' if result['ok'] else 'FAIL '}  {result['name']:9}  {result['detail']}")
    if failed:
        output.warn(f"failed: {', '.join(failed)}")
        return 1
    if watch:
        _watch_sessions()
    return 0


def _run_check(name: str, check: Callable[[], str]) -> dict[str, Any]:
    """Run a check, which returns what it found or raises the problem."""
    from everlog.errors import EverlogError

    try:
        return {"name": name, "ok": True, "detail": output.one_line(check())}
    except (EverlogError, OSError) as error:
        return {"name": name, "ok": False, "detail": output.one_line(str(error))}


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


def _versions() -> str:
    import apsw
    import msgspec

    from everlog import __version__

    python = ".".join(str(number) for number in sys.version_info[:3])
    sqlite = f"SQLite {apsw.sqlite_lib_version()}, apsw {apsw.apsw_version()}"
    return f"everlog {__version__}, Python {python}, {sqlite}, msgspec {msgspec.__version__}"


def _root(root: Path) -> str:
    from everlog.errors import StoreFailedError

    try:
        status = os.stat(root)
    except OSError as error:
        hint = " (everlog sessions new creates it)" if isinstance(error, FileNotFoundError) else ""
        raise StoreFailedError(f"{root}: {error.strerror}{hint}") from error
    if not stat.S_ISDIR(status.st_mode):
        raise StoreFailedError(f"{root}: not a directory")
    mode = stat.S_IMODE(status.st_mode)
    problems = []
    if status.st_uid != os.geteuid():
        problems.append(f"belongs to uid {status.st_uid}, not to you ({os.geteuid()})")
    if mode & 0o022:
        problems.append(f"mode {mode:04o} lets others write (chmod 700 {root})")
    if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        problems.append("you have no write permission")
    if problems:
        raise StoreFailedError(f"{root}: {'; '.join(problems)}")
    return f"{root}: mode {mode:04o}"


def _settings(root: Path) -> str:
    from everlog.app import load_settings

    load_settings(root)
    file = root / "config.toml"
    return f"{file}: valid" if file.exists() else "defaults (no config.toml)"


def _sessions(root: Path) -> str:
    """Check that every entry is a session's directory that other users cannot open."""
    from everlog.errors import StoreFailedError
    from everlog.ids import is_ulid

    count, stray_entries, open_to_others = 0, [], []
    try:
        entries = os.scandir(root / "sessions")
    except FileNotFoundError:
        return "none yet"
    with entries:
        for entry in entries:
            if not is_ulid(entry.name) or not entry.is_dir(follow_symlinks=False):
                stray_entries.append(entry.name)
                continue
            count += 1
            if entry.stat(follow_symlinks=False).st_mode & 0o077:
                open_to_others.append(entry.name)
    detail = output.plural(count, "session")
    for names, problem in (
        (stray_entries, "in sessions/ that are not session directories and are ignored"),
        (open_to_others, "that other users can open (chmod 700)"),
    ):
        if names:
            found = output.plural(len(names), "entry").replace("entrys", "entries")
            detail += f"; {found} {problem}, such as {output.one_line(min(names))[:60]}"
    if stray_entries or open_to_others:
        raise StoreFailedError(detail)
    return detail


def _files() -> str:
    """Read the foreign directory, and name the files that are not taken as sessions."""
    from everlog.ports import DirectoryBacked

    with open_root() as store:
        count = store.list(limit=1).total
        directories = store.port.capability(DirectoryBacked)
        skipped = () if directories is None else directories.skipped_files()
    others = "".join(f"; not a session: {file.path} ({file.reason})" for file in skipped)
    return f"{output.plural(count, 'session')}{others}"


def _database() -> str:
    """Check that the database can be reached and has tables of this version."""
    with open_root() as store:
        count = store.list(limit=1).total
        return f"{store.port!r}: {output.plural(count, 'session')}"


def _index() -> str:
    from everlog.ports import Sweepable

    with open_root() as store:
        sweepable = store.port.capability(Sweepable)
        if sweepable is None:
            return "this store has no index"
        with output.progress("reading sessions") as on_progress:
            report = sweepable.sweep(on_progress)
    state = "up to date"
    if report.refreshed + report.removed:
        state = f"updated ({report.refreshed} read again, {report.removed} removed)"
    return f"{output.plural(report.sessions, 'session')}, {state}"


def _leftovers() -> str:
    """List what a crash left in the staging and trash directories: garbage, not damage."""
    from everlog.ports import Sweepable

    with open_root() as store:
        sweepable = store.port.capability(Sweepable)
        paths = [] if sweepable is None else sweepable.leftovers()
    if not paths:
        return "none"
    return f"{len(paths)}, safe to delete while no everlog process is running: {', '.join(sorted(paths)[:3])}"
