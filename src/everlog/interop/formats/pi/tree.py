"""The tree of entries in a pi file, and its current branch.

The last entry is the leaf, and the path from it to the root is the conversation. A parent that
follows its child, or that is missing, is replaced by the previous entry. An entry that was written
twice counts once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from everlog.ids import timestamp
from everlog.interop.formats.format_types import HiddenMessages, Summary, derive_id
from everlog.interop.formats.jsonl import Row, line_position, preserved_data, text_of
from everlog.interop.formats.pi.entries import NAME, read_message, read_summary
from everlog.model import Message


class Tree:
    """The entries of one file. Pass each row with a value to `item`, in order, once."""

    def __init__(self, session_id: str, rows: Sequence[Row], path: str = "", *, modified_ms: int | None = None) -> None:
        self.session_id = session_id
        self.without_lines = modified_ms is None  # items do not preserve their entries
        self.default_time = "" if modified_ms is None else timestamp(modified_ms / 1000)
        self.parsed = [row for row in rows if row.value is not None]  # in the order in which version 1 numbers them
        self.header: dict[str, Any] = {}
        self.entries: list[Row] = []
        self._duplicates: set[int] = set()  # numbers of lines that repeat an entry exactly
        entries_by_id: dict[str, object] = {}
        for row in self.parsed:
            value = row.value or {}
            entry_id = text_of(value, "id")
            if value.get("type") == "session" and not self.header:
                self.header = value
            elif entry_id and entries_by_id.get(entry_id) == value:
                self._duplicates.add(row.number)
            else:
                self.entries.append(row)
                entries_by_id[entry_id] = value
        self.ids = self._assign_ids(path)
        self.branch = self._find_branch()
        self._numbers = {self.ids[number]: number for number in self.branch}
        self._edits = {  # the last edit of an entry counts
            text_of(row.value or {}, "targetId"): row.number
            for row in self.entries
            if row.value and row.value.get("type") == "context_edit" and row.number in self.branch
        }
        self._messages: dict[str, int] = {}  # message id → line number, so far
        self._visible: list[tuple[int, str]] = []  # line number and id of those on the branch

    def _assign_ids(self, path: str) -> dict[int, str]:
        """Return item ids by line number: the entry's own, unless it is missing or a duplicate."""
        ids: dict[int, str] = {}
        used: set[str] = set()
        for row in self.parsed:
            entry_id = "" if row.value is self.header else text_of(row.value or {}, "id")
            if not entry_id or entry_id in used:
                entry_id = derive_id(self.session_id, line_position(row, path))
            used.add(entry_id)
            ids[row.number] = entry_id
        return ids

    def _find_branch(self) -> set[int]:
        """Return the line numbers of the entries on the path from the leaf to the root."""
        parents: list[int] = []  # index of each entry's parent; -1: none
        indexes: dict[str, int] = {}  # id → index of the last entry that has it
        for index, row in enumerate(self.entries):
            value = row.value or {}
            parent_id = value.get("parentId", ...)
            parent = indexes.get(parent_id) if isinstance(parent_id, str) else None
            if parent is None:
                parent = -1 if parent_id is None else index - 1
            parents.append(parent)
            if text_of(value, "id"):
                indexes[value["id"]] = index
        branch: set[int] = set()
        index = len(parents) - 1
        while index >= 0:
            branch.add(self.entries[index].number)
            index = parents[index]
        return branch

    def timestamp(self, value: Mapping[str, Any] | None) -> str:
        """Return the time of an entry; if it has none, that of the file."""
        return text_of(value or {}, "timestamp") or self.default_time

    def item(self, row: Row) -> Message | Summary | HiddenMessages | None:
        """Return the item of a row; None if it is not part of a conversation."""
        value, item_id = row.value or {}, self.ids[row.number]
        if value is self.header or row.number in self._duplicates:
            return None
        target, timestamp = text_of(value, "targetId"), self.timestamp(value)
        hides = self._edits.get(target) == row.number and value.get("replacement", ...) is None
        if hides and target in self._messages:
            extra = self._extra(row, value, {"target": target})
            return HiddenMessages(id=item_id, ids=(target,), timestamp=timestamp, extra=extra)
        if value.get("type") == "compaction" and row.number in self.branch and text_of(value, "summary"):
            extra = self._extra(row, {**value, "summary": ""}, {})
            return read_summary(value, item_id, timestamp, self._first_kept(row, value), extra)
        message = read_message(row, item_id, timestamp, without_line=self.without_lines)
        if message is not None:
            self._messages[item_id] = row.number
            if row.number in self.branch:
                self._visible.append((row.number, item_id))
        return message

    def hidden_branches(self) -> HiddenMessages | None:
        """Return the messages on abandoned branches; None if there are no such branches."""
        if len(self.branch) == len(self.entries):
            return None  # with branches, an empty result restores what was hidden before
        messages, leaf = self._messages.items(), self.entries[-1]
        hidden = tuple(item_id for item_id, number in messages if number not in self.branch)
        seed = f"leaf {self.ids[leaf.number]} {' '.join(hidden)}"
        own_id = derive_id(self.session_id, seed)
        return HiddenMessages(id=own_id, ids=hidden, timestamp=self.timestamp(leaf.value))

    def _extra(self, row: Row, entry: dict[str, Any], minimal: dict[str, Any]) -> dict[str, Any]:
        if self.without_lines:
            return minimal
        return {NAME: preserved_data(row, is_lossless=True, entry=entry)}

    def _first_kept(self, row: Row, value: Mapping[str, Any]) -> str | None:
        """Return the first visible message from the first kept entry on; None if there is none."""
        first_kept: object = value.get("firstKeptEntryId")
        index = value.get("firstKeptEntryIndex")
        if first_kept is None and type(index) is int and 0 <= index < len(self.parsed):
            start = self.parsed[index].number
        elif isinstance(first_kept, str):
            start = self._numbers.get(first_kept, row.number)
        else:
            start = row.number
        position = bisect_left(self._visible, (start, ""))
        return self._visible[position][1] if position < len(self._visible) else None
