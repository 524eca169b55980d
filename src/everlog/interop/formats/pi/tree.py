"""Which entries of a pi file are the conversation.

The last entry is the leaf, and the way from it to the root is the conversation. A parent that
stands behind its child, or that is missing, is replaced by the entry before. An entry that was
written twice is one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from everlog.ids import timestamp
from everlog.interop.formats.format_types import Hidden, Summary, made_id
from everlog.interop.formats.jsonl import Row, place, remains, text_of
from everlog.interop.formats.pi.entries import NAME, read_message, read_summary
from everlog.model import Message


class Tree:
    """The entries of one file. Give it the rows with a value in order, each once."""

    def __init__(
        self, name: str, rows: Sequence[Row], path: str = "", *, modified: int | None = None
    ) -> None:
        self.name = name
        self.light = modified is None  # nothing of the lines is kept with what they say
        self.now = "" if modified is None else timestamp(modified / 1000)
        self.parsed = [row for row in rows if row.value is not None]  # as version 1 counts
        self.header: dict[str, Any] = {}
        self.entries: list[Row] = []
        self._again: set[int] = set()  # lines that say an entry once more, word for word
        known: dict[str, object] = {}
        for row in self.parsed:
            value = row.value or {}
            own = text_of(value, "id")
            if value.get("type") == "session" and not self.header:
                self.header = value
            elif own and known.get(own) == value:
                self._again.add(row.number)
            else:
                self.entries.append(row)
                known[own] = value
        self.ids = self._ids(path)
        self.on = self._branch()
        self._numbers = {self.ids[number]: number for number in self.on}
        self._edits = {  # the last one on an entry counts
            text_of(row.value or {}, "targetId"): row.number
            for row in self.entries
            if row.value and row.value.get("type") == "context_edit" and row.number in self.on
        }
        self._messages: dict[str, int] = {}  # ids of messages so far → their line
        self._shown: list[tuple[int, str]] = []  # those on the branch

    def _ids(self, path: str) -> dict[int, str]:
        """Line number → id of its item: the entry's own, unless it has none or it is taken."""
        ids: dict[int, str] = {}
        used: set[str] = set()
        for row in self.parsed:
            own = "" if row.value is self.header else text_of(row.value or {}, "id")
            name = own if own and own not in used else made_id(self.name, place(row, path))
            used.add(name)
            ids[row.number] = name
        return ids

    def _branch(self) -> set[int]:
        """The line numbers of the entries on the way from the leaf to the root."""
        parents: list[int] = []  # index of each entry's parent; -1: none
        seen: dict[str, int] = {}  # id → the entry that had it last
        for at, row in enumerate(self.entries):
            value = row.value or {}
            wanted = value.get("parentId", ...)
            found = seen.get(wanted) if isinstance(wanted, str) else None
            if found is None:
                found = -1 if wanted is None else at - 1
            parents.append(found)
            if text_of(value, "id"):
                seen[value["id"]] = at
        on: set[int] = set()
        at = len(parents) - 1
        while at >= 0:
            on.add(self.entries[at].number)
            at = parents[at]
        return on

    def time(self, value: Mapping[str, Any] | None) -> str:
        """When an entry was written; if it does not say, when the file was."""
        return text_of(value or {}, "timestamp") or self.now

    def item(self, row: Row) -> Message | Summary | Hidden | None:
        """What a row says; None if it has no place in a conversation."""
        value, name = row.value or {}, self.ids[row.number]
        if value is self.header or row.number in self._again:
            return None
        target, when = text_of(value, "targetId"), self.time(value)
        hides = self._edits.get(target) == row.number and value.get("replacement", ...) is None
        if hides and target in self._messages:
            extra = self._extra(row, value, {"target": target})
            return Hidden(id=name, ids=(target,), timestamp=when, extra=extra)
        if (
            value.get("type") == "compaction"
            and row.number in self.on
            and text_of(value, "summary")
        ):
            extra = self._extra(row, {**value, "summary": ""}, {})
            return read_summary(value, name, when, self._first_kept(row, value), extra)
        message = read_message(row, name, when, light=self.light)
        if message is not None:
            self._messages[name] = row.number
            if row.number in self.on:
                self._shown.append((row.number, name))
        return message

    def left(self) -> Hidden | None:
        """The messages on branches that were left, if there are any such branches."""
        if len(self.on) == len(self.entries):
            return None  # else also if they are no messages: others were, before
        off = tuple(name for name, number in self._messages.items() if number not in self.on)
        leaf = self.ids[self.entries[-1].number]
        mark = made_id(self.name, f"leaf {leaf} {' '.join(off)}")
        return Hidden(id=mark, ids=off, timestamp=self.time(self.entries[-1].value))

    def _extra(self, row: Row, entry: dict[str, Any], light: dict[str, Any]) -> dict[str, Any]:
        return light if self.light else {NAME: remains(row, whole=True, entry=entry)}

    def _first_kept(self, row: Row, value: Mapping[str, Any]) -> str | None:
        """The first message from the entry that it names on; None if that is not before it."""
        wanted: object = value.get("firstKeptEntryId")
        index = value.get("firstKeptEntryIndex")
        if wanted is None and type(index) is int and 0 <= index < len(self.parsed):
            start = self.parsed[index].number
        else:
            start = self._numbers.get(wanted, row.number) if isinstance(wanted, str) else row.number
        at = bisect_left(self._shown, (start, ""))
        return self._shown[at][1] if at < len(self._shown) else None
