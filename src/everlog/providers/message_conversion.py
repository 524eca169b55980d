"""Conversion of messages to and from pydantic-ai.

No I/O; loaded with the first model call, since pydantic-ai is slow to import.

Thinking and signatures are sent back to the provider that made them and to no other: the `model` of
a message names its author, and the text before the first colon is the provider. Adjacent messages
of one role are merged, since some providers require roles to alternate.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import mimetypes
import re
from collections.abc import Sequence
from typing import Any

import msgspec
from pydantic_ai.messages import (
    BinaryContent,
    DocumentUrl,
    FilePart,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from everlog.context.fence import Origin, fence
from everlog.context.fence import block as prompt_block
from everlog.errors import ProviderError, ProviderRefusedError, ProviderUnavailableError
from everlog.log.line_codec import replace_surrogates
from everlog.log.usage_fold import parse_count
from everlog.model import AnyBlock, File, Image, Message, Text, Thinking, ToolCall, Usage, assistant
from everlog.ports import Delta, Request, ToolSpec
from everlog.providers.provider_errors import CHANGE_HINT, RETRY_HINT

NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
_MAX_COUNT = 10**9  # tokens; a larger count is wrong, and would trigger a compaction
_EMPTY_RESULT = "(empty)"  # some providers refuse an empty result

_PORTABLE_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")  # accepted by every provider as a call id
_UNSUPPORTED_NOTE = "[an image or a file that this model cannot see]"
# Accepted by all providers.
_SUPPORTED_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf")

_TEXT_SUFFIXES = ("json", "xml", "yaml", "toml", "javascript")
_MAGIC = (
    (b"\x89PNG\r\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"%PDF-", "application/pdf"),
)

_Attachment = BinaryContent | ImageUrl | DocumentUrl


def provider_of(model: str) -> str:
    """Return the provider in a model's name."""
    return model.partition(":")[0]


# --- requests -------------------------------------------------------------------------------


def to_parameters(request: Request) -> ModelRequestParameters:
    """Convert the tools of a request."""
    return ModelRequestParameters(function_tools=[_tool(tool) for tool in request.tools])


def _tool(tool: ToolSpec) -> ToolDefinition:
    # Not strict: a schema is sent as written, with optional parameters.
    return ToolDefinition(
        name=tool.name,
        description=replace_surrogates(tool.description),
        parameters_json_schema=replace_surrogates(tool.parameters) or NO_PARAMETERS,
        strict=False,
    )


def to_model_settings(request: Request) -> ModelSettings:
    """Return the settings of a call: no retries, which the agent does; prompt cache for answers."""
    options = ModelSettings(max_retries=0)
    if request.purpose == "answer":
        options["cache"] = True
    if request.max_tokens is not None:
        options["max_tokens"] = request.max_tokens
    if request.temperature is not None:
        options["temperature"] = request.temperature
    return options


def to_model_messages(request: Request, provider: str, system: str, *, text_only: bool = False) -> list[ModelMessage]:
    """Convert the messages for `provider`, which pydantic-ai calls `system`.

    `text_only`: replace images and files by a note.
    """
    calls: dict[str, ToolCallPart] = {}  # as sent, by our call id
    converted: list[ModelMessage] = []
    for message in request.messages:
        item: ModelMessage
        if message.role == "assistant":
            same_provider = message.model is not None and provider_of(message.model) == provider
            author = system if same_provider else ""
            item = ModelResponse(_response_parts(message, author), provider_name=author or None)
            parts = (part for part in item.parts if isinstance(part, ToolCallPart))
            calls |= zip((call.id for call in message.tool_calls), parts, strict=True)
        else:
            item = ModelRequest(_request_parts(message, calls, text_only))
        if item.parts and converted and type(converted[-1]) is type(item):
            converted[-1].parts = [*converted[-1].parts, *item.parts]
        elif item.parts:
            converted.append(item)
    if request.system.strip():
        # pydantic-ai uses the instructions of the last request.
        last = next((item for item in reversed(converted) if isinstance(item, ModelRequest)), None)
        if last is None:
            converted.append(last := ModelRequest([]))
        last.instructions = replace_surrogates(request.system)
    return converted


def _request_parts(message: Message, calls: dict[str, ToolCallPart], text_only: bool) -> list[ModelRequestPart]:
    """Convert a user message or a tool result."""
    content: list[str | _Attachment] = []
    for block in message.content:
        if isinstance(block, Text):
            if block.text.strip():
                content.append(replace_surrogates(block.text))
        elif (attachment := _to_attachment(block)) is not None:
            is_allowed = isinstance(attachment, str) or not text_only
            content.append(attachment if is_allowed else _UNSUPPORTED_NOTE)
    all_text = all(isinstance(item, str) for item in content)
    text = "\n".join(item for item in content if isinstance(item, str))
    if message.role == "user":
        return [UserPromptPart(text if all_text else content)] if content else []
    call_id = message.tool_call_id or ""
    call = calls.get(call_id) or ToolCallPart(message.tool_name or "tool", {}, call_id)
    return [
        ToolReturnPart(
            call.tool_name,
            (text or _EMPTY_RESULT) if all_text else content,
            call.tool_call_id,
            outcome="failed" if message.is_error else "success",
        )
    ]


def _response_parts(message: Message, system: str) -> list[ModelResponsePart]:
    """Convert an assistant message; `system` is empty if another provider wrote it."""
    parts: list[ModelResponsePart] = []
    for block in message.content:
        if isinstance(block, Text):
            if block.text.strip():
                parts.append(TextPart(replace_surrogates(block.text)))
        elif isinstance(block, ToolCall):
            parts.append(_tool_call_part(block, system))
        elif isinstance(block, Thinking):
            # Without a signature or id, a provider cannot recognise it and would read it as text.
            if system and (block.signature or block.id not in (None, "content")):
                parts.append(
                    ThinkingPart(
                        replace_surrogates(block.thinking), id=block.id, signature=block.signature, provider_name=system
                    )
                )
        elif isinstance(attachment := _to_attachment(block), BinaryContent):
            parts.append(FilePart(BinaryContent.narrow_type(attachment)))
    return parts


def _tool_call_part(call: ToolCall, system: str) -> ToolCallPart:
    part = ToolCallPart(call.name, replace_surrogates(call.arguments), call.id)
    if not system and not _PORTABLE_ID.fullmatch(call.id):
        part.tool_call_id = f"call_{hashlib.sha256(call.id.encode('utf-8', 'replace')).hexdigest()[:24]}"
    if system and call.signature:
        part.provider_name = system
        if call.signature.startswith("{"):
            with contextlib.suppress(msgspec.DecodeError):
                part.provider_details = {"extra_content": msgspec.json.decode(call.signature)}
        else:
            # Each API reads its own field: OpenAI's Responses the id, Google's the signature.
            part.id = call.signature
            part.provider_details = {"thought_signature": call.signature}
    return part


def _to_attachment(block: AnyBlock) -> str | _Attachment | None:
    """Convert an image or a file; None for other blocks and for empty ones.

    A type that not every provider accepts becomes a text about it: if it were refused, so would be
    every later request of the session.
    """
    if not isinstance(block, Image | File):
        return None
    name = replace_surrogates(block.name) if isinstance(block, File) else ""
    if not block.data:
        if not block.url:
            return None
        url, media_type = replace_surrogates(block.url), block.mime_type or None
        if isinstance(block, Image):
            return ImageUrl(url, media_type=media_type)
        return DocumentUrl(url, media_type=media_type)
    head, comma, tail = block.data.partition(",")  # perhaps a `data:` URL
    try:
        data = base64.b64decode("".join((tail if comma else head).split()), validate=True)
    except (binascii.Error, ValueError):
        return f"[{name or 'an attachment'}: it could not be decoded]"
    media_type = _detect_media_type(data) or block.mime_type or mimetypes.guess_type(name)[0]
    media_type = media_type or "unknown kind"
    if media_type in _SUPPORTED_TYPES:
        return BinaryContent(data, media_type=media_type, identifier=name or None)
    if media_type.startswith("text/") or media_type.endswith(_TEXT_SUFFIXES):
        text = fence(data.decode("utf-8", "replace"), Origin.ATTACHMENT)
        return str(prompt_block("file", text, name=fence(name, Origin.PATH)))
    return f"[{name or 'an attachment'}: {len(data)} bytes of {media_type}, which cannot be shown]"


def _detect_media_type(data: bytes) -> str:
    """Detect the media type from the data, or return "". Providers refuse a mismatch."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in _MAGIC if data.startswith(magic)), "")


# --- responses ------------------------------------------------------------------------------


def to_delta(event: ModelResponseStreamEvent) -> Delta | None:
    """Return the text of a stream event, or None."""
    text, thinking = "", False
    if isinstance(event, PartStartEvent):
        if isinstance(event.part, TextPart | ThinkingPart):
            text, thinking = event.part.content, isinstance(event.part, ThinkingPart)
    elif isinstance(event, PartDeltaEvent):
        if isinstance(event.delta, TextPartDelta):
            text = event.delta.content_delta
        elif isinstance(event.delta, ThinkingPartDelta):
            text, thinking = event.delta.content_delta or "", True
    return Delta(text, thinking=thinking) if text else None


def to_message(response: ModelResponse, model: str) -> Message:
    """Convert a response to a message of `model`; ProviderError if it is incomplete or empty."""
    finish_reason = (response.provider_details or {}).get("finish_reason") or response.finish_reason
    reason = str(finish_reason) if finish_reason else None
    content = tuple(_blocks(response.parts))
    if response.finish_reason == "content_filter":
        raise ProviderRefusedError(f"the provider stopped the answer: {reason}", hint=CHANGE_HINT)
    if response.state == "incomplete" or reason is None:
        raise ProviderUnavailableError("the answer was cut off", hint=RETRY_HINT)
    if response.finish_reason == "error":
        raise ProviderUnavailableError(f"the model failed: {reason}", hint=RETRY_HINT)
    if not content:
        if response.finish_reason == "length":
            raise ProviderError("max_tokens was reached before the answer began", hint=CHANGE_HINT)
        raise ProviderUnavailableError("the model returned an empty answer", hint=RETRY_HINT)
    return assistant(content, model=model, usage=_usage(response), stop_reason=reason)


def _blocks(parts: Sequence[ModelResponsePart]) -> list[AnyBlock]:
    blocks: list[AnyBlock] = []
    for part in parts:
        if isinstance(part, TextPart):
            if part.content:
                blocks.append(Text(part.content))
        elif isinstance(part, ThinkingPart):
            if part.content or part.signature:
                blocks.append(Thinking(part.content, part.signature, part.id))
        elif isinstance(part, ToolCallPart):
            arguments = part.args_as_dict()
            blocks.append(ToolCall(part.tool_call_id, part.tool_name, arguments, _signature(part)))
        elif isinstance(part, FilePart):
            data, mime_type = part.content.base64, part.content.media_type
            if mime_type.startswith("image/"):
                blocks.append(Image(mime_type, data))
            else:
                blocks.append(File(part.content.identifier, mime_type, data))
    return blocks


def _signature(part: ToolCallPart) -> str | None:
    details = part.provider_details or {}
    if "extra_content" in details:  # Gemini's signature through OpenAI's API
        return msgspec.json.encode(details["extra_content"]).decode()
    return details.get("thought_signature") or part.id


def _usage(response: ModelResponse) -> Usage:
    usage = response.usage
    cache_read = parse_count(usage.cache_read_tokens, _MAX_COUNT)
    cache_write = parse_count(usage.cache_write_tokens, _MAX_COUNT)
    input_tokens = parse_count(usage.input_tokens, _MAX_COUNT)
    return Usage(
        input_tokens=max(input_tokens - cache_read - cache_write, 0),  # the provider includes cached tokens
        output_tokens=parse_count(usage.output_tokens, _MAX_COUNT),
        total_tokens=parse_count(usage.total_tokens, _MAX_COUNT),
        cache_read_tokens=cache_read,
        cache_write_tokens=cache_write,
        cost=_cost(response),
    )


def _cost(response: ModelResponse) -> float:
    try:
        cost = float(response.cost().total_price)
    except (LookupError, ValueError, AssertionError):  # no known price
        return 0.0
    return cost if 0 <= cost < _MAX_COUNT else 0.0
