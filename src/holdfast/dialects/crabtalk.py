"""CrabTalk's session files: a line about the session, then messages and compact markers.

    {"agent":"crab","created_by":"user","created_at":"…","title":"","uptime_secs":42}
    {"role":"user","content":"hello"}
    {"compact":"Summary of the conversation so far…"}

Lines have no ids and no times: an item's id follows from the number of its line. A line as
CrabTalk writes it is made again from the record; any other one is kept with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.dialects.alphabetic import is_alphanumeric
from holdfast.dialects.form import Item, Read, Source, Summary, Written, made_id
from holdfast.dialects.giving import Losses, Sheet, dropped, is_ended, original, placed
from holdfast.dialects.jsonl import (
    Row,
    aside,
    event,
    head_objects,
    keeping,
    lost,
    parse,
    place,
    remains,
    rows,
    text_of,
)
from holdfast.errors import FormatError
from holdfast.model import (
    AnyBlock,
    AnyRecord,
    Compaction,
    Event,
    File,
    Image,
    Message,
    Metadata,
    OtherBlock,
    Role,
    Text,
    Thinking,
    ToolCall,
)
from holdfast.stamps import epoch_ms, timestamp

NAME = "crabtalk"
META = f"{NAME}.meta"

_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "tool": "toolResult"}
_BACK = {ours: theirs for theirs, ours in _ROLES.items()}
_REQUIRED = ("agent", "created_by", "created_at")


def recognises(path: str, head: bytes) -> bool:
    """Whether a file begins with the line about the session."""
    return path.endswith(".jsonl") and _is_meta(next(head_objects(head), {}))


def _is_meta(value: Mapping[str, Any]) -> bool:
    return all(isinstance(value.get(key), str) for key in _REQUIRED) and "role" not in value


# --- names ----------------------------------------------------------------------------------


def slug(text: str) -> str:
    """A sender or a title as part of a file's name.

    Kept are `-` and what Rust's `char::is_alphanumeric` accepts: the property Alphabetic, or a
    category Nd, Nl or No. Only ASCII is lower-cased. Everything else is `-`, and no two of those
    stand together or at an edge.
    """
    made = "".join(one if one == "-" or is_alphanumeric(one) else "-" for one in text)
    lowered = "".join(one.lower() if one.isascii() else one for one in made)
    return "-".join(piece for piece in lowered.split("-") if piece)


class Name(NamedTuple):
    """What the name of a file says."""

    agent: str = ""
    sender: str = ""
    chat: int | None = None
    title: str = ""


def parse_name(stem: str, agent: str = "", sender: str = "") -> Name:
    """The parts of `{agent}_{sender}_{number}[_{title}]`.

    An agent's name may have `_` in it: where the agent and sender are known, they are the prefix.
    A name without a number has everything behind the sender as its title.
    """
    prefix = f"{agent}_{slug(sender)}_"
    if agent and stem.startswith(prefix):
        digits, _, title = stem[len(prefix) :].partition("_")
        if _is_number(digits):
            return Name(agent, slug(sender), int(digits), title)
        return Name(agent, slug(sender), None, stem[len(prefix) :])
    parts = stem.split("_")
    for index in range(2, len(parts)):
        if _is_number(parts[index]):
            between, behind = "_".join(parts[1:index]), "_".join(parts[index + 1 :])
            return Name(parts[0], between, int(parts[index]), behind)
    return Name(parts[0], "_".join(parts[1:2]), None, "_".join(parts[2:]))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10


def file_name(agent: str, sender: str, chat: int, title: str) -> str:
    """The name of a session's file, of at most 255 bytes."""
    room = 255 - len(".jsonl")
    first = _cut(agent.replace("/", "-").replace("\0", "-"), room - 40)
    number = f"_{chat}"
    stem = _cut(f"{first}_{slug(sender) or 'user'}", room - len(number)) + number
    words = _cut(slug(title), room - len(stem.encode()) - 1).rstrip("-")
    return f"{stem}_{words}.jsonl" if words else f"{stem}.jsonl"


def _cut(text: str, room: int) -> str:
    return text.encode("utf-8", "replace")[: max(room, 0)].decode("utf-8", "ignore")


# --- reading --------------------------------------------------------------------------------


def read(source: Source) -> Read:
    """A session from its file."""
    path = source.paths()[0]
    items: list[Item] = []
    found = list(rows(source.lines(path), path))
    first = next((row for row in found if not row.blank), None)
    meta = first.value if first and first.value and _is_meta(first.value) else {}
    named = parse_name(source.name, text_of(meta, "agent"), text_of(meta, "created_by") or "user")
    # A file is renamed when it gets a title: the session is the same one.
    titled = named.chat is not None and named.title
    name = source.name.removesuffix(f"_{named.title}") if titled else source.name
    at = _created(meta) or timestamp(source.modified / 1000)
    for row in found:
        if row.value is None:
            items.append(aside(NAME, name, row, path, at))
        elif row is first and meta:
            # It is written anew with each turn: another one is another event.
            own = made_id(name, sha256(row.data).hexdigest())
            items.append(event(row, META, own, at, _dump(meta)))
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


def _created(meta: Mapping[str, Any]) -> str:
    made = epoch_ms(text_of(meta, "created_at"))
    return timestamp(made / 1000) if made is not None and made > 0 else ""


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
        keep = remains(row, whole=_dump({"compact": value["compact"]}) == row.data)
        extra = {NAME: keep} if keep else {}
        return Summary(id=name, text=value["compact"], timestamp=at, extra=extra)
    role = value.get("role")
    if isinstance(role, str) and role in _ROLES:
        try:
            message = read_message(value, name, at)
        except FormatError:
            return event(row, f"{NAME}.record", name, at, _dump(value))
        keep = remains(row, whole=_dump(write_message(message)) == row.data)
        return keeping(message, NAME, keep) if keep else message
    kind = "system" if role == "system" else "record"
    return event(row, f"{NAME}.{kind}", name, at, _dump(value))


def read_message(value: Mapping[str, Any], name: str, at: str) -> Message:
    """One of their messages; FormatError if it is not of their form."""
    content, thought = value.get("content") or "", value.get("reasoning_content") or ""
    calls = value.get("tool_calls") or []
    if not isinstance(content, str) or not isinstance(thought, str) or not isinstance(calls, list):
        raise FormatError("not a message: its fields have other types")
    blocks: list[AnyBlock] = []
    if thought:
        blocks.append(Thinking(thought))
    if content:
        blocks.append(Text(content))
    blocks += [read_call(call) for call in calls]
    is_result = value["role"] == "tool"
    return Message(
        id=name,
        role=_ROLES[value["role"]],
        content=tuple(blocks),
        tool_call_id=text_of(value, "tool_call_id") if is_result else None,
        tool_name=text_of(value, "name") or None if is_result else None,
        timestamp=at,
    )


def read_call(call: Any) -> ToolCall:
    """A tool call in the form that OpenAI gave it: its arguments are JSON in a string."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise FormatError("tool_calls: not objects with a function")
    text = function.get("arguments") or "{}"
    arguments = parse(text.encode())[0] if isinstance(text, str) else None
    if arguments is None:
        arguments = {"arguments": text}  # what the model wrote is no JSON object: kept as it is
    return ToolCall(text_of(call, "id"), text_of(function, "name"), arguments)


# --- writing --------------------------------------------------------------------------------


def write(metadata: Metadata, records: Sequence[AnyRecord]) -> Written:
    """A session as CrabTalk's file."""
    sheet, losses = Sheet(), Losses()
    gone = dropped(records, NAME)
    metas = [one for one in records if isinstance(one, Event) and one.kind == META]
    own = metas[-1] if metas else None  # the newest, in the place of the first
    meta = _meta(metadata, own)
    if own is None:
        sheet.add(_dump(meta))
    for record in placed(records):
        if own is not None and isinstance(record, Event) and record.kind == META:
            if record is not metas[0]:
                continue
            record = own
        raw = original(record, NAME)
        if record.seq in gone and isinstance(record, Message):
            losses.add("message that is hidden or was rewound")
        elif own is not None and record is own and meta != own.data:
            sheet.add(_dump(meta))
        elif raw is not None:
            sheet.add(raw.data, ended=raw.ended)
        elif isinstance(record, Message):
            losses.blocks(record, (Image, File, OtherBlock, Thinking, ToolCall))
            losses.add("mark of a failed tool", bool(record.is_error))
            sheet.add(_dump(write_message(record)), ended=is_ended(record, NAME))
        elif isinstance(record, Compaction):
            sheet.add(_dump({"compact": record.summary}), ended=is_ended(record, NAME))
        elif isinstance(record, Event) and record.kind.startswith(f"{NAME}."):
            sheet.add(_dump(record.data), ended=is_ended(record, NAME))
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
        created = metadata.created_at
        return {
            "agent": metadata.agent,
            "created_by": metadata.sender,
            "created_at": created[:-1] + "+00:00" if created.endswith("Z") else created,
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


def write_message(message: Message) -> dict[str, Any]:
    """A message in their keys and their order; what they have no key for is left out."""
    made: dict[str, Any] = {"role": _BACK[message.role]}
    thoughts = [block.thinking for block in message.content if isinstance(block, Thinking)]
    for key, value in (
        ("content", message.text),
        ("reasoning_content", "\n".join(thoughts)),
        ("name", message.tool_name if message.role == "toolResult" else None),
        ("tool_call_id", message.tool_call_id),
        ("tool_calls", [write_call(call) for call in message.tool_calls]),
    ):
        if value:
            made[key] = value
    return made


def write_call(call: ToolCall) -> dict[str, Any]:
    """A tool call. Arguments are always there: CrabTalk drops a line that has none."""
    arguments = _dump(call.arguments).decode()
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


def _dump(value: Any) -> bytes:
    """Compact JSON as serde_json writes it."""
    return msgspec.json.encode(value)
