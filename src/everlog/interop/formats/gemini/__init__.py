"""Gemini CLI's chats, read only. There are three forms:

    session-<time>-<id>.json     one document: {"sessionId", "projectHash", "messages": […]}
    session-<time>-<id>.jsonl    the same by line; a repeated message replaces the first one,
                                 {"$rewindTo": id} rewinds, {"$set": …} changes the head
    checkpoint-<name>.json       what `/chat save` writes: a list of {"role", "parts"}

A tool call and its result are one object there and two messages here.
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
    DamagedBytes,
    ExportedFiles,
    ForeignSession,
    HiddenMessages,
    Item,
    Source,
    derive_id,
    split_lines,
)
from everlog.interop.formats.jsonl import (
    as_text,
    attach_preserved,
    is_too_deep,
    parse_object,
    parse_records,
    report_damage,
)
from everlog.log.line_codec import replace_surrogates
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
_SETUP_PREFIX = "This is the Gemini CLI. We are setting up the context for our chat"
_RECORD_START = re.compile(r'\{\s*"(?:id|timestamp|type|role|parts)"')
_MAX_FAILURES = 1000  # failed attempts in a damaged document
_raw_decode = json.JSONDecoder(parse_constant=lambda _: None).raw_decode
_THOUGHT_KEYS = ("subject", "description")
_MAPPED_KEYS = frozenset({"id", "timestamp", "type", "content", "thoughts", "tokens", "model"})


class _Entry(NamedTuple):
    position: str | int  # in the file, for its id
    value: dict[str, Any]


def recognises(path: str, head: bytes) -> bool:
    """Return whether a file is a chat."""
    if path.endswith(".jsonl"):
        for row in parse_records(split_lines(head)):
            value = row.value or {}
            return isinstance(value.get("sessionId"), str) and "projectHash" in value
        return False
    if not path.endswith(".json"):
        return False
    start = head.lstrip()[:2000]
    if b'"sessionId"' in start and b'"projectHash"' in start:
        return True
    return start[:1] in (b"[", b"{") and b'"parts"' in start and b'"role"' in start


def read(source: Source) -> ForeignSession:
    """Read a session."""
    return _Chat(source).read()


def write(metadata: Metadata, records: Sequence[AnyRecord]) -> ExportedFiles:
    """Raise FormatError: this format is read only."""
    raise FormatError("Gemini chats cannot be written", hint="export to another format")


class _Chat:
    def __init__(self, source: Source) -> None:
        self.path = source.paths()[0]
        self.source = source
        self.session_id = source.name
        self.items: list[Item] = []
        self.damage: list[DamagedBytes] = []
        self.line_count = 0
        self.head: dict[str, Any] = {}  # everything but the messages
        self.used_ids: set[str] = set()
        self.live_records: list[tuple[str, list[str]]] = []  # id, ids of its items
        self.live_ids: set[str] = set()
        self.pending_calls: dict[str, deque[str]] = {}  # tool → assigned ids of its calls
        self.timestamp = ""

    def read(self) -> ForeignSession:
        if self.path.endswith(".jsonl"):
            self._read_lines()
        else:
            self._read_document(self.source.read(self.path))
        return ForeignSession(
            session_id=self.session_id,
            metadata=self._metadata(),
            created_ms=self._created_ms(),
            items=tuple(self.items),
            line_count=self.line_count,
            damage=tuple(self.damage),
        )

    def _metadata(self) -> dict[str, Any]:
        metadata: dict[str, Any] = {"source": NAME}
        for item in self.items:
            if isinstance(item, Message) and item.role == "user" and item.text.strip():
                metadata["name"] = " ".join(item.text.split())[:200]
                break
        summary = self.head.get("summary")
        if isinstance(summary, str) and summary.strip():
            metadata["name"] = summary.strip()[:200]
        models = [item.model for item in self.items if isinstance(item, Message) and item.model]
        return {**metadata, "model": models[-1]} if models else metadata

    def _created_ms(self) -> int:
        start = self.head.get("startTime")
        return (epoch_ms(start) or 0) if isinstance(start, str) else 0

    # --- the three forms --------------------------------------------------------------------

    def _read_document(self, data: bytes) -> None:
        value: Any = None
        try:
            value = msgspec.json.decode(data)
        except (ValueError, RecursionError):
            value = parse_object(data)[0]  # it may contain damaged Unicode
        if value is not None and is_too_deep(data, value):
            value = None
        history = value.get("history") if isinstance(value, dict) else value
        if isinstance(value, dict) and isinstance(value.get("messages"), list):
            self._read_head(value)
        elif isinstance(history, list):
            self.line_count = len(history)
            for number, turn in enumerate(history):
                self._add_turn(_Entry(number, turn if isinstance(turn, dict) else {"value": turn}))
        else:
            self._add_damage(0, data, "not a complete chat")
            for offset, record in _salvage(data.decode("utf-8", "replace")):
                entry = _Entry(f"salvaged {offset}", record)
                if "role" in record:
                    self._add_turn(entry)
                else:
                    self._add_record(entry)

    def _read_head(self, value: dict[str, Any]) -> None:
        messages = value["messages"]
        self.line_count += len(messages)
        head = {key: item for key, item in value.items() if key != "messages"}
        self.head |= head
        self._add_event("head", "session", head)
        for number, message in enumerate(messages):
            record = message if isinstance(message, dict) else {"value": message}
            self._add_record(_Entry(number, record))

    def _read_lines(self) -> None:
        rows = list(parse_records(self.source.lines(self.path), self.path))
        self.damage += report_damage(rows)
        last_values = {
            row.value["id"]: row.value for row in rows if row.value is not None and isinstance(row.value.get("id"), str)
        }
        for row in rows:
            value = row.value
            self.line_count += row.starts_line
            if value is None:
                self._add_damage(row.start, row.data, "")
                continue
            if isinstance(value.get("$rewindTo"), str):
                self._rewind(row.start, value)
            elif isinstance(value.get("messages"), list):
                self._read_head(value)
            elif isinstance(value.get("id"), str):
                if value["id"] in self.live_ids:
                    self._add_event(row.start, "told again", value)
                else:
                    self._add_record(_Entry(row.start, last_values[value["id"]]))
            else:
                change = value.get("$set")
                self.head |= change if isinstance(change, dict) else value
                self._add_event(row.start, "session", value)

    def _rewind(self, position: int, value: dict[str, Any]) -> None:
        """Hide everything from a record on; everything if there is no such record."""
        record_ids = [record_id for record_id, _ in self.live_records]
        target = value["$rewindTo"]
        start = record_ids.index(target) if target in record_ids else 0
        ids = tuple(item_id for _, ids in self.live_records[start:] for item_id in ids)
        del self.live_records[start:]
        self.live_ids = set(record_ids[:start])
        marker_id, extra = derive_id(self.session_id, position), {NAME: value}
        self.items.append(HiddenMessages(id=marker_id, ids=ids, timestamp=self.timestamp, extra=extra))

    # --- records ----------------------------------------------------------------------------

    def _add_record(self, entry: _Entry) -> None:
        """Add a record of a chat."""
        value = entry.value
        if isinstance(value.get("timestamp"), str):
            self.timestamp = value["timestamp"]
        kind = value.get("type")
        if kind == "user":
            messages = [self._message(entry, 0, "user", tuple(_blocks(value.get("content"))))]
        elif kind == "gemini":
            messages = list(self._assistant_messages(entry))
        else:
            self._add_event(entry.position, kind if isinstance(kind, str) else "object", value)
            return
        unmapped = {key: item for key, item in value.items() if key not in _MAPPED_KEYS}
        record_id = value.get("id")
        record_id = record_id if isinstance(record_id, str) else ""
        self.live_records.append((record_id, [message.id for message in messages]))
        self.live_ids.add(record_id)
        self.items += [
            attach_preserved(message, NAME, {"of": messages[0].id} if number else unmapped)
            for number, message in enumerate(messages)
        ]

    def _assistant_messages(self, entry: _Entry) -> Iterator[Message]:
        value = entry.value
        blocks: list[AnyBlock] = [
            Thinking("\n".join(str(part) for part in map(thought.get, _THOUGHT_KEYS) if part))
            for thought in _objects(value.get("thoughts"))
        ]
        blocks += [block for block in _blocks(value.get("content")) if block != Text("")]
        calls = _objects(value.get("toolCalls"))
        blocks += [_call(call, str(call.get("id") or "")) for call in calls]
        yield self._message(entry, 0, "assistant", tuple(blocks))
        for number, call in enumerate(calls, 1):
            if call.get("result") is None and not _is_failure(call):
                continue  # never answered
            content = tuple(_result_blocks(call)) or (Text(str(call.get("resultDisplay") or "")),)
            yield Message(
                id=self._unique_id(entry, number),
                role="toolResult",
                content=content,
                tool_call_id=str(call.get("id") or ""),
                tool_name=str(call.get("name") or ""),
                is_error=_is_failure(call),
                timestamp=self.timestamp,
            )

    def _message(self, entry: _Entry, number: int, role: str, content: tuple[AnyBlock, ...]) -> Message:
        message_id = self._unique_id(entry, number)
        if role == "user":
            return Message(id=message_id, role="user", content=content, sender="user", timestamp=self.timestamp)
        model = entry.value.get("model")
        return Message(
            id=message_id,
            role="assistant",
            content=content,
            model=model if isinstance(model, str) else None,
            usage=_usage(entry.value.get("tokens")),
            timestamp=self.timestamp,
        )

    def _add_turn(self, entry: _Entry) -> None:
        """Add a turn of a checkpoint."""
        role, parts = entry.value.get("role"), _parts(entry.value.get("parts"))
        texts = [part["text"] for part in _objects(parts) if isinstance(part.get("text"), str)]
        is_setup = bool(texts) and texts[0].lstrip().startswith(_SETUP_PREFIX)
        if role not in ("user", "model") or is_setup:
            self._add_event(entry.position, "setup" if is_setup else "object", entry.value)
            return
        messages: list[Message] = []
        blocks: list[AnyBlock] = []
        for part in parts:
            response = part.get("functionResponse") if isinstance(part, dict) else None
            function_call = part.get("functionCall") if isinstance(part, dict) else None
            if isinstance(response, dict):
                tool = str(response.get("name") or "")
                queue = self.pending_calls.get(tool)
                call_id = response.get("id") or (queue.popleft() if queue else "")
                messages.append(
                    Message(
                        id=self._unique_id(entry, len(messages)),
                        role="toolResult",
                        content=tuple(_response_blocks(response)),
                        tool_call_id=str(call_id),
                        tool_name=tool,
                        timestamp=self.timestamp,
                    )
                )
            elif isinstance(function_call, dict):
                call_id = function_call.get("id") or self._assign_call_id(entry, function_call, len(blocks))
                blocks.append(_call(function_call, str(call_id)))
            else:
                blocks.append(_block(part))
        if blocks or not messages:
            message_role = "user" if role == "user" else "assistant"
            messages.append(self._message(entry, len(messages), message_role, tuple(blocks)))
        unmapped = {key: value for key, value in entry.value.items() if key not in ("role", "parts")}
        self.items += [
            attach_preserved(message, NAME, {"of": messages[0].id} if number else unmapped)
            for number, message in enumerate(messages)
        ]

    def _assign_call_id(self, entry: _Entry, function_call: Mapping[str, Any], number: int) -> str:
        """Return an id for a call without one; its result comes later, under the tool's name."""
        call_id = f"call-{entry.position}-{number}"
        self.pending_calls.setdefault(str(function_call.get("name") or ""), deque()).append(call_id)
        return call_id

    def _add_event(self, position: str | int, kind: str, value: dict[str, Any]) -> None:
        event_id = derive_id(self.session_id, position)
        self.items.append(Event(id=event_id, kind=f"gemini.{kind}", data=value, timestamp=self.timestamp))

    def _add_damage(self, start: int, data: bytes, problem: str) -> None:
        if problem:
            self.damage.append(DamagedBytes(self.path, start, start + len(data), problem))
        event_data = {"path": self.path, "start": start, **as_text(data)}
        event_id = derive_id(self.session_id, f"{start}+{len(data)}")
        self.items.append(Event(id=event_id, kind="gemini.damaged", data=event_data, timestamp=self.timestamp))

    def _unique_id(self, entry: _Entry, number: int) -> str:
        record_id = entry.value.get("id")
        item_id = record_id if isinstance(record_id, str) and record_id else derive_id(self.session_id, entry.position)
        item_id = f"{item_id}:{number}" if number else item_id
        if item_id in self.used_ids:
            item_id = derive_id(self.session_id, f"{entry.position}:{number} again")
        self.used_ids.add(item_id)
        return item_id


def _salvage(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the complete records in a damaged document."""
    end = failures = 0
    for match in _RECORD_START.finditer(text):
        if match.start() < end or failures > _MAX_FAILURES:
            continue
        try:
            value, record_end = _raw_decode(text, match.start())
        except (ValueError, RecursionError):
            failures += 1
            continue
        is_message = isinstance(value.get("type"), str) and "content" in value
        is_turn = isinstance(value.get("role"), str) and "parts" in value
        if (is_message or is_turn) and not is_too_deep(text[match.start() : record_end].encode(), value):
            end = record_end
            yield match.start(), replace_surrogates(value)


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _parts(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _blocks(content: Any) -> list[AnyBlock]:
    """Return the blocks of content: a string, a part, or a list of parts."""
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


def _call(function_call: Mapping[str, Any], call_id: str) -> ToolCall:
    arguments = function_call.get("args")
    tool_name = str(function_call.get("name") or "")
    return ToolCall(call_id, tool_name, arguments if isinstance(arguments, dict) else {})


def _is_failure(call: Mapping[str, Any]) -> bool:
    return call.get("status") in ("error", "cancelled")


def _result_blocks(call: Mapping[str, Any]) -> Iterator[AnyBlock]:
    for part in _parts(call.get("result")):
        response = part.get("functionResponse") if isinstance(part, dict) else None
        if isinstance(response, dict):
            yield from _response_blocks(response)
        else:
            yield _block(part)


def _response_blocks(function_response: Mapping[str, Any]) -> Iterator[AnyBlock]:
    """Yield the blocks of a tool response: mostly {"output": text}."""
    response = function_response.get("response")
    outputs = response if isinstance(response, dict) else {"output": response}
    text = next((outputs[key] for key in ("output", "error") if isinstance(outputs.get(key), str)), None)
    yield Text(msgspec.json.encode(response).decode() if text is None else text)
    yield from _blocks(function_response.get("parts"))


def _usage(tokens: Any) -> Usage | None:
    """Return our counts; Gemini counts cached tokens as input, and thoughts separately."""
    if not isinstance(tokens, dict):
        return None
    counts = {key: value for key, value in tokens.items() if isinstance(value, int) and value > 0}
    cached = counts.get("cached", 0)
    return Usage(
        input_tokens=max(counts.get("input", 0) - cached, 0) + counts.get("tool", 0),
        output_tokens=counts.get("output", 0) + counts.get("thoughts", 0),
        total_tokens=counts.get("total", 0),
        cache_read_tokens=cached,
    )
