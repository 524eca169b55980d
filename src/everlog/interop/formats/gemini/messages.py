"""The messages in one record of a Gemini chat.

A record of the model has its answer, its tool calls and their results. It is written again when a
call was made and when its result came, so these are messages of their own: an answer, its calls,
and each result. Then a record that grew only adds messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from everlog.interop.formats.jsonl import text_of
from everlog.log.usage_fold import parse_count
from everlog.model import PROGRAM, AnyBlock, File, Image, Message, OtherBlock, Text, Thinking, ToolCall, Usage

NAME = "gemini"
SUMMARY_START = "<state_snapshot>"  # of what the program puts in place of a long chat
# How text begins that the program sends in the user's name.
_INJECTED = (
    "<session_context>",
    "<hook_context>",
    SUMMARY_START,
    "This is the Gemini CLI. We are setting up the context for our chat",
)


class ToolIds(msgspec.Struct):
    """Ids of calls that further records refer to."""

    unnamed: dict[str, list[str]] = {}  # tool → ids that we gave to its calls without an id
    answered: list[str] = []  # calls of the last answer whose results are in the same record


def record_messages(value: Mapping[str, Any], record_id: str, ids: ToolIds) -> list[Message]:
    """Return the messages of a record, without their times; notices of the program are none."""
    kind = value.get("type")
    if kind == "gemini":
        return _answer(value, record_id, ids)
    return _prompt(value, record_id, ids) if kind == "user" else []


def _answer(value: Mapping[str, Any], record_id: str, ids: ToolIds) -> list[Message]:
    thoughts: list[AnyBlock] = [
        Thinking("\n".join(str(thought[key]) for key in ("subject", "description") if thought.get(key)))
        for thought in _objects(value.get("thoughts"))
    ]
    content: list[AnyBlock] = []
    for number, part in enumerate(_parts(value.get("content"))):
        function_call = part.get("functionCall") if isinstance(part, dict) else None
        if isinstance(function_call, dict):
            content.append(_call(function_call, _call_id(function_call, f"call-{record_id}-{number}", ids)))
        elif not (thoughts and isinstance(part, dict) and part.get("thought") is True) and part != "":
            content.append(_block(part))  # a chat that was resumed has its thoughts here as well
    calls = _objects(value.get("toolCalls"))
    messages = []
    for suffix, blocks in (("", [*thoughts, *content]), (":calls", [_call(call, _id(call)) for call in calls])):
        if blocks:
            messages.append(Message(id=record_id + suffix, role="assistant", content=tuple(blocks)))
    model, usage = text_of(value, "model") or None, _usage(value.get("tokens"))
    messages = [
        replace(message, model=model, usage=None if number else usage) for number, message in enumerate(messages)
    ]
    ids.answered = []
    for number, call in enumerate(calls, 1):
        is_error = call.get("status") in ("error", "cancelled")
        if call.get("result") is None and not is_error:
            continue  # not answered
        ids.answered.append(_id(call))
        blocks = [block for part in _parts(call.get("result")) for block in _result_blocks(part)]
        content = blocks or [Text(str(call.get("resultDisplay") or ""))]
        messages.append(_result(f"{record_id}:{number}", call, _id(call), content, is_error=is_error))
    return messages


def _prompt(value: Mapping[str, Any], record_id: str, ids: ToolIds) -> list[Message]:
    messages: list[Message] = []
    blocks: list[AnyBlock] = []
    parts = _parts(value.get("content"))
    for part in parts:
        response = part.get("functionResponse") if isinstance(part, dict) else None
        if not isinstance(response, dict):
            blocks.append(_block(part))
            continue
        unnamed = ids.unnamed.get(text_of(response, "name"))
        call_id = _id(response) or (unnamed.pop(0) if unnamed else "")
        if call_id not in ids.answered:  # else the answer has it too
            suffix = f":{len(messages)}" if messages else ""
            messages.append(_result(record_id + suffix, response, call_id, list(_result_blocks(part))))
    is_result = len(blocks) < len(parts)
    words = [_block(part) for part in _parts(value.get("displayContent"))] or blocks
    is_injected = is_result or any(
        isinstance(block, Text) and block.text.lstrip().startswith(_INJECTED) for block in blocks[:1]
    )
    if is_injected:
        words = []
    context = [block for block in blocks if block not in words]
    suffix = f":{len(messages)}" if messages else ""
    if words:
        messages.append(Message(id=record_id + suffix, role="user", content=tuple(words), sender="user"))
        suffix = ":context"
    if context:
        messages.append(Message(id=record_id + suffix, role="user", content=tuple(context), sender=PROGRAM))
    return messages


def _result(
    message_id: str,
    source: Mapping[str, Any],
    call_id: str,
    content: Sequence[AnyBlock],
    *,
    is_error: bool | None = None,
) -> Message:
    return Message(
        id=message_id,
        role="toolResult",
        content=tuple(content),
        tool_call_id=call_id,
        tool_name=str(source.get("name") or ""),
        is_error=is_error,
    )


def _id(value: Mapping[str, Any]) -> str:
    return str(value.get("id") or "")


def _call_id(function_call: Mapping[str, Any], new_id: str, ids: ToolIds) -> str:
    """Return the id of a call; one without an id is answered later under its tool's name."""
    if not function_call.get("id"):
        ids.unnamed.setdefault(text_of(function_call, "name"), []).append(new_id)
    return _id(function_call) or new_id


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _parts(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _block(part: Any) -> AnyBlock:
    if isinstance(part, str):
        return Text(part)
    if not isinstance(part, dict):
        return OtherBlock({"type": "unknown", "value": part})
    text, inline, file = part.get("text"), part.get("inlineData"), part.get("fileData")
    if isinstance(text, str):
        return Thinking(text, text_of(part, "thoughtSignature") or None) if part.get("thought") is True else Text(text)
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
    return ToolCall(call_id, str(function_call.get("name") or ""), arguments if isinstance(arguments, dict) else {})


def _result_blocks(part: Any) -> Iterator[AnyBlock]:
    """Yield the blocks of a tool's result: mostly {"output": text} in a response."""
    function_response = part.get("functionResponse") if isinstance(part, dict) else None
    if not isinstance(function_response, dict):
        yield _block(part)
        return
    response = function_response.get("response")
    outputs = response if isinstance(response, dict) else {"output": response}
    text = next((outputs[key] for key in ("output", "error") if isinstance(outputs.get(key), str)), None)
    yield Text(msgspec.json.encode(response).decode() if text is None else text)
    yield from map(_block, _parts(function_response.get("parts")))


def _usage(tokens: Any) -> Usage | None:
    """Return our counts; Gemini counts cached tokens as input, and thoughts separately."""
    if not isinstance(tokens, dict):
        return None
    counts = {key: parse_count(value) for key, value in tokens.items()}
    cached = counts.get("cached", 0)
    return Usage(
        input_tokens=max(counts.get("input", 0) - cached, 0) + counts.get("tool", 0),
        output_tokens=counts.get("output", 0) + counts.get("thoughts", 0),
        total_tokens=counts.get("total", 0),
        cache_read_tokens=cached,
    )
