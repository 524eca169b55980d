"""Codex's rollouts, read only.

    ~/.codex/sessions/YYYY/MM/DD/rollout-<time>-<uuid>.jsonl
    {"timestamp": …, "type": "response_item", "payload": {"type": "message", …}}

Old files have the payload as the line, and a first line without a type. What the model was given
and what it answered (response items) is the conversation; what Codex tells of it (event messages)
repeats that and is kept as events, and so is what Codex says in the user's name.
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
    Hidden,
    Item,
    Read,
    Source,
    Summary,
    Written,
    made_id,
    split,
)
from everlog.interop.formats.jsonl import Row, keeping, lost, parse, records
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
_WRAPPED = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted"})
_BARE = frozenset(
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
# What Codex says to the model in the user's name.
_PREAMBLE = re.compile(
    r"\s*(<(environment_context|user_instructions|permissions instructions|collaboration_mode"
    r"|turn_aborted|subagent_notification|skill|INSTRUCTIONS)[ >]|# AGENTS\.md instructions)"
)
_DATA_URL = re.compile(r"data:([^;,]*);base64,(.*)", re.DOTALL)


def recognises(path: str, head: bytes) -> bool:
    """Whether a file is a rollout."""
    if not path.endswith(".jsonl"):
        return False
    for row in records(split(head)):
        value = row.value
        if value is None:
            # The first line holds the instructions and may be longer than what we see of it.
            return row.end == len(head) and b'"type":"session_meta","payload":{' in head[:200]
        if isinstance(value.get("payload"), dict):
            return isinstance(value.get("type"), str) and value["type"] in _WRAPPED
        if "type" in value:
            return False
        return isinstance(value.get("id"), str) and "instructions" in value and "git" in value
    return False


def read(source: Source) -> Read:
    """A session."""
    return _Rollout(source).read()


def write(metadata: Metadata, records: Sequence[AnyRecord]) -> Written:
    """Refused: the format is another program's own."""
    _refuse("Codex rollouts cannot be written", "export to another format")


def _refuse(message: str, hint: str) -> NoReturn:
    raise FormatError(message, hint=hint)


class _Rollout:
    def __init__(self, source: Source) -> None:
        self.path = source.paths()[0]
        self.name = source.name
        self.rows = list(records(source.lines(self.path), self.path))
        self.items: list[Item] = []
        self.facts: dict[str, Any] = {"source": NAME}
        self.model: str | None = None
        self.cwd: str | None = None
        self.created = 0
        self.at = ""
        self.tools: dict[str, str] = {}
        self.counted: object = None  # the sum that was told last
        self.hidden: set[str] = set()

    def read(self) -> Read:
        for row in self.rows:
            self._add(row)
        if self.model:
            self.facts["model"] = self.model
        return Read(
            name=self.name,
            facts=self.facts,
            created=self.created,
            items=tuple(self.items),
            lines=sum(row.begins for row in self.rows),
            lost=lost(self.rows),
        )

    def _add(self, row: Row) -> None:
        name = made_id(self.name, row.start)
        value = row.value
        if value is None:
            name = made_id(self.name, f"{row.start}+{row.end - row.start}")
            damage = Event(id=name, kind="codex.damaged", data=row.told, timestamp=self.at)
            self.items.append(damage)
            return
        kind, payload = _unwrap(value)
        stamp = value.get("timestamp")
        if isinstance(stamp, str):
            self.at = stamp
            self.created = self.created or epoch_ms(stamp) or 0
        made = self._item(name, kind, payload, value)
        if made is None:
            inner = payload.get("type")
            told = f"{kind}.{inner}" if isinstance(inner, str) and inner != kind else kind
            made = Event(id=name, kind=f"codex.{told}", data=value, timestamp=self.at)
        self.items.append(made)

    def _item(
        self, name: str, kind: str, payload: dict[str, Any], value: dict[str, Any]
    ) -> Item | None:
        """What a line is in the conversation; None if it is beside it."""
        if kind == "response_item":
            return self._said(name, payload)
        if kind == "compacted":
            text = _summary(payload)
            extra = {NAME: value}
            return Summary(id=name, text=text, timestamp=self.at, extra=extra) if text else None
        if kind == "session_meta":
            self._note(payload, ("cwd",))
        elif kind == "turn_context":
            self._note(payload, ("cwd", "model"))
        elif kind == "event_msg" and payload.get("type") == "token_count":
            self._count(payload.get("info"))
        elif kind == "event_msg" and payload.get("type") == "thread_rolled_back":
            return self._roll_back(name, payload.get("num_turns"), value)
        return None

    def _note(self, payload: Mapping[str, Any], keys: Sequence[str]) -> None:
        if "cwd" in keys and isinstance(payload.get("cwd"), str):
            self.cwd = payload["cwd"]
            self.facts.setdefault("cwd", self.cwd)
        if "model" in keys and isinstance(payload.get("model"), str):
            self.model = payload["model"]

    # --- what was said ----------------------------------------------------------------------

    def _said(self, name: str, payload: dict[str, Any]) -> Message | None:
        kind = payload.get("type")
        if kind == "message":
            return self._message(name, payload)
        if kind == "reasoning":
            return self._reasoning(name, payload)
        if kind in ("function_call", "custom_tool_call", "local_shell_call"):
            return self._call(name, payload)
        if kind in ("function_call_output", "custom_tool_call_output"):
            return self._output(name, payload)
        return None

    def _made(self, message: Message, payload: Mapping[str, Any], mapped: Sequence[str]) -> Message:
        rest = {key: value for key, value in payload.items() if key not in mapped}
        return keeping(message, NAME, rest)

    def _message(self, name: str, payload: dict[str, Any]) -> Message | None:
        content, role = payload.get("content"), payload.get("role")
        if role not in ("user", "assistant") or not isinstance(content, list | str):
            return None
        blocks = _blocks(content)
        texts = [block.text for block in blocks if isinstance(block, Text)]
        if role == "user":
            if texts and all(_PREAMBLE.match(text) for text in texts):
                return None
            self.facts.setdefault("name", " ".join(" ".join(texts).split())[:200])
            made = Message(
                id=name, role="user", content=blocks, sender="user", cwd=self.cwd, timestamp=self.at
            )
        else:
            made = self._answer(name, blocks)
        return self._made(made, payload, ("role", "content"))

    def _answer(self, name: str, blocks: tuple[AnyBlock, ...]) -> Message:
        return Message(
            id=name,
            role="assistant",
            content=blocks,
            model=self.model,
            cwd=self.cwd,
            timestamp=self.at,
        )

    def _reasoning(self, name: str, payload: dict[str, Any]) -> Message | None:
        texts = [
            part["text"]
            for key in ("summary", "content")
            for part in _list(payload.get(key))
            if isinstance(part, dict) and isinstance(part.get("text"), str)
        ]
        if not texts:
            return None
        sealed, given = payload.get("encrypted_content"), payload.get("id")
        thought = Thinking(
            "\n\n".join(texts),
            sealed if isinstance(sealed, str) else None,
            given if isinstance(given, str) else None,
        )
        return self._made(self._answer(name, (thought,)), payload, ("summary", "encrypted_content"))

    def _call(self, name: str, payload: dict[str, Any]) -> Message | None:
        call, tool = payload.get("call_id") or payload.get("id"), payload.get("name")
        if payload["type"] == "local_shell_call":
            tool, arguments = "local_shell", payload.get("action")
        elif payload["type"] == "custom_tool_call":
            arguments = {"input": payload.get("input")}
        else:
            arguments = _arguments(payload.get("arguments"))
        if not isinstance(call, str) or not isinstance(tool, str):
            return None
        self.tools[call] = tool
        block = ToolCall(call, tool, arguments if isinstance(arguments, dict) else {})
        mapped = ("name", "arguments", "input", "action", "call_id")
        return self._made(self._answer(name, (block,)), payload, mapped)

    def _output(self, name: str, payload: dict[str, Any]) -> Message | None:
        call = payload.get("call_id")
        if not isinstance(call, str):
            return None
        blocks, failed = _result(payload.get("output"))
        made = Message(
            id=name,
            role="toolResult",
            content=blocks,
            tool_call_id=call,
            tool_name=self.tools.get(call),
            is_error=failed,
            cwd=self.cwd,
            timestamp=self.at,
        )
        return self._made(made, payload, ("call_id",))

    # --- what Codex tells of it -------------------------------------------------------------

    def _count(self, info: Any) -> None:
        """Give the last answer its usage. The same sum is told more than once."""
        if not isinstance(info, dict) or info.get("total_token_usage") == self.counted:
            return
        self.counted = info.get("total_token_usage")
        last = info.get("last_token_usage")
        if not isinstance(last, dict):
            return
        for place in range(len(self.items) - 1, -1, -1):
            item = self.items[place]
            if isinstance(item, Message) and item.role != "toolResult":
                if item.role == "assistant" and item.usage is None:
                    rest = msgspec.json.decode(item.line).get(NAME)
                    made = replace(item, usage=_usage(last), line=b"")
                    self.items[place] = keeping(made, NAME, rest)
                return

    def _roll_back(self, name: str, turns: Any, value: dict[str, Any]) -> Hidden | None:
        """The last turns were taken back: from the user's message on."""
        live = [
            item for item in self.items if isinstance(item, Message) and item.id not in self.hidden
        ]
        starts = [place for place, item in enumerate(live) if item.role == "user"]
        if not isinstance(turns, int) or turns < 1 or not starts:
            return None
        ids = [item.id for item in live[starts[max(len(starts) - turns, 0)] :]]
        self.hidden.update(ids)
        return Hidden(id=name, ids=tuple(ids), timestamp=self.at, extra={NAME: value})


def _unwrap(value: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """What kind of line it is, and what is in it."""
    kind, payload = value.get("type"), value.get("payload")
    if isinstance(kind, str) and isinstance(payload, dict):
        return kind, payload
    if isinstance(kind, str):
        return ("response_item" if kind in _BARE else kind), value
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
    """The content of a result, and whether the tool failed. Commands wrap theirs in JSON."""
    if isinstance(output, str):
        told = _arguments(output)
        if isinstance(told.get("output"), str) and isinstance(told.get("metadata"), dict):
            return (Text(told["output"]),), _failed(told)
        return (Text(output),), None
    if isinstance(output, list):
        return _blocks(output), None
    if isinstance(output, dict):
        content = output.get("output", output.get("content"))
        if isinstance(content, str | list):
            return _blocks(content), _failed(output)
    return (Text("" if output is None else msgspec.json.encode(output).decode()),), None


def _failed(told: Mapping[str, Any]) -> bool | None:
    metadata = told.get("metadata")
    code = metadata.get("exit_code") if isinstance(metadata, dict) else None
    if isinstance(code, int):
        return code != 0
    success = told.get("success")
    return not success if isinstance(success, bool) else None


def _arguments(text: Any) -> dict[str, Any]:
    value, exact = text, True
    if isinstance(text, str):
        value, _, exact = parse(text.encode())
    return value if exact and isinstance(value, dict) else {"arguments": text}


def _usage(told: Mapping[str, Any]) -> Usage:
    """A count as ours: theirs has the cached tokens among the input."""
    count = {key: value for key, value in told.items() if isinstance(value, int) and value > 0}
    cached = count.get("cached_input_tokens", 0)
    return Usage(
        input_tokens=max(count.get("input_tokens", 0) - cached, 0),
        output_tokens=count.get("output_tokens", 0),
        total_tokens=count.get("total_tokens", 0),
        cache_read_tokens=cached,
    )


def _summary(payload: Mapping[str, Any]) -> str:
    """The text that stands for what was compacted."""
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
