"""A session of PicoClaw's as a whole, from its two files."""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
from typing import Any

from msgspec.structs import replace

from everlog.ids import epoch_ms, timestamp
from everlog.interop.formats.format_types import Hidden, Item, Lost, Read, Source, Summary, made_id
from everlog.interop.formats.jsonl import (
    Row,
    as_text,
    aside,
    event,
    keeping,
    lost,
    parse,
    remains,
    rows,
    text_of,
)
from everlog.interop.formats.picoclaw.go_json import dump
from everlog.interop.formats.picoclaw.lines import (
    NAME,
    ROLES,
    counted,
    is_thought,
    lowered,
    message_in,
    message_line,
)
from everlog.interop.formats.picoclaw.meta_file import facts, fault, stamp
from everlog.model import Event, Message

META = f"{NAME}.meta"


def read(source: Source) -> Read:
    """A session from its two files."""
    path = source.paths()[0]
    meta, meta_items, damage = _read_meta(source)
    skip = meta.get("skip") or 0
    at = stamp(text_of(meta, "created_at")) or timestamp(source.modified / 1000)
    items: list[Item] = []
    skipped: list[str] = []
    first: str | None = None  # id of the first message that is not skipped
    seen: Counter[bytes] = Counter()
    raw = 0
    found = list(rows(source.lines(path), path))
    for row in found:
        raw += counted(row.data)
        if row.value is None:
            items.append(aside(NAME, source.name, row, path, at))
            continue
        digest = sha256(row.data).digest()
        seen[digest] += 1
        item = _item(row, made_id(source.name, f"{digest.hex()} {seen[digest]}"), at)
        items.append(item)
        if isinstance(item, Message):
            if raw <= skip:
                skipped.append(item.id)
            else:
                first = first or item.id
    items += meta_items
    summary = text_of(meta, "summary")
    if summary:
        when = stamp(text_of(meta, "updated_at")) or at
        extra: dict[str, Any] = {NAME: {}}
        items.append(
            Summary(
                id=made_id(source.name, f"summary {first} {summary}"),
                text=summary,
                first_kept=first,
                timestamp=when,
                extra=extra,
            )
        )
    elif skipped:
        mark = made_id(source.name, f"skip {' '.join(skipped)}")
        items.append(Hidden(id=mark, ids=tuple(skipped), timestamp=at))
    return Read(
        name=source.name,
        facts=facts(meta, source.name),
        created=max(epoch_ms(text_of(meta, "created_at")) or source.modified, 0),
        items=tuple(items),
        lines=sum(not row.blank for row in found),
        lost=(*damage, *lost(found)),
    )


def _read_meta(source: Source) -> tuple[dict[str, Any], list[Item], list[Lost]]:
    """What the second file says, the items that keep it, and what is wrong with it."""
    path = next((one for one in source.paths() if one.endswith(".meta.json")), None)
    if path is None:
        made = f"{source.name}.meta.json"
        return {}, [], [Lost(made, 0, 0, "missing: made anew from the messages")]
    data = source.read(path)
    value, problem, exact = parse(data)
    wrong = problem if value is None else fault(value)
    own = made_id(source.name, f"meta {sha256(data).hexdigest()}")
    at = timestamp(source.modified / 1000)
    if wrong or value is None:
        data_kept = {"path": path, "start": 0, **as_text(data)}
        broken = Event(id=own, kind=f"{NAME}.damaged", data=data_kept, timestamp=at)
        report = f"{wrong}: made anew from the messages"
        return {}, [broken], [Lost(path, 0, len(data), report)]
    made_event = Event(id=own, kind=META, data=value, timestamp=at)
    if dump(value, 2) != data or not exact:
        made_event = keeping(made_event, NAME, as_text(data, "line"))
    return value, [made_event], [Lost(path, 0, len(data), problem)] if problem else []


def _item(row: Row, name: str, at: str) -> Message | Event:
    value = lowered(row.value or {})
    role = value.get("role")
    word = "system" if role == "system" else "record"
    if role in ROLES:
        if is_thought(value):
            word = "thought"  # PicoClaw passes over it
        else:
            message = message_in(value, name, at)
            if message is not None:
                keep = remains(row, whole=message_line(message) == row.data)
                return keeping(message, NAME, keep) if keep else replace(message, line=b"")
    return event(row, f"{NAME}.{word}", name, at, dump(row.value))
