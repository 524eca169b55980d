"""Reading new lines of PicoClaw's sessions.

Lines are messages; the metadata file changes independently of them:

    a summary              stands for the first `skip` lines
    `skip` without one     hides them; an item lists all hidden messages and replaces the previous
                           list, so that lines may also be shown again
    a removed summary      becomes a summary that says so: no native marker undoes a compaction

While the metadata file is missing or damaged, its last content stays in effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

import msgspec
from msgspec.structs import replace

from everlog.interop.formats.format_types import HiddenMessages, Line, Summary, derive_id
from everlog.interop.formats.jsonl import text_of
from everlog.interop.formats.live_format import (
    ConversationItem,
    ListingScan,
    MetadataLocation,
    TailResult,
    TailState,
    TranscriptInfo,
)
from everlog.interop.formats.picoclaw.go_json import TIME_PATTERN
from everlog.interop.formats.picoclaw.line_numbers import LineState, id_prefix, item_id
from everlog.interop.formats.picoclaw.lines import MAX_READABLE_BYTES, ROLES, is_in_history, parse_message_line
from everlog.interop.formats.picoclaw.meta_file import is_stem, parse_meta, session_metadata, skip_count, valid_time
from everlog.model import Image, Message

METADATA_LOCATION: MetadataLocation = "file"
PART_BYTES = 0
TOTAL_BYTES = 0
LINE_BYTES = MAX_READABLE_BYTES

NO_SUMMARY_TEXT = "(There is no summary of what was said before.)"
_MAX_TITLE = 60  # characters


def is_id(text: str) -> bool:
    """Return whether a text can be a session id, which is the name of its files."""
    return is_stem(text)


def session_id_of(stem: str, meta_bytes: bytes | None) -> str:
    """Return the session id, which is the stem of the file name."""
    return stem


# --- reading ------------------------------------------------------------------------------


def read_tail(tail_state: TailState, lines: Iterable[Line], transcript: TranscriptInfo) -> TailResult | None:
    """Return the items of new lines and of changes in the metadata file."""
    state = LineState.from_tail_state(tail_state)
    meta = parse_meta(transcript.meta_bytes)
    items = _read_lines(state, lines, transcript.session_id, meta or {})
    if meta is not None:
        meta_items = _read_meta_changes(state, meta, transcript.session_id)
        if meta_items is None:
            return None
        items += meta_items
    return TailResult(items, state.to_tail_state())


def read_all(lines: Iterable[Line], transcript: TranscriptInfo) -> TailResult:
    """Return the items of a whole session, always with an item for hidden messages."""
    state = LineState()
    meta = parse_meta(transcript.meta_bytes) or {}
    items = _read_lines(state, lines, transcript.session_id, meta)
    items += _read_meta_changes(state, meta, transcript.session_id, always_hidden=True) or []
    return TailResult(items, state.to_tail_state())


def _read_lines(
    state: LineState, lines: Iterable[Line], session_id: str, meta: Mapping[str, Any]
) -> list[ConversationItem]:
    prefix, default_time = id_prefix(session_id), valid_time(text_of(meta, "created_at"))
    items: list[ConversationItem] = []
    for line in lines:
        data = line.data.removesuffix(b"\r")
        if not data:
            continue
        state.line_count += 1
        message = parse_message_line(data, item_id(prefix, state.line_count), default_time)
        if message is not None:
            items.append(message)
        else:
            numbers = state.other_lines if is_in_history(data) else state.ignored_lines
            numbers.append(state.line_count)
    return items


def _read_meta_changes(
    state: LineState, meta: Mapping[str, Any], session_id: str, *, always_hidden: bool = False
) -> list[ConversationItem] | None:
    """Return items for changed metadata; None if they need lines that the state does not have."""
    time, text = valid_time(text_of(meta, "updated_at")), text_of(meta, "summary")
    skip = min(skip_count(meta), state.line_count)  # `skip` may include lines still to come
    has_summary = bool(text) or state.summary_digest is not None
    hidden = 0 if has_summary else skip
    digest = sha256(text.encode()).hexdigest()[:32] if text else ""
    prefix, non_messages = id_prefix(session_id), state.non_messages
    items: list[ConversationItem] = []

    def next_id(seed: str) -> str:
        state.mark_count += 1
        updated = text_of(meta, "updated_at")
        return derive_id(session_id, f"{seed} {skip} {state.mark_count} {updated}")

    if hidden != state.hidden or always_hidden:
        numbers = (n for n in range(1, hidden + 1) if n not in non_messages)
        ids = tuple(item_id(prefix, number) for number in numbers)
        items.append(HiddenMessages(id=next_id("hidden"), ids=ids, timestamp=time))
        state.hidden = hidden
    if has_summary and (state.summary_digest, state.skip) != (digest, skip):
        if skip < state.complete_after:
            return None
        first = state.first_message_after(skip)
        items.append(
            Summary(
                id=next_id(f"summary {digest}"),
                text=text or NO_SUMMARY_TEXT,
                first_kept=None if first is None else item_id(prefix, first),
                timestamp=time,
            )
        )
        state.summary_digest, state.skip = digest, skip
    return items


# --- listing --------------------------------------------------------------------------------


class _Function(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    name: str = ""
    arguments: str = ""


class _Call(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    function: _Function
    id: str = ""
    type: str = ""


class _Plain(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A line as PicoClaw writes most messages; `read_tail` always accepts this form."""

    role: str
    content: str
    created_at: str
    model_name: str = ""
    reasoning_content: str = ""
    tool_calls: tuple[_Call, ...] = ()
    tool_call_id: str = ""


_plain = msgspec.json.Decoder(_Plain)


def scan_listing(scan: ListingScan, lines: Iterable[Line], transcript: TranscriptInfo) -> ListingScan:
    """Continue a listing scan; the title is the first user message, as in PicoClaw's own list."""
    messages, title, model = scan.messages, scan.title, scan.model
    for line in lines:
        message = _scan_message(line.data)
        if message is None:
            continue
        messages += 1
        role, text, message_model = message
        title = title or (_shorten(text) if role == "user" else "")
        model = message_model or model
    meta = parse_meta(transcript.meta_bytes)
    result = replace(scan, messages=messages, title=title, model=model)
    if meta is None:
        return result
    metadata = session_metadata(meta, "")
    return replace(
        result,
        created=valid_time(text_of(meta, "created_at")),
        last=valid_time(text_of(meta, "updated_at")),
        key=metadata["key"],
        agent=metadata.get("agent", ""),
        aliases=tuple(metadata.get("aliases", ())),
        scope=metadata.get("scope"),
    )


def _scan_message(data: bytes) -> tuple[str, str, str] | None:
    """Return role, text and model of the message in a line; None if it has none."""
    try:
        plain = _plain.decode(data)
        # A message without text may have only thinking: it needs the full parse.
        has_time = TIME_PATTERN.fullmatch(plain.created_at)
        if has_time and plain.content.strip() and plain.role in ROLES:
            return plain.role, plain.content, plain.model_name
    except (ValueError, RecursionError):
        pass
    message = parse_message_line(data.removesuffix(b"\r"), "", "")
    return None if message is None else (message.role, _preview(message), message.model or "")


def _preview(message: Message) -> str:
    has_image = any(isinstance(block, Image) for block in message.content)
    return message.text if message.text.strip() or not has_image else "[image]"


def _shorten(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _MAX_TITLE else f"{text[:_MAX_TITLE]}..."
