"""Encoding of records for CrabTalk's sessions.

Lines are only appended. The metadata line is rewritten for a title or the duration of turns; that
copies the whole file, so it is not done with each message, as CrabTalk does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from everlog.errors import FormatError, UnsupportedError
from everlog.interop.formats.crabtalk.head_line import (
    DEFAULT_SENDER,
    META_DEFAULTS,
    format_time,
    missing_head,
    name_of,
    parse_meta,
)
from everlog.interop.formats.crabtalk.lines import encode_json, write_message
from everlog.interop.formats.crabtalk.names import is_id, slug, with_title
from everlog.interop.formats.format_types import FileEdit, MirrorLog, NewSession, TailState
from everlog.interop.formats.jsonl import text_of
from everlog.interop.formats.losses import IMPORT_HINT, REFUSAL, Losses
from everlog.log.line_codec import replace_surrogates
from everlog.model import AnyRecord, Compaction, Event, File, Image, Message, OtherBlock

_DEFAULT_AGENT = "crab"
_IGNORED_KEYS = ("source", "model", "chat", "cwd", "cronJobId")  # that the files do not need to hold


def encode_record(state: TailState, log: MirrorLog, record: AnyRecord, losses: Losses = REFUSAL) -> FileEdit:
    """Return the edit that appends the lines for a record."""
    if isinstance(record, Event):
        return FileEdit()
    if isinstance(record, Message):
        return FileEdit(lines=(_encode_line(record, losses),))
    if isinstance(record, Compaction):
        # For CrabTalk only lines after a marker are in the context, so kept messages are repeated
        # there. `read_tail` then returns a summary that keeps nothing before it, and the repeated
        # messages as new ones.
        marker = encode_json({"compact": replace_surrogates(record.summary)})
        kept = (_encode_line(message, losses) for message in _kept_messages(log, record.first_kept_seq))
        return FileEdit(lines=(marker, *kept))
    raise UnsupportedError(f"CrabTalk cannot mark messages as removed ({record.record_type})", hint=IMPORT_HINT)


def _kept_messages(log: MirrorLog, first_kept_seq: int) -> list[Message]:
    """Return the messages from a seq on that are after the last compaction."""
    messages: list[Message] = []
    for record in log.records_from(first_kept_seq):
        if isinstance(record, Message):
            messages.append(record)
        elif isinstance(record, Compaction):
            messages = []
    return messages


def _encode_line(message: Message, losses: Losses) -> bytes:
    for block in message.content:
        if isinstance(block, Image | File | OtherBlock):
            kind = _block_type(block)
            losses.refuse("", f"CrabTalk's messages hold text, thinking and tool calls, not a block of type {kind!r}")
    try:
        return encode_json(write_message(message))
    except UnicodeEncodeError:
        return encode_json(write_message(replace_surrogates(message)))


def _block_type(block: Image | File | OtherBlock) -> str:
    return block.type if isinstance(block, OtherBlock) else type(block).__name__.lower()


def encode_metadata(state: TailState, log: MirrorLog, changes: Mapping[str, Any]) -> FileEdit:
    """Return the edit that sets the title (`name`) or adds to the uptime (`uptimeSecs`)."""
    transcript = log.transcript
    meta_bytes = transcript.meta_bytes
    if meta_bytes is None:  # the line is lost, and a new one is put before the others
        meta_bytes = missing_head(transcript.stem or transcript.session_id, log.metadata.created_at)
    meta = parse_meta(meta_bytes)
    if not meta:
        raise FormatError("the first line is damaged, and would be lost", hint=IMPORT_HINT)
    if not meta.keys() >= META_DEFAULTS.keys():
        meta = {**META_DEFAULTS, **meta}
    stem = None
    for key, value in changes.items():
        if key == "name" and isinstance(value, str | None):
            meta["title"] = replace_surrogates(value or "")
            stem = _new_stem(transcript.session_id, meta)
        elif key == "uptimeSecs" and type(value) is int and value >= 0:
            old_uptime = meta["uptime_secs"]
            meta["uptime_secs"] = value + (old_uptime if type(old_uptime) is int else 0)
        else:
            raise UnsupportedError(f"CrabTalk's files cannot hold {key}", hint=IMPORT_HINT)
    return FileEdit(head=encode_json(meta), stem=stem)


def _new_stem(session_id: str, meta: Mapping[str, Any]) -> str | None:
    """Return the stem with the new title; None if it stays as it is.

    The number shows where a title begins: without one, another file name would be another session.
    """
    if name_of(session_id, meta).chat is None or not session_id.startswith(f"{text_of(meta, 'agent')}_"):
        return None
    stem = with_title(session_id, meta["title"])
    return stem if stem != session_id else None


def name_fields(name: str) -> dict[str, str]:
    """Refuse a caller's id: CrabTalk numbers the sessions of an agent and a sender."""
    raise UnsupportedError("CrabTalk names its sessions by numbers", hint="create one for an agent and a sender")


def build_session(metadata: Mapping[str, Any], now: str, is_taken: Callable[[str], bool]) -> NewSession:
    """Return a new session of an agent and a sender.

    `is_taken` is also True for a stem that exists with a title; `chat` is the first number to try.
    """
    for key, value in metadata.items():
        if value and key not in ("agent", "sender", "name", *_IGNORED_KEYS):
            raise UnsupportedError(f"CrabTalk's files cannot hold {key}", hint="leave it out")
    agent, sender = (metadata.get("agent") or _DEFAULT_AGENT, metadata.get("sender") or DEFAULT_SENDER)
    # The slug of a sender of only punctuation is empty, as in CrabTalk: a default here would give
    # its session to somebody else.
    prefix = f"{agent}_{slug(sender)}_"
    if not is_id(f"{prefix}{2**32}"):
        raise UnsupportedError(f"not usable as a file name: agent {agent[:60]!r}", hint="choose another")
    number = max(metadata.get("chat") or 1, 1)
    while is_taken(f"{prefix}{number}"):
        number += 1
    title = replace_surrogates(metadata.get("name") or "")
    meta = dict(zip(META_DEFAULTS, (agent, replace_surrogates(sender), format_time(now), title, 0), strict=True))
    session_id = f"{prefix}{number}"
    return NewSession(session_id, with_title(session_id, title), FileEdit(head=encode_json(meta)))
