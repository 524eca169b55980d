"""The records of a transcript: decoding as much of a line as a reader needs, and their properties.

The decoders skip the keys that they do not name as fast as a byte search would, so the bulk of a
transcript (snapshots, requests, raw tool results) costs nothing more, and no line is judged by its
start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, TypedDict, cast

import msgspec

from everlog.interop.formats.claude.blocks import UnusualBlock, UsualBlock, typed_content
from everlog.interop.formats.format_types import MAX_LINE_BYTES, Line
from everlog.interop.formats.jsonl import Row, is_too_deep, parse_records

CHAIN_TYPES = frozenset({"user", "assistant", "system", "attachment", "progress"})
MESSAGE_TYPES = frozenset({"user", "assistant"})
SYNTHETIC_MODEL = "<synthetic>"  # of answers that Claude Code wrote itself
JsonObject = Mapping[str, Any]
# What Claude Code wrote in the place of an answer, before it marked such records.
_API_ERROR = re.compile(
    r"\s*(API Error|You've (hit|reached) your|Claude (AI )?usage limit reached|[^.\n]{0,30}limit reached"
    r"|Invalid API key|Credit balance is too low|Prompt is too long|Please run /login|Not logged in"
    r"|OAuth token|Failed to authenticate|Request timed out|Connection error|Overloaded)"
)
# A block that Claude Code inserted in the user's name; atomic, so that matching takes linear time.
_INSERTED = re.compile(
    r"\s*(?:(?>(?><(command-(?:name|message|args|contents)|local-command-(?:stdout|stderr|caveat)|bash-(?:stdout|stderr)"
    r"|task-notification|ide_(?:opened_file|selection|diagnostics)|system-reminder|session-start-hook"
    r"|user-prompt-submit-hook|tick|goal)\b[^>]*>.*?</\1>)\s*)+|\[Request interrupted by user[^\]]*\]\s*)\Z",
    re.DOTALL,
)


class _Block(msgspec.Struct, gc=False):
    type: Any = None


class ListedMessage(msgspec.Struct, gc=False):
    """What a listing reads of a message."""

    content: str | list[_Block] | None = None
    model: Any = None


_Count = Annotated[int, msgspec.Meta(ge=0)]


class TokenCounts(msgspec.Struct, gc=False):
    """The usage of a response, as far as it is counted."""

    input_tokens: _Count = 0
    output_tokens: _Count = 0
    cache_read_input_tokens: _Count = 0
    cache_creation_input_tokens: _Count = 0


class ConversationMessage(msgspec.Struct, gc=False):
    """What a conversation reads of a message."""

    content: str | tuple[UsualBlock, ...] | None = None
    model: Any = None
    id: Any = None
    stop_reason: Any = None
    usage: TokenCounts | None = None


# The keys that are read. Of any type: a wrong type in one must not cost the record.


class _Fields(msgspec.Struct, gc=False):
    type: Any = None
    uuid: Any = None
    sessionId: Any = None
    isSidechain: Any = None
    teamName: Any = None
    isCompactSummary: Any = None
    isApiErrorMessage: Any = None
    timestamp: Any = None
    cwd: Any = None


class ListedRecord(_Fields, gc=False):
    """What a listing reads of a record."""

    message: ListedMessage | None = None


class Record(_Fields, gc=False):
    """What a conversation reads of a record."""

    parentUuid: Any = ...  # not named
    logicalParentUuid: Any = None
    agentId: Any = None
    requestId: Any = None
    isMeta: Any = None
    subtype: Any = None
    compactMetadata: Any = None
    message: ConversationMessage | None = None

    @property
    def is_in_chain(self) -> bool:
        """Whether the record is part of the chain."""
        return type(self.type) is str and self.type in CHAIN_TYPES and type(self.uuid) is str

    @property
    def may_be_error(self) -> bool:
        """Whether `is_api_error` has to look at it."""
        message = self.message
        return self.isApiErrorMessage is True or (message is not None and message.model == SYNTHETIC_MODEL)

    @property
    def boundary_details(self) -> Any:
        """The metadata of a compaction, if it is the boundary of one."""
        is_boundary = self.type not in MESSAGE_TYPES and self.subtype == "compact_boundary"
        return self.compactMetadata if is_boundary else None


class _ConversationRecord(TypedDict, total=False):
    type: Any
    uuid: Any
    parentUuid: Any
    logicalParentUuid: Any
    agentId: Any
    isSidechain: Any
    teamName: Any
    isMeta: Any
    isCompactSummary: Any
    isApiErrorMessage: Any
    subtype: Any
    compactMetadata: Any
    timestamp: Any
    cwd: Any
    version: Any
    gitBranch: Any
    requestId: Any
    message: Any


decode_listed: Callable[[bytes], ListedRecord] = msgspec.json.Decoder(ListedRecord).decode
_decode_conversation = cast("Callable[[bytes], Any]", msgspec.json.Decoder(_ConversationRecord).decode)
_decode_all: Callable[[bytes], Any] = msgspec.json.Decoder().decode


def record_of(value: JsonObject) -> Record:
    """Return what a conversation reads of a record that was decoded as a whole."""
    try:
        return msgspec.convert(value, Record)
    except msgspec.ValidationError:  # of the message only: all other keys may have any type
        record = msgspec.convert({**value, "message": None}, Record)
    message = value.get("message")
    if isinstance(message, dict):
        usage, counts = message.get("usage"), None
        if isinstance(usage, dict):
            valid = {name: count for name, count in usage.items() if type(count) is int and count >= 0}
            counts = msgspec.convert(valid, TokenCounts)
        content, model = typed_content(message.get("content")), message.get("model")
        record.message = ConversationMessage(content, model, message.get("id"), message.get("stop_reason"), counts)
    return record


# A record, or damage, in a line: its offset in the file; its value, or None; its bytes; its row unless
# the line is exactly one record.
Entry = tuple[int, "dict[str, Any] | None", bytes, "Row | None"]


def iter_entries(lines: Iterable[Line], path: str = "", *, whole: bool) -> Iterator[Entry]:
    """Yield the records and the damage in some lines, as `jsonl.parse_records` finds them.

    Without `whole`, records lack the keys that a conversation does not need.
    """
    decode = _decode_all if whole else _decode_conversation
    for line in lines:
        start, data, _ = line
        try:
            value = decode(data)
        except (ValueError, RecursionError):
            value = None
        if type(value) is dict and len(data) <= MAX_LINE_BYTES:
            is_checked = whole or value.get("type") in ("user", "assistant")
            if not (is_checked and is_too_deep(data, value)):
                yield start, value, data, None
                continue
        for row in parse_records((line,), path):
            yield row.start, row.value, row.data, row


class Link(msgspec.Struct, gc=False):
    """What the place of a chain record in the conversation depends on."""

    uuid: str
    is_message: bool
    is_side: bool  # on a side chain
    is_team: bool  # of another agent's team
    parent: Any  # Ellipsis: not named; None: a root
    logical_parent: Any = None  # of a boundary: the record before the compaction
    is_meta: bool = False  # a user record that Claude Code wrote
    is_summary: bool = False
    is_error: bool = False  # in the place of an answer
    timestamp: Any = None
    agent_id: Any = None
    request_id: Any = None
    response_id: str = ""
    calls: Sequence[str] = ()  # ids of the tool calls in it
    results: Sequence[str] = ()  # ids of the calls that it answers
    is_boundary: bool = False
    details: Any = None  # of a boundary
    content: Any = None  # in any form that is equal for copies of the record

    def is_main(self, *, is_subagent: bool = False) -> bool:
        """Return whether it is a message or an error of this transcript, not of another agent."""
        return self.is_message and not (self.is_team or (self.is_side and not is_subagent))


def link_of(record: Record, content: Any, *, is_error: bool) -> Link:
    """Return the link of a chain record."""
    uuid, kind = record.uuid, record.type
    link = Link(
        uuid,
        kind in MESSAGE_TYPES,
        bool(record.isSidechain),
        bool(record.teamName),
        record.parentUuid,
        record.logicalParentUuid,
    )
    if not link.is_message:
        if record.subtype == "compact_boundary":
            link.is_boundary, link.details = True, record.compactMetadata
        return link
    message = record.message or ConversationMessage()
    link.is_meta, link.is_summary = bool(record.isMeta), bool(record.isCompactSummary)
    link.timestamp, link.agent_id = record.timestamp, record.agentId
    if kind == "user":
        link.results = _ids_in(message.content, "tool_result", "tool_use_id")
    else:
        link.response_id = message.id if type(message.id) is str else f"\0{uuid}"
        link.request_id, link.calls = record.requestId, _ids_in(message.content, "tool_use", "id")
    link.content, link.is_error = content, is_error
    return link


def _ids_in(content: str | tuple[Any, ...] | None, kind: str, key: str) -> Sequence[str]:
    """Return the ids under a key in the blocks of one type."""
    ids: list[str] = []
    if type(content) is tuple:
        for block in content:
            if block.type == kind:
                block_id = block.data.get(key) if type(block) is UnusualBlock else getattr(block, key)
                if isinstance(block_id, str):
                    ids.append(block_id)
    return tuple(ids)


def is_chain_record(value: JsonObject) -> bool:
    """Return whether a record is part of the chain."""
    kind = value.get("type")
    return isinstance(kind, str) and kind in CHAIN_TYPES and isinstance(value.get("uuid"), str)


def is_api_error(value: JsonObject) -> bool:
    """Return whether a record says that the API gave no answer; it is not part of the context."""
    if value.get("type") != "assistant":
        return False
    if value.get("isApiErrorMessage") is True:
        return True
    message = value.get("message")
    if type(message) is not dict or message.get("model") != SYNTHETIC_MODEL:
        return False
    texts = texts_of(value)
    return bool(texts) and _API_ERROR.match(texts[0]) is not None


def content_of(value: JsonObject) -> str | list[Any] | None:
    """Return the content of a record's message; None if it is missing or unreadable."""
    message = value.get("message")
    content = message.get("content") if type(message) is dict else None
    return content if type(content) is str or type(content) is list else None


def content_blocks(value: JsonObject) -> Sequence[JsonObject]:
    """Return the blocks of a record's message that are objects."""
    content = content_of(value)
    return [item for item in content if isinstance(item, dict)] if isinstance(content, list) else ()


def block_values(value: JsonObject, kind: str, key: str) -> Sequence[str]:
    """Return the strings under a key in the blocks of one type."""
    blocks = (block for block in content_blocks(value) if block.get("type") == kind)
    return [block[key] for block in blocks if isinstance(block.get(key), str)]


def texts_of(value: JsonObject) -> Sequence[str]:
    """Return the texts in a record's message."""
    content = content_of(value)
    return [content] if isinstance(content, str) else block_values(value, "text", "text")


def is_inserted(text: str) -> bool:
    """Return whether Claude Code wrote a text in the user's name: no word of it is the user's."""
    return text.lstrip()[:1] in ("<", "[") and _INSERTED.match(text) is not None


def response_id_of(value: JsonObject) -> str:
    """Return the id of an assistant record's response; a unique one if it names none."""
    message = value.get("message")
    message_id = message.get("id") if isinstance(message, dict) else None
    return message_id if isinstance(message_id, str) else f"\0{value['uuid']}"
