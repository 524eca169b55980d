"""pi's sessions: a tree of entries in one file, versions 1 to 3.

    {"type":"session","version":3,"id":"…","timestamp":"…","cwd":"…"}
    {"type":"message","id":"0a1b2c3d","parentId":null,"timestamp":"…","message":{…}}

The last entry is the leaf, and the way from it to the root is the conversation; messages on other
branches are hidden. A parent always stands before its children, as it must in a file that only
grows: one that does not, or that is missing, is replaced by the entry before. So no cycle can be
walked, and a damaged line does not take what was said before it along. An entry stays with its
record under `pi`, without the content that the record has itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.dialects.form import Hidden, Item, Read, Source, Summary, made_id
from holdfast.dialects.jsonl import (
    Row,
    aside,
    event,
    event_kind,
    head_objects,
    lost,
    place,
    remains,
    rows,
    text_of,
)
from holdfast.dialects.pi.entries import NAME, SESSION, compact, read_message
from holdfast.dialects.pi.writing import write
from holdfast.model import Event, Message
from holdfast.stamps import epoch_ms, timestamp

__all__ = ["NAME", "read", "recognises", "write"]


def recognises(path: str, head: bytes) -> bool:
    """Whether a file begins with pi's header."""
    first = next(head_objects(head), {})
    return (
        path.endswith(".jsonl")
        and first.get("type") == "session"
        and isinstance(first.get("id"), str)
        and isinstance(first.get("timestamp"), str)
    )


def read(source: Source) -> Read:
    """A session from its file."""
    return _Reader(source).read()


class _Reader:
    def __init__(self, source: Source) -> None:
        self.name, self.modified = source.name, source.modified
        self.path = source.paths()[0]
        self.rows = list(rows(source.lines(self.path), self.path))
        self.header: dict[str, Any] = {}
        self.entries: list[Row] = []
        for row in self.rows:
            value = row.value
            if value is not None and value.get("type") == "session" and not self.header:
                self.header = value
            elif value is not None:
                self.entries.append(row)
        self.parsed = [row for row in self.rows if row.value is not None]  # as version 1 counts
        self.ids = self._ids()
        self.on = self._branch()
        self.numbers = {self.ids[number]: number for number in self.on}
        self.shown: list[tuple[int, str]] = []  # messages on the branch so far

    def _ids(self) -> dict[int, str]:
        """Line number → id of its item: the entry's own, unless it has none or it is taken."""
        ids: dict[int, str] = {}
        used: set[str] = set()
        for row in self.parsed:
            own = "" if row.value is self.header else text_of(row.value or {}, "id")
            name = own if own and own not in used else made_id(self.name, place(row, self.path))
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

    def read(self) -> Read:
        edits = {  # the last one on an entry counts
            text_of(row.value or {}, "targetId"): row
            for row in self.entries
            if row.value and row.value.get("type") == "context_edit" and row.number in self.on
        }
        items: list[Item] = []
        messages: dict[str, int] = {}  # ids of messages → their line
        for row in self.rows:
            if row.value is None:
                at = timestamp(self.modified / 1000)
                items.append(aside(NAME, self.name, row, self.path, at))
                continue
            target = text_of(row.value, "targetId")
            hides = edits.get(target) is row and row.value.get("replacement", ...) is None
            if hides and target in messages:
                extra = {NAME: remains(row, whole=True, entry=row.value)}
                when = self._time(row.value)
                name = self.ids[row.number]
                items.append(Hidden(id=name, ids=(target,), timestamp=when, extra=extra))
                continue
            item = self._item(row, row.value)
            items.append(item)
            if isinstance(item, Message):
                messages[item.id] = row.number
                if row.number in self.on:
                    self.shown.append((row.number, item.id))
        if len(self.on) < len(self.entries):  # also if they are no messages: others were, before
            off = tuple(name for name, number in messages.items() if number not in self.on)
            leaf = self.ids[self.entries[-1].number]
            mark = made_id(self.name, f"leaf {leaf} {' '.join(off)}")
            items.append(Hidden(id=mark, ids=off, timestamp=self._time(self.entries[-1].value)))
        return Read(
            name=self.name,
            facts=self._facts(items),
            created=max(epoch_ms(text_of(self.header, "timestamp")) or self.modified, 0),
            items=tuple(items),
            lines=sum(not row.blank for row in self.rows),
            lost=lost(self.rows),
        )

    def _time(self, value: Mapping[str, Any] | None) -> str:
        return text_of(value or {}, "timestamp") or timestamp(self.modified / 1000)

    def _item(self, row: Row, value: dict[str, Any]) -> Item:
        name, when = self.ids[row.number], self._time(value)
        kind = value.get("type")
        if value is self.header:
            return event(row, SESSION, name, when, compact(value))
        if kind == "compaction" and row.number in self.on and text_of(value, "summary"):
            return self._summary(row, value)
        message = read_message(row, name, when)
        if message is not None:
            return message
        word = event_kind(NAME, kind if kind != "message" else "record")
        word = f"{NAME}.record" if word == SESSION else word
        return event(row, word, name, when, compact(value))

    def _summary(self, row: Row, value: dict[str, Any]) -> Summary:
        details = value.get("details")
        details = details if isinstance(details, dict) else {}
        tokens = value.get("tokensBefore")
        return Summary(
            id=self.ids[row.number],
            text=value["summary"],
            first_kept=self._first_kept(row, value),
            strategy="structured",
            tokens_before=tokens if type(tokens) is int and 0 <= tokens < 1 << 62 else 0,
            read_files=_texts(details.get("readFiles")),
            modified_files=_texts(details.get("modifiedFiles")),
            timestamp=self._time(value),
            extra={NAME: remains(row, whole=True, entry={**value, "summary": ""})},
        )

    def _first_kept(self, row: Row, value: Mapping[str, Any]) -> str | None:
        """The first message from the entry that it names on; None if that is not before it."""
        wanted: object = value.get("firstKeptEntryId")
        index = value.get("firstKeptEntryIndex")
        if wanted is None and type(index) is int and 0 <= index < len(self.parsed):
            start = self.parsed[index].number
        else:
            start = self.numbers.get(wanted, row.number) if isinstance(wanted, str) else row.number
        at = bisect_left(self.shown, (start, ""))
        return self.shown[at][1] if at < len(self.shown) else None

    def _facts(self, items: Sequence[Item]) -> dict[str, Any]:
        facts: dict[str, Any] = {}
        for key in ("cwd", "parentSession"):
            if text_of(self.header, key):
                facts[key] = self.header[key]
        for item in items:
            if isinstance(item, Message) and item.model:
                facts["model"] = item.model
            elif isinstance(item, Event):
                for kind, key, fact in (
                    ("session_info", "name", "name"),
                    ("model_change", "modelId", "model"),
                ):
                    if item.kind == f"{NAME}.{kind}" and text_of(item.data, key):
                        facts[fact] = item.data[key]
        return facts


def _texts(value: object) -> tuple[str, ...]:
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list) else ()
