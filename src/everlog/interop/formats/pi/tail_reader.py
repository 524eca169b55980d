"""pi's sessions where they lie: what new lines say, and how a session begins.

A file that only grows at its tip is followed line by line. Where an entry goes back to another
one (a branch), or speaks of entries that are not noted, the whole file says what is shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from uuid import uuid4

from everlog.errors import UnsupportedError
from everlog.interop.formats.format_types import Hidden, Line, made_id
from everlog.interop.formats.jsonl import Row, parse, rows, text_of
from everlog.interop.formats.live_format import Added, Begun, Beside, Followed, Notes, Said, Where
from everlog.interop.formats.pi.entries import compact, read_message, read_summary
from everlog.interop.formats.pi.new_entries import FIRST_KEPT, head_of
from everlog.interop.formats.pi.tree import Tree

BESIDE: Beside = ""
PART_BYTES = 0
TOTAL_BYTES = 0
LINE_BYTES = 0
VERSION = 3
IMPORT = "import the session (everlog sessions import) and go on in a store of ours"

_TIP = 64  # characters of an id that is noted
_STEM = 255 - len("_part2.jsonl")  # bytes
_PART = re.compile(r"_part[0-9]+\Z")
_LEFT = frozenset(("cwd", "name", "model", "source", "chat", "current", "generations"))
_USUAL = {"agent": "main", "sender": "user"}


def is_id(text: str) -> bool:
    """Whether a text can be the name of a file without its ending."""
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


def follow(notes: Notes, lines: Iterable[Line], where: Where) -> Followed | None:
    """The items of new lines; None if they do not just go on from the tip."""
    fold = _Fold(notes, where.name)
    for line in lines:
        if not fold.add(line.data):
            return None
    return Followed(fold.items, fold.notes)


class _Fold:
    """What is known of a file while its lines pass.

    lines     how many there were
    version   of the header, once there was one; 1 if it does not say
    tip       id of the entry to go on from, empty if that has none; not there before the first
    omits     whether an entry was left out of the context
    """

    def __init__(self, notes: Notes, name: str) -> None:
        self.name = name
        self.notes = dict(notes)
        self.items: list[Said] = []

    def add(self, data: bytes) -> bool:
        """Take in a line; False if it cannot be told what it says."""
        self.notes["lines"] = self.notes.get("lines", 0) + 1
        value = parse(data)[0]
        if value is None:
            return True
        if value.get("type") == "session" and "version" not in self.notes:
            self.notes["version"] = _version(value)
            return True
        own, said = text_of(value, "id"), len(self.items)
        if not self._grows(value, own):
            return False
        told = self._say(value, own or made_id(self.name, self.notes["lines"]), data)
        if own or len(self.items) > said or "parentId" in value:
            self.notes["tip"] = _noted(own)
        return told

    def _grows(self, value: Mapping[str, Any], own: str) -> bool:
        """Whether an entry is the child of the one before it."""
        tip = self.notes.get("tip")
        wanted = value.get("parentId", ...)
        if tip is None:
            return True
        if wanted is None or (own and own == tip):
            return False
        return not isinstance(wanted, str) or not wanted or wanted == tip

    def _say(self, value: dict[str, Any], name: str, data: bytes) -> bool:
        kind, when = value.get("type"), text_of(value, "timestamp")
        if kind == "context_edit":
            return self._edit(value, name, when)
        if kind == "compaction" and text_of(value, "summary"):
            first = _first_kept(value)
            if first is not None:
                self.items.append(read_summary(value, name, when, first or None, {}))
            return first is not None
        message = read_message(Row("", 0, 0, data, True, value), name, when, light=True)
        if message is not None:
            self.items.append(message)
        return True

    def _edit(self, value: Mapping[str, Any], name: str, when: str) -> bool:
        target = text_of(value, "targetId")
        if value.get("replacement", ...) is not None:
            return not self.notes.get("omits")  # it may show again what was left out
        if target:
            self.notes["omits"] = True
            extra = {"target": target}
            self.items.append(Hidden(id=name, ids=(target,), timestamp=when, extra=extra))
        return True


def _version(header: Mapping[str, Any]) -> int:
    version = header.get("version")
    return version if type(version) is int else 1


def _noted(own: str) -> str:
    return own if len(own) <= _TIP else ""


def _first_kept(value: Mapping[str, Any]) -> str | None:
    """The first message that a compaction keeps; empty if it keeps none, None if it is not known.

    Those of pi's own may name an entry that is no message: only the whole file tells what follows.
    """
    wanted = value.get("firstKeptEntryId")
    if wanted is None and type(value.get("firstKeptEntryIndex")) is int:
        return None
    if not isinstance(wanted, str) or not wanted:
        return ""
    details = value.get("details")
    is_message = isinstance(details, dict) and details.get(FIRST_KEPT) == wanted
    return wanted if is_message else None


def whole(lines: Iterable[Line], where: Where) -> Followed:
    """The items of a whole session; what is on no way to the leaf is hidden."""
    given = list(lines)
    tree = Tree(where.name, list(rows(given)))
    items: list[Said] = [item for row in tree.parsed if (item := tree.item(row)) is not None]
    left = tree.left()
    if left is not None:
        items.append(left)
    notes: Notes = {"lines": len(given)}
    if tree.header:
        notes["version"] = _version(tree.header)
    tip = _tip(tree, {item.id for item in items})
    if tip is not None:
        notes["tip"] = tip
    if any(isinstance(item, Hidden) and item.extra for item in items):
        notes["omits"] = True
    return Followed(items, notes)


def _tip(tree: Tree, said: set[str]) -> str | None:
    """The id of the last entry; one without any that says nothing may be gone on beside."""
    for row in reversed(tree.entries):
        value = row.value or {}
        own = text_of(value, "id")
        if own or tree.ids[row.number] in said or "parentId" in value:
            return _noted(own)
    return None


# --- beginning ------------------------------------------------------------------------------


def begin(facts: Mapping[str, Any], now: str, taken: Callable[[str], bool]) -> Begun:
    """A new session: its header, and its title if it has one."""
    for key, value in facts.items():
        if key not in _LEFT and value not in (None, "", (), [], {}, _USUAL.get(key)):
            raise UnsupportedError(f"a session of pi's has no place for {key!r}", hint=IMPORT)
    name = stem = ""
    while not stem or taken(stem):
        name = str(uuid4())
        stem = f"{re.sub('[:.]', '-', now)}_{name}"
    header = {"type": "session", "version": VERSION, "id": name, "timestamp": now}
    lines = [compact(header | {"cwd": facts.get("cwd") or "/"})]
    if facts.get("name"):
        title = head_of("session_info", str(uuid4()), None, now) | {"name": facts["name"]}
        lines.append(compact(title))
    return Begun(stem, stem, Added(lines=tuple(lines)))
