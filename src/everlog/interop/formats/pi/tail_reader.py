"""Reading new lines of pi's sessions, and starting a session.

A file that only grows at its tip is read line by line. Where an entry starts a branch, or refers to
entries that the state does not have, the whole file must be read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from uuid import uuid4

from everlog.errors import UnsupportedError
from everlog.interop.formats.format_types import HiddenMessages, Line, derive_id
from everlog.interop.formats.jsonl import Row, parse_lines, parse_object, text_of
from everlog.interop.formats.live_format import (
    ConversationItem,
    FileEdit,
    MetadataLocation,
    NewSession,
    TailResult,
    TailState,
    TranscriptInfo,
)
from everlog.interop.formats.pi.entries import encode_json, read_message, read_summary
from everlog.interop.formats.pi.new_entries import FIRST_KEPT_KEY, entry_head
from everlog.interop.formats.pi.tree import Tree

METADATA_LOCATION: MetadataLocation = ""
PART_BYTES = 0
TOTAL_BYTES = 0
LINE_BYTES = 0
VERSION = 3
IMPORT_HINT = "import the session (everlog sessions import) and continue it there"

_MAX_TIP = 64  # characters of an id in the state
_MAX_STEM_BYTES = 255 - len("_part2.jsonl")  # bytes
_PART_SUFFIX = re.compile(r"_part[0-9]+\Z")
_ACCEPTED_KEYS = frozenset(("id", "cwd", "name", "model", "source", "chat", "current", "generations"))
_DEFAULTS = {"agent": "main", "sender": "user"}


def is_id(text: str) -> bool:
    """Return whether a text can be the stem of a file name."""
    return (
        0 < len(text.encode("utf-8", "surrogatepass")) <= _MAX_STEM_BYTES
        and not text.startswith(".")
        and not any(character in text for character in "/\\\0")
        and _PART_SUFFIX.search(text) is None
    )


def session_id_of(stem: str, meta_bytes: bytes | None) -> str:
    """Return the session id, which is the stem of the file name."""
    return stem


# --- reading ------------------------------------------------------------------------------


def read_tail(state: TailState, lines: Iterable[Line], transcript: TranscriptInfo) -> TailResult | None:
    """Return the items of new lines; None if they do not simply extend the tip."""
    fold = _TailFold(state, transcript.session_id)
    for line in lines:
        if not fold.add(line.data):
            return None
    return TailResult(fold.items, fold.state)


class _TailFold:
    """The fold over a file's lines; its state has these keys:

    lines     number of lines so far
    version   of the header, once it was read; 1 if it has none
    tip       id of the last entry, empty if it has none; missing before the first entry
    omits     whether an entry was left out of the context
    """

    def __init__(self, state: TailState, session_id: str) -> None:
        self.session_id = session_id
        self.state = dict(state)
        self.items: list[ConversationItem] = []

    def add(self, data: bytes) -> bool:
        """Add a line; return False if its meaning depends on the whole file."""
        self.state["lines"] = self.state.get("lines", 0) + 1
        value = parse_object(data)[0]
        if value is None:
            return True
        if value.get("type") == "session" and "version" not in self.state:
            self.state["version"] = _version(value)
            return True
        entry_id, item_count = text_of(value, "id"), len(self.items)
        if not self._extends_tip(value, entry_id):
            return False
        item_id = entry_id or derive_id(self.session_id, self.state["lines"])
        is_certain = self._add_item(value, item_id, data)
        if entry_id or len(self.items) > item_count or "parentId" in value:
            self.state["tip"] = _tip_text(entry_id)
        return is_certain

    def _extends_tip(self, value: Mapping[str, Any], entry_id: str) -> bool:
        """Return whether an entry is the child of the previous one."""
        tip = self.state.get("tip")
        parent = value.get("parentId", ...)
        if tip is None:
            return True
        if parent is None or (entry_id and entry_id == tip):
            return False
        return not isinstance(parent, str) or not parent or parent == tip

    def _add_item(self, value: dict[str, Any], item_id: str, data: bytes) -> bool:
        kind, timestamp = value.get("type"), text_of(value, "timestamp")
        if kind == "context_edit":
            return self._add_context_edit(value, item_id, timestamp)
        if kind == "compaction" and text_of(value, "summary"):
            first = _first_kept(value)
            if first is not None:
                self.items.append(read_summary(value, item_id, timestamp, first or None, {}))
            return first is not None
        row = Row("", 0, 0, data, True, value)
        message = read_message(row, item_id, timestamp, without_line=True)
        if message is not None:
            self.items.append(message)
        return True

    def _add_context_edit(self, value: Mapping[str, Any], item_id: str, timestamp: str) -> bool:
        target = text_of(value, "targetId")
        if value.get("replacement", ...) is not None:
            return not self.state.get("omits")  # it may restore an entry that was left out
        if target:
            self.state["omits"] = True
            ids, extra = (target,), {"target": target}
            self.items.append(HiddenMessages(id=item_id, ids=ids, timestamp=timestamp, extra=extra))
        return True


def _version(header: Mapping[str, Any]) -> int:
    version = header.get("version")
    return version if type(version) is int else 1


def _tip_text(entry_id: str) -> str:
    return entry_id if len(entry_id) <= _MAX_TIP else ""


def _first_kept(value: Mapping[str, Any]) -> str | None:
    """Return the first message that a compaction keeps; empty if it keeps none, None if unknown.

    pi's own compactions may name an entry that is not a message: then the whole file is needed.
    """
    first_kept = value.get("firstKeptEntryId")
    if first_kept is None and type(value.get("firstKeptEntryIndex")) is int:
        return None
    if not isinstance(first_kept, str) or not first_kept:
        return ""
    details = value.get("details")
    is_message = isinstance(details, dict) and details.get(FIRST_KEPT_KEY) == first_kept
    return first_kept if is_message else None


def read_all(lines: Iterable[Line], transcript: TranscriptInfo) -> TailResult:
    """Return the items of a whole session; messages on abandoned branches are hidden."""
    all_lines = list(lines)
    tree = Tree(transcript.session_id, list(parse_lines(all_lines)))
    items: list[ConversationItem] = [item for row in tree.parsed if (item := tree.item(row)) is not None]
    hidden = tree.hidden_branches()
    if hidden is not None:
        items.append(hidden)
    state: TailState = {"lines": len(all_lines)}
    if tree.header:
        state["version"] = _version(tree.header)
    tip = _find_tip(tree, {item.id for item in items})
    if tip is not None:
        state["tip"] = tip
    if any(isinstance(item, HiddenMessages) and item.extra for item in items):
        state["omits"] = True
    return TailResult(items, state)


def _find_tip(tree: Tree, item_ids: set[str]) -> str | None:
    """Return the id of the last entry, without trailing entries that have no id, item or parent."""
    for row in reversed(tree.entries):
        value = row.value or {}
        entry_id = text_of(value, "id")
        if entry_id or tree.ids[row.number] in item_ids or "parentId" in value:
            return _tip_text(entry_id)
    return None


# --- new sessions ------------------------------------------------------------------------------


def name_fields(name: str) -> dict[str, str]:
    """Return the id of a session that a caller names, which ends the name of its file."""
    return {"id": derive_id("session", name)}


def build_session(metadata: Mapping[str, Any], now: str, is_taken: Callable[[str], bool]) -> NewSession:
    """Return a new session: its header, and its title if it has one."""
    for key, value in metadata.items():
        if key not in _ACCEPTED_KEYS and value not in (None, "", (), [], {}, _DEFAULTS.get(key)):
            raise UnsupportedError(f"pi's sessions cannot hold {key!r}", hint=IMPORT_HINT)
    session_id = stem = ""
    while not stem or is_taken(stem):
        session_id = metadata.get("id") or str(uuid4())
        stem = f"{re.sub('[:.]', '-', now)}_{session_id}"
    header = {"type": "session", "version": VERSION, "id": session_id, "timestamp": now}
    lines = [encode_json(header | {"cwd": metadata.get("cwd") or "/"})]
    if metadata.get("name"):
        title = entry_head("session_info", str(uuid4()), None, now) | {"name": metadata["name"]}
        lines.append(encode_json(title))
    return NewSession(stem, stem, FileEdit(lines=tuple(lines)))
