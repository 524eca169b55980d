"""Cersei's transcripts where they lie: what new lines say, and how a session begins.

A tombstone counts wherever it stands, also before what it deletes. So the newest of those whose
entry was not among the same lines are noted, by a short hash: whoever follows a file from its
beginning needs none of them. An entry is known by its uuid; one that comes twice is the same.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import Any
from uuid import uuid4

from everlog.errors import ConflictError, UnsupportedError
from everlog.interop.formats.cersei.entries import member_id, messages_in
from everlog.interop.formats.format_types import Hidden, Line, Summary, made_id
from everlog.interop.formats.jsonl import parse, text_of
from everlog.interop.formats.live_format import (
    Added,
    Begun,
    Beside,
    Followed,
    Log,
    Notes,
    Said,
    Where,
)

BESIDE: Beside = ""
TOTAL_BYTES = 200_000_000
LINE_BYTES = 0
IMPORT = "import the session (everlog sessions import) and go on in a store of ours"

_PENDING = 200  # tombstones that are noted; the entry of an older one has long been there
_MARK = 8  # characters of one
_NOTED = 1024  # characters of a noted text
_STEM = 255 - len("_part2.jsonl")  # bytes
_PART = re.compile(r"_part[0-9]+\Z")
_LEFT = frozenset(("key", "model", "source", "cwd", "chat", "current", "generations"))


def is_id(text: str) -> bool:
    """Whether a text can be the name of a transcript without its ending."""
    return (
        0 < len(text.encode("utf-8", "surrogatepass")) <= _STEM
        and not text.startswith(".")
        and not any(one in text for one in "/\\\0")
        and _PART.search(text) is None
    )


def name_of(stem: str, beside: bytes | None) -> str:
    """A session is called like its file."""
    return stem


# --- following ------------------------------------------------------------------------------


def follow(notes: Notes, lines: Iterable[Line], where: Where) -> Followed:
    """The items of new lines."""
    fold = _Fold(notes, where.name)
    for line in lines:
        fold.add(line.data)
    return fold.followed()


def whole(lines: Iterable[Line], where: Where) -> Followed:
    """The items of a whole session."""
    return follow({}, lines, where)


class _Fold:
    """What is known of a file while its lines pass.

    lines, messages   how many there were
    widest            messages of the entry that had most
    session, cwd      of the first entry that says so, and of the last
    user              uuid of the last user entry
    bare              whether the first message was a bare one
    gone              marks of uuids that were deleted and perhaps not there yet
    """

    def __init__(self, notes: Notes, name: str) -> None:
        self.name = name
        self.notes = dict(notes)
        self.items: list[Said] = []
        marks = text_of(notes, "gone")
        starts = range(0, len(marks), _MARK)
        self.gone = {marks[at : at + _MARK]: None for at in starts}  # a set, in order
        self.seen: set[str] = set()  # uuids in these lines
        self.deleted: set[str] = set()  # likewise, by a tombstone

    def add(self, data: bytes) -> None:
        self.notes["lines"] = self.notes.get("lines", 0) + 1
        value = parse(data)[0]
        if value is None:
            return
        when, kind = text_of(value, "timestamp"), value.get("type")
        self._note("session", text_of(value, "session_id"), first=True)
        self._note("cwd", text_of(value, "cwd"))
        if kind == "tombstone":
            self._delete(text_of(value, "deleted_uuid"), when)
        elif kind == "summary":
            self._summarise(value, when)
        else:
            self._say(value, when)

    def followed(self) -> Followed:
        items = [
            one for one in self.items if not (isinstance(one, Summary) and one.id in self.deleted)
        ]
        notes = {key: one for key, one in self.notes.items() if key != "gone"}
        if self.gone:
            notes["gone"] = "".join(list(self.gone)[-_PENDING:])
        return Followed(items, notes)

    def _note(self, key: str, text: str, *, first: bool = False) -> None:
        if text and len(text) <= _NOTED and not (first and key in self.notes):
            self.notes[key] = text

    def _id(self, value: Mapping[str, Any]) -> str:
        return text_of(value, "uuid") or made_id(self.name, self.notes["lines"])

    def _delete(self, uuid: str, when: str) -> None:
        if not uuid:
            return
        if uuid not in self.seen:
            self.gone[_mark(uuid)] = None
        self.deleted.add(uuid)
        # How many messages it had is not known; none has had more than the widest.
        self._hide("tombstone", uuid, self.notes.get("widest", 1), when)

    def _hide(self, word: str, uuid: str, count: int, when: str) -> None:
        ids = tuple(member_id(uuid, number) for number in range(count))
        name = made_id(self.name, f"{word} {uuid}")
        self.items.append(Hidden(id=name, ids=ids, timestamp=when, extra={"target": uuid}))

    def _summarise(self, value: Mapping[str, Any], when: str) -> None:
        name, text = self._id(value), text_of(value, "summary")
        if text and _mark(name) not in self.gone:
            self.items.append(Summary(id=name, text=text, timestamp=when))
            self.seen.add(name)

    def _say(self, value: Mapping[str, Any], when: str) -> None:
        uuid = text_of(value, "uuid")
        made = messages_in(value, self._id(value), when)
        if not made:
            return
        self.items += made
        notes, count = self.notes, len(made)
        notes.setdefault("bare", "type" not in value)
        notes["messages"] = notes.get("messages", 0) + count
        if count > notes.get("widest", 1):
            notes["widest"] = count
        if made[0].role != "assistant":
            self._note("user", uuid)
        if self.gone and uuid and (mark := _mark(uuid)) in self.gone:
            del self.gone[mark]
            self._hide("late", uuid, count, when)
        self.seen.add(uuid)


def _mark(uuid: str) -> str:
    return b64encode(sha256(uuid.encode()).digest()[: _MARK * 3 // 4]).decode()


# --- metadata -------------------------------------------------------------------------------


def change(notes: Notes, log: Log, changes: Mapping[str, Any]) -> Added:
    """Nothing can be changed: the format has no place for it."""
    for key in changes:
        raise UnsupportedError(f"a transcript of Cersei's has no place for {key!r}", hint=IMPORT)
    return Added()


def begin(facts: Mapping[str, Any], now: str, taken: Callable[[str], bool]) -> Begun:
    """A new session, whose file is empty; the key is its id if it can be."""
    for key, value in facts.items():
        usual = {"agent": "main", "sender": "user"}.get(key)
        if key not in _LEFT and value not in (None, "", (), [], {}, usual):
            raise UnsupportedError(
                f"a transcript of Cersei's has no place for {key!r}", hint=IMPORT
            )
    wanted = facts.get("key")
    if isinstance(wanted, str) and is_id(wanted):
        if taken(wanted):
            raise ConflictError(f"there is a session {wanted!r} already")
        return Begun(wanted, wanted, Added())
    stem = str(uuid4())
    while taken(stem):
        stem = str(uuid4())
    return Begun(stem, stem, Added())
