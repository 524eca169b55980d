"""`everlog store …`: look after the place that sessions are in, and move them to another one."""

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
    from everlog.interop.store_copy import Moved
    from everlog.model import Damaged
    from everlog.stores.disk_usage import Holdings
    from everlog.stores.file.file_store import FileStore
    from everlog.stores.postgres.postgres_store import PostgresStore


@click.group()
@root_option()
def store() -> None:
    """Look after the place that sessions are in: a directory or a database."""


@store.command("migrate")
@json_option
@root_option()
def migrate(as_json: bool) -> None:
    """Bring the tables of a database to the version of this everlog.

    An empty database is made ready by any command; this is for one whose tables are older. Each
    step is done whole or not at all, and doing it again does nothing. For files there is nothing
    to do.
    """
    from everlog.app import migrate_database

    address = chosen_store()
    before = after = 0
    if address is not None:
        before, after = migrate_database(address, home=chosen_root())
    if as_json:
        output.put_json({"before": before, "after": after})
    elif address is None:
        print("files need no migration")
    elif before == after:
        print(f"the tables have version {after}")
    else:
        print(f"the tables have version {after} now, {before or 'none'} before")


# --- moving


@store.command("copy")
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@click.option(
    "--session", "sessions", metavar="ID", multiple=True, help="Only this one; repeatable."
)
@json_option
@root_option()
def copy(source: str, target: str, sessions: tuple[str, ...], as_json: bool) -> int:
    """Copy sessions from one store to another, byte for byte.

    SRC and DST are directories or postgresql:// addresses. Every line that was written is read
    back and compared. Run it again to go on where it ended, or to bring over what came since; a
    session that differs in DST is refused and left alone. Exits 1 if anything was damaged or
    refused.
    """
    from everlog.app import check_address
    from everlog.errors import EverlogError
    from everlog.interop import store_copy

    for address in (source, target):
        check_address(address)
    if _place(source) == _place(target):
        raise click.UsageError("SRC and DST are the same")
    if "://" not in source and not os.path.isdir(os.path.expanduser(source)):
        raise click.UsageError(f"SRC: there is no directory {source}")
    with _home(source) as here, _home(target) as there, output.progress("copying") as tell:
        try:
            moved = store_copy.copy(here, there, sessions or None, tell)
        except EverlogError as error:
            if not sessions:
                error.hint = "; ".join(filter(None, (error.hint, "run it again to go on")))
            raise
    if as_json:
        output.put_json(moved)
    else:
        _put_moved(moved)
    return 0 if moved.ok else 1


def _place(address: str) -> str:
    return address if "://" in address else os.path.realpath(os.path.expanduser(address))


@contextmanager
def _home(address: str | None = None) -> Iterator[FileStore | PostgresStore]:
    """A store by its address, or the one that the user chose."""
    from everlog.app import open_home

    where = address or chosen_store() or str(chosen_root())
    with output.progress("indexing sessions") as tell:
        opened = open_home(where, home=chosen_root(), progress=tell)
        try:
            yield opened
        finally:
            opened.close()
    for report in opened.reports:
        output.warn(report)


def _put_moved(moved: Moved) -> None:
    for one in moved.damage:
        seq = "" if one.seq is None else f" seq {one.seq}"
        left = ", left out" if one.left_out else ""
        place = f"{one.session}/{one.file} bytes {one.start} to {one.end}{seq}"
        print(f"{place}: {output.one_line(one.problem)}{left}")
    counts = f"{output.plural(moved.copied, 'session')} copied, {moved.grown:,} brought up to date"
    written = f"{output.plural(moved.lines, 'line')}, {output.size(moved.bytes)}"
    print(f"{counts}, {moved.same:,} already there; {written}")
    print(f"{output.plural(moved.compared, 'line')} read from both and found the same")
    sys.stdout.flush()
    for trouble in moved.refused:
        output.warn(f"refused {trouble.session}: {trouble.problem}")
    if moved.damage:
        hurt = output.plural(len({one.session for one in moved.damage}), "session")
        output.warn(f"{output.plural(len(moved.damage), 'problem')} in {hurt} of the source")


# --- looking


@store.command("verify")
@json_option
@root_option()
def verify(as_json: bool) -> int:
    """Check every session, also those that no listing shows.

    Names whatever has a wrong crc, seq, part or, in a database, epoch, and exits 1.
    """
    from everlog.errors import EverlogError, NotFoundError, StoreFailedError
    from everlog.model import Damaged
    from everlog.ports import sharing_of

    damage: list[tuple[str, Damaged]] = []
    verified = 0
    with _home() as here, output.progress("verifying") as tell:
        ids = list(here.ids())
        for number, session in enumerate(ids, 1):
            try:
                damage += [(session, one) for one in here.verify(session)]
                verified += 1
            except NotFoundError:
                pass  # deleted meanwhile
            except EverlogError as error:  # one that cannot be read hides no other
                if isinstance(error, StoreFailedError) and sharing_of(here) is not None:
                    raise  # a database fails as a whole
                unread = Damaged(file="session.jsonl", start=0, end=0, problem=error.message)
                damage.append((session, unread))
            tell(number, len(ids))
    if as_json:
        found = [_damage(session, one) for session, one in damage]
        output.put_json({"ok": not damage, "sessions": verified, "damage": found})
    else:
        _put_verified(verified, damage)
    return 1 if damage else 0


def _damage(session: str, one: Damaged) -> dict[str, Any]:
    place = {"session": session, "file": one.file, "start": one.start, "end": one.end}
    return {**place, "seq": one.seq, "problem": one.problem}


def _put_verified(verified: int, damage: list[tuple[str, Damaged]]) -> None:
    for session, one in damage:
        seq = "" if one.seq is None else f" seq {one.seq}"
        print(f"{session}/{one.file}{seq}: {output.one_line(one.problem)}")
    if not damage:
        print(f"{output.plural(verified, 'session')} verified, no damage")
        return
    sys.stdout.flush()
    hurt = output.plural(len({session for session, _ in damage}), "session")
    output.warn(f"{output.plural(len(damage), 'problem')} in {hurt}")


@store.command("stats")
@click.option(
    "--limit", default=10, show_default=True, type=click.IntRange(0), help="Biggest sessions named."
)
@json_option
@root_option()
def stats(limit: int, as_json: bool) -> None:
    """Tell how much is kept, and where the room goes."""
    with _home() as here:
        held = here.holdings(limit)
    if as_json:
        output.put_json(held)
    else:
        _put_stats(held)


def _put_stats(held: Holdings) -> None:
    records = output.plural(held.records, "record")
    print(f"{output.plural(held.sessions, 'session')}, {records}, {output.size(held.bytes)}")
    if held.version:
        print(f"tables of version {held.version}")
    for room in held.rooms:
        indexes = f"  and {output.size(room.indexes)} of indexes" if room.indexes else ""
        print(f"  {output.size(room.bytes):>9}  {output.one_line(room.name)}{indexes}")
    if held.biggest:
        print("biggest sessions")
    for one in held.biggest:
        what = f"{one.session}  {output.plural(one.records, 'record')}"
        print(f"  {output.size(one.bytes):>9}  {what}  {output.one_line(one.title)}")
