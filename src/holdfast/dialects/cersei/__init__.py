"""Cersei's transcripts: one entry per line, in parts `S.jsonl`, `S_part2.jsonl`, …

    {"type":"user","uuid":"…","timestamp":"…","session_id":"S","cwd":"…","message":{…},
     "is_sidechain":false}

They lie in the directory of Claude Code's and are not in its format: keys are snake_case. Files
of `JsonlMemory`, which hold the bare `message` objects, are read and written too. An entry stays
with its record under `cersei`, without the content that the record has itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from holdfast.dialects.alphabetic import is_alphanumeric
from holdfast.dialects.cersei.blocks import (
    NAME,
    Shape,
    read_content,
    rebuilt,
)
from holdfast.dialects.cersei.writing import write
from holdfast.dialects.form import Hidden, Item, Lost, Read, Source, Summary, made_id
from holdfast.dialects.jsonl import (
    Row,
    aside,
    built,
    event,
    event_kind,
    head_objects,
    lost,
    place,
    remains,
    rows,
    text_of,
)
from holdfast.errors import FormatError
from holdfast.model import Message
from holdfast.stamps import epoch_ms, timestamp

__all__ = ["NAME", "project_directory", "read", "recognises", "write"]

_ROLES = ("user", "assistant", "system")
_TYPES = (*_ROLES, "summary", "tombstone")
_BARE = frozenset(("role", "content", "id", "metadata"))
_PART = re.compile(r"_part([0-9]{1,9})\.jsonl$")
_encoder = msgspec.json.Encoder()


def recognises(path: str, head: bytes) -> bool:
    """Whether a file has Cersei's entries, or bare messages that no other program writes so."""
    if not path.endswith(".jsonl"):
        return False
    found = False
    for value in head_objects(head):
        if value.get("type") in _TYPES or "sessionId" in value or "parentUuid" in value:
            return not found and _is_entry(value)
        if "type" in value:
            continue  # of another version, perhaps: the next one decides
        if not _is_bare(value):
            return False
        found = True
    return found and not path.rpartition("/")[2].startswith(("sk_v1_", "agent_"))


def _is_entry(value: Mapping[str, Any]) -> bool:
    if value.get("type") not in _TYPES or "sessionId" in value or "parentUuid" in value:
        return False  # those are Claude Code's
    if value["type"] == "tombstone":
        return isinstance(value.get("deleted_uuid"), str)
    return isinstance(value.get("uuid"), str) and isinstance(value.get("session_id"), str)


def _is_bare(value: Mapping[str, Any]) -> bool:
    return (
        value.get("role") in _ROLES
        and _BARE.issuperset(value)
        and isinstance(value.get("content"), str | list)
    )


def project_directory(path: str) -> tuple[str, ...]:
    """The names a project's directory may have: the library's, the command's, the manual's."""
    library = "".join(one if is_alphanumeric(one) or one in "-_." else "_" for one in path)
    dashes = re.sub(r"[/\\:]", "-", path)
    return library, dashes.strip("-"), dashes


# --- reading --------------------------------------------------------------------------------


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
        elif isinstance(value.get("message") if "type" in value else value, dict):
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
        """The messages in an entry; several results make several. None if it is something else."""
        bare = "type" not in value
        said = value if bare else value["message"]
        role = said.get("role")
        if role not in ("user", "assistant") or (not bare and value["type"] != role):
            return []
        content = read_content(role, said.get("content"))
        if content is None:
            return []
        pieces, shape = content
        name = self._id(text_of(value, "uuid"), row)
        fields = {"timestamp": when, **_metadata(said)}
        if text_of(value, "cwd"):
            fields["cwd"] = value["cwd"]
        made: list[Message] = []
        try:
            for number, piece in enumerate(pieces):
                own = made_id(name, number) if number else name
                keep: dict[str, Any] = {"of": name}
                if not number:
                    keep = _keep_message(row, piece, shape, whole=len(pieces) == 1)
                data = {"recordType": "message", "id": own, **piece, **fields, NAME: keep}
                record = built(data)
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
    said = value if "type" not in value else value["message"]
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


def _metadata(said: Mapping[str, Any]) -> dict[str, Any]:
    given = said.get("metadata")
    given = given if isinstance(given, dict) else {}
    fields = {
        "model": text_of(given, "model"),
        "stopReason": text_of(given, "stop_reason"),
    }
    made: dict[str, Any] = {key: value for key, value in fields.items() if value}
    usage = given.get("usage")
    if isinstance(usage, dict):
        cost = usage.get("cost_usd")
        made["usage"] = {
            "inputTokens": _whole(usage.get("input_tokens")),
            "outputTokens": _whole(usage.get("output_tokens")),
            "totalTokens": _whole(usage.get("total_tokens")),
            "cost": cost if isinstance(cost, int | float) and not isinstance(cost, bool) else 0.0,
        }
    return made


def _whole(value: object) -> int:
    return value if type(value) is int and 0 <= value < 1 << 62 else 0
