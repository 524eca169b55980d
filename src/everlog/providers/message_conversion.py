"""Our messages as pydantic-ai's, and its answers as ours.

Pure, and loaded only with the first call of a model, for pydantic-ai takes its time to load.

What only a model's own provider understands – thinking, signatures – goes back to that provider
and to no other: a message says in `model` who made it, and the text before the first colon is the
provider. Neighbours of one role become one message, as some providers want them to alternate.
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

from everlog.errors import ProviderError, ProviderRefusedError, ProviderUnavailableError
from everlog.model import (
    AnyBlock,
    File,
    Image,
    Message,
    Text,
    Thinking,
    ToolCall,
    Usage,
    assistant,
)
from everlog.ports import Delta, Request, Tool

NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
_ABSURD = 10**9  # tokens of one call: no count, and every session would be compacted for it
_EMPTY = "(empty)"  # a result without content is refused by some

_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")  # that every provider takes for the id of a call
_UNSEEN = "[an image or a file that this model cannot see]"
_SEEN = ("image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf")  # by all

_MAGIC = (
    (b"\x89PNG\r\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"%PDF-", "application/pdf"),
)

_Attached = BinaryContent | ImageUrl | DocumentUrl


def provider_of(model: str) -> str:
    """The provider in a model's name."""
    return model.partition(":")[0]


# --- there ----------------------------------------------------------------------------------


def parameters(request: Request) -> ModelRequestParameters:
    """The tools of a request."""
    return ModelRequestParameters(function_tools=[_tool(tool) for tool in request.tools])


def _tool(tool: Tool) -> ToolDefinition:
    # Not strict: a schema is sent as its author wrote it, optional parameters and all.
    return ToolDefinition(
        name=tool.name,
        description=_clean(tool.description),
        parameters_json_schema=_clean(tool.parameters) or NO_PARAMETERS,
        strict=False,
    )


def settings(request: Request) -> ModelSettings:
    """How to call: once, as the engine retries, and with the cache for what will be sent again."""
    chosen = ModelSettings(max_retries=0)
    if request.purpose == "answer":
        chosen["cache"] = True
    if request.max_tokens is not None:
        chosen["max_tokens"] = request.max_tokens
    if request.temperature is not None:
        chosen["temperature"] = request.temperature
    return chosen


def messages(
    request: Request, provider: str, system: str, *, blind: bool = False
) -> list[ModelMessage]:
    """The messages as `provider` may see them; `system` is pydantic-ai's name for it.

    `blind`: the model takes words alone.
    """
    calls: dict[str, ToolCallPart] = {}  # as they are sent, by the id that we know them by
    sent: list[ModelMessage] = []
    for message in request.messages:
        if message.role == "assistant":
            own = message.model is not None and provider_of(message.model) == provider
            said = _said(message, system if own else "")
            parts = (part for part in said if isinstance(part, ToolCallPart))
            calls |= zip((call.id for call in message.tool_calls), parts, strict=True)
            if said and sent and isinstance(sent[-1], ModelResponse):
                sent[-1].parts = [*sent[-1].parts, *said]
            elif said:
                sent.append(ModelResponse(said, provider_name=system if own else None))
            continue
        asked = _asked(message, calls, blind)
        if asked and sent and isinstance(sent[-1], ModelRequest):
            sent[-1].parts = [*sent[-1].parts, *asked]
        elif asked:
            sent.append(ModelRequest(asked))
    if request.system.strip():
        # pydantic-ai takes the instructions of the last request there is.
        last = next((one for one in reversed(sent) if isinstance(one, ModelRequest)), None)
        if last is None:
            sent.append(last := ModelRequest([]))
        last.instructions = _clean(request.system)
    return sent


def _asked(message: Message, calls: dict[str, ToolCallPart], blind: bool) -> list[ModelRequestPart]:
    """What was said to the model: the user's words, or a tool's."""
    content: list[str | _Attached] = []
    for block in message.content:
        if isinstance(block, Text):
            if block.text.strip():
                content.append(_clean(block.text))
        elif (file := _attached(block)) is not None:
            content.append(_UNSEEN if blind and not isinstance(file, str) else file)
    plain = all(isinstance(item, str) for item in content)
    text = "\n".join(item for item in content if isinstance(item, str))
    if message.role == "user":
        return [UserPromptPart(text if plain else content)] if content else []
    known = message.tool_call_id or ""
    call = calls.get(known) or ToolCallPart(message.tool_name or "tool", {}, known)
    return [
        ToolReturnPart(
            call.tool_name,
            (text or _EMPTY) if plain else content,
            call.tool_call_id,
            outcome="failed" if message.is_error else "success",
        )
    ]


def _said(message: Message, system: str) -> list[ModelResponsePart]:
    """What a model said; `system` is empty for one of another provider."""
    parts: list[ModelResponsePart] = []
    for block in message.content:
        if isinstance(block, Text):
            if block.text.strip():
                parts.append(TextPart(_clean(block.text)))
        elif isinstance(block, ToolCall):
            parts.append(_call(block, system))
        elif isinstance(block, Thinking):
            # Without either, a provider has no way to know it again, and would see it as text.
            if system and (block.signature or block.id not in (None, "content")):
                parts.append(
                    ThinkingPart(
                        _clean(block.thinking),
                        id=block.id,
                        signature=block.signature,
                        provider_name=system,
                    )
                )
        elif isinstance(file := _attached(block), BinaryContent):
            parts.append(FilePart(BinaryContent.narrow_type(file)))
    return parts


def _call(call: ToolCall, system: str) -> ToolCallPart:
    part = ToolCallPart(call.name, _clean(call.arguments), call.id)
    if not system and not _ID.fullmatch(call.id):
        part.tool_call_id = (
            f"call_{hashlib.sha256(call.id.encode('utf-8', 'replace')).hexdigest()[:24]}"
        )
    if system and call.signature:
        part.provider_name = system
        if call.signature.startswith("{"):
            with contextlib.suppress(msgspec.DecodeError):
                part.provider_details = {"extra_content": msgspec.json.decode(call.signature)}
        else:
            # Each interface reads its own: OpenAI's Responses the id, Google's the signature.
            part.id = call.signature
            part.provider_details = {"thought_signature": call.signature}
    return part


def _attached(block: AnyBlock) -> str | _Attached | None:
    """An image or a file; None for every other block, and for one that holds nothing.

    What no provider is sure to take becomes words about it: refused once, it would be refused with
    every later request of the session too.
    """
    if not isinstance(block, Image | File):
        return None
    name = _clean(block.name) if isinstance(block, File) else ""
    if not block.data:
        if not block.url:
            return None
        address, kind = _clean(block.url), block.mime_type or None
        if isinstance(block, Image):
            return ImageUrl(address, media_type=kind)
        return DocumentUrl(address, media_type=kind)
    head, comma, tail = block.data.partition(",")  # perhaps a `data:` URL
    try:
        data = base64.b64decode("".join((tail if comma else head).split()), validate=True)
    except (binascii.Error, ValueError):
        return f"[{name or 'an attachment'}: it could not be decoded]"
    kind = _sniffed(data) or block.mime_type or mimetypes.guess_type(name)[0] or "unknown kind"
    if kind in _SEEN:
        return BinaryContent(data, media_type=kind, identifier=name or None)
    if kind.startswith("text/") or kind.endswith(("json", "xml", "yaml", "toml", "javascript")):
        return f'<file name="{name}">\n{data.decode("utf-8", "replace")}\n</file>'
    return f"[{name or 'an attachment'}: {len(data)} bytes of {kind}, which cannot be shown]"


def _sniffed(data: bytes) -> str:
    """What the data says of itself, or nothing. Providers look too, and refuse a mismatch."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in _MAGIC if data.startswith(magic)), "")


def _clean(value: Any) -> Any:
    """The value with lone surrogates replaced, which UTF-8 has no bytes for."""
    if isinstance(value, str):
        try:
            value.encode()
            return value
        except UnicodeEncodeError:
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return value


# --- and back -------------------------------------------------------------------------------


def heard(event: ModelResponseStreamEvent) -> Delta | None:
    """The text that an event of a stream brings, if it brings any."""
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


def received(response: ModelResponse, model: str) -> Message:
    """An answer as a message of `model`; one that is none raises."""
    word = (response.provider_details or {}).get("finish_reason") or response.finish_reason
    reason = str(word) if word else None
    content = tuple(_blocks(response.parts))
    if response.finish_reason == "content_filter":
        raise ProviderRefusedError(f"the provider broke the answer off: {reason}")
    if response.state == "incomplete" or reason is None:
        raise ProviderUnavailableError("the answer ended before its end")
    if response.finish_reason == "error":
        raise ProviderUnavailableError(f"the model failed: {reason}")
    if not content:
        if response.finish_reason == "length":
            raise ProviderError("max_tokens were used up before the answer began")
        raise ProviderUnavailableError("the model answered nothing")
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
    if "extra_content" in details:  # Gemini's signature behind OpenAI's interface
        return msgspec.json.encode(details["extra_content"]).decode()
    return details.get("thought_signature") or part.id


def _usage(response: ModelResponse) -> Usage:
    usage = response.usage
    read, written = _count(usage.cache_read_tokens), _count(usage.cache_write_tokens)
    taken, given = _count(usage.input_tokens), _count(usage.output_tokens)
    return Usage(
        input_tokens=max(taken - read - written, 0),  # theirs has the cached ones
        output_tokens=given,
        total_tokens=_count(usage.total_tokens),
        cache_read_tokens=read,
        cache_write_tokens=written,
        cost=_cost(response),
    )


def _count(tokens: object) -> int:
    """A count as a server gave it; what cannot be one was not counted."""
    if not isinstance(tokens, int | float) or not 0 <= tokens <= _ABSURD:
        return 0
    return int(tokens)


def _cost(response: ModelResponse) -> float:
    try:
        cost = float(response.cost().total_price)
    except (LookupError, ValueError, AssertionError):  # a price that nobody knows
        return 0.0
    return cost if 0 <= cost < _ABSURD else 0.0
