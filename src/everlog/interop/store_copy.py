"""Copying whole sessions from one store to another, byte for byte.

    not in the target     copied whole: lines, parts, names, chat, deleted messages
    shorter there         the missing lines are appended
    equal                 nothing is done
    different             refused and left alone: two histories are never merged

After a session is written, every line is read from both stores again and compared. No state is
kept: a second run compares again, so that it continues wherever the first one ended. Damaged lines
are copied as their bytes; all damage is reported, and so is what the target cannot hold. A session
that is being written to is copied up to some record. One that is deleted during the copy is
reported as refused, and the other sessions are copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, zip_longest

import msgspec

from everlog.errors import ConflictError, FormatError, InvalidIdError, LogDamagedError, NotFoundError, SessionBusyError
from everlog.log.fold import settable_fields
from everlog.log.raw_lines import LEFT_OUT
from everlog.model import Damaged, Metadata
from everlog.ports import Progress, RawLine, Transferable


class Refusal(msgspec.Struct, frozen=True, rename="camel"):
    """A session that was not copied, and why."""

    session: str
    problem: str


class SourceDamage(msgspec.Struct, frozen=True, rename="camel"):
    """Damage that was found in the source."""

    session: str
    file: str
    start: int
    end: int
    seq: int | None
    problem: str
    left_out: bool  # False: its bytes were copied, or there are none


class CopyReport(msgspec.Struct, rename="camel"):
    """The result of a copy."""

    sessions: int = 0  # that were compared
    copied: int = 0
    grown: int = 0  # that existed in the target and got missing lines
    same: int = 0
    lines: int = 0  # that were written, birth records included
    bytes: int = 0
    compared: int = 0  # lines that were read from both stores and are equal
    damage: list[SourceDamage] = []
    refused: list[Refusal] = []

    @property
    def ok(self) -> bool:
        """Whether all sessions are in the target and none is damaged."""
        return not self.damage and not self.refused


def copy(
    source: Transferable, target: Transferable, sessions: Iterable[str] | None = None, progress: Progress | None = None
) -> CopyReport:
    """Copy sessions, by default all. A store's error ends the run; the next one continues it."""
    ids = source.ids() if sessions is None else map(source.resolve, sessions)
    session_ids = list(dict.fromkeys(ids))
    report = CopyReport()
    for number, session in enumerate(session_ids, 1):
        try:
            _copy_session(source, target, session, report)
        except (ConflictError, FormatError, InvalidIdError, LogDamagedError, SessionBusyError) as error:
            report.refused.append(Refusal(session, error.message))
        except NotFoundError:
            report.refused.append(Refusal(session, "it was deleted during the copy"))
        report.sessions += 1
        if progress is not None:
            progress(number, len(session_ids))
    return report


def _copy_session(source: Transferable, target: Transferable, session: str, report: CopyReport) -> None:
    try:
        metadata = source.metadata(session)
        existing = _existing_metadata(target, session)
        common, after = _count_common(source, target, metadata, existing)
        new_line = next(islice(_lines(source, session), common, None), None)
    except NotFoundError:
        return  # deleted since the sessions were listed
    if existing is None or new_line is not None:
        if existing is not None and existing.newest_schema > metadata.newest_schema:
            raise ConflictError(f"session {session} in the target was written by a newer everlog")
        target.adopt(metadata, lambda: islice(_lines(source, session), common, None), after)
        _compare(source, target, session, common, report)
    else:
        report.compared += common
    if existing is None:
        report.copied += 1
    elif new_line is not None:
        report.grown += 1
    else:
        report.same += 1
    _report_damage(source, session, report)


def _existing_metadata(target: Transferable, session: str) -> Metadata | None:
    try:
        return target.metadata(session)
    except NotFoundError:
        return None


def _count_common(
    source: Transferable, target: Transferable, metadata: Metadata, existing: Metadata | None
) -> tuple[int, int | None]:
    """Return how many lines both have and the target's last seq; ConflictError if they differ."""
    if existing is None:
        return 0, None
    session, count, after = metadata.id, 0, 0
    source_lines, target_lines = _lines(source, session), _lines(target, session)
    for source_line, target_line in zip_longest(source_lines, target_lines):
        if target_line is None:
            break
        if source_line is None:
            raise _conflict(session, f"the target has more records, from {target_line.seq} on")
        if not source_line.is_same(target_line):
            raise _conflict(session, f"record {source_line.seq} is another one in the target")
        count, after = count + 1, target_line.seq
    if not count and existing.through.seq:
        raise _conflict(session, "its lines in the target cannot be read")
    is_empty = not count and not metadata.through.seq
    if is_empty and settable_fields(metadata) != settable_fields(existing):
        raise _conflict(session, "it was created with other metadata")
    return count, after


def _conflict(session: str, reason: str) -> ConflictError:
    return ConflictError(f"session {session} differs: {reason}; it is left alone", session=session)


def _compare(source: Transferable, target: Transferable, session: str, common: int, report: CopyReport) -> None:
    """Read both sessions again and compare them; the source may have grown since."""
    count = 0
    for source_line, target_line in zip_longest(_lines(source, session), _lines(target, session)):
        if target_line is None:
            break
        if source_line is None or not source_line.is_same(target_line):
            raise ConflictError(f"the copy of session {session} differs at record {target_line.seq}")
        count += 1
        if count > common:
            report.lines += 1
            report.bytes += len(target_line.body) + 1
    if count < common:
        raise ConflictError(f"the copy of session {session} ends after {count} lines")
    report.compared += count


def _lines(store: Transferable, session: str) -> Iterator[RawLine]:
    return (line for line in store.lines(session) if isinstance(line, RawLine))


def _report_damage(source: Transferable, session: str, report: CopyReport) -> None:
    """Report the damage in the source, and which of it is not in the copy."""
    try:
        verified = source.verify(session)
        lines = source.lines(session) if verified else ()
        unreadable = [line for line in lines if isinstance(line, Damaged)]
    except NotFoundError:
        return
    left_out = {(damage.file, damage.start) for damage in unreadable}
    positions = {(damage.file, damage.start) for damage in verified}
    extra = [damage for damage in unreadable if (damage.file, damage.start) not in positions]
    for damage in (*verified, *extra):
        is_left_out = (damage.file, damage.start) in left_out
        problem = damage.problem.removeprefix(f"{LEFT_OUT}: ")
        bounds = damage.file, damage.start, damage.end, damage.seq
        report.damage.append(SourceDamage(session, *bounds, problem, left_out=is_left_out))
