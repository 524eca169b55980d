"""What a listing shows of a transcript.

Of each line only what counts is decoded; the rest is passed over. The messages are as many as
`follow` gives, but for records of which only the last with their uuid counts, and for summaries
on a branch that was left, which are messages there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from everlog.interop.formats.claude.chain import CHAIN, SAID
from everlog.interop.formats.claude.session_titles import GIVEN, Titles
from everlog.interop.formats.format_types import LONGEST, Line
from everlog.interop.formats.jsonl import parse, records
from everlog.interop.formats.live_format import Glance


class _Block(msgspec.Struct, gc=False):
    type: Any = None


class _Message(msgspec.Struct, gc=False):
    content: str | list[_Block] | None = None
    model: Any = None


class _Seen(msgspec.Struct, gc=False):
    """What is looked at in a record."""

    type: Any = None
    uuid: Any = None
    isSidechain: Any = None
    teamName: Any = None
    isMeta: Any = None
    isCompactSummary: Any = None
    timestamp: Any = None
    cwd: Any = None
    message: _Message | None = None


class _Notes(msgspec.Struct, omit_defaults=True):
    titles: Titles = msgspec.field(default_factory=Titles)
    inner: bool | None = None  # whether the first chain record is of a side chain


_decode = msgspec.json.Decoder(_Seen).decode


def glance(seen: Glance, lines: Iterable[Line], beside: bytes | None) -> Glance:
    """What a listing shows, after some further lines."""
    return _Glancing(seen).over(lines)


class _Glancing:
    def __init__(self, seen: Glance) -> None:
        self.seen = seen
        self.notes = msgspec.convert(seen.notes, _Notes)
        self.messages = seen.messages
        self.created = seen.created
        self.last = seen.last
        self.model = seen.model
        self.cwd = seen.cwd

    def over(self, lines: Iterable[Line]) -> Glance:
        for line in lines:
            try:
                one = _decode(line.data)
            except (ValueError, RecursionError):
                for value in _slowly(line):
                    self._add(_seen(value), value)
                continue
            if len(line.data) <= LONGEST:
                self._add(one, line.data)
        title = self.notes.titles.best()
        return msgspec.structs.replace(
            self.seen,
            messages=self.messages,
            title=title,
            created=self.created,
            last=self.last,
            model=self.model,
            cwd=self.cwd,
            skip=self.notes.inner is True,
            notes=msgspec.to_builtins(self.notes),
        )

    def _add(self, one: _Seen, whole: bytes | Mapping[str, Any]) -> None:
        if not self.created and isinstance(one.timestamp, str):
            self.created = one.timestamp
        if not self.cwd and isinstance(one.cwd, str):
            self.cwd = one.cwd
        kind = one.type
        if not isinstance(kind, str):
            return
        notes = self.notes
        chain = kind in CHAIN and isinstance(one.uuid, str)
        if chain and notes.inner is None:
            notes.inner = bool(one.isSidechain)
        if kind in GIVEN or (kind == "user" and not notes.titles.prompt):
            value = parse(whole)[0] if isinstance(whole, bytes) else whole
            notes.titles.add(value or {}, inner=notes.inner is True)
        if chain and kind in SAID:
            self._add_said(one)

    def _add_said(self, one: _Seen) -> None:
        message = one.message
        if message is None or message.content is None or one.isMeta or one.teamName:
            return
        if (one.isSidechain and not self.notes.inner) or one.isCompactSummary:
            return
        self.messages += _count(message.content)
        if isinstance(one.timestamp, str):
            self.last = one.timestamp
        model = message.model
        if one.type == "assistant" and isinstance(model, str) and model != "<synthetic>":
            self.model = model or self.model


def _count(content: str | list[_Block]) -> int:
    """How many messages a record becomes: one for each result, and one for the rest."""
    if isinstance(content, str):
        return 1
    results = [block for block in content if block.type == "tool_result"]
    return len(results) + (len(results) < len(content) or not content)


def _slowly(line: Line) -> Iterator[Mapping[str, Any]]:
    """The records of a line that is no strict JSON, or has other types than are expected."""
    return (row.value for row in records([line]) if row.value is not None)


def _seen(value: Mapping[str, Any]) -> _Seen:
    message = value.get("message")
    told = None
    if isinstance(message, dict):
        content = message.get("content")
        if isinstance(content, list):
            kinds = [one.get("type") if isinstance(one, dict) else None for one in content]
            content = [_Block(kind) for kind in kinds]
        told = _Message(content if isinstance(content, str | list) else None, message.get("model"))
    fields = {key: value.get(key) for key in _Seen.__struct_fields__}
    return _Seen(**{**fields, "message": told})
