"""CrabTalk's session files: a line about the session, then messages and compact markers.

    {"agent":"crab","created_by":"user","created_at":"…","title":"","uptime_secs":42}
    {"role":"user","content":"hello"}
    {"compact":"Summary of the conversation so far…"}

Lines have no ids and no times: an item's id follows from the number of its line. A line as
CrabTalk writes it is made again from the record; any other one is kept with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from msgspec.structs import replace

from everlog.errors import FormatError
from everlog.ids import epoch_ms, timestamp
from everlog.interop.formats.crabtalk.entry_builder import begin, change, extend
from everlog.interop.formats.crabtalk.lines import (
    NAME,
    ROLES,
    created,
    dump,
    is_meta,
    read_call,
    read_message,
    write_call,
    write_message,
)
from everlog.interop.formats.crabtalk.names import Name, file_name, parse_name, slug, untitled
from everlog.interop.formats.crabtalk.tail_reader import (
    BESIDE,
    LINE_BYTES,
    PART_BYTES,
    TOTAL_BYTES,
    UPTIME,
    chat_of,
    follow,
    glance,
    is_id,
    name_of,
    whole,
)
from everlog.interop.formats.format_types import Item, Read, Source, Summary, Written, made_id
from everlog.interop.formats.jsonl import (
    Row,
    aside,
    event,
    head_objects,
    keeping,
    lost,
    place,
    remains,
    rows,
    text_of,
)
from everlog.interop.formats.writer import Losses, Sheet, dropped, is_ended, original, placed
from everlog.model import (
    AnyRecord,
    Compaction,
    Event,
    File,
    Image,
    Message,
    Metadata,
    OtherBlock,
    Thinking,
    ToolCall,
)

__all__ = [
    "BESIDE",
    "LINE_BYTES",
    "META",
    "NAME",
    "PART_BYTES",
    "TOTAL_BYTES",
    "UPTIME",
    "Name",
    "begin",
    "change",
    "chat_of",
    "extend",
    "file_name",
    "follow",
    "glance",
    "is_id",
    "name_of",
    "parse_name",
    "read",
    "read_call",
    "read_message",
    "recognises",
    "slug",
    "whole",
    "write",
    "write_call",
    "write_message",
]

META = f"{NAME}.meta"


def recognises(path: str, head: bytes) -> bool:
    """Whether a file begins with the line about the session."""
    return path.endswith(".jsonl") and is_meta(next(head_objects(head), {}))


# --- reading --------------------------------------------------------------------------------


def read(source: Source) -> Read:
    """A session from its file."""
    path = source.paths()[0]
    items: list[Item] = []
    found = list(rows(source.lines(path), path))
    first = next((row for row in found if not row.blank), None)
    meta = first.value if first and first.value and is_meta(first.value) else {}
    named = parse_name(source.name, text_of(meta, "agent"), text_of(meta, "created_by") or "user")
    name = untitled(source.name, named)
    at = created(meta) or timestamp(source.modified / 1000)
    for row in found:
        if row.value is None:
            items.append(aside(NAME, name, row, path, at))
        elif row is first and meta:
            # It is written anew with each turn: another one is another event.
            own = made_id(name, sha256(row.data).hexdigest())
            items.append(event(row, META, own, at, dump(meta)))
        else:
            items.append(_item(row, made_id(name, place(row, path)), at))
    _date_last(items, source.modified)
    facts: dict[str, Any] = {
        "agent": text_of(meta, "agent") or named.agent,
        "sender": text_of(meta, "created_by") or named.sender or "user",
        "name": text_of(meta, "title") or ("" if meta else named.title),
        "chat": named.chat,
    }
    return Read(
        name=name,
        facts={key: value for key, value in facts.items() if value not in ("", None)},
        created=max(epoch_ms(text_of(meta, "created_at")) or source.modified, 0),
        items=tuple(items),
        lines=sum(not row.blank for row in found),
        lost=lost(found),
    )


def _date_last(items: list[Item], modified: int) -> None:
    """Give the last message the time of the file: that is when it was written."""
    for index in range(len(items) - 1, -1, -1):
        item = items[index]
        if isinstance(item, Message) and modified > 0:
            items[index] = replace(item, timestamp=timestamp(modified / 1000))
            return


def _item(row: Row, name: str, at: str) -> Item:
    value = row.value or {}
    if isinstance(value.get("compact"), str):
        keep = remains(row, whole=dump({"compact": value["compact"]}) == row.data)
        extra = {NAME: keep} if keep else {}
        return Summary(id=name, text=value["compact"], timestamp=at, extra=extra)
    role = value.get("role")
    if isinstance(role, str) and role in ROLES:
        try:
            message = read_message(value, name, at)
        except FormatError:
            return event(row, f"{NAME}.record", name, at, dump(value))
        keep = remains(row, whole=dump(write_message(message)) == row.data)
        return keeping(message, NAME, keep) if keep else message
    kind = "system" if role == "system" else "record"
    return event(row, f"{NAME}.{kind}", name, at, dump(value))


# --- writing --------------------------------------------------------------------------------


def write(metadata: Metadata, records: Sequence[AnyRecord]) -> Written:
    """A session as CrabTalk's file."""
    sheet, losses = Sheet(), Losses()
    gone = dropped(records, NAME)
    metas = [one for one in records if isinstance(one, Event) and one.kind == META]
    own = metas[-1] if metas else None  # the newest, in the place of the first
    meta = _meta(metadata, own)
    if own is None:
        sheet.add(dump(meta))
    for record in placed(records):
        if own is not None and isinstance(record, Event) and record.kind == META:
            if record is not metas[0]:
                continue
            record = own
        raw = original(record, NAME)
        if record.seq in gone and isinstance(record, Message):
            losses.add("message that is hidden or was rewound")
        elif own is not None and record is own and meta != own.data:
            sheet.add(dump(meta))
        elif raw is not None:
            sheet.add(raw.data, ended=raw.ended)
        elif isinstance(record, Message):
            losses.blocks(record, (Image, File, OtherBlock, Thinking, ToolCall))
            losses.add("mark of a failed tool", bool(record.is_error))
            sheet.add(dump(write_message(record)), ended=is_ended(record, NAME))
        elif isinstance(record, Compaction):
            sheet.add(dump({"compact": record.summary}), ended=is_ended(record, NAME))
        elif isinstance(record, Event) and record.kind.startswith(f"{NAME}."):
            sheet.add(dump(record.data), ended=is_ended(record, NAME))
        else:
            losses.record(record)
    chat = metadata.chat if metadata.chat is not None else 1
    agent, sender = text_of(meta, "agent"), text_of(meta, "created_by")
    path = file_name(agent, sender, chat, text_of(meta, "title"))
    prefix, found, stem = (metadata.key or "").partition(f"{NAME}:")  # as it was imported
    if found and not prefix and own is not None and meta == own.data:
        named = parse_name(stem, agent, sender)
        path = f"{stem}.jsonl" if named.chat is None else path  # it came without a number
    return Written({path: sheet.content()}, losses.words())


def _meta(metadata: Metadata, own: Event | None) -> dict[str, Any]:
    """The line about the session: the file's own, with what changed since."""
    if own is None:
        made = metadata.created_at
        return {
            "agent": metadata.agent,
            "created_by": metadata.sender,
            "created_at": made[:-1] + "+00:00" if made.endswith("Z") else made,
            "title": metadata.name or "",
            "uptime_secs": metadata.uptime_secs,
        }
    meta = dict(own.data)
    if metadata.name and metadata.name != meta.get("title"):
        meta["title"] = metadata.name
    if metadata.uptime_secs:  # of the turns since then
        before = meta.get("uptime_secs")
        meta["uptime_secs"] = metadata.uptime_secs + (before if isinstance(before, int) else 0)
    return meta
