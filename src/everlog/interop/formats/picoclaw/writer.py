"""A session as PicoClaw's two files: those that it came from, with what was said since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everlog.errors import FormatError
from everlog.interop.formats.format_types import DERIVED, Written, kept
from everlog.interop.formats.jsonl import text_of
from everlog.interop.formats.picoclaw.go_json import dump, go_time
from everlog.interop.formats.picoclaw.lines import NAME, READABLE, counted, is_thought, message_line
from everlog.interop.formats.picoclaw.messages import write_message
from everlog.interop.formats.picoclaw.meta_file import ENDING, NEVER, stem
from everlog.interop.formats.picoclaw.reader import META
from everlog.interop.formats.writer import Losses, Sheet, dropped, is_ended, origin, original
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


def write(metadata: Metadata, records: Sequence[AnyRecord]) -> Written:
    """A session as PicoClaw's two files."""
    sheet, losses = Sheet(), Losses()
    gone = dropped(records, NAME)
    metas = [one for one in records if isinstance(one, Event) and one.kind == META]
    own = metas[-1] if metas else None
    old = own.data if own is not None else {}
    standing = fold(one for one in records if not _is_own(one)).compaction
    theirs = raw = skip = 0  # lines of the old file, lines written, those not to be shown
    last = ""
    for record in records:
        line = _line(record)
        if line is None:
            if record is not standing and not _is_own(record) and record not in metas:
                losses.record(record)
            continue
        data, ended = line
        count = counted(data)
        theirs += count
        if isinstance(record, Message):
            if record.seq in gone:
                losses.add("message that is hidden or was rewound")
                continue
            if not data:
                losses.add("message that is nothing but a thought")
                continue
            if origin(record, NAME) is None:
                losses.blocks(record, (OtherBlock, Thinking, ToolCall))
                losses.add("image", _inline_images(record))
                losses.add("mark of a failed tool", bool(record.is_error))
            last = record.timestamp if own is None or record.seq > own.seq else ""
        if len(data) > READABLE:
            losses.add("line too long for PicoClaw to read back")
        sheet.add(data, ended=ended)
        raw += count
        if standing is None:
            if theirs <= (old.get("skip") or 0):
                skip = raw
        elif record.seq < standing.first_kept_seq:
            skip = raw
    key = text_of(old, "key") or (metadata.key or metadata.id).removeprefix(f"{NAME}:")
    summary = standing.summary if standing is not None else text_of(old, "summary")
    if own is not None and not gone and not _is_newer(records, own, metadata):
        found = original(own, NAME)
        meta = found.data if found is not None else dump(old, 2)
    else:
        meta = dump(_meta(metadata, old, last, key=key, summary=summary, skip=skip, count=raw), 2)
    name = stem(key)
    if len(name.encode("utf-8", "replace")) > 255 - len(ENDING):
        raise FormatError(
            "the session's key is too long for the name of a file", hint="give it a shorter key"
        )
    return Written({f"{name}.jsonl": sheet.content(), f"{name}.meta.json": meta}, losses.words())


def _is_own(record: AnyRecord) -> bool:
    """Whether a marker only says what the second file says."""
    if isinstance(record, Compaction):
        return origin(record, NAME) is not None
    return isinstance(record, Tombstone) and kept(record, DERIVED) is not None


def _own_aliases(metadata: Metadata, key: str) -> list[str]:
    """Aliases without the name that it was imported under, and without its key."""
    return [one for one in metadata.aliases if one != key and not one.startswith(f"{NAME}:")]


def _is_newer(records: Sequence[AnyRecord], own: Event, metadata: Metadata) -> bool:
    """Whether the conversation went on after the second file was read."""
    known = own.data.get("aliases") or []
    if set(_own_aliases(metadata, text_of(own.data, "key"))) - set(known):
        return True
    if metadata.scope is not None and metadata.scope != own.data.get("scope"):
        return True
    marks = (Message, Compaction, Tombstone, Rewind)
    behind = (one for one in records if one.seq > own.seq)
    return any(isinstance(one, marks) and not _is_own(one) for one in behind)


def _line(record: AnyRecord) -> tuple[bytes, bool] | None:
    """The line of a record; None if it has none, empty if PicoClaw would not write it."""
    raw = original(record, NAME)
    if isinstance(record, Event):
        if record.kind == META or str(record.data.get("path", "")).endswith(".meta.json"):
            return None
        if raw is None and record.kind.startswith(f"{NAME}."):
            return dump(record.data), is_ended(record, NAME)
    if raw is not None:
        return raw.data, raw.ended
    if not isinstance(record, Message):
        return None
    made = write_message(record)
    return (b"" if is_thought(made) else message_line(record)), is_ended(record, NAME)


def _inline_images(message: Message) -> int:
    return sum(isinstance(block, Image) and not block.url for block in message.content)


def _meta(metadata: Metadata, old: Mapping[str, Any], last: str, **now: Any) -> dict[str, Any]:
    """The second file: the old one, with what changed since."""
    created = text_of(old, "created_at") or go_time(metadata.created_at)
    before = text_of(old, "updated_at") or go_time(metadata.last_message_at)
    updated = go_time(last) or before or created
    made: dict[str, Any] = {
        **now,
        "created_at": created or NEVER,
        "updated_at": updated or NEVER,
    }
    if metadata.scope or old.get("scope"):
        made["scope"] = metadata.scope or old["scope"]
    aliases = dict.fromkeys((*(old.get("aliases") or ()), *_own_aliases(metadata, now["key"])))
    if aliases:
        made["aliases"] = list(aliases)
    return {**made, **{name: value for name, value in old.items() if name not in made}}
