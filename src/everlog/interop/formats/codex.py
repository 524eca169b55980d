"""Codex's rollouts, read only.

    ~/.codex/sessions/YYYY/MM/DD/rollout-<time>-<uuid>.jsonl
    {"timestamp": …, "type": "response_item", "payload": {"type": "message", …}}

Old files have the payload as the line, and a first line without a type. Response items (the model's
input and output) are the conversation. Event messages repeat it and are stored as events, and so
is text that Codex adds in the user's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import msgspec
from msgspec.structs import replace

from everlog.errors import FormatError
from everlog.ids import epoch_ms
from everlog.interop.formats.format_types import (
    ExportedFiles,
    ForeignSession,
    HiddenMessages,
    Item,
    Source,
    Summary,
    content_fingerprint,
    derive_id,
    split_lines,
)
from everlog.interop.formats.jsonl import Row, attach_preserved, parse_object, parse_records, report_damage
from everlog.model import (
    AnyBlock,
    AnyRecord,
    Event,
    Image,
    Message,
    Metadata,
    OtherBlock,
    Text,
    Thinking,
    ToolCall,
    Usage,
)

NAME = "codex"
_WRAPPED_TYPES = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted"})
_BARE_TYPES = frozenset(
    {
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "local_shell_call",
        "custom_tool_call",
        "custom_tool_call_output",
        "web_search_call",
    }
)
# Text that Codex sends to the model in the user's name.
_PREAMBLE = re.compile(
    r"\s*(<(environment_context|user_instructions|permissions instructions|collaboration_mode"
    r"|turn_aborted|subagent_notification|skill|INSTRUCTIONS)[ >]|# AGENTS\.md instructions)"
)
_DATA_URL = re.compile(r"data:([^;,]*);base64,(.*)", re.DOTALL)


def recognises(path: str, head: bytes) -> bool:
    """Return whether a file is a rollout."""
    if not path.endswith(".jsonl"):
        return False
    for row in parse_records(split_lines(head)):
        value = row.value
        if value is None:
            # The first line has the instructions and may be longer than the head.
            return row.end == len(head) and b'"type":"session_meta","payload":{' in head[:200]
        if isinstance(value.get("payload"), dict):
            return isinstance(value.get("type"), str) and value["type"] in _WRAPPED_TYPES
        if "type" in value:
            return False
        return isinstance(value.get("id"), str) and "instructions" in value and "git" in value
    return False


def read(source: Source) -> ForeignSession:
    """Read a session."""
    return _Rollout(source).read()


def write(metadata: Metadata, records: Sequence[AnyRecord]) -> ExportedFiles:
    """Raise FormatError: this format is read only."""
    _refuse("Codex rollouts cannot be written", "export to another format")


def _refuse(message: str, hint: str) -> NoReturn:
    raise FormatError(message, hint=hint)


class _Rollout:
    def __init__(self, source: Source) -> None:
        self.path = source.paths()[0]
        self.session_id = source.name
        self.rows = list(parse_records(source.lines(self.path), self.path))
        self.items: list[Item] = []
        self.metadata: dict[str, Any] = {"source": NAME}
        self.model: str | None = None
        self.cwd: str | None = None
        self.created_ms = 0
        self.timestamp = ""
        self.tool_names: dict[str, str] = {}
        self.last_total: object = None  # the last total reported
        self.hidden_ids: set[str] = set()

    def read(self) -> ForeignSession:
        for row in self.rows:
            self._add_row(row)
        if self.model:
            self.metadata["model"] = self.model
        return ForeignSession(
            session_id=self.session_id,
            metadata=self.metadata,
            created_ms=self.created_ms,
            items=tuple(self.items),
            line_count=sum(row.starts_line for row in self.rows),
            damage=report_damage(self.rows),
        )

    def _add_row(self, row: Row) -> None:
        item_id = derive_id(self.session_id, row.start)
        value = row.value
        if value is None:
            item_id = derive_id(self.session_id, f"{row.start}+{row.end - row.start}")
            self._add_event(item_id, "damaged", row.event_data)
            return
        kind, payload = _unwrap(value)
        timestamp = value.get("timestamp")
        if isinstance(timestamp, str):
            self.timestamp = timestamp
            self.created_ms = self.created_ms or epoch_ms(timestamp) or 0
        item = self._item(item_id, kind, payload, value)
        if item is not None:
            self.items.append(item)
            return
        inner = payload.get("type")
        is_nested = isinstance(inner, str) and inner != kind
        self._add_event(item_id, f"{kind}.{inner}" if is_nested else kind, value)

    def _add_event(self, item_id: str, kind: str, data: dict[str, Any]) -> None:
        event = Event(id=item_id, kind=f"codex.{kind}", data=data, timestamp=self.timestamp)
        self.items.append(event)

    def _item(self, item_id: str, kind: str, payload: dict[str, Any], value: dict[str, Any]) -> Item | None:
        """Return the conversation item of a line; None if it is none."""
        if kind == "response_item":
            return self._response_item(item_id, payload)
        if kind == "compacted":
            text, time = _summary_text(payload), self.timestamp
            return Summary(id=item_id, text=text, timestamp=time, extra={NAME: value}) if text else None
        if kind == "session_meta":
            self._note_metadata(payload, ("cwd",))
        elif kind == "turn_context":
            self._note_metadata(payload, ("cwd", "model"))
        elif kind == "event_msg" and payload.get("type") == "token_count":
            self._add_usage(payload.get("info"))
        elif kind == "event_msg" and payload.get("type") == "thread_rolled_back":
            return self._roll_back(item_id, payload.get("num_turns"), value)
        return None

    def _note_metadata(self, payload: Mapping[str, Any], keys: Sequence[str]) -> None:
        if "cwd" in keys and isinstance(payload.get("cwd"), str):
            self.cwd = payload["cwd"]
            self.metadata.setdefault("cwd", self.cwd)
        if "model" in keys and isinstance(payload.get("model"), str):
            self.model = payload["model"]

    # --- response items ---------------------------------------------------------------------

    def _response_item(self, item_id: str, payload: dict[str, Any]) -> Message | None:
        kind = payload.get("type")
        if kind == "message":
            return self._message(item_id, payload)
        if kind == "reasoning":
            return self._reasoning(item_id, payload)
        if kind in ("function_call", "custom_tool_call", "local_shell_call"):
            return self._call(item_id, payload)
        if kind in ("function_call_output", "custom_tool_call_output"):
            return self._output(item_id, payload)
        return None

    def _preserve(self, message: Message, payload: Mapping[str, Any], mapped: Sequence[str]) -> Message:
        unmapped = {key: value for key, value in payload.items() if key not in mapped}
        return attach_preserved(message, NAME, unmapped)

    def _message(self, item_id: str, payload: dict[str, Any]) -> Message | None:
        content, role = payload.get("content"), payload.get("role")
        if role not in ("user", "assistant") or not isinstance(content, list | str):
            return None
        blocks = _blocks(content)
        texts = [block.text for block in blocks if isinstance(block, Text)]
        if role == "user":
            if texts and all(_PREAMBLE.match(text) for text in texts):
                return None
            self.metadata.setdefault("name", " ".join(" ".join(texts).split())[:200])
            message = Message(
                id=item_id, role="user", content=blocks, sender="user", cwd=self.cwd, timestamp=self.timestamp
            )
        else:
            message = self._assistant_message(item_id, blocks)
        return self._preserve(message, payload, ("role", "content"))

    def _assistant_message(self, item_id: str, blocks: tuple[AnyBlock, ...]) -> Message:
        return Message(
            id=item_id, role="assistant", content=blocks, model=self.model, cwd=self.cwd, timestamp=self.timestamp
        )

    def _reasoning(self, item_id: str, payload: dict[str, Any]) -> Message | None:
        texts = [
            part["text"]
            for key in ("summary", "content")
            for part in _list(payload.get(key))
            if isinstance(part, dict) and isinstance(part.get("text"), str)
        ]
        if not texts:
            return None
        signature, thinking_id = payload.get("encrypted_content"), payload.get("id")
        thinking = Thinking(
            "\n\n".join(texts),
            signature if isinstance(signature, str) else None,
            thinking_id if isinstance(thinking_id, str) else None,
        )
        return self._preserve(self._assistant_message(item_id, (thinking,)), payload, ("summary", "encrypted_content"))

    def _call(self, item_id: str, payload: dict[str, Any]) -> Message | None:
        call_id, tool = payload.get("call_id") or payload.get("id"), payload.get("name")
        if payload["type"] == "local_shell_call":
            tool, arguments = "local_shell", payload.get("action")
        elif payload["type"] == "custom_tool_call":
            arguments = {"input": payload.get("input")}
        else:
            arguments = _arguments(payload.get("arguments"))
        if not isinstance(call_id, str) or not isinstance(tool, str):
            return None
        self.tool_names[call_id] = tool
        block = ToolCall(call_id, tool, arguments if isinstance(arguments, dict) else {})
        mapped = ("name", "arguments", "input", "action", "call_id")
        return self._preserve(self._assistant_message(item_id, (block,)), payload, mapped)

    def _output(self, item_id: str, payload: dict[str, Any]) -> Message | None:
        call_id = payload.get("call_id")
        if not isinstance(call_id, str):
            return None
        blocks, is_error = _result(payload.get("output"))
        result = Message(
            id=item_id,
            role="toolResult",
            content=blocks,
            tool_call_id=call_id,
            tool_name=self.tool_names.get(call_id),
            is_error=is_error,
            cwd=self.cwd,
            timestamp=self.timestamp,
        )
        return self._preserve(result, payload, ("call_id",))

    # --- event messages ---------------------------------------------------------------------

    def _add_usage(self, info: Any) -> None:
        """Set the usage of the last answer. Codex may report the same total repeatedly."""
        if not isinstance(info, dict) or info.get("total_token_usage") == self.last_total:
            return
        self.last_total = info.get("total_token_usage")
        last = info.get("last_token_usage")
        if not isinstance(last, dict):
            return
        for index in range(len(self.items) - 1, -1, -1):
            item = self.items[index]
            if isinstance(item, Message) and item.role != "toolResult":
                if item.role == "assistant" and item.usage is None:
                    unmapped = msgspec.json.decode(item.line).get(NAME)
                    message = replace(item, usage=_usage(last), line=b"")
                    self.items[index] = attach_preserved(message, NAME, unmapped)
                return

    def _roll_back(self, item_id: str, turns: Any, value: dict[str, Any]) -> HiddenMessages | None:
        """Hide the last turns, from the user's message on."""
        live = [item for item in self.items if isinstance(item, Message) and item.id not in self.hidden_ids]
        starts = [position for position, item in enumerate(live) if item.role == "user"]
        if not isinstance(turns, int) or turns < 1 or not starts:
            return None
        ids = [item.id for item in live[starts[max(len(starts) - turns, 0)] :]]
        self.hidden_ids.update(ids)
        return HiddenMessages(id=item_id, ids=tuple(ids), timestamp=self.timestamp, extra={NAME: value})


def _unwrap(value: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the type and the payload of a line."""
    kind, payload = value.get("type"), value.get("payload")
    if isinstance(kind, str) and isinstance(payload, dict):
        return kind, payload
    if isinstance(kind, str):
        return ("response_item" if kind in _BARE_TYPES else kind), value
    return ("session_meta" if "id" in value else "state"), value


def _blocks(content: str | Sequence[Any]) -> tuple[AnyBlock, ...]:
    if isinstance(content, str):
        return (Text(content),)
    return tuple(map(_block, content))


def _block(part: Any) -> AnyBlock:
    if not isinstance(part, dict):
        return OtherBlock({"type": "unknown", "value": part})
    text, url = part.get("text"), part.get("image_url")
    if isinstance(text, str):
        return Text(text)
    if isinstance(url, str):
        inline = _DATA_URL.fullmatch(url)
        return Image(inline[1], inline[2]) if inline else Image(url=url)
    return OtherBlock(part)


def _result(output: Any) -> tuple[tuple[AnyBlock, ...], bool | None]:
    """Return the content of a result, and whether the tool failed. Commands wrap it in JSON."""
    if isinstance(output, str):
        decoded = _arguments(output)
        if isinstance(decoded.get("output"), str) and isinstance(decoded.get("metadata"), dict):
            return (Text(decoded["output"]),), _is_failure(decoded)
        return (Text(output),), None
    if isinstance(output, list):
        return _blocks(output), None
    if isinstance(output, dict):
        content = output.get("output", output.get("content"))
        if isinstance(content, str | list):
            return _blocks(content), _is_failure(output)
    return (Text("" if output is None else msgspec.json.encode(output).decode()),), None


def _is_failure(result: Mapping[str, Any]) -> bool | None:
    metadata = result.get("metadata")
    code = metadata.get("exit_code") if isinstance(metadata, dict) else None
    if isinstance(code, int):
        return code != 0
    success = result.get("success")
    return not success if isinstance(success, bool) else None


def _arguments(text: Any) -> dict[str, Any]:
    value, is_exact = text, True
    if isinstance(text, str):
        value, _, is_exact = parse_object(text.encode())
    return value if is_exact and isinstance(value, dict) else {"arguments": text}


def _usage(raw_usage: Mapping[str, Any]) -> Usage:
    """Return our usage counts; Codex includes cached tokens in the input."""
    counts = {key: value for key, value in raw_usage.items() if isinstance(value, int) and value > 0}
    cached = counts.get("cached_input_tokens", 0)
    return Usage(
        input_tokens=max(counts.get("input_tokens", 0) - cached, 0),
        output_tokens=counts.get("output_tokens", 0),
        total_tokens=counts.get("total_tokens", 0),
        cache_read_tokens=cached,
    )


def _summary_text(payload: Mapping[str, Any]) -> str:
    """Return the text that replaces the compacted messages."""
    message = payload.get("message")
    if isinstance(message, str) and message:
        return message
    texts = [
        block.text
        for item in _list(payload.get("replacement_history"))
        if isinstance(item, dict) and isinstance(item.get("content"), str | list)
        for block in _blocks(item["content"])
        if isinstance(block, Text) and not _PREAMBLE.match(block.text)
    ]
    return "\n\n".join(texts)


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


KEYS: frozenset[str] = frozenset()
IS_REWRITTEN = False


def fingerprint(message: Message) -> str:
    return content_fingerprint(message)


def resume_command(facts: Any, path: str) -> tuple[str, ...]:
    return ()
