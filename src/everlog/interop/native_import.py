"""Importing sessions of our own layout: their lines byte for byte, under their own id.

    not in the store      added whole: lines, parts, deleted messages
    shorter there         the missing lines are appended
    equal, or longer      nothing is done
    different             added beside it under an id of its own, the same for every import

The names of an imported session stay with the sessions of the store that hold them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from itertools import zip_longest
from typing import NamedTuple

from msgspec.structs import replace

from everlog.errors import InvalidIdError, NotFoundError, UnsupportedError
from everlog.ids import milliseconds, ulid_at
from everlog.interop.import_result import ImportResult
from everlog.interop.native_files import NativeSession, describe_damage
from everlog.model import Damaged, Message
from everlog.ports import RawLine, Store, Transferable


class _Comparison(NamedTuple):
    """How far a log is in the store."""

    is_same: bool  # the lines of one are the beginning of the other's
    common: int = 0  # lines that both have
    end: int | None = None  # the last seq in the store; None: the session is not there
    messages: int = 0  # in the store


def import_native(store: Store, source: NativeSession) -> ImportResult:
    """Import a session of our own layout."""
    target = store.capability(Transferable)
    if target is None:
        raise UnsupportedError(
            "sessions of everlog go into a directory or a database of everlog only",
            hint="import them without --store, and export them in the format of the other program",
        )
    session, number = source.metadata.id, 1
    found = _compare(target, session, source)
    while not found.is_same:
        number += 1
        digest = sha256(f"{source.metadata.id}~{number}".encode()).digest()
        session = ulid_at(milliseconds(source.metadata.id), digest)
        found = _compare(target, session, source)
    lines = [line.seq for line in _lines(source) if line.seq]
    if found.end is None or (source.is_whole and found.common < len(lines)):
        _add(target, session, source, found)
    stored = _compare(target, session, source).common
    return ImportResult(
        path=source.metadata.id,
        id=session,
        format=source.format,
        messages=(messages := target.metadata(session).message_count),
        new_messages=messages - found.messages,
        records_in=len(lines),
        stored=stored - found.common,
        already_there=found.common,
        lost=len(lines) - stored,
        problems=tuple(describe_damage(source)),
        differs_from=source.metadata.id if number > 1 else None,
    )


def _add(target: Transferable, session: str, source: NativeSession, found: _Comparison) -> None:
    """Add the lines that are not there; the names stay with the sessions that hold them."""
    give_back = _note_holders(target, session, source)
    first = -1 if found.end is None else found.end

    def missing() -> Iterator[RawLine]:
        return (line for line in _lines(source) if line.seq > first)

    target.adopt(replace(source.metadata, id=session), missing, found.end)
    give_back()


def _note_holders(target: Transferable, session: str, source: NativeSession) -> Callable[[], None]:
    """Return what gives names back to the sessions that hold them now."""
    metadata = source.metadata
    chats = target.chats(metadata.thread)
    current = None if chats is None else chats.current
    holders = {}
    for name in metadata.names:
        with suppress(NotFoundError, InvalidIdError):
            holders[name] = target.resolve(name)

    def give_back() -> None:
        for name, holder in holders.items():
            if holder not in (session, target.resolve(name)):
                held = target.metadata(holder)
                target.update(holder, {"key": held.key} if name == held.key else {"aliases": list(held.aliases)})
        if current not in (None, session):
            target.resume(current)

    return give_back


def _compare(target: Transferable, session: str, source: NativeSession) -> _Comparison:
    """Compare a log with the one that the store has under an id."""
    try:
        metadata = target.metadata(session)
    except NotFoundError:
        return _Comparison(is_same=True)
    stored_lines = (line for line in target.lines(session) if isinstance(line, RawLine) and line.seq)
    if not source.is_whole:
        stored_ids = {line.entry.id for line in stored_lines if isinstance(line.entry, Message)}
        ids = [line.entry.id for line in _lines(source) if isinstance(line.entry, Message)]
        return _Comparison(stored_ids.issuperset(ids), len(ids), metadata.through.seq, metadata.message_count)
    common = 0
    for line, stored in zip_longest((line for line in _lines(source) if line.seq), stored_lines):
        if line is None or stored is None:
            break
        if line.body != stored.body:
            return _Comparison(is_same=False)
        common += 1
    return _Comparison(True, common, metadata.through.seq, metadata.message_count)


def _lines(source: NativeSession) -> Iterator[RawLine]:
    return (line for line in source.lines() if not isinstance(line, Damaged))
