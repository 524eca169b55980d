"""Writing a session as CrabTalk's file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everlog.interop.formats.crabtalk.head_line import META_DEFAULTS, format_time
from everlog.interop.formats.crabtalk.lines import NAME, encode_json, write_message
from everlog.interop.formats.crabtalk.names import file_name, parse_name
from everlog.interop.formats.crabtalk.reader import META_EVENT
from everlog.interop.formats.format_types import ExportedFiles, derive_id
from everlog.interop.formats.jsonl import text_of
from everlog.interop.formats.writer import (
    FileBuilder,
    Losses,
    has_newline,
    read_preserved_line,
    removed_seqs,
    reposition_compactions,
)
from everlog.model import AnyRecord, Compaction, Event, File, Image, Message, Metadata, OtherBlock, Thinking, ToolCall


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
    agent, sender = text_of(meta, "agent"), text_of(meta, "created_by")
    chat = metadata.chat if metadata.chat is not None else 1
    prefix, separator, stem = (metadata.key or "").partition(f"{NAME}:")  # as it was imported
    # The times of messages that an import read are not theirs: there are none in the file.
    session_id = stem or file_name(agent, sender, chat, "").removesuffix(".jsonl")
    line_ids = {derive_id(session_id, number) for number in range(len(records) + 2)}
    losses.add("working directory", bool(metadata.extra.get("cwd")))
    losses.add("system prompt of the session", bool(metadata.system_prompt_override))
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
            losses.count_fields(record, ("model", "usage", "stop_reason", "cwd", "sender"))
            losses.count_fields(record, () if record.id in line_ids else ("timestamp",))
            file.add_line(encode_json(write_message(record)), ended=has_newline(record, NAME))
        elif isinstance(record, Compaction):
            file.add_line(encode_json({"compact": record.summary}), ended=has_newline(record, NAME))
        elif isinstance(record, Event) and record.kind.startswith(f"{NAME}."):
            file.add_line(encode_json(record.data), ended=has_newline(record, NAME))
        else:
            losses.count_record(record)
    path = file_name(agent, sender, chat, text_of(meta, "title"))
    if separator and not prefix and meta_event is not None and meta == meta_event.data:
        name_parts = parse_name(stem, agent, sender)
        path = f"{stem}.jsonl" if name_parts.chat is None else path  # the imported name had no number
    return ExportedFiles({path: file.content()}, losses.describe())


def _build_meta(metadata: Metadata, meta_event: Event | None) -> dict[str, Any]:
    """Return the metadata line: the original one, with the changes since."""
    if meta_event is None:
        created, title = format_time(metadata.created_at), metadata.title or ""
        values = (metadata.agent, metadata.sender, created, title, metadata.uptime_secs)
        return dict(zip(META_DEFAULTS, values, strict=True))
    meta = dict(meta_event.data)
    if metadata.title and metadata.title != meta.get("title"):
        meta["title"] = metadata.title
    if metadata.uptime_secs:  # of the turns since the import
        uptime = meta.get("uptime_secs")
        meta["uptime_secs"] = metadata.uptime_secs + (uptime if isinstance(uptime, int) else 0)
    return meta
