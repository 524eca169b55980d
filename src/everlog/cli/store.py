"""`everlog store`: maintain the native store, and copy sessions to another one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from everlog.cli import output
from everlog.cli.options import chosen_root, chosen_store, json_option, root_option

if TYPE_CHECKING:
    from everlog.interop.store_copy import CopyReport
    from everlog.model import Damaged
    from everlog.stores.disk_usage import DiskUsage
    from everlog.stores.file.file_store import FileStore
    from everlog.stores.postgres.postgres_store import PostgresStore


@click.group()
@root_option()
def store() -> None:
    """Maintain the store of the sessions: a directory or a database."""


@store.command("migrate")
@json_option
@root_option()
def migrate(as_json: bool) -> None:
    """Migrate the tables of a database to the version of this everlog.

    Needed only for a database with older tables; in an empty one any command creates the tables.
    Each step is atomic, and running it again does nothing. Files need no migration.
    """
    from everlog.app import migrate_database

    address = chosen_store()
    before = after = 0
    if address is not None:
        before, after = migrate_database(address, home=chosen_root())
    if as_json:
        output.print_json({"before": before, "after": after})
    elif address is None:
        print("files need no migration")
    elif before == after:
        print(f"the tables have version {after}")
    else:
        print(f"the tables have version {after} now, {before or 'none'} before")


# --- copying


@store.command("copy")
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@click.option("--session", "sessions", metavar="ID", multiple=True, help="Copy only this one; repeatable.")
@json_option
@root_option()
def copy(source: str, target: str, sessions: tuple[str, ...], as_json: bool) -> int:
    """Copy sessions from one store to another, byte for byte.

    SRC and DST are directories or postgresql:// addresses. Every written line is read back and
    compared. Run it again to continue after an interruption, or to copy what was added since. A
    session that differs in DST is refused and left unchanged. Exits 1 if anything was damaged or
    refused.
    """
    from everlog.app import check_location
    from everlog.errors import EverlogError
    from everlog.interop import store_copy

    for address in (source, target):
        check_location(address)
    if _normalize_address(source) == _normalize_address(target):
        raise click.UsageError("SRC and DST are the same")
    if "://" not in source and not os.path.isdir(os.path.expanduser(source)):
        raise click.UsageError(f"SRC: there is no directory {source}")
    with (
        _open_native_store(source) as source_store,
        _open_native_store(target) as target_store,
        output.progress("copying") as on_progress,
    ):
        try:
            ids = [source_store.resolve(name, prefix=True) for name in sessions]
            report = store_copy.copy(source_store, target_store, ids or None, on_progress)
        except EverlogError as error:
            if not sessions:
                error.hint = "; ".join(filter(None, (error.hint, "run it again to continue")))
            raise
    if as_json:
        output.print_json(report)
    else:
        _print_copy_report(report)
    return 0 if report.ok else 1


def _normalize_address(address: str) -> str:
    return address if "://" in address else os.path.realpath(os.path.expanduser(address))


@contextmanager
def _open_native_store(address: str | None = None) -> Iterator[FileStore | PostgresStore]:
    """Open a store by its address, or the one that the user selected."""
    from everlog.app import open_transferable

    location = address or chosen_store() or str(chosen_root())
    with output.progress("indexing sessions") as on_progress:
        opened = open_transferable(location, home=chosen_root(), progress=on_progress)
        try:
            yield opened
        finally:
            opened.close()
    for report in opened.reports:
        output.warn(report)


def _print_copy_report(report: CopyReport) -> None:
    for damage in report.damage:
        seq = "" if damage.seq is None else f" seq {damage.seq}"
        suffix = ", left out" if damage.left_out else ""
        location = f"{damage.session}/{damage.file} bytes {damage.start} to {damage.end}{seq}"
        print(f"{location}: {output.one_line(damage.problem)}{suffix}")
    counts = f"{output.plural(report.copied, 'session')} copied, {report.grown:,} extended"
    written = f"{output.plural(report.lines, 'line')}, {output.size(report.bytes)}"
    print(f"{counts}, {report.same:,} unchanged; {written}")
    print(f"{output.plural(report.compared, 'line')} read back and equal")
    sys.stdout.flush()
    for refusal in report.refused:
        output.warn(f"refused {refusal.session}: {refusal.problem}")
    if report.damage:
        sessions = output.plural(len({damage.session for damage in report.damage}), "session")
        output.warn(f"{output.plural(len(report.damage), 'problem')} in {sessions} of the source")


# --- checking


@store.command("verify")
@json_option
@root_option()
def verify(as_json: bool) -> int:
    """Check the integrity of every session, listed or not.

    Prints every wrong crc, seq, part or, in a database, epoch; exits 1 if there is any damage.
    """
    from everlog.errors import EverlogError, NotFoundError, StoreFailedError
    from everlog.model import Damaged
    from everlog.ports import shared_between_machines

    damage: list[tuple[str, Damaged]] = []
    verified = 0
    with _open_native_store() as opened, output.progress("verifying") as on_progress:
        ids = list(opened.ids())
        for number, session in enumerate(ids, 1):
            try:
                damage += [(session, damaged) for damaged in opened.verify(session)]
                verified += 1
            except NotFoundError:
                pass  # deleted meanwhile
            except EverlogError as error:  # go on with the other sessions
                is_database = shared_between_machines(opened) is not None
                if isinstance(error, StoreFailedError) and is_database:
                    raise  # a database fails as a whole
                unreadable = Damaged(file="session.jsonl", start=0, end=0, problem=error.message)
                damage.append((session, unreadable))
            on_progress(number, len(ids))
    if as_json:
        results = [_damage_json(session, damaged) for session, damaged in damage]
        output.print_json({"ok": not damage, "sessions": verified, "damage": results})
    else:
        _print_verified(verified, damage)
    return 1 if damage else 0


def _damage_json(session: str, damage: Damaged) -> dict[str, Any]:
    location = {"session": session, "file": damage.file, "start": damage.start, "end": damage.end}
    return {**location, "seq": damage.seq, "problem": damage.problem}


def _print_verified(verified: int, damage: list[tuple[str, Damaged]]) -> None:
    for session, damaged in damage:
        seq = "" if damaged.seq is None else f" seq {damaged.seq}"
        print(f"{session}/{damaged.file}{seq}: {output.one_line(damaged.problem)}")
    if not damage:
        print(f"{output.plural(verified, 'session')} verified, no damage")
        return
    sys.stdout.flush()
    sessions = output.plural(len({session for session, _ in damage}), "session")
    output.warn(f"{output.plural(len(damage), 'problem')} in {sessions}")


@store.command("stats")
@click.option(
    "--limit", default=10, show_default=True, type=click.IntRange(0), help="List this many of the biggest sessions."
)
@json_option
@root_option()
def stats(limit: int, as_json: bool) -> None:
    """Show how much space the store uses, and for what."""
    with _open_native_store() as opened:
        usage = opened.disk_usage(limit)
    if as_json:
        output.print_json(usage)
    else:
        _print_stats(usage)


def _print_stats(usage: DiskUsage) -> None:
    records = output.plural(usage.records, "record")
    print(f"{output.plural(usage.sessions, 'session')}, {records}, {output.size(usage.bytes)}")
    if usage.version:
        print(f"table version {usage.version}")
    for area in usage.rooms:
        indexes = f"  plus {output.size(area.indexes)} of indexes" if area.indexes else ""
        print(f"  {output.size(area.bytes):>9}  {output.one_line(area.name)}{indexes}")
    if usage.biggest:
        print("biggest sessions")
    for session in usage.biggest:
        label = f"{session.session}  {output.plural(session.records, 'record')}"
        print(f"  {output.size(session.bytes):>9}  {label}  {output.one_line(session.title)}")
