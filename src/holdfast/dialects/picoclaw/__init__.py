"""PicoClaw's session files: `.jsonl` with one message per line, and `.meta.json` beside it.

    {"role":"user","content":"hello","created_at":"2026-06-13T08:00:00.123456789Z"}

    {"key": …, "summary": …, "skip": 2, "count": 5, "created_at": …, "updated_at": …,
     "scope": …, "aliases": […]}                    (indented, no final newline)

The first `skip` lines are no part of the conversation any more: the summary stands for them, or,
if there is none, they are hidden. PicoClaw may take them out of the file, so ids follow from what
a line says and not from its number. Bytes are those of Go's `encoding/json`; times are text, for
they have nanoseconds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from msgspec.structs import replace

from holdfast.dialects.form import (
    DERIVED,
    Hidden,
    Item,
    Lost,
    Read,
    Source,
    Summary,
    Written,
    kept,
    made_id,
)
from holdfast.dialects.giving import Losses, Sheet, dropped, is_ended, origin, original
from holdfast.dialects.jsonl import (
    Row,
    as_text,
    aside,
    event,
    head_objects,
    keeping,
    lost,
    parse,
    remains,
    rows,
    text_of,
)
from holdfast.dialects.picoclaw.document import read_message, write_message
from holdfast.dialects.picoclaw.go import TIME, dump, go_time
from holdfast.errors import FormatError
from holdfast.log.fold import fold
from holdfast.model import (
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
from holdfast.stamps import epoch_ms, timestamp

NAME = "picoclaw"
META = f"{NAME}.meta"
READABLE = 10 * 1024 * 1024  # bytes of a line that PicoClaw itself can read

_ROLES = ("user", "assistant", "tool")
_THEIRS = ("created_at", "model_name", "media", "attachments", "system_parts", "tool_call_id")
_KEYS = ("role", "content", "reasoning_content", "tool_calls", *_THEIRS)


def recognises(path: str, head: bytes) -> bool:
    """Whether a file has messages in it that only PicoClaw writes, or is named by a key of its."""
    if not path.endswith(".jsonl"):
        return False
    named = path.rpartition("/")[2].startswith(("sk_v1_", "agent_"))
    found = False
    for value in map(_lowered, head_objects(head)):
        if "type" in value or "created_by" in value:
            return False  # an entry of the others, or CrabTalk's first line
        if not isinstance(value.get("role"), str):
            continue
        if not isinstance(value.get("content") or "", str):
            return False
        found = found or named or any(key in value for key in (*_THEIRS, "tool_calls"))
    return found


def stem(key: str) -> str:
    """The name of the files of a session, without their endings."""
    return re.sub(r"[:/\\]", "_", key)


# --- reading --------------------------------------------------------------------------------


def read(source: Source) -> Read:
    """A session from its two files."""
    path = source.paths()[0]
    meta, meta_items, damage = _read_meta(source)
    skip = meta.get("skip") or 0
    at = _stamp(text_of(meta, "created_at")) or timestamp(source.modified / 1000)
    items: list[Item] = []
    skipped: list[str] = []
    first: str | None = None  # id of the first message that is not skipped
    seen: Counter[bytes] = Counter()
    raw = 0
    found = list(rows(source.lines(path), path))
    for row in found:
        raw += _counted(row.data)
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
        when = _stamp(text_of(meta, "updated_at")) or at
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
        facts=_facts(meta, source.name),
        created=max(epoch_ms(text_of(meta, "created_at")) or source.modified, 0),
        items=tuple(items),
        lines=sum(not row.blank for row in found),
        lost=(*damage, *lost(found)),
    )


def _counted(data: bytes) -> int:
    """How many lines PicoClaw counts: all but empty ones."""
    return sum(line.removesuffix(b"\r") != b"" for line in data.split(b"\n"))


def _stamp(text: str) -> str:
    return text if (epoch_ms(text) or 0) > 0 else ""


def _facts(meta: Mapping[str, Any], name: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"key": text_of(meta, "key") or name}
    scope = meta.get("scope")
    if scope:
        facts["scope"] = scope
        if text_of(scope, "agent_id"):
            facts["agent"] = scope["agent_id"]
    if meta.get("aliases"):
        facts["aliases"] = list(meta["aliases"])
    return facts


def _read_meta(source: Source) -> tuple[dict[str, Any], list[Item], list[Lost]]:
    """What the second file says, the items that keep it, and what is wrong with it."""
    path = next((one for one in source.paths() if one.endswith(".meta.json")), None)
    if path is None:
        made = f"{source.name}.meta.json"
        return {}, [], [Lost(made, 0, 0, "missing: made anew from the messages")]
    data = source.read(path)
    value, problem, exact = parse(data)
    wrong = problem if value is None else _meta_problem(value)
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


def _meta_problem(value: Mapping[str, Any]) -> str:
    for key, kind in (
        ("key", str),
        ("summary", str),
        ("skip", int),
        ("count", int),
        ("created_at", str),
        ("updated_at", str),
        ("scope", dict),
        ("aliases", list),
    ):
        found = value.get(key)
        if found is not None and (not isinstance(found, kind) or isinstance(found, bool)):
            return f"{key} is not of its type"
    for key in ("created_at", "updated_at"):
        if value.get(key) is not None and not TIME.fullmatch(value[key]):
            return f"{key} is not a time"
    if not all(isinstance(one, str) for one in value.get("aliases") or []):
        return "aliases are not all text"
    return ""


def _item(row: Row, name: str, at: str) -> Message | Event:
    value = _lowered(row.value or {})
    role = value.get("role")
    word = "system" if role == "system" else "record"
    if role in _ROLES:
        if _is_thought(value):
            word = "thought"  # PicoClaw passes over it
        else:
            message = _message(value, name, at)
            if message is not None:
                keep = remains(row, whole=message_line(message) == row.data)
                return keeping(message, NAME, keep) if keep else replace(message, line=b"")
    return event(row, f"{NAME}.{word}", name, at, dump(row.value))


def _lowered(value: dict[str, Any]) -> dict[str, Any]:
    """Go takes the names of fields in any case."""
    if all(key in _KEYS for key in value):
        return value
    lowered = {key.lower(): item for key, item in value.items() if key.lower() in _KEYS}
    return {**lowered, **value}


def _is_thought(value: Mapping[str, Any]) -> bool:
    content, thought = value.get("content") or "", value.get("reasoning_content") or ""
    others = ("tool_calls", "media", "attachments", "tool_call_id")
    return bool(
        value.get("role") == "assistant"
        and isinstance(content, str)
        and isinstance(thought, str)
        and not content.strip()
        and thought.strip()
        and not any(value.get(key) for key in others)
    )


def _message(value: Mapping[str, Any], name: str, at: str) -> Message | None:
    """The message in a line; None for one that PicoClaw, too, cannot read."""
    created = value.get("created_at")
    if created is not None and not (isinstance(created, str) and TIME.fullmatch(created)):
        return None
    calls = value.get("tool_calls") or []
    try:
        for call in calls:
            if not isinstance(call["function"].get("arguments", ""), str | None):
                return None
        record = read_message(value, at)
    except (FormatError, TypeError, AttributeError, KeyError):
        return None
    return replace(record, id=name) if isinstance(record, Message) else None


# --- writing --------------------------------------------------------------------------------


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
        count = _counted(data)
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
    if len(name.encode("utf-8", "replace")) > 255 - len(".meta.json"):
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
    return (b"" if _is_thought(made) else message_line(record)), is_ended(record, NAME)


def message_line(message: Message) -> bytes:
    """A message as PicoClaw would write it."""
    made = write_message(message)
    if "created_at" in made:
        made["created_at"] = go_time(message.timestamp)
        if not made["created_at"]:
            del made["created_at"]
    return dump(made)


def _inline_images(message: Message) -> int:
    return sum(isinstance(block, Image) and not block.url for block in message.content)


def _meta(metadata: Metadata, old: Mapping[str, Any], last: str, **now: Any) -> dict[str, Any]:
    """The second file: the old one, with what changed since."""
    created = text_of(old, "created_at") or go_time(metadata.created_at)
    before = text_of(old, "updated_at") or go_time(metadata.last_message_at)
    updated = go_time(last) or before or created
    never = "0001-01-01T00:00:00Z"
    made: dict[str, Any] = {
        **now,
        "created_at": created or never,
        "updated_at": updated or never,
    }
    if metadata.scope or old.get("scope"):
        made["scope"] = metadata.scope or old["scope"]
    aliases = dict.fromkeys((*(old.get("aliases") or ()), *_own_aliases(metadata, now["key"])))
    if aliases:
        made["aliases"] = list(aliases)
    return {**made, **{name: value for name, value in old.items() if name not in made}}
