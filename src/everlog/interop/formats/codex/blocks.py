"""Payloads of Codex's response items, as blocks of ours."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from everlog.interop.formats.jsonl import parse_object
from everlog.log.usage_fold import parse_count
from everlog.model import AnyBlock, Image, OtherBlock, Text, Thinking, ToolCall, Usage

NAME = "codex"
# Text that Codex sends to the model in the user's name, in files that do not say what a text is.
_PREAMBLE = re.compile(
    r"\s*(<(environment_context|user_instructions|permissions instructions|collaboration_mode|turn_aborted"
    r"|subagent_notification|skill|INSTRUCTIONS|goal_context|codex_internal_context\w*|hook_prompt\w*|model_switch"
    r"|recommended_plugins|user_shell_command)[ >]|# AGENTS\.md instructions)"
)
_IMAGE_TAG = re.compile(r"\s*(<image\b[^>]*>|</image>)\s*")  # text around a picture, not of the user
_REQUEST = "## My request for Codex:"  # what an editor puts before the user's words
# What today's shell tool puts before the output of a command.
_EXIT_CODE = re.compile(
    r"(?:Chunk ID: .*\n)?(?:Wall time: .*\n)?(?:Process exited with code|Output:\nExit code:) (\d+)\n"
)
_DATA_URL = re.compile(r"data:([^;,]*);base64,(.*)", re.DOTALL)


class UserContent(NamedTuple):
    """The content of a message that was sent in the user's name."""

    context: tuple[AnyBlock, ...]  # by Codex or an editor
    words: tuple[AnyBlock, ...]  # of the user
    is_whole: bool  # whether the blocks hold all of it


def user_content(payload: Mapping[str, Any]) -> UserContent:
    """Tell the user's words from what Codex or an editor put before them."""
    content = payload["content"]
    parts = [{"text": content}] if isinstance(content, str) else content
    context: list[AnyBlock] = []
    words: list[AnyBlock] = []
    is_whole = True
    for part, kind in zip(parts, _kinds(payload, len(parts)), strict=True):
        block = _block(part)
        if kind == "context" or (kind != "user" and isinstance(block, Text) and _PREAMBLE.match(block.text)):
            context.append(block)
        elif not isinstance(block, Text):
            words.append(block)
        elif _IMAGE_TAG.fullmatch(block.text):
            is_whole = False
        elif _REQUEST in block.text:
            before, heading, request = block.text.partition(_REQUEST)
            context.append(Text(before + heading))
            words += [Text(request.strip())] if request.strip() else []
            is_whole = False
        else:
            words.append(block)
    return UserContent(tuple(context), tuple(words), is_whole)


def _kinds(payload: Mapping[str, Any], count: int) -> list[str]:
    """Return for each part of a message: "user", "context", or nothing if the file does not say."""
    if payload.get("role") != "user":
        return ["context"] * count
    details = payload.get("internal_chat_message_metadata_passthrough")
    kinds = details.get("content_item_kinds") if isinstance(details, dict) else None
    if not isinstance(kinds, list) or len(kinds) != count:
        return [""] * count
    return ["user" if f"{kind}".startswith("user.") else "" if kind == "unknown" else "context" for kind in kinds]


def blocks(content: str | Sequence[Any]) -> tuple[AnyBlock, ...]:
    """Return the blocks of content: a text, or a list of parts."""
    return (Text(content),) if isinstance(content, str) else tuple(map(_block, content))


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


def thinking(payload: Mapping[str, Any]) -> Thinking | None:
    """Return the readable part of a reasoning item, if it has one."""
    texts = [
        part["text"]
        for key in ("summary", "content")
        for part in _list(payload.get(key))
        if isinstance(part, dict) and isinstance(part.get("text"), str)
    ]
    signature, thinking_id = payload.get("encrypted_content"), payload.get("id")
    if not texts:
        return None
    return Thinking(
        "\n\n".join(texts),
        signature if isinstance(signature, str) else None,
        thinking_id if isinstance(thinking_id, str) else None,
    )


def tool_call(payload: Mapping[str, Any]) -> ToolCall | None:
    """Return the call in a response item; None if it has no id or no name."""
    call_id, tool = payload.get("call_id") or payload.get("id"), payload.get("name")
    if payload["type"] == "local_shell_call":
        tool, arguments = "local_shell", payload.get("action")
    elif payload["type"] == "custom_tool_call":
        arguments = {"input": payload.get("input")}
    else:
        arguments = _arguments(payload.get("arguments"))
    if not isinstance(call_id, str) or not isinstance(tool, str):
        return None
    return ToolCall(call_id, tool, arguments if isinstance(arguments, dict) else {})


def tool_output(output: Any) -> tuple[tuple[AnyBlock, ...], bool | None]:
    """Return the content of a result, and whether the tool failed. Commands wrap it in JSON."""
    if isinstance(output, str):
        decoded = _arguments(output)
        if isinstance(decoded.get("output"), str) and isinstance(decoded.get("metadata"), dict):
            return (Text(decoded["output"]),), _is_failure(decoded)
        exit_code = _EXIT_CODE.match(output)
        return (Text(output),), exit_code[1] != "0" if exit_code else None
    if isinstance(output, list):
        return blocks(output), None
    if isinstance(output, dict):
        content = output.get("output", output.get("content"))
        if isinstance(content, str | list):
            return blocks(content), _is_failure(output)
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


def usage_of(raw_usage: Mapping[str, Any]) -> Usage:
    """Return our usage counts; Codex includes cached tokens in the input."""
    counts = {key: parse_count(value) for key, value in raw_usage.items()}
    cached = counts.get("cached_input_tokens", 0)
    return Usage(
        input_tokens=max(counts.get("input_tokens", 0) - cached, 0),
        output_tokens=counts.get("output_tokens", 0),
        total_tokens=counts.get("total_tokens", 0),
        cache_read_tokens=cached,
    )


def summary_text(payload: Mapping[str, Any]) -> str:
    """Return the text that replaces the compacted messages."""
    message = payload.get("message")
    if isinstance(message, str) and message:
        return message
    contents = [
        user_content(item).words
        for item in _list(payload.get("replacement_history"))
        if isinstance(item, dict) and item.get("role") == "user" and isinstance(item.get("content"), str | list)
    ]
    return "\n\n".join(block.text for words in contents for block in words if isinstance(block, Text))


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()
