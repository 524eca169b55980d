"""`everlog store`: maintain the native store, and copy sessions to another one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from everlog.cli import output
from everlog.cli.options import chosen_home, chosen_location, command, warn_of_reports
from everlog.cli.sessions_maintenance import check_sessions, count_problems, format_damage, print_check

if TYPE_CHECKING:
    from everlog.interop.store_copy import CopyReport
    from everlog.ports import DiskUsage, Transferable


@command("migrate")
def migrate(as_json: bool) -> None:
    """Migrate the tables of a database to the version of this everlog.

    Needed only for a database with older tables; in an empty one any command creates the tables.
    Each step is atomic, and running it again does nothing. Files need no migration.
    """
    from everlog.app import migrate_database

    versions = migrate_database(chosen_location(), home=chosen_home())
    before, after = versions or (0, 0)
    text = f"the tables have version {after}"
    if versions is None:
        text = "files need no migration"
    elif before != after:
        text += f" now, {before or 'none'} before"
    output.print_answer({"before": before, "after": after}, text, as_json)


@command("init")
def init(as_json: bool) -> None:
    """Make the store that --store or the settings name: its directory, or its tables.

    Any other command refuses a directory that does not exist. Making a store again changes nothing.
    """
    from everlog.app import init_store

    made = init_store(chosen_location(), home=chosen_home())
    output.print_answer({"store": made}, f"ready: {made}", as_json)


# --- copying


@command("copy")
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@click.option("--session", "sessions", metavar="ID", multiple=True, help="Copy only this one; repeatable.")
def copy(source: str, target: str, sessions: tuple[str, ...], as_json: bool) -> int:
    """Copy sessions from one store to another, byte for byte.

    SRC and DST are directories or postgresql:// addresses; a missing DST is made. Every written line
    is read back and compared. Run it again to continue after an interruption, or to copy what was added since. A
    session that differs in DST is refused and left unchanged. Exits 1 if anything was damaged or
    refused.
    """
    from everlog.errors import EverlogError
    from everlog.interop import store_copy

    if _normalize_address(source) == _normalize_address(target):
        raise click.UsageError("SRC and DST are the same")
    with (
        _open_native_store(source) as source_store,
        _open_native_store(target, create=True) as target_store,
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
def _open_native_store(location: str | None = None, *, create: bool = False) -> Iterator[Transferable]:
    """Open a store by its location, or the one that the user selected."""
    from everlog.app import open_transferable

    with output.progress("indexing sessions") as on_progress:
        location = location or chosen_location()
        opened = open_transferable(location, home=chosen_home(), create=create, progress=on_progress)
        try:
            yield opened
        finally:
            opened.close()
    warn_of_reports(opened)


def _print_copy_report(report: CopyReport) -> None:
    for damage in report.damage:
        print(format_damage(damage) + (", left out" if damage.left_out else ""))
    counts = f"{output.plural(report.copied, 'session')} copied, {report.grown:,} extended"
    written = f"{output.plural(report.lines, 'line')}, {output.size(report.bytes)}"
    print(f"{counts}, {report.same:,} unchanged; {written}")
    print(f"{output.plural(report.compared, 'line')} read back and equal")
    for refusal in report.refused:
        output.warn(f"refused {refusal.session}: {refusal.problem}")
    if report.damage:
        output.warn(f"{count_problems(report.damage)} of the source")


# --- checking


@command("verify")
def verify(as_json: bool) -> int:
    """Check the integrity of every session, listed or not.

    Prints every wrong crc, seq, part or, in a database, epoch; exits 1 if there is any damage.
    """
    from everlog.errors import StoreFailedError
    from everlog.ports import SharedBetweenMachines

    with _open_native_store() as opened:
        # A database fails as a whole, not session by session.
        fatal = () if opened.capability(SharedBetweenMachines) is None else (StoreFailedError,)
        verified, _, damage = check_sessions(opened.ids(), opened.verify, fatal)
    if as_json:
        output.print_json({"ok": not damage, "sessions": verified, "damage": damage})
    else:
        print_check(verified, damage, with_bytes=False)
        if damage:
            output.warn(count_problems(damage))
    return 1 if damage else 0


@command("stats")
@click.option(
    "--limit", default=10, show_default=True, type=click.IntRange(0), help="List this many of the biggest sessions."
)
def stats(limit: int, as_json: bool) -> None:
    """Show how much space the store uses, and for what."""
    from everlog.ports import Measurable

    with _open_native_store() as opened:
        measurable = opened.capability(Measurable)
        if measurable is None:
            raise click.UsageError("the space that this store uses cannot be measured")
        usage = measurable.disk_usage(limit)
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
