"""Encoding of records for PicoClaw's sessions: a line, and a new metadata file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from everlog.errors import ConflictError, FormatError, StoreFullError, UnsupportedError
from everlog.interop.formats.format_types import FileEdit, MirrorLog, NewSession, TailState
from everlog.interop.formats.losses import IMPORT_HINT, REFUSAL, Losses
from everlog.interop.formats.picoclaw.go_json import format_go_time
from everlog.interop.formats.picoclaw.lines import MAX_READABLE_BYTES, encode_message_line, is_only_thinking
from everlog.interop.formats.picoclaw.messages import write_message
from everlog.interop.formats.picoclaw.meta_file import (
    ENDING,
    change_times,
    encode_meta,
    file_stem,
    is_stem,
    parse_meta,
    skip_count,
)
from everlog.interop.formats.picoclaw.reader import LineState, read_lines
from everlog.log.line_codec import replace_surrogates
from everlog.model import AnyBlock, AnyRecord, Compaction, Event, File, Image, Message, OtherBlock

# Metadata that the files do not need to hold; agent and sender are in the key and the scope.
_IGNORED_KEYS = ("agent", "sender", "source", "model", "chat", "cwd")


def encode_record(state: TailState, log: MirrorLog, record: AnyRecord, losses: Losses = REFUSAL) -> FileEdit:
    """Return the edit that writes a record into the session's files."""
    if isinstance(record, Event):
        return FileEdit()
    lines = msgspec.convert(state, LineState)
    if isinstance(record, Message):
        line = encode_line(record, losses)
        if not line:
            return FileEdit()
        meta = current_meta(lines, log)
        # With a higher value the new line would be skipped.
        skip = min(skip_count(meta), lines.line_count)
        times = change_times(meta, format_go_time(record.timestamp))
        new_meta = encode_meta(meta, skip=skip, count=lines.line_count + 1, **times)
        return FileEdit(lines=(line,), files={ENDING: new_meta})
    if isinstance(record, Compaction):
        if not record.summary:
            losses.refuse("empty summary", "PicoClaw cannot hold an empty summary", hint="write some text")
            return FileEdit()
        meta = current_meta(lines, log)
        changes: dict[str, Any] = change_times(meta, format_go_time(record.timestamp))
        changes["summary"] = replace_surrogates(record.summary)
        changes["skip"], changes["count"] = _skip_before(lines, log, record), lines.line_count
        return FileEdit(files={ENDING: encode_meta(meta, **changes)})
    raise UnsupportedError(
        f"PicoClaw cannot mark messages as removed ({record.record_type})",
        hint=f"truncate the history, or {IMPORT_HINT}",
    )


def encode_line(message: Message, losses: Losses = REFUSAL) -> bytes:
    """Encode a message as a line, without what PicoClaw cannot hold; empty if nothing is left of it."""
    for block in message.content:
        if part := _unsupported_part(block):
            hint = f"refer to its location instead, or {IMPORT_HINT}"
            losses.refuse("", f"PicoClaw's messages cannot hold {part}", hint=hint)
    if is_only_thinking(write_message(message)):
        loss = "message with only thinking"
        losses.refuse(loss, "PicoClaw ignores messages with only thinking", hint="leave it out")
        return b""
    try:
        line = encode_message_line(message)
    except UnicodeEncodeError:
        line = encode_message_line(replace_surrogates(message))
    if len(line) + 1 > MAX_READABLE_BYTES and losses is REFUSAL:
        raise StoreFullError(
            f"a line of {len(line)} bytes exceeds PicoClaw's limit ({MAX_READABLE_BYTES})",
            hint="store the content in a file and refer to it",
        )
    return line


def _unsupported_part(block: AnyBlock) -> str:
    """Describe what of a block cannot be held; images and files are held by their URL."""
    if isinstance(block, OtherBlock):
        return f"a block of type {block.type!r}"
    if isinstance(block, Image) and not block.url:
        return "the data of an image"
    return "the data of a file" if isinstance(block, File) and block.data else ""


def current_meta(state: LineState, log: MirrorLog) -> dict[str, Any]:
    """Return the metadata file's content, rebuilt from the log if it is missing or damaged."""
    meta = parse_meta(log.transcript.meta_bytes)
    if meta is not None:
        return meta
    session_id, metadata = log.transcript.session_id, log.metadata
    key = metadata.key or session_id
    aliases = [alias for alias in metadata.aliases if alias != key]
    optional = {"scope": metadata.scope, "aliases": aliases}
    return {
        "key": key if file_stem(key) == session_id else session_id,
        "summary": _newest_summary(log) if state.summary_digest else "",
        "skip": state.skip if state.summary_digest is not None else state.hidden,
        "count": state.line_count,
        **change_times({}, format_go_time(metadata.created_at)),
        **{name: value for name, value in optional.items() if value},
    }


def _newest_summary(log: MirrorLog) -> str:
    records = reversed(log.records_from(1))
    newest = next((record for record in records if isinstance(record, Compaction)), None)
    return "" if newest is None else newest.summary


def _skip_before(state: LineState, log: MirrorLog, record: Compaction) -> int:
    """Return how many lines precede the first message that a compaction keeps."""
    records = log.records_from(record.first_kept_seq)
    kept = [log.foreign_id(message) for message in records if isinstance(message, Message)]
    ids = read_lines(log.transcript, state.line_count).message_ids()
    before = {message_id: number for number, message_id in enumerate(ids) if message_id}
    if not kept:
        return state.line_count
    first = next((before[message_id] for message_id in kept if message_id in before), None)
    if first is None:  # their ids are unknown, but every message is one line
        first = [0, *before.values()][-min(len(kept), len(before)) :][0]
    return max(first, state.hidden)


def encode_metadata(state: TailState, log: MirrorLog, changes: Mapping[str, Any]) -> FileEdit:
    """Return the edit that sets aliases, a scope, or a key that gives the same file names."""
    session_id = log.transcript.session_id
    meta_changes: dict[str, Any] = {}
    for key, value in changes.items():
        is_supported = (
            (key == "aliases" and _is_text_list(value))
            or (key == "scope" and isinstance(value, Mapping | None))
            or (key == "key" and isinstance(value, str) and file_stem(value) == session_id)
        )
        if not is_supported:
            raise UnsupportedError(f"PicoClaw's files cannot hold this {key}", hint=IMPORT_HINT)
        meta_changes[key] = list(value) if key == "aliases" else value
    meta = current_meta(msgspec.convert(state, LineState), log)
    return FileEdit(files={ENDING: encode_meta(meta, **replace_surrogates(meta_changes))})


def _is_text_list(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)


def name_fields(name: str) -> dict[str, str]:
    """Return the key of a session that a caller names."""
    return {"key": name}


def build_session(metadata: Mapping[str, Any], now: str, is_taken: Callable[[str], bool]) -> NewSession:
    """Return a new session with a key; ConflictError if its files exist already."""
    for field, value in metadata.items():
        if value and field not in ("key", "aliases", "scope", *_IGNORED_KEYS):
            raise UnsupportedError(f"PicoClaw's files cannot hold {field}", hint="leave it out")
    key = metadata.get("key")
    if not isinstance(key, str) or not key:
        raise UnsupportedError("a PicoClaw session needs a key", hint="give it a key")
    stem = file_stem(key)
    if not is_stem(stem):
        raise FormatError(f"not usable as a file name: {key[:60]!r}", hint="choose another key")
    if is_taken(stem):
        raise ConflictError(f"files of session {stem} already exist", hint="choose another key")
    aliases = [alias for alias in metadata.get("aliases") or () if alias != key]
    fields = {"key": key, "scope": metadata.get("scope"), "aliases": aliases}
    meta = encode_meta({}, **fields, **change_times({}, format_go_time(now)))
    return NewSession(stem, stem, FileEdit(files={ENDING: meta}))
