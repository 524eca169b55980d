"""Gemini CLI's chats, read only. There are three forms:

    session-<time>-<id>.json     one document: {"sessionId", "projectHash", "messages": […]}
    session-<time>-<id>.jsonl    the same, a line each; a message that is told again replaces the
                                 first, {"$rewindTo": id} takes back, {"$set": …} changes the head
    checkpoint-<name>.json       what `/chat save` writes: a list of {"role", "parts"}

A tool call and its result are one there; here they are two messages.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from everlog.errors import FormatError
from everlog.ids import epoch_ms
from everlog.interop.formats.format_types import (
    Hidden,
    Item,
    Lost,
    Read,
    Source,
    Written,
    made_id,
    split,
)
from everlog.interop.formats.jsonl import as_text, keeping, lost, parse, records, too_deep
from everlog.log.line_codec import clean
from everlog.model import (
    AnyBlock,
    AnyRecord,
    Event,
    File,
    Image,
    Message,
    Metadata,
    OtherBlock,
    Text,
    Thinking,
    ToolCall,
    Usage,
)

NAME = "gemini"
_SETUP = "This is the Gemini CLI. We are setting up the context for our chat"
_BEGIN = re.compile(r'\{\s*"(?:id|timestamp|type|role|parts)"')
_FAILURES = 1000  # places that are tried in vain in a damaged document
_raw_decode = json.JSONDecoder(parse_constant=lambda _: None).raw_decode
_MAPPED = frozenset({"id", "timestamp", "type", "content", "thoughts", "tokens", "model"})


class _Entry(NamedTuple):
    place: str | int  # where it stands, for its id
    value: dict[str, Any]


def recognises(path: str, head: bytes) -> bool:
    """Whether a file is a chat."""
    if path.endswith(".jsonl"):
        for row in records(split(head)):
            value = row.value or {}
            return isinstance(value.get("sessionId"), str) and "projectHash" in value
        return False
    if not path.endswith(".json"):
        return False
    start = head.lstrip()[:2000]
    if b'"sessionId"' in start and b'"projectHash"' in start:
        return True
    return start[:1] in (b"[", b"{") and b'"parts"' in start and b'"role"' in start


def read(source: Source) -> Read:
    """A session."""
    return _Chat(source).read()


def write(metadata: Metadata, records: Sequence[AnyRecord]) -> Written:
    """Refused: the format is another program's own."""
    raise FormatError("Gemini chats cannot be written", hint="export to another format")


class _Chat:
    def __init__(self, source: Source) -> None:
        self.path = source.paths()[0]
        self.source = source
        self.name = source.name
        self.items: list[Item] = []
        self.lost: list[Lost] = []
        self.lines = 0
        self.head: dict[str, Any] = {}  # everything but the messages
        self.ids: set[str] = set()
        self.live: list[tuple[str, list[str]]] = []  # records that stand, with their items' ids
        self.standing: set[str] = set()  # their names
        self.waiting: dict[str, deque[str]] = {}  # tool → calls that have no id of their own
        self.at = ""

    def read(self) -> Read:
        if self.path.endswith(".jsonl"):
            self._read_lines()
        else:
            self._read_document(self.source.read(self.path))
        return Read(
            name=self.name,
            facts=self._facts(),
            created=self._created(),
            items=tuple(self.items),
            lines=self.lines,
            lost=tuple(self.lost),
        )

    def _facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"source": NAME}
        for item in self.items:
            if isinstance(item, Message) and item.role == "user" and item.text.strip():
                facts["name"] = " ".join(item.text.split())[:200]
                break
        summary = self.head.get("summary")
        if isinstance(summary, str) and summary.strip():
            facts["name"] = summary.strip()[:200]
        models = [item.model for item in self.items if isinstance(item, Message) and item.model]
        return {**facts, "model": models[-1]} if models else facts

    def _created(self) -> int:
        start = self.head.get("startTime")
        return (epoch_ms(start) or 0) if isinstance(start, str) else 0

    # --- the three forms --------------------------------------------------------------------

    def _read_document(self, data: bytes) -> None:
        value: Any = None
        try:
            value = msgspec.json.decode(data)
        except (ValueError, RecursionError):
            value = parse(data)[0]  # there may be damaged Unicode in it
        if value is not None and too_deep(data, value):
            value = None
        history = value.get("history") if isinstance(value, dict) else value
        if isinstance(value, dict) and isinstance(value.get("messages"), list):
            self._read_head(value)
        elif isinstance(history, list):
            self.lines = len(history)
            for number, turn in enumerate(history):
                self._add_turn(_Entry(number, turn if isinstance(turn, dict) else {"value": turn}))
        else:
            self._add_damage(0, data, "not a chat, or not all of one")
            for place, record in _salvage(data.decode("utf-8", "replace")):
                entry = _Entry(f"salvaged {place}", record)
                if "role" in record:
                    self._add_turn(entry)
                else:
                    self._add(entry)

    def _read_head(self, value: dict[str, Any]) -> None:
        messages = value["messages"]
        self.lines += len(messages)
        head = {key: one for key, one in value.items() if key != "messages"}
        self.head |= head
        self._add_event("head", "session", head)
        for number, message in enumerate(messages):
            self._add(_Entry(number, message if isinstance(message, dict) else {"value": message}))

    def _read_lines(self) -> None:
        found = list(records(self.source.lines(self.path), self.path))
        self.lost += lost(found)
        last = {
            row.value["id"]: row.value
            for row in found
            if row.value is not None and isinstance(row.value.get("id"), str)
        }
        for row in found:
            value = row.value
            self.lines += row.begins
            if value is None:
                self._add_damage(row.start, row.data, "")
                continue
            if isinstance(value.get("$rewindTo"), str):
                self._rewind(row.start, value)
            elif isinstance(value.get("messages"), list):
                self._read_head(value)
            elif isinstance(value.get("id"), str):
                if value["id"] in self.standing:
                    self._add_event(row.start, "told again", value)
                else:
                    self._add(_Entry(row.start, last[value["id"]]))
            else:
                change = value.get("$set")
                self.head |= change if isinstance(change, dict) else value
                self._add_event(row.start, "session", value)

    def _rewind(self, place: int, value: dict[str, Any]) -> None:
        """Take back everything from a record on; all, if there is no such record."""
        names = [name for name, _ in self.live]
        target = value["$rewindTo"]
        start = names.index(target) if target in names else 0
        ids = tuple(one for _, ids in self.live[start:] for one in ids)
        del self.live[start:]
        self.standing = set(names[:start])
        made = made_id(self.name, place)
        self.items.append(Hidden(id=made, ids=ids, timestamp=self.at, extra={NAME: value}))

    # --- records ----------------------------------------------------------------------------

    def _add(self, entry: _Entry) -> None:
        """A record of a chat."""
        value = entry.value
        if isinstance(value.get("timestamp"), str):
            self.at = value["timestamp"]
        kind = value.get("type")
        if kind == "user":
            made = [self._message(entry, 0, "user", tuple(_blocks(value.get("content"))))]
        elif kind == "gemini":
            made = list(self._answer(entry))
        else:
            self._add_event(entry.place, kind if isinstance(kind, str) else "object", value)
            return
        rest = {key: one for key, one in value.items() if key not in _MAPPED}
        name = value.get("id")
        name = name if isinstance(name, str) else ""
        self.live.append((name, [one.id for one in made]))
        self.standing.add(name)
        self.items += [
            keeping(one, NAME, {"of": made[0].id} if number else rest)
            for number, one in enumerate(made)
        ]

    def _answer(self, entry: _Entry) -> Iterator[Message]:
        value = entry.value
        blocks: list[AnyBlock] = [
            Thinking("\n".join(str(one[key]) for key in ("subject", "description") if one.get(key)))
            for one in _objects(value.get("thoughts"))
        ]
        blocks += [block for block in _blocks(value.get("content")) if block != Text("")]
        calls = _objects(value.get("toolCalls"))
        blocks += [_call(one, str(one.get("id") or "")) for one in calls]
        yield self._message(entry, 0, "assistant", tuple(blocks))
        for number, one in enumerate(calls, 1):
            if one.get("result") is None and not _failed(one):
                continue  # it was never answered
            content = tuple(_result_blocks(one)) or (Text(str(one.get("resultDisplay") or "")),)
            yield Message(
                id=self._id(entry, number),
                role="toolResult",
                content=content,
                tool_call_id=str(one.get("id") or ""),
                tool_name=str(one.get("name") or ""),
                is_error=_failed(one),
                timestamp=self.at,
            )

    def _message(
        self, entry: _Entry, number: int, role: str, content: tuple[AnyBlock, ...]
    ) -> Message:
        name = self._id(entry, number)
        if role == "user":
            return Message(id=name, role="user", content=content, sender="user", timestamp=self.at)
        model = entry.value.get("model")
        return Message(
            id=name,
            role="assistant",
            content=content,
            model=model if isinstance(model, str) else None,
            usage=_usage(entry.value.get("tokens")),
            timestamp=self.at,
        )

    def _add_turn(self, entry: _Entry) -> None:
        """A turn of a checkpoint."""
        role, parts = entry.value.get("role"), _parts(entry.value.get("parts"))
        texts = [part["text"] for part in _objects(parts) if isinstance(part.get("text"), str)]
        setup = bool(texts) and texts[0].lstrip().startswith(_SETUP)
        if role not in ("user", "model") or setup:
            self._add_event(entry.place, "setup" if setup else "object", entry.value)
            return
        made: list[Message] = []
        said: list[AnyBlock] = []
        for part in parts:
            answer = part.get("functionResponse") if isinstance(part, dict) else None
            asked = part.get("functionCall") if isinstance(part, dict) else None
            if isinstance(answer, dict):
                tool = str(answer.get("name") or "")
                queue = self.waiting.get(tool)
                call = answer.get("id") or (queue.popleft() if queue else "")
                made.append(
                    Message(
                        id=self._id(entry, len(made)),
                        role="toolResult",
                        content=tuple(_response_blocks(answer)),
                        tool_call_id=str(call),
                        tool_name=tool,
                        timestamp=self.at,
                    )
                )
            elif isinstance(asked, dict):
                name = asked.get("id") or self._lend_id(entry, asked, len(said))
                said.append(_call(asked, str(name)))
            else:
                said.append(_block(part))
        if said or not made:
            whose = "user" if role == "user" else "assistant"
            made.append(self._message(entry, len(made), whose, tuple(said)))
        kept = {key: one for key, one in entry.value.items() if key not in ("role", "parts")}
        self.items += [
            keeping(one, NAME, {"of": made[0].id} if number else kept)
            for number, one in enumerate(made)
        ]

    def _lend_id(self, entry: _Entry, asked: Mapping[str, Any], number: int) -> str:
        """An id for a call that has none; its answer comes later, under the tool's name."""
        name = f"call-{entry.place}-{number}"
        self.waiting.setdefault(str(asked.get("name") or ""), deque()).append(name)
        return name

    def _add_event(self, place: str | int, kind: str, value: dict[str, Any]) -> None:
        made = made_id(self.name, place)
        self.items.append(Event(id=made, kind=f"gemini.{kind}", data=value, timestamp=self.at))

    def _add_damage(self, start: int, data: bytes, problem: str) -> None:
        if problem:
            self.lost.append(Lost(self.path, start, start + len(data), problem))
        told = {"path": self.path, "start": start, **as_text(data)}
        made = made_id(self.name, f"{start}+{len(data)}")
        self.items.append(Event(id=made, kind="gemini.damaged", data=told, timestamp=self.at))

    def _id(self, entry: _Entry, number: int) -> str:
        given = entry.value.get("id")
        name = given if isinstance(given, str) and given else made_id(self.name, entry.place)
        name = f"{name}:{number}" if number else name
        if name in self.ids:
            name = made_id(self.name, f"{entry.place}:{number} again")
        self.ids.add(name)
        return name


def _salvage(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The records that are whole in a document that is not."""
    end = failures = 0
    for begin in _BEGIN.finditer(text):
        if begin.start() < end or failures > _FAILURES:
            continue
        try:
            value, after = _raw_decode(text, begin.start())
        except (ValueError, RecursionError):
            failures += 1
            continue
        told = isinstance(value.get("type"), str) and "content" in value
        turn = isinstance(value.get("role"), str) and "parts" in value
        if (told or turn) and not too_deep(text[begin.start() : after].encode(), value):
            end = after
            yield begin.start(), clean(value)


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _parts(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _blocks(content: Any) -> list[AnyBlock]:
    """The blocks of a content: a string, a part, or a list of them."""
    return [_block(part) for part in _parts(content)]


def _block(part: Any) -> AnyBlock:
    if isinstance(part, str):
        return Text(part)
    if not isinstance(part, dict):
        return OtherBlock({"type": "unknown", "value": part})
    text, inline, file = part.get("text"), part.get("inlineData"), part.get("fileData")
    if isinstance(text, str):
        signature = part.get("thoughtSignature")
        signed = signature if isinstance(signature, str) else None
        return Thinking(text, signed) if part.get("thought") is True else Text(text)
    if isinstance(inline, dict) and isinstance(inline.get("data"), str):
        mime = str(inline.get("mimeType") or "")
        if mime.startswith("image/"):
            return Image(mime, inline["data"])
        return File(str(inline.get("displayName") or ""), mime, inline["data"])
    if isinstance(file, dict) and isinstance(file.get("fileUri"), str):
        return File("", str(file.get("mimeType") or ""), url=file["fileUri"])
    return OtherBlock(part)


def _call(asked: Mapping[str, Any], name: str) -> ToolCall:
    arguments = asked.get("args")
    tool = str(asked.get("name") or "")
    return ToolCall(name, tool, arguments if isinstance(arguments, dict) else {})


def _failed(call: Mapping[str, Any]) -> bool:
    return call.get("status") in ("error", "cancelled")


def _result_blocks(call: Mapping[str, Any]) -> Iterator[AnyBlock]:
    for part in _parts(call.get("result")):
        answer = part.get("functionResponse") if isinstance(part, dict) else None
        if isinstance(answer, dict):
            yield from _response_blocks(answer)
        else:
            yield _block(part)


def _response_blocks(answer: Mapping[str, Any]) -> Iterator[AnyBlock]:
    """What a tool answered: mostly {"output": text}."""
    response = answer.get("response")
    told = response if isinstance(response, dict) else {"output": response}
    text = next((told[key] for key in ("output", "error") if isinstance(told.get(key), str)), None)
    yield Text(msgspec.json.encode(response).decode() if text is None else text)
    yield from _blocks(answer.get("parts"))


def _usage(tokens: Any) -> Usage | None:
    """A count as ours: theirs has the cached tokens among the input, thoughts beside the output."""
    if not isinstance(tokens, dict):
        return None
    count = {key: value for key, value in tokens.items() if isinstance(value, int) and value > 0}
    cached = count.get("cached", 0)
    return Usage(
        input_tokens=max(count.get("input", 0) - cached, 0) + count.get("tool", 0),
        output_tokens=count.get("output", 0) + count.get("thoughts", 0),
        total_tokens=count.get("total", 0),
        cache_read_tokens=cached,
    )
