"""`everlog sessions verify`, `repair`, `rm`, `prune` and `reclaim`: looking after sessions."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from everlog.cli import output
from everlog.cli.completion_source import complete_session
from everlog.cli.options import age, json_option, open_root, root_option, session_argument

if TYPE_CHECKING:
    from everlog.model import Damaged
    from everlog.session import Store


@click.command()
@click.argument("session_id", metavar="[ID]", required=False, shell_complete=complete_session)
@json_option
@root_option()
def verify(session_id: str | None, as_json: bool) -> int:
    """Check every byte of one session or of all.

    Names the file, byte range and seq of whatever has a wrong crc, seq or part, and exits 1.
    """
    with open_root() as store:
        if session_id is not None:
            session = store.session(session_id)
            verified, damage = 1, [(session.id, one) for one in session.verify()]
        else:
            verified, damage = _verify_all(store)
    if as_json:
        found = [_damage(one, of if session_id is None else None) for of, one in damage]
        output.put_json({"ok": not damage, "damage": found})
    for of, one in () if as_json else damage:
        seq = "" if one.seq is None else f" seq {one.seq}"
        place = f"{of}/{one.file} bytes {one.start} to {one.end}{seq}"
        print(f"{place}: {output.one_line(one.problem)}")
    if not damage:
        if not as_json:
            print(f"{output.plural(verified, 'session')} verified, no damage")
        return 0
    sys.stdout.flush()
    damaged = output.plural(len({of for of, _ in damage}), "session")
    output.warn(
        f"{output.plural(len(damage), 'problem')} in {damaged} of {verified:,}"
        " (everlog sessions repair ID sets right what can be)"
    )
    return 1


def _verify_all(store: Store) -> tuple[int, list[tuple[str, Damaged]]]:
    from everlog.errors import EverlogError, NotFoundError
    from everlog.model import Damaged

    damage: list[tuple[str, Damaged]] = []
    done = 0
    with output.progress("verifying") as tell:
        ids = [one.id for one in store.walk()]
        for session_id in ids:
            try:
                damage += [(session_id, one) for one in store.port.verify(session_id)]
            except NotFoundError:
                continue  # deleted meanwhile
            except EverlogError as error:  # one session that cannot be read hides no other
                unread = Damaged(file="session.jsonl", start=0, end=0, problem=error.message)
                damage.append((session_id, unread))
            done += 1
            tell(done, len(ids))
    return done, damage


def _damage(one: Damaged, session_id: str | None) -> dict[str, Any]:
    found = {"file": one.file, "start": one.start, "end": one.end}
    answer: dict[str, Any] = {**found, "seq": one.seq, "problem": one.problem}
    return answer if session_id is None else {"session": session_id, **answer}


@click.command()
@session_argument
@json_option
@root_option()
def repair(session_id: str, as_json: bool) -> None:
    """Set right what can be, deleting nothing."""
    with open_root() as store:
        session = store.session(session_id)
        done = session.repair()
        left = session.verify()
    if as_json:
        output.put_json({"id": session.id, "done": done})
    else:
        for step in done or ("nothing to repair",):
            print(output.one_line(step))
    if left:
        sys.stdout.flush()
        output.warn(f"{output.plural(len(left), 'problem')} cannot be repaired and stays as it is")


@click.command()
@session_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@root_option()
def rm(session_id: str, yes: bool, as_json: bool) -> int:
    """Delete a session for good; asks first."""
    with open_root() as store:
        session = store.session(session_id)
        if not yes:
            if not output.on_terminal(sys.stdin):
                raise click.UsageError("deleting for good needs --yes when nobody can be asked")
            metadata = session.metadata
            what = f"{session.id} ({output.one_line(metadata.title)}, "
            what += f"{output.plural(metadata.message_count, 'message')})"
            if not click.confirm(f"Delete {what} for good?", err=True):
                output.warn("nothing was deleted")
                return 1
        count = session.delete()
    if as_json:
        output.put_json({"id": session.id, "parts": count})
    else:
        print(f"deleted {session.id}: {output.plural(count, 'part')}")
    return 0


@click.command()
@click.option(
    "--older-than",
    required=True,
    callback=age,
    metavar="AGE",
    help="Without activity for so long: 30d, 12h, 2w, 45m.",
)
@click.option("--yes", is_flag=True, help="Delete them; without it nothing is touched.")
@json_option
@root_option()
def prune(older_than: float, yes: bool, as_json: bool) -> int:
    """Delete sessions that were not active for long.

    It goes by the last message, and only tells what it would delete unless --yes is given.
    """
    from everlog.errors import EverlogError, NotFoundError, SessionBusyError

    before = time.time() - older_than
    deleted = failed = 0
    found: list[dict[str, Any]] = []
    with open_root() as store, output.progress("pruning") as tell:
        old = [one for one in store.walk() if _idle(one.metadata.last_message_at, before)]
        for count, one in enumerate(old, 1):
            entry = {
                "id": one.id,
                "title": one.metadata.title,
                "lastMessageAt": one.metadata.last_message_at,
                "bytes": one.bytes,
                "parts": one.parts,
            }
            found.append(entry)
            if not yes:
                continue
            try:
                # It may have been used since it was listed.
                if _idle(store.port.metadata(one.id).last_message_at, before):
                    store.port.delete(one.id)
                    deleted += 1
                else:
                    entry["skipped"] = "active again"
            except SessionBusyError as error:
                entry["skipped"] = f"busy: {error.message}"
            except NotFoundError:
                entry["skipped"] = "already gone"
            except EverlogError as error:
                entry["skipped"] = str(error)
                failed += 1
            tell(count, len(old))
    if as_json:
        output.put_json({"sessions": found, "deleted": deleted, "dryRun": not yes})
    else:
        _put_pruned(found, deleted, dry=not yes)
    if failed:
        sys.stdout.flush()
        output.warn(f"{output.plural(failed, 'session')} could not be deleted")
    return 1 if failed else 0


def _idle(last: str, before: float) -> bool:
    """Whether the last activity is older; an unreadable time is no reason to delete."""
    from everlog.ids import epoch_ms

    at = epoch_ms(last)
    return at is not None and at / 1000 < before


def _put_pruned(found: list[dict[str, Any]], deleted: int, *, dry: bool) -> None:
    now = time.time()
    for entry in found:
        what = f"{entry['id']}  {output.ago(entry['lastMessageAt'], now)}"
        what += f"  {output.size(entry['bytes'])}  {output.one_line(entry['title'])}"
        if "skipped" in entry:
            output.warn(f"skipped {entry['id']}: {entry['skipped']}")
        else:
            print(f"{'would delete' if dry else 'deleted'} {what}")
    total = sum(entry["bytes"] for entry in found if "skipped" not in entry)
    if dry:
        count = output.plural(len(found), "session")
        print(f"{count}, {output.size(total)}; nothing was deleted (--yes deletes)")
    else:
        print(f"{output.plural(deleted, 'session')} deleted, {output.size(total)}")


@click.command()
@session_argument
@json_option
@root_option()
def reclaim(session_id: str, as_json: bool) -> None:
    """Take out of a PicoClaw session the lines that PicoClaw skips.

    They are archived first (everlog archive list finds them). Sessions of other kinds have
    nothing that could be taken out.
    """
    with open_root() as store:
        session = store.session(session_id)
        freed = session.reclaim()
    if as_json:
        output.put_json({"id": session.id, "bytesFreed": freed})
    else:
        print(f"{session.id}: {output.size(freed)} freed" if freed else "nothing to reclaim")
