"""`everlog doctor`: check the home, its settings, the model, and every store.

It changes nothing but the index, which may be updated at any time. The bytes of the logs are
checked by `everlog sessions verify`.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everlog.cli import output
from everlog.cli.options import chosen_home, chosen_location, command, open_chosen_store

if TYPE_CHECKING:
    from everlog.interop.locations import Location
    from everlog.session import Store
    from everlog.settings import Settings

Checks = dict[str, Callable[[], str]]


@command()
@click.option("--watch", is_flag=True, help="Keep the index up to date until Ctrl-C.")
def doctor(watch: bool, as_json: bool) -> int:
    """Check the home, its settings, the model, and every store.

    Updates the index. Exits 1 if a check fails. With --watch it keeps running: whenever any program
    changes a session, the index is updated and the session's id is printed.
    """
    from everlog.app import load_settings, locate
    from everlog.errors import EverlogError

    home = chosen_home()
    checks: Checks = {"versions": _versions, "home": partial(_home, home), "settings": partial(_settings, home)}
    location = ""
    try:
        settings = load_settings(home)
        checks["model"] = partial(_model, settings)
        main, *further = locate(chosen_location(), home=home)
        location = main.text
        checks |= _store_checks(main, home)
        for number, other in enumerate(further, 1):
            checks[f"stores {number}"] = partial(_further, other, home)
    except EverlogError as error:
        checks.setdefault("store", partial(_fail, error))
    results = [_run_check(name, check) for name, check in checks.items()]
    failed = [result["name"] for result in results if not result["ok"]]
    if as_json:
        output.print_json({"home": str(home), "store": location, "ok": not failed, "checks": results})
    else:
        for result in results:
            print(f"{'ok   ' if result['ok'] else 'FAIL '}  {result['name']:9}  {result['detail']}")
    if failed:
        output.warn(f"failed: {', '.join(failed)}")
        return 1
    if watch:
        _watch_sessions()
    return 0


def _fail(error: Exception) -> str:
    raise error


def _store_checks(location: Location, home: Path) -> Checks:
    """Return the checks of the store that the user selected."""
    from everlog.app import is_default_home

    if location.kind == "database":
        return {"store": _database}
    if location.kind == "memory":
        return {"store": lambda: "in memory: each program has its own, and nothing is kept"}
    if location.kind == "foreign":
        return {"store": partial(_files, location)}
    directory = location.directory
    if directory == home and is_default_home(home) and not directory.exists():
        return {"store": lambda: f"{directory}: not made yet; the first session makes it"}
    checks: Checks = {"store": partial(_directory, directory)}
    if directory.is_dir():
        checks["sessions"] = partial(_sessions, directory)
        checks |= {"index": _index, "leftovers": _leftovers}
    return checks


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

    with open_chosen_store() as store:
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


def _home(home: Path) -> str:
    from everlog.app import is_default_home

    if is_default_home(home) and not home.exists():
        return f"{home}: not made yet"
    return _directory(home)


def _directory(root: Path) -> str:
    """Check that a directory of ours is there, and that others cannot write to it."""
    from everlog.errors import StoreFailedError
    from everlog.index.index_file import MIN_ROOM, free_bytes

    try:
        status = os.stat(root)
    except OSError as error:
        hint = " (everlog store init makes it)" if isinstance(error, FileNotFoundError) else ""
        raise StoreFailedError(f"{root}: {error.strerror}{hint}") from error
    if not stat.S_ISDIR(status.st_mode):
        raise StoreFailedError(f"{root}: not a directory")
    mode = stat.S_IMODE(status.st_mode)
    problems = []
    if status.st_uid != os.geteuid():
        problems.append(f"belongs to uid {status.st_uid}, not to you ({os.geteuid()})")
    if mode & 0o022:
        problems.append(f"mode {mode:04o} lets others write (chmod 700 {root})")
    if (free := free_bytes(root)) < 0:
        problems.append("the file system is read-only: sessions can be read, nothing can be written")
    elif not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        problems.append("you have no write permission")
    elif free < MIN_ROOM:
        problems.append(f"the disk is full ({output.size(free)} free): sessions can be read, writing may fail")
    if problems:
        raise StoreFailedError(f"{root}: {'; '.join(problems)}")
    return f"{root}: mode {mode:04o}"


def _settings(home: Path) -> str:
    from everlog.app import load_settings

    load_settings(home)
    file = home / "config.toml"
    return f"{file}: valid" if file.exists() else "defaults (no config.toml)"


def _model(settings: Settings) -> str:
    """Check that the models of all agents can be used: their names, packages and keys. Nothing is sent."""
    from everlog.app import provider

    models = {settings.turn.model, *(settings.model_of(agent) for agent in settings.agents)}
    for model in sorted(models):
        provider(model, settings)
    return ", ".join(sorted(models))


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


def _files(location: Location) -> str:
    """Read the foreign directory, and name the files that are not taken as sessions."""
    with open_chosen_store() as store:
        return f"{location.text}: {_describe_files(store)}"


def _further(location: Location, home: Path) -> str:
    """Read a further store of the settings."""
    from everlog.app import open_store
    from everlog.errors import NotFoundError
    from everlog.settings import Settings

    if not location.directory.is_dir():
        raise NotFoundError(
            f"there is no directory {location.directory}", hint="make it, or take it out of [[stores]] in config.toml"
        )
    with open_store(location.text, home=home, settings=Settings()) as store:
        return f"{location.text}: {_describe_files(store)}"


def _describe_files(store: Store) -> str:
    from everlog.ports import DirectoryBacked, Purgeable

    purgeable = store.port.capability(Purgeable)
    removed = 0 if purgeable is None else purgeable.purge()
    count = store.list(limit=1).total
    directories = store.port.capability(DirectoryBacked)
    skipped = () if directories is None else directories.skipped_files()
    others = "".join(f"; not a session: {file.path} ({file.reason})" for file in skipped)
    gone = f"; removed what was left of {output.plural(removed, 'deleted session')}" if removed else ""
    return f"{output.plural(count, 'session')}{gone}{others}"


def _database() -> str:
    """Check that the database can be reached and has tables of this version."""
    with open_chosen_store() as store:
        count = store.list(limit=1).total
        return f"{store.port!r}: {output.plural(count, 'session')}"


def _index() -> str:
    from everlog.ports import Sweepable

    with open_chosen_store() as store:
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

    with open_chosen_store() as store:
        sweepable = store.port.capability(Sweepable)
        paths = [] if sweepable is None else sweepable.leftovers()
    if not paths:
        return "none"
    return f"{len(paths)}, safe to delete while no everlog process is running: {', '.join(sorted(paths)[:3])}"
