"""Writing a session as PicoClaw's two files: the original ones, with what was added since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everlog.errors import FormatError
from everlog.interop.formats.format_types import DERIVED_KEY, ExportedFiles, extra_field
from everlog.interop.formats.jsonl import text_of
from everlog.interop.formats.picoclaw.go_json import encode_go_json, format_go_time
from everlog.interop.formats.picoclaw.lines import (
    MAX_READABLE_BYTES,
    NAME,
    count_lines,
    encode_message_line,
    is_only_thinking,
)
from everlog.interop.formats.picoclaw.messages import write_message
from everlog.interop.formats.picoclaw.meta_file import ENDING, ZERO_TIME, file_stem
from everlog.interop.formats.picoclaw.reader import META_EVENT, title_of
from everlog.interop.formats.writer import (
    FileBuilder,
    Losses,
    has_newline,
    read_preserved,
    read_preserved_line,
    removed_seqs,
)
from everlog.log.fold import fold
from everlog.model import (
    AnyRecord,
    Compaction,
    Event,
    Image,
    Message,
    Metadata,
    OtherBlock,
    Rewind,
    Thinking,
    Tombstone,
    ToolCall,
)


def write(metadata: Metadata, records: Sequence[AnyRecord]) -> ExportedFiles:
    """Write a session as PicoClaw's two files."""
    transcript, losses = FileBuilder(), Losses()
    removed = removed_seqs(records, NAME)
    events = (record for record in records if isinstance(record, Event))
    meta_events = [event for event in events if event.kind == META_EVENT]
    meta_event = meta_events[-1] if meta_events else None
    old_meta = meta_event.data if meta_event is not None else {}
    compaction = fold(record for record in records if not _is_from_meta(record)).compaction
    old_line_count = line_count = skip = 0  # lines in the old file, written, and to be skipped
    last_time = ""
    for record in records:
        line = _encode_line(record)
        if line is None:
            if record is not compaction and not _is_from_meta(record) and record not in meta_events:
                losses.count_record(record)
            continue
        data, ended = line
        count = count_lines(data)
        old_line_count += count
        if isinstance(record, Message):
            if record.seq in removed:
                losses.add("message that is hidden or was rewound")
                continue
            if not data:
                losses.add("message with only thinking")
                continue
            if read_preserved(record, NAME) is None:
                losses.count_blocks(record, (OtherBlock, Thinking, ToolCall))
                losses.add("image", _count_inline_images(record))
                losses.add("mark of a failed tool", bool(record.is_error))
                losses.count_fields(record, ("usage", "stop_reason", "cwd", "sender"))
            is_new = meta_event is None or record.seq > meta_event.seq
            last_time = record.timestamp if is_new else ""
        if len(data) > MAX_READABLE_BYTES:
            losses.add("line too long for PicoClaw to read back")
        transcript.add_line(data, ended=ended)
        line_count += count
        if compaction is None:
            if old_line_count <= (old_meta.get("skip") or 0):
                skip = line_count
        elif record.seq < compaction.first_kept_seq:
            skip = line_count
    _count_metadata(losses, metadata, records)
    key = text_of(old_meta, "key") or (metadata.key or metadata.id).removeprefix(f"{NAME}:")
    summary = compaction.summary if compaction is not None else text_of(old_meta, "summary")
    if meta_event and not removed and not _has_changed_since(records, meta_event, metadata):
        preserved = read_preserved_line(meta_event, NAME)
        meta = preserved.data if preserved is not None else encode_go_json(old_meta, 2)
    else:
        changes = {"key": key, "summary": summary, "skip": skip, "count": line_count}
        meta = encode_go_json(_build_meta(metadata, old_meta, last_time, **changes), 2)
    file_name = file_stem(key)
    if len(file_name.encode("utf-8", "replace")) > 255 - len(ENDING):
        raise FormatError("the session's key is too long for a file name", hint="give it a shorter key")
    files = {f"{file_name}.jsonl": transcript.content(), f"{file_name}.meta.json": meta}
    return ExportedFiles(files, losses.describe())


def _count_metadata(losses: Losses, metadata: Metadata, records: Sequence[AnyRecord]) -> None:
    """Count facts about the session that the files do not hold; a scope says who takes part."""
    messages = (record for record in records if isinstance(record, Message) and record.role == "user")
    losses.add("title", metadata.title not in (None, "", next(filter(None, map(title_of, messages)), "")))
    losses.add("working directory", bool(metadata.extra.get("cwd")))
    losses.add("agent", metadata.scope is None and metadata.agent != "main")
    losses.add("sender", metadata.scope is None and metadata.sender != "user")
    losses.add("system prompt of the session", bool(metadata.system_prompt_override))


def _is_from_meta(record: AnyRecord) -> bool:
    """Return whether a marker was derived from the metadata file."""
    if isinstance(record, Compaction):
        return read_preserved(record, NAME) is not None
    return isinstance(record, Tombstone) and extra_field(record, DERIVED_KEY) is not None


def _session_aliases(metadata: Metadata, key: str) -> list[str]:
    """Return the aliases without the key and without the name that the import gave."""
    return [alias for alias in metadata.aliases if alias != key and not alias.startswith(f"{NAME}:")]


def _has_changed_since(records: Sequence[AnyRecord], meta_event: Event, metadata: Metadata) -> bool:
    """Return whether the session has changed since the metadata file was read."""
    old_aliases = meta_event.data.get("aliases") or []
    if set(_session_aliases(metadata, text_of(meta_event.data, "key"))) - set(old_aliases):
        return True
    if metadata.scope is not None and metadata.scope != meta_event.data.get("scope"):
        return True
    types = (Message, Compaction, Tombstone, Rewind)
    later = (record for record in records if record.seq > meta_event.seq)
    return any(isinstance(record, types) and not _is_from_meta(record) for record in later)


def _encode_line(record: AnyRecord) -> tuple[bytes, bool] | None:
    """Return the line of a record; None if it has none, empty if PicoClaw would not write it."""
    raw = read_preserved_line(record, NAME)
    if isinstance(record, Event):
        if record.kind == META_EVENT or str(record.data.get("path", "")).endswith(".meta.json"):
            return None
        if raw is None and record.kind.startswith(f"{NAME}."):
            return encode_go_json(record.data), has_newline(record, NAME)
    if raw is not None:
        return raw.data, raw.ended
    if not isinstance(record, Message):
        return None
    is_ignored = is_only_thinking(write_message(record))
    return b"" if is_ignored else encode_message_line(record), has_newline(record, NAME)


def _count_inline_images(message: Message) -> int:
    return sum(isinstance(block, Image) and not block.url for block in message.content)


def _build_meta(metadata: Metadata, old_meta: Mapping[str, Any], last_time: str, **changes: Any) -> dict[str, Any]:
    """Return the metadata file's content: the old one, with the changes since."""
    created = text_of(old_meta, "created_at") or format_go_time(metadata.created_at)
    old_updated = text_of(old_meta, "updated_at") or format_go_time(metadata.last_message_at)
    updated = format_go_time(last_time) or old_updated or created
    meta: dict[str, Any] = {**changes, "created_at": created or ZERO_TIME, "updated_at": updated or ZERO_TIME}
    if metadata.scope or old_meta.get("scope"):
        meta["scope"] = metadata.scope or old_meta["scope"]
    aliases = dict.fromkeys((*(old_meta.get("aliases") or ()), *_session_aliases(metadata, changes["key"])))
    if aliases:
        meta["aliases"] = list(aliases)
    return {**meta, **{name: value for name, value in old_meta.items() if name not in meta}}
