"""CrabTalk's session format: a metadata line, then messages and compaction markers.

    {"agent":"crab","created_by":"user","created_at":"…","title":"","uptime_secs":42}
    {"role":"user","content":"hello"}
    {"compact":"Summary of the conversation so far…"}

Lines have no ids and no times: an item's id is derived from the number of its line. A line in
CrabTalk's own form is rebuilt from the record; any other line is preserved with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from msgspec.structs import replace

from everlog.errors import FormatError
from everlog.ids import epoch_ms, timestamp
from everlog.interop.formats.crabtalk.entry_builder import build_session, encode_metadata, encode_record, name_fields
from everlog.interop.formats.crabtalk.lines import (
    NAME,
    ROLES,
    created_time,
    encode_json,
    is_meta,
    read_call,
    read_message,
    write_call,
    write_message,
)
from everlog.interop.formats.crabtalk.names import FileName, file_name, parse_name, slug, without_title
from everlog.interop.formats.crabtalk.tail_reader import (
    HAS_UPTIME,
    LINE_BYTES,
    METADATA_LOCATION,
    PART_BYTES,
    TOTAL_BYTES,
    chat_of,
    is_id,
    read_all,
    read_tail,
    scan_listing,
    session_id_of,
)
from everlog.interop.formats.format_types import (
    ExportedFiles,
    ForeignSession,
    Item,
    Source,
    Summary,
    content_fingerprint,
    derive_id,
)
from everlog.interop.formats.jsonl import (
    Row,
    attach_preserved,
    head_objects,
    line_position,
    parse_lines,
    preserved_data,
    record_event,
    report_damage,
    text_of,
    unreadable_event,
)
from everlog.interop.formats.live_format import ListingScan
from everlog.interop.formats.writer import (
    FileBuilder,
    Losses,
    has_newline,
    read_preserved_line,
    removed_seqs,
    reposition_compactions,
)
from everlog.model import AnyRecord, Compaction, Event, File, Image, Message, Metadata, OtherBlock, Thinking, ToolCall

__all__ = [
    "ANCESTOR_FILE",
    "HAS_UPTIME",
    "IS_REWRITTEN",
    "LINE_BYTES",
    "METADATA_LOCATION",
    "META_EVENT",
    "NAME",
    "PART_BYTES",
    "TOTAL_BYTES",
    "FileName",
    "build_session",
    "chat_of",
    "encode_metadata",
    "encode_record",
    "file_name",
    "fingerprint",
    "is_id",
    "name_fields",
    "parse_name",
    "read",
    "read_all",
    "read_call",
    "read_message",
    "read_tail",
    "recognises",
    "resume_command",
    "scan_listing",
    "session_id_of",
    "slug",
    "write",
    "write_call",
    "write_message",
]

META_EVENT = f"{NAME}.meta"


def recognises(path: str, head: bytes) -> bool:
    """Return whether a file begins with a metadata line."""
    return path.endswith(".jsonl") and is_meta(next(head_objects(head), {}))


# --- reading --------------------------------------------------------------------------------


def read(source: Source) -> ForeignSession:
    """Read a session from its file."""
    path = source.paths()[0]
    items: list[Item] = []
    rows = list(parse_lines(source.lines(path), path))
    first = next((row for row in rows if not row.is_blank), None)
    meta = first.value if first and first.value and is_meta(first.value) else {}
    sender = text_of(meta, "created_by") or "user"
    name_parts = parse_name(source.name, text_of(meta, "agent"), sender)
    session_id = without_title(source.name, name_parts)
    default_time = created_time(meta) or timestamp(source.modified_ms / 1000)
    for row in rows:
        if row.value is None:
            items.append(unreadable_event(NAME, session_id, row, path, default_time))
        elif row is first and meta:
            # It is rewritten with each turn: another content is another event.
            event_id = derive_id(session_id, sha256(row.data).hexdigest())
            items.append(record_event(row, META_EVENT, event_id, default_time, encode_json(meta)))
        else:
            item_id = derive_id(session_id, line_position(row, path))
            items.append(_read_item(row, item_id, default_time))
    _date_last(items, source.modified_ms)
    metadata: dict[str, Any] = {
        "agent": text_of(meta, "agent") or name_parts.agent,
        "sender": text_of(meta, "created_by") or name_parts.sender or "user",
        "name": text_of(meta, "title") or ("" if meta else name_parts.title),
        "chat": name_parts.chat,
    }
    return ForeignSession(
        session_id=session_id,
        metadata={key: value for key, value in metadata.items() if value not in ("", None)},
        created_ms=max(epoch_ms(text_of(meta, "created_at")) or source.modified_ms, 0),
        items=tuple(items),
        line_count=sum(not row.is_blank for row in rows),
        damage=report_damage(rows),
    )


def _date_last(items: list[Item], modified_ms: int) -> None:
    """Give the last message the mtime of the file, which is when it was written."""
    for index in range(len(items) - 1, -1, -1):
        item = items[index]
        if isinstance(item, Message) and modified_ms > 0:
            items[index] = replace(item, timestamp=timestamp(modified_ms / 1000))
            return


def _read_item(row: Row, item_id: str, default_time: str) -> Item:
    value = row.value or {}
    if isinstance(value.get("compact"), str):
        is_lossless = encode_json({"compact": value["compact"]}) == row.data
        preserved = preserved_data(row, is_lossless=is_lossless)
        extra = {NAME: preserved} if preserved else {}
        return Summary(id=item_id, text=value["compact"], timestamp=default_time, extra=extra)
    role = value.get("role")
    if isinstance(role, str) and role in ROLES:
        try:
            message = read_message(value, item_id, default_time)
        except FormatError:
            return record_event(row, f"{NAME}.record", item_id, default_time, encode_json(value))
        preserved = preserved_data(row, is_lossless=encode_json(write_message(message)) == row.data)
        return attach_preserved(message, NAME, preserved) if preserved else message
    kind = "system" if role == "system" else "record"
    return record_event(row, f"{NAME}.{kind}", item_id, default_time, encode_json(value))


# --- writing --------------------------------------------------------------------------------


def write(metadata: Metadata, records: Sequence[AnyRecord]) -> ExportedFiles:
    """Write a session as CrabTalk's file."""
    file, losses = FileBuilder(), Losses()
    removed = removed_seqs(records, NAME)
    events = (record for record in records if isinstance(record, Event))
    meta_events = [event for event in events if event.kind == META_EVENT]
    # The newest is written in the place of the first.
    meta_event = meta_events[-1] if meta_events else None
    meta = _build_meta(metadata, meta_event)
    if meta_event is None:
        file.add_line(encode_json(meta))
    for record in reposition_compactions(records):
        if meta_event is not None and isinstance(record, Event) and record.kind == META_EVENT:
            if record is not meta_events[0]:
                continue
            record = meta_event
        raw = read_preserved_line(record, NAME)
        if record.seq in removed and isinstance(record, Message):
            losses.add("message that is hidden or was rewound")
        elif meta_event is not None and record is meta_event and meta != meta_event.data:
            file.add_line(encode_json(meta))
        elif raw is not None:
            file.add_line(raw.data, ended=raw.ended)
        elif isinstance(record, Message):
            losses.count_blocks(record, (Image, File, OtherBlock, Thinking, ToolCall))
            losses.add("mark of a failed tool", bool(record.is_error))
            file.add_line(encode_json(write_message(record)), ended=has_newline(record, NAME))
        elif isinstance(record, Compaction):
            file.add_line(encode_json({"compact": record.summary}), ended=has_newline(record, NAME))
        elif isinstance(record, Event) and record.kind.startswith(f"{NAME}."):
            file.add_line(encode_json(record.data), ended=has_newline(record, NAME))
        else:
            losses.count_record(record)
    chat = metadata.chat if metadata.chat is not None else 1
    agent, sender = text_of(meta, "agent"), text_of(meta, "created_by")
    path = file_name(agent, sender, chat, text_of(meta, "title"))
    prefix, separator, stem = (metadata.key or "").partition(f"{NAME}:")  # as it was imported
    if separator and not prefix and meta_event is not None and meta == meta_event.data:
        name_parts = parse_name(stem, agent, sender)
        path = f"{stem}.jsonl" if name_parts.chat is None else path  # the imported name had no number
    return ExportedFiles({path: file.content()}, losses.describe())


def _build_meta(metadata: Metadata, meta_event: Event | None) -> dict[str, Any]:
    """Return the metadata line: the original one, with the changes since."""
    if meta_event is None:
        created = metadata.created_at
        return {
            "agent": metadata.agent,
            "created_by": metadata.sender,
            "created_at": created[:-1] + "+00:00" if created.endswith("Z") else created,
            "title": metadata.title or "",
            "uptime_secs": metadata.uptime_secs,
        }
    meta = dict(meta_event.data)
    if metadata.title and metadata.title != meta.get("title"):
        meta["title"] = metadata.title
    if metadata.uptime_secs:  # of the turns since the import
        uptime = meta.get("uptime_secs")
        meta["uptime_secs"] = metadata.uptime_secs + (uptime if isinstance(uptime, int) else 0)
    return meta


KEYS: frozenset[str] = frozenset()
ANCESTOR_FILE = ""
IS_REWRITTEN = False


def fingerprint(message: Message) -> str:
    """Return what identifies a message in every copy of its session."""
    return content_fingerprint(message, with_time=False)


def resume_command(facts: ListingScan, path: str) -> tuple[str, ...]:
    """Return the command that continues the session in its own program."""
    return ()
