"""Copy whole sessions from one store to another, byte for byte.

    not there         it appears, whole: lines, parts, names, chat, what was deleted
    there, shorter    the lines that are missing follow
    there, the same   nothing
    there, different  refused, and left alone: two histories are not made one

Behind each session that was written, every line is read from both stores once more and compared.
Nothing is kept of what was done: a second run looks again, so it goes on wherever the first ended,
however that was. What is damaged travels as its bytes; what the other store cannot hold, and what
is wrong at all, is named. A session that is being written to is copied up to some record of it; one
that is deleted while it is copied is named too, and the others are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice, zip_longest
from typing import Protocol

import msgspec

from everlog.errors import (
    ConflictError,
    FormatError,
    InvalidIdError,
    LogDamagedError,
    NotFoundError,
    SessionBusyError,
)
from everlog.log.fold import given_facts
from everlog.log.raw_lines import LEFT_OUT, Line
from everlog.model import Damaged, Metadata
from everlog.ports import Progress


class Home(Protocol):
    """A store that whole sessions can leave and come to."""

    def ids(self) -> Iterator[str]:
        """All sessions, oldest first."""
        ...

    def resolve(self, name: str) -> str:
        """The id behind a name."""
        ...

    def metadata(self, session: str) -> Metadata:
        """What is known of a session."""
        ...

    def verify(self, session: str) -> tuple[Damaged, ...]:
        """Everything wrong with a session."""
        ...

    def lines(self, session: str) -> Iterator[Line | Damaged]:
        """The exact lines of a session at this moment; Damaged is one that cannot be carried."""
        ...

    def adopt(
        self, source: Metadata, lines: Callable[[], Iterator[Line]], after: int | None = None
    ) -> None:
        """Take over a session, or its lines behind the last one here, `after`. Durable on return.

        Whole or not at all, but for a crash while lines are added. ConflictError if it is there
        already, or went on meanwhile. `lines` may be called more than once.
        """
        ...


class Trouble(msgspec.Struct, frozen=True, rename="camel"):
    """A session that was not copied, and why."""

    session: str
    problem: str


class Spoilt(msgspec.Struct, frozen=True, rename="camel"):
    """Damage that was found in the source."""

    session: str
    file: str
    start: int
    end: int
    seq: int | None
    problem: str
    left_out: bool  # False: it travelled as its bytes, or there is nothing to carry


class Moved(msgspec.Struct, rename="camel"):
    """What a copy did."""

    sessions: int = 0  # that were looked at
    copied: int = 0
    grown: int = 0  # that were there, and got lines that were missing
    same: int = 0
    lines: int = 0  # that were written, those of births among them
    bytes: int = 0
    compared: int = 0  # lines that were read from both stores and are the same
    damage: list[Spoilt] = []
    refused: list[Trouble] = []

    @property
    def ok(self) -> bool:
        """Whether everything is in the other store, and nothing was wrong with it."""
        return not self.damage and not self.refused


def copy(
    source: Home,
    target: Home,
    sessions: Iterable[str] | None = None,
    progress: Progress | None = None,
) -> Moved:
    """Copy sessions, by default all. An error of a store ends it; the next run goes on."""
    names = source.ids() if sessions is None else map(source.resolve, sessions)
    wanted = list(dict.fromkeys(names))
    moved = Moved()
    for number, session in enumerate(wanted, 1):
        try:
            _copy(source, target, session, moved)
        except (
            ConflictError,
            FormatError,
            InvalidIdError,
            LogDamagedError,
            SessionBusyError,
        ) as error:
            moved.refused.append(Trouble(session, error.message))
        except NotFoundError:
            moved.refused.append(Trouble(session, "it was deleted while it was copied"))
        moved.sessions += 1
        if progress is not None:
            progress(number, len(wanted))
    return moved


def _copy(source: Home, target: Home, session: str, moved: Moved) -> None:
    try:
        held = source.metadata(session)
        there = _there(target, session)
        common, after = (0, None) if there is None else _common(source, target, held, there)
        first = next(islice(_carried(source, session), common, None), None)
    except NotFoundError:
        return  # deleted since the sessions were counted
    if there is None or first is not None:
        if there is not None and there.newest_schema > held.newest_schema:
            raise ConflictError(f"session {session} was written to by a newer everlog there")
        target.adopt(held, lambda: islice(_carried(source, session), common, None), after)
        _compare(source, target, session, common, moved)
    else:
        moved.compared += common
    if there is None:
        moved.copied += 1
    elif first is not None:
        moved.grown += 1
    else:
        moved.same += 1
    _tell_damage(source, session, moved)


def _there(target: Home, session: str) -> Metadata | None:
    try:
        return target.metadata(session)
    except NotFoundError:
        return None


def _common(source: Home, target: Home, held: Metadata, there: Metadata) -> tuple[int, int]:
    """How many lines both have, and the number of the last one there; ConflictError if they differ."""
    session, count, after = held.id, 0, 0
    ours, theirs = _carried(source, session), _carried(target, session)
    for mine, other in zip_longest(ours, theirs):
        if other is None:
            break
        if mine is None:
            raise _differs(session, f"it has more records there, from {other.seq} on")
        if not mine.same(other):
            raise _differs(session, f"record {mine.seq} is another one there")
        count, after = count + 1, other.seq
    if not count and there.through.seq:
        raise _differs(session, "its lines cannot be read there")
    if not count and given_facts(held) != given_facts(there) and not held.through.seq:
        raise _differs(session, "it was made with other facts")
    return count, after


def _differs(session: str, how: str) -> ConflictError:
    return ConflictError(f"session {session} differs: {how}; it is left alone", session=session)


def _compare(source: Home, target: Home, session: str, common: int, moved: Moved) -> None:
    """Read what was written, and the source once more; the source may have gone on since."""
    count = 0
    for mine, other in zip_longest(_carried(source, session), _carried(target, session)):
        if other is None:
            break
        if mine is None or not mine.same(other):
            raise ConflictError(
                f"the copy of session {session} is not the same at record {other.seq}"
            )
        count += 1
        if count > common:
            moved.lines += 1
            moved.bytes += len(other.body) + 1
    if count < common:
        raise ConflictError(f"the copy of session {session} ends after {count} lines")
    moved.compared += count


def _carried(home: Home, session: str) -> Iterator[Line]:
    return (one for one in home.lines(session) if isinstance(one, Line))


def _tell_damage(source: Home, session: str, moved: Moved) -> None:
    """Name what is wrong with the source, and what of it is not in the copy."""
    try:
        found = source.verify(session)
        left = [one for one in source.lines(session) if isinstance(one, Damaged)] if found else []
    except NotFoundError:
        return
    places = {(one.file, one.start) for one in left}
    known = {(one.file, one.start) for one in found}
    extra = [one for one in left if (one.file, one.start) not in known]
    for one in (*found, *extra):
        out = (one.file, one.start) in places
        problem = one.problem.removeprefix(f"{LEFT_OUT}: ")
        spoilt = Spoilt(session, one.file, one.start, one.end, one.seq, problem, left_out=out)
        moved.damage.append(spoilt)
