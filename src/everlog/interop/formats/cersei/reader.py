"""Whole sessions from Cersei's files. An entry stays with its record under `cersei`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from everlog.errors import FormatError
from everlog.ids import epoch_ms, timestamp
from everlog.interop.formats.cersei.blocks import NAME, Shape, rebuilt
from everlog.interop.formats.cersei.entries import member_id, pieces_of, said_in
from everlog.interop.formats.format_types import Hidden, Item, Lost, Read, Source, Summary, made_id
from everlog.interop.formats.jsonl import (
    Row,
    aside,
    built,
    event,
    event_kind,
    lost,
    place,
    remains,
    rows,
    text_of,
)
from everlog.model import Message

_PART = re.compile(r"_part([0-9]{1,9})\.jsonl$")
_encoder = msgspec.json.Encoder()


def read(source: Source) -> Read:
    """A session from all its parts."""
    return _Reader(source).read()


class _Reader:
    def __init__(self, source: Source) -> None:
        self.name, self.modified = source.name, source.modified
        self.damage: list[Lost] = []
        self.first = source.paths()[0]
        self.rows = [row for path in self._parts(source) for row in rows(source.lines(path), path)]
        self.items: list[Item] = []
        self.used: set[str] = set()  # ids that are taken
        self.own: dict[str, list[str]] = {}  # uuid → ids of its messages
        self.late: list[str] = []  # ids whose tombstone came before them
        self.last: dict[str, int] = {}  # uuid → where it stands last
        self.tombs: dict[str, int] = {}  # uuid → where its last tombstone stands
        for at, row in enumerate(self.rows):
            value = row.value or {}
            if value.get("type") == "tombstone":
                self.tombs[text_of(value, "deleted_uuid")] = at
            elif text_of(value, "uuid"):
                self.last[text_of(value, "uuid")] = at

    def _parts(self, source: Source) -> Iterator[str]:
        """The transcript and its parts by number. A missing one is told and hides no other."""
        yield self.first
        found = {}
        for path in source.paths()[1:]:
            if match := _PART.search(path):
                found[int(match[1])] = path
        expected = 2
        for number in sorted(found):
            if number > expected:
                missing = f"_part{expected}" + (f" to _part{number - 1}" * (number > expected + 1))
                self.damage.append(Lost(found[number], 0, 0, f"{missing} before it: missing"))
            yield found[number]
            expected = number + 1

    def read(self) -> Read:
        facts: dict[str, Any] = {}
        created = ""
        for at, row in enumerate(self.rows):
            if row.value is None:
                now = timestamp(self.modified / 1000)
                self.items.append(aside(NAME, self.name, row, self.first, now))
                continue
            self._add(at, row, row.value)
            created = created or text_of(row.value, "timestamp")
            if "cwd" not in facts and text_of(row.value, "cwd"):
                facts["cwd"] = row.value["cwd"]
        models = [one.model for one in self.items if isinstance(one, Message) and one.model]
        if models:
            facts["model"] = models[-1]
        if self.late:
            mark = made_id(self.name, f"hidden {' '.join(self.late)}")
            self.items.append(Hidden(id=mark, ids=tuple(self.late), timestamp=created))
        return Read(
            name=self.name,
            facts=facts,
            created=max(epoch_ms(created) or self.modified, 0),
            items=tuple(self.items),
            lines=sum(not row.blank for row in self.rows),
            lost=(*self.damage, *lost(self.rows)),
        )

    def _add(self, at: int, row: Row, value: dict[str, Any]) -> None:
        when = text_of(value, "timestamp") or timestamp(self.modified / 1000)
        uuid, kind = text_of(value, "uuid"), value.get("type")
        if kind == "tombstone":
            target = text_of(value, "deleted_uuid")
            if target and target in self.own and self.last[target] < at:
                extra = {NAME: remains(row, whole=True, entry=value)}
                ids, name = tuple(self.own[target]), self._id("", row)
                self.items.append(Hidden(id=name, ids=ids, timestamp=when, extra=extra))
                return
        elif kind == "summary" and uuid not in self.tombs and text_of(value, "summary"):
            keep = remains(row, whole=True, entry={**value, "summary": ""})
            self.items.append(
                Summary(
                    id=self._id(uuid, row),
                    text=value["summary"],
                    timestamp=when,
                    extra={NAME: keep},
                )
            )
            return
        elif said_in(value) is not None:
            made = self._messages(row, value, when)
            if made:
                mine = [one.id for one in made]
                self.own.setdefault(uuid, []).extend(mine)
                if uuid and -1 < self.tombs.get(uuid, -1) < self.last[uuid]:
                    self.late += mine  # no tombstone stands behind it
                self.items += made
                return
        word = event_kind(NAME, kind if "type" in value else value.get("role"))
        self.items.append(event(row, word, self._id(uuid, row), when, _encoder.encode(value)))

    def _id(self, uuid: str, row: Row) -> str:
        """The entry's own id, unless it has none or it is taken."""
        made = made_id(self.name, place(row, self.first))
        name = uuid if uuid and uuid not in self.used else made
        self.used.add(name)
        return name

    def _messages(self, row: Row, value: dict[str, Any], when: str) -> list[Message]:
        """The messages in an entry; none if it is something else."""
        content = pieces_of(value, when)
        if content is None:
            return []
        pieces, shape = content
        name = self._id(text_of(value, "uuid"), row)
        made: list[Message] = []
        try:
            for number, piece in enumerate(pieces):
                own = member_id(name, number)
                keep: dict[str, Any] = {"of": name}
                if not number:
                    keep = _keep_message(row, piece, shape, whole=len(pieces) == 1)
                record = built({"recordType": "message", "id": own, **piece, NAME: keep})
                if isinstance(record, Message):
                    made.append(record)
                    self.used.add(own)
        except FormatError:
            self.used.discard(name)
            return []
        return made


def _keep_message(row: Row, piece: dict[str, Any], shape: Shape, *, whole: bool) -> dict[str, Any]:
    value = row.value or {}
    record = built({"recordType": "message", **piece})
    said = said_in(value) or {}
    whole = (
        whole and isinstance(record, Message) and same(rebuilt(record, shape), said.get("content"))
    )
    rest: dict[str, Any] = {**said, "content": None}
    entry = rest if "type" not in value else {**value, "message": rest}
    return remains(row, whole=whole, entry=entry, shape=shape)


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON; 1, 1.0 and true are not."""
    return _encoder.encode(one) == _encoder.encode(other) or (
        one == other and _sorted.encode(one) == _sorted.encode(other)
    )


_sorted = msgspec.json.Encoder(order="sorted")
