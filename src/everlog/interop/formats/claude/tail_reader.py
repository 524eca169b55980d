"""Incremental reader of a growing transcript.

`read_tail` continues from the end of the conversation (`tail_state`) with only the new lines.
`read_all` finds the conversation in all lines (`chain`), and its end. Both produce the same
messages with the same ids for a record; its line stays in the file and is not stored with them.

Every record of a response repeats its usage, and a later one may report more. Here the first
message has it, and later ones only the difference, so nothing is counted twice however the lines
arrive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from everlog.interop.formats.claude.blocks import LoadText, read_content
from everlog.interop.formats.claude.chain import (
    MESSAGE_TYPES,
    Conversation,
    JsonObject,
    block_values,
    find_boundary,
    find_conversation,
    is_auxiliary,
    response_id_of,
)
from everlog.interop.formats.claude.fast_scan import iter_chain_records
from everlog.interop.formats.claude.messages import (
    UsageCounts,
    content_of,
    count_usage,
    find_first_kept,
    iter_tool_calls,
    messages_of,
    read_tokens_before,
    summary_of,
)
from everlog.interop.formats.claude.tail_state import ConversationTail
from everlog.interop.formats.format_types import HiddenMessages, Line, derive_id
from everlog.interop.formats.live_format import ConversationItem, TailResult, TailState, TranscriptInfo
from everlog.model import Message, Usage


def read_tail(state: TailState, lines: Iterable[Line], transcript: TranscriptInfo) -> TailResult | None:
    """Return the items of new lines; None if they do not simply continue the conversation."""
    try:
        tail = msgspec.convert(state, ConversationTail)
    except msgspec.ValidationError:
        return None
    load_text = partial(_load_text, transcript)
    items: list[ConversationItem] = []
    for value in iter_chain_records(lines):
        calls, boundary = dict(tail.open_calls), tail.boundary
        is_visible = tail.add(value)
        if is_visible is None:
            return None
        if is_visible and value.get("isCompactSummary"):
            summarized = boundary if boundary and value.get("parentUuid") == boundary.uuid else None
            tokens_before, first_kept = (summarized.tokens_before, summarized.first_kept) if summarized else (0, None)
            summary = summary_of(
                value, load_text, timestamp=tail.timestamp, tokens_before=tokens_before, first_kept=first_kept
            )
            items += [summary] if summary else []
        elif is_visible:
            tool_names = {call: tool for call, (tool, _) in calls.items()}
            items += read_messages(value, load_text, tail.timestamp, tool_names, tail.count_usage(value))
    return TailResult(items, encode_tail(tail))


def encode_tail(tail: ConversationTail) -> TailState:
    """Return the end of a conversation as JSON values."""
    state: TailState = msgspec.json.decode(msgspec.json.encode(tail))
    return state


def _load_text(transcript: TranscriptInfo, name: str) -> str | None:
    data = transcript.read_file(f"tool-results/{name}")
    return None if data is None else data.decode("utf-8", "replace")


def read_messages(
    value: JsonObject, load_text: LoadText, timestamp: str, tool_names: Mapping[str, str], usage: Usage | None
) -> Sequence[Message]:
    """Return the messages of a record; none if it is unreadable."""
    content = content_of(value)
    if content is None:
        return []
    uuid = value["uuid"]
    return messages_of(
        value,
        read_content(content, load_text),
        lambda number: f"{uuid}:{number}" if number else uuid,
        timestamp=timestamp,
        tool_names=tool_names,
        usage=usage,
    )


# --- the whole file -------------------------------------------------------------------------


def read_all(lines: Iterable[Line], transcript: TranscriptInfo) -> TailResult:
    """Return the items of a whole transcript, and hide those outside the conversation."""
    return _TranscriptReader(list(iter_chain_records(lines)), transcript).read()


class _TranscriptReader:
    def __init__(self, values: list[dict[str, Any]], transcript: TranscriptInfo) -> None:
        self.values = values
        self.transcript = transcript
        self.load_text = partial(_load_text, transcript)
        self.conversation: Conversation = find_conversation(values)
        self.positions = {value["uuid"]: position for position, value in enumerate(values)}
        self.records_by_uuid = {uuid: values[position] for uuid, position in self.positions.items()}
        self.tool_names: dict[str, str] = {}  # call → tool name
        self.callers: dict[str, str] = {}  # call → the response that made it
        self.response_starts: dict[str, int] = {}  # response → position of its first record
        self._survey()
        self.usage_counts: dict[str, UsageCounts] = {}
        self.message_ids: dict[str, str] = {}  # uuid → id of its first message
        self.hidden_ids: list[str] = []
        self.last_visible = 0  # position of the last visible record
        self.timestamp = ""

    def _survey(self) -> None:
        for position, value in enumerate(self.values):
            if value["type"] == "assistant":
                response_id = response_id_of(value)
                if self._is_in_conversation(position):
                    self.response_starts.setdefault(response_id, position)
                for call_id, tool in iter_tool_calls(value):
                    self.tool_names[call_id] = tool
                    self.callers[call_id] = response_id

    def _is_in_conversation(self, position: int) -> bool:
        """Return whether a record is in the conversation; non-messages always are."""
        value = self.values[position]
        if self.positions[value["uuid"]] != position:
            return False  # the last record of a uuid counts
        return value["type"] not in MESSAGE_TYPES or value["uuid"] in self.conversation.visible

    def read(self) -> TailResult:
        items: list[ConversationItem] = []
        for position, value in enumerate(self.values):
            if isinstance(value.get("timestamp"), str):
                self.timestamp = value["timestamp"]
            is_skipped = value["type"] not in MESSAGE_TYPES or is_auxiliary(
                value, is_subagent=self.conversation.is_subagent
            )
            if not is_skipped and self.positions[value["uuid"]] == position:
                items += self._items(value, position)
        if self.hidden_ids:
            ids = tuple(self.hidden_ids)
            marker_id = derive_id(self.transcript.session_id, f"hidden {' '.join(ids)}")
            items.append(HiddenMessages(id=marker_id, ids=ids, timestamp=self.timestamp))
        return TailResult(items, encode_tail(self._find_tail()))

    def _items(self, value: JsonObject, position: int) -> Sequence[ConversationItem]:
        is_visible = value["uuid"] in self.conversation.visible
        if is_visible:
            self.last_visible = position
        if is_visible and value.get("isCompactSummary"):
            boundary = find_boundary(value, self.records_by_uuid)
            first_kept = find_first_kept(boundary, self.positions, self.message_ids)
            tokens_before = read_tokens_before(boundary)
            summary = summary_of(
                value, self.load_text, timestamp=self.timestamp, tokens_before=tokens_before, first_kept=first_kept
            )
            return [summary] if summary else []
        usage = count_usage(value, self.usage_counts)
        messages = read_messages(value, self.load_text, self.timestamp, self.tool_names, usage)
        if messages:
            self.message_ids[value["uuid"]] = messages[0].id
        if not is_visible:
            self.hidden_ids += [message.id for message in messages]
        return messages

    # --- its end ----------------------------------------------------------------------------

    def _find_tail(self) -> ConversationTail:
        """Return the end of the conversation, by replaying its last response."""
        leaf = self.conversation.leaf
        if leaf is None:
            return self._replay_from(0)
        for first in (self._last_response_start(), self.positions[leaf]):
            tail = self._replay_from(first)
            if tail.has(leaf):
                return tail
        return ConversationTail(
            leaf=leaf, recent=[leaf], is_subagent=self.conversation.is_subagent, timestamp=self.timestamp
        )

    def _replay_from(self, first: int) -> ConversationTail:
        tail = ConversationTail()
        for position in range(first, len(self.values)):
            value = self.values[position]
            if position == first and value["type"] in MESSAGE_TYPES:
                value = {**value, "parentUuid": None}  # its parent does not matter here
            if self._is_in_conversation(position) and tail.add(value):
                tail.count_usage(value)
        if self.conversation.leaf is not None:
            tail.is_subagent = self.conversation.is_subagent
        tail.timestamp = self.timestamp
        return tail

    def _last_response_start(self) -> int:
        """Return the position of the last response, or else of the last message."""
        value = self.values[self.last_visible]
        if value["type"] == "assistant":
            return self.response_starts.get(response_id_of(value), self.last_visible)
        call_ids = block_values(value, "tool_result", "tool_use_id")
        response_id = next((self.callers[call_id] for call_id in call_ids if call_id in self.callers), "")
        return self.response_starts.get(response_id, self.last_visible)
