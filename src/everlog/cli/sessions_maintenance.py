"""Maintenance of sessions: `everlog sessions verify`, `repair`, `rm`, `prune` and `reclaim`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from everlog.cli import output
from everlog.cli.options import (
    chosen_home,
    command,
    confirm_prefix,
    find_session,
    open_chosen_store,
    open_session,
    optional_session_argument,
    parse_age,
    session_argument,
    yes_option,
)

if TYPE_CHECKING:
    from everlog.interop.store_copy import SourceDamage
    from everlog.model import Damaged
    from everlog.ports import SkippedFile
    from everlog.wire.responses import Damage


@command()
@optional_session_argument
def verify(session_id: str | None, as_json: bool) -> int:
    """Check the integrity of one session or of all.

    Reads every byte. For each wrong crc, seq or part it prints the file, byte range and seq; it
    exits 1 if there is any damage.
    """
    import msgspec

    from everlog.ports import DirectoryBacked
    from everlog.wire.responses import Damage

    skipped: Sequence[SkippedFile] = ()
    with open_chosen_store() as store:
        if session_id is not None:
            session = find_session(store, session_id)
            verified, damage = 1, [Damage.of(session.id, damaged) for damaged in session.verify()]
        else:
            readable, unreadable, damage = check_sessions((row.id for row in store.walk()), store.port.verify)
            verified = readable + unreadable
            directories = store.port.capability(DirectoryBacked)
            skipped = () if directories is None else directories.skipped_files()
    if as_json:
        results = [msgspec.to_builtins(item) for item in damage]
        for result in results if session_id is not None else ():
            del result["session"]
        output.print_json({"ok": not damage, "damage": results, **({"skipped": skipped} if skipped else {})})
    else:
        output.print_skipped(skipped)
        print_check(verified, damage, with_bytes=True)
    if damage:
        hint = "everlog sessions repair ID repairs what it can"
        output.warn(f"{count_problems(damage)} of {verified:,} ({hint})")
    return 1 if damage else 0


def check_sessions(
    sessions: Iterable[str], verify: Callable[[str], Iterable[Damaged]], fatal: tuple[type[Exception], ...] = ()
) -> tuple[int, int, list[Damage]]:
    """Check the integrity of sessions; return how many could be read, how many not, and the damage.

    A session that cannot be read counts as damaged; an error that is `fatal` ends the check.
    """
    from everlog.errors import EverlogError, NotFoundError
    from everlog.wire.responses import Damage

    damage: list[Damage] = []
    readable = unreadable = 0
    with output.progress("verifying") as on_progress:
        ids = list(sessions)
        for number, session in enumerate(ids, 1):
            try:
                damage += [Damage.of(session, damaged) for damaged in verify(session)]
                readable += 1
            except fatal:
                raise
            except NotFoundError:
                pass  # deleted meanwhile
            except EverlogError as error:  # go on with the other sessions
                unreadable += 1
                damage.append(Damage.unreadable(session, error.message))
            on_progress(number, len(ids))
    return readable, unreadable, damage


def print_check(verified: int, damage: Sequence[Damage], *, with_bytes: bool) -> None:
    """Print the damage that a check found, or that there is none."""
    for item in damage:
        print(format_damage(item, with_bytes=with_bytes))
    if not damage:
        print(f"{output.plural(verified, 'session')} verified, no damage")


def format_damage(damage: Damage | SourceDamage, *, with_bytes: bool = True) -> str:
    """Return one line: session, file, place and problem."""
    place = f" bytes {damage.start} to {damage.end}" if with_bytes else ""
    place += "" if damage.seq is None else f" seq {damage.seq}"
    return output.one_line(f"{damage.session}/{damage.file}{place}: {damage.problem}")


def count_problems(damage: Sequence[Damage | SourceDamage]) -> str:
    """Return how many problems there are in how many sessions, as text."""
    sessions = output.plural(len({item.session for item in damage}), "session")
    return f"{output.plural(len(damage), 'problem')} in {sessions}"


@command()
@session_argument
def repair(session_id: str, as_json: bool) -> None:
    """Repair what can be repaired, without deleting anything."""
    with open_session(session_id) as session:
        steps = session.repair()
        remaining = session.verify()
    if as_json:
        output.print_json({"id": session.id, "done": steps})
    else:
        for step in steps or ("nothing to repair",):
            print(output.one_line(step))
    if remaining:
        output.warn(f"{output.plural(len(remaining), 'problem')} could not be repaired")


@command()
@session_argument
@click.option("--yes", is_flag=True, help="Delete without asking.")
def rm(session_id: str, yes: bool, as_json: bool) -> int:
    """Delete a session permanently, after asking.

    Its text is removed from all files of the home. Copies in the archive stay, and are counted.
    """
    from everlog.interop.archive.archive_listing import count_archived
    from everlog.ports import FileBacked

    with open_session(session_id) as session:
        if not yes:
            if not output.is_terminal(sys.stdin):
                raise click.UsageError("deleting needs --yes when stdin is not a terminal")
            metadata = session.metadata
            label = f"{output.one_line(metadata.display_title)}, {output.plural(metadata.message_count, 'message')}"
            if not click.confirm(f"Delete {session.id} ({label}) permanently?", err=True):
                output.warn("nothing was deleted")
                return 1
        files = session.store.port.capability(FileBacked)
        archived = 0 if files is None else count_archived(chosen_home(), files.paths(session.id))
        count = session.delete()
    text = f"deleted {session.id}: {output.plural(count, 'part')}"
    if archived:
        text += f"; the archive still has {output.plural(archived, 'file')} of it (see everlog archive list)"
    fields = {"id": session.id, "parts": count, **({"archived": archived} if archived else {})}
    output.print_answer(fields, text, as_json)
    return 0


@command()
@click.option(
    "--older-than",
    required=True,
    callback=parse_age,
    metavar="AGE",
    help="Select sessions without activity for this long: 30d, 12h, 2w, 45m.",
)
@click.option("--yes", is_flag=True, help="Delete them; without it they are only listed.")
def prune(older_than: float, yes: bool, as_json: bool) -> int:
    """Delete sessions that have been inactive for a long time.

    The time of the last message counts. Without --yes it only prints what it would delete.
    """
    from everlog.errors import EverlogError, NotFoundError, SessionBusyError

    before = time.time() - older_than
    deleted = failed = 0
    entries: list[dict[str, Any]] = []
    with open_chosen_store() as store, output.progress("pruning") as on_progress:
        idle = [row for row in store.walk() if _is_idle(row.metadata.last_message_at, before)]
        for count, session in enumerate(idle, 1):
            entry = {
                "id": session.id,
                "title": session.metadata.display_title,
                "lastMessageAt": session.metadata.last_message_at,
                "bytes": session.bytes,
                "parts": session.parts,
            }
            entries.append(entry)
            if not yes:
                continue
            try:
                # It may have been used since it was listed.
                if _is_idle(store.port.metadata(session.id).last_message_at, before):
                    store.port.delete(session.id)
                    deleted += 1
                else:
                    entry["skipped"] = "active again"
            except SessionBusyError as error:
                entry["skipped"] = f"busy: {error.message}"
            except NotFoundError:
                entry["skipped"] = "already deleted"
            except EverlogError as error:
                entry["skipped"] = str(error)
                failed += 1
            on_progress(count, len(idle))
    if as_json:
        output.print_json({"sessions": entries, "deleted": deleted, "dryRun": not yes})
    else:
        _print_pruned(entries, deleted, dry_run=not yes)
    if failed:
        output.warn(f"{output.plural(failed, 'session')} could not be deleted")
    return 1 if failed else 0


def _is_idle(last: str, before: float) -> bool:
    """Return whether the last activity was before a time; False if it cannot be parsed."""
    from everlog.ids import epoch_ms

    last_ms = epoch_ms(last)
    return last_ms is not None and last_ms / 1000 < before


def _print_pruned(entries: list[dict[str, Any]], deleted: int, *, dry_run: bool) -> None:
    now = time.time()
    for entry in entries:
        label = f"{entry['id']}  {output.ago(entry['lastMessageAt'], now)}"
        label += f"  {output.size(entry['bytes'])}  {output.one_line(entry['title'])}"
        if "skipped" in entry:
            output.warn(f"skipped {entry['id']}: {entry['skipped']}")
        else:
            print(f"{'would delete' if dry_run else 'deleted'} {label}")
    total = sum(entry["bytes"] for entry in entries if "skipped" not in entry)
    if dry_run:
        count = output.plural(len(entries), "session")
        print(f"{count}, {output.size(total)}; nothing was deleted (--yes deletes)")
    else:
        print(f"{output.plural(deleted, 'session')} deleted, {output.size(total)}")


@command()
@session_argument
@yes_option
def reclaim(session_id: str, yes: bool, as_json: bool) -> None:
    """Remove skipped lines from a PicoClaw session.

    These are the lines that PicoClaw no longer reads. They are archived first (see everlog archive
    list). Other kinds of sessions have nothing to reclaim.
    """
    with open_session(session_id) as session:
        confirm_prefix(session, session_id, "Remove skipped lines of", yes=yes)
        freed = session.reclaim()
    text = f"{session.id}: {output.size(freed)} freed" if freed else "nothing to reclaim"
    output.print_answer({"id": session.id, "bytesFreed": freed}, text, as_json)
