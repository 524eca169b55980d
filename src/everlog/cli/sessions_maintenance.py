"""Maintenance of sessions: `everlog sessions verify`, `repair`, `rm`, `prune` and `reclaim`."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from everlog.cli import output
from everlog.cli.completion_source import complete_session
from everlog.cli.options import find_session, json_option, open_root, parse_age, root_option, session_argument

if TYPE_CHECKING:
    from everlog.model import Damaged
    from everlog.session import Store


@click.command()
@click.argument("session_id", metavar="[ID]", required=False, shell_complete=complete_session)
@json_option
@root_option()
def verify(session_id: str | None, as_json: bool) -> int:
    """Check the integrity of one session or of all.

    Reads every byte. For each wrong crc, seq or part it prints the file, byte range and seq; it
    exits 1 if there is any damage.
    """
    with open_root() as store:
        if session_id is not None:
            session = find_session(store, session_id)
            verified, damage = 1, [(session.id, damaged) for damaged in session.verify()]
        else:
            verified, damage = _verify_all(store)
    if as_json:
        results = [_damage_json(damaged, damaged_id if session_id is None else None) for damaged_id, damaged in damage]
        output.print_json({"ok": not damage, "damage": results})
    for damaged_id, damaged in () if as_json else damage:
        seq = "" if damaged.seq is None else f" seq {damaged.seq}"
        location = f"{damaged_id}/{damaged.file} bytes {damaged.start} to {damaged.end}{seq}"
        print(f"{location}: {output.one_line(damaged.problem)}")
    if not damage:
        if not as_json:
            print(f"{output.plural(verified, 'session')} verified, no damage")
        return 0
    sys.stdout.flush()
    sessions = output.plural(len({damaged_id for damaged_id, _ in damage}), "session")
    output.warn(
        f"{output.plural(len(damage), 'problem')} in {sessions} of {verified:,}"
        " (everlog sessions repair ID repairs what it can)"
    )
    return 1


def _verify_all(store: Store) -> tuple[int, list[tuple[str, Damaged]]]:
    from everlog.errors import EverlogError, NotFoundError
    from everlog.model import Damaged

    damage: list[tuple[str, Damaged]] = []
    done = 0
    with output.progress("verifying") as on_progress:
        ids = [row.id for row in store.walk()]
        for session_id in ids:
            try:
                damage += [(session_id, damaged) for damaged in store.port.verify(session_id)]
            except NotFoundError:
                continue  # deleted meanwhile
            except EverlogError as error:  # go on with the other sessions
                unreadable = Damaged(file="session.jsonl", start=0, end=0, problem=error.message)
                damage.append((session_id, unreadable))
            done += 1
            on_progress(done, len(ids))
    return done, damage


def _damage_json(damage: Damaged, session_id: str | None) -> dict[str, Any]:
    location = {"file": damage.file, "start": damage.start, "end": damage.end}
    answer: dict[str, Any] = {**location, "seq": damage.seq, "problem": damage.problem}
    return answer if session_id is None else {"session": session_id, **answer}


@click.command()
@session_argument
@json_option
@root_option()
def repair(session_id: str, as_json: bool) -> None:
    """Repair what can be repaired, without deleting anything."""
    with open_root() as store:
        session = find_session(store, session_id)
        steps = session.repair()
        remaining = session.verify()
    if as_json:
        output.print_json({"id": session.id, "done": steps})
    else:
        for step in steps or ("nothing to repair",):
            print(output.one_line(step))
    if remaining:
        sys.stdout.flush()
        output.warn(f"{output.plural(len(remaining), 'problem')} could not be repaired")


@click.command()
@session_argument
@click.option("--yes", is_flag=True, help="Delete without asking.")
@json_option
@root_option()
def rm(session_id: str, yes: bool, as_json: bool) -> int:
    """Delete a session permanently, after asking."""
    with open_root() as store:
        session = find_session(store, session_id)
        if not yes:
            if not output.is_terminal(sys.stdin):
                raise click.UsageError("deleting needs --yes when stdin is not a terminal")
            metadata = session.metadata
            label = f"{session.id} ({output.one_line(metadata.display_title)}, "
            label += f"{output.plural(metadata.message_count, 'message')})"
            if not click.confirm(f"Delete {label} permanently?", err=True):
                output.warn("nothing was deleted")
                return 1
        count = session.delete()
    if as_json:
        output.print_json({"id": session.id, "parts": count})
    else:
        print(f"deleted {session.id}: {output.plural(count, 'part')}")
    return 0


@click.command()
@click.option(
    "--older-than",
    required=True,
    callback=parse_age,
    metavar="AGE",
    help="Select sessions without activity for this long: 30d, 12h, 2w, 45m.",
)
@click.option("--yes", is_flag=True, help="Delete them; without it they are only listed.")
@json_option
@root_option()
def prune(older_than: float, yes: bool, as_json: bool) -> int:
    """Delete sessions that have been inactive for a long time.

    The time of the last message counts. Without --yes it only prints what it would delete.
    """
    from everlog.errors import EverlogError, NotFoundError, SessionBusyError

    before = time.time() - older_than
    deleted = failed = 0
    entries: list[dict[str, Any]] = []
    with open_root() as store, output.progress("pruning") as on_progress:
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
        sys.stdout.flush()
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


@click.command()
@session_argument
@json_option
@root_option()
def reclaim(session_id: str, as_json: bool) -> None:
    """Remove skipped lines from a PicoClaw session.

    These are the lines that PicoClaw no longer reads. They are archived first (see everlog archive
    list). Other kinds of sessions have nothing to reclaim.
    """
    with open_root() as store:
        session = find_session(store, session_id)
        freed = session.reclaim()
    if as_json:
        output.print_json({"id": session.id, "bytesFreed": freed})
    else:
        print(f"{session.id}: {output.size(freed)} freed" if freed else "nothing to reclaim")
