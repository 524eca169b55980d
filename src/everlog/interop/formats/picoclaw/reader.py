"""Reading whole sessions of PicoClaw from their two files."""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
from typing import Any

from msgspec.structs import replace

from everlog.ids import epoch_ms, timestamp
from everlog.interop.formats.format_types import (
    DamagedBytes,
    ForeignSession,
    HiddenMessages,
    Item,
    Source,
    Summary,
    derive_id,
)
from everlog.interop.formats.jsonl import (
    Row,
    as_text,
    attach_preserved,
    parse_lines,
    parse_object,
    preserved_data,
    record_event,
    report_damage,
    text_of,
    unreadable_event,
)
from everlog.interop.formats.picoclaw.go_json import encode_go_json
from everlog.interop.formats.picoclaw.lines import (
    NAME,
    ROLES,
    count_lines,
    encode_message_line,
    is_only_thinking,
    lowercase_keys,
    parse_message,
)
from everlog.interop.formats.picoclaw.meta_file import find_fault, session_metadata, valid_time
from everlog.model import Event, Message

META_EVENT = f"{NAME}.meta"


def read(source: Source) -> ForeignSession:
    """Read a session from its two files."""
    path = source.paths()[0]
    meta, meta_items, damage = _read_meta(source)
    skip = meta.get("skip") or 0
    default_time = valid_time(text_of(meta, "created_at")) or timestamp(source.modified_ms / 1000)
    items: list[Item] = []
    skipped: list[str] = []
    first_kept: str | None = None  # id of the first message that is not skipped
    occurrences: Counter[bytes] = Counter()
    line_count = 0
    rows = list(parse_lines(source.lines(path), path))
    for row in rows:
        line_count += count_lines(row.data)
        if row.value is None:
            items.append(unreadable_event(NAME, source.name, row, path, default_time))
            continue
        digest = sha256(row.data).digest()
        occurrences[digest] += 1
        item_id = derive_id(source.name, f"{digest.hex()} {occurrences[digest]}")
        item = _read_item(row, item_id, default_time)
        items.append(item)
        if isinstance(item, Message):
            if line_count <= skip:
                skipped.append(item.id)
            else:
                first_kept = first_kept or item.id
    items += meta_items
    summary = text_of(meta, "summary")
    if summary:
        time = valid_time(text_of(meta, "updated_at")) or default_time
        extra: dict[str, Any] = {NAME: {}}
        items.append(
            Summary(
                id=derive_id(source.name, f"summary {first_kept} {summary}"),
                text=summary,
                first_kept=first_kept,
                timestamp=time,
                extra=extra,
            )
        )
    elif skipped:
        item_id = derive_id(source.name, f"skip {' '.join(skipped)}")
        items.append(HiddenMessages(id=item_id, ids=tuple(skipped), timestamp=default_time))
    return ForeignSession(
        session_id=source.name,
        metadata=session_metadata(meta, source.name),
        created_ms=max(epoch_ms(text_of(meta, "created_at")) or source.modified_ms, 0),
        items=tuple(items),
        line_count=sum(not row.is_blank for row in rows),
        damage=(*damage, *report_damage(rows)),
    )


def _read_meta(source: Source) -> tuple[dict[str, Any], list[Item], list[DamagedBytes]]:
    """Return the metadata file's content, items that preserve it, and damage in it."""
    path = next((name for name in source.paths() if name.endswith(".meta.json")), None)
    if path is None:
        missing = f"{source.name}.meta.json"
        return {}, [], [DamagedBytes(missing, 0, 0, "missing: rebuilt from the messages")]
    data = source.read(path)
    value, problem, is_exact = parse_object(data)
    fault = problem if value is None else find_fault(value)
    event_id = derive_id(source.name, f"meta {sha256(data).hexdigest()}")
    time = timestamp(source.modified_ms / 1000)
    if fault or value is None:
        preserved = {"path": path, "start": 0, **as_text(data)}
        broken = Event(id=event_id, kind=f"{NAME}.damaged", data=preserved, timestamp=time)
        report = f"{fault}: rebuilt from the messages"
        return {}, [broken], [DamagedBytes(path, 0, len(data), report)]
    event = Event(id=event_id, kind=META_EVENT, data=value, timestamp=time)
    if encode_go_json(value, 2) != data or not is_exact:
        event = attach_preserved(event, NAME, as_text(data, "line"))
    return value, [event], [DamagedBytes(path, 0, len(data), problem)] if problem else []


def _read_item(row: Row, item_id: str, default_time: str) -> Message | Event:
    value = lowercase_keys(row.value or {})
    role = value.get("role")
    kind = "system" if role == "system" else "record"
    if role in ROLES:
        if is_only_thinking(value):
            kind = "thought"  # PicoClaw ignores it
        else:
            message = parse_message(value, item_id, default_time)
            if message is not None:
                is_lossless = encode_message_line(message) == row.data
                preserved = preserved_data(row, is_lossless=is_lossless)
                if preserved:
                    return attach_preserved(message, NAME, preserved)
                return replace(message, line=b"")
    return record_event(row, f"{NAME}.{kind}", item_id, default_time, encode_go_json(row.value))
