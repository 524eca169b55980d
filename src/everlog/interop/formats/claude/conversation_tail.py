"""The end of a conversation: as much state as is needed to continue it.

A record continues the conversation if its parent is in the last response: one of its records, a
result of its calls, or an auxiliary record next to these. Then everything before stays as it is,
and every message is visible. For any other record the whole file is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from everlog.interop.formats.claude.chain import Conversation, preserved_uuids
from everlog.interop.formats.claude.entry_builder import boundary_uuid
from everlog.interop.formats.claude.facts import SideChains
from everlog.interop.formats.claude.messages import Boundary, UsageCounts, count_usage, read_boundary
from everlog.interop.formats.claude.records import (
    MESSAGE_TYPES,
    JsonObject,
    Record,
    block_values,
    content_blocks,
    content_of,
    is_api_error,
    record_of,
    response_id_of,
)
from everlog.model import Usage

# The state is written often. Older records hardly ever get children.
_MAX_RECENT = 128
_MAX_AUXILIARY = 32
_ENCODED_NAMES = {
    "recent": "near",
    "auxiliary": "aside",
    "response_id": "response",
    "open_calls": "calls",
    "usage_counts": "counted",
    "is_subagent": "inner",
    "agent_id": "agent",
    "timestamp": "at",
    "git_branch": "branch",
}
_TEXT_FIELDS = {"cwd": "cwd", "version": "version", "gitBranch": "git_branch", "agentId": "agent_id"}


class ConversationTail(msgspec.Struct, omit_defaults=True, rename=_ENCODED_NAMES):
    """State at the end of a conversation. Small, however long the conversation is."""

    leaf: str = ""  # the parent of the next record
    recent: list[str] = []  # the last response and its results, or the last message
    auxiliary: list[str] = []  # their children that are not displayed
    latest: list[str] = []  # the last message by user or model, and what is neither after it
    response_id: str = ""
    open_calls: dict[str, tuple[str, str]] = {}  # call id → tool name, uuid of the record
    usage_counts: dict[str, UsageCounts] = {}  # of the last response so far
    boundary: Boundary | None = None
    is_subagent: bool | None = None  # None: no message yet
    agent_id: str = ""
    timestamp: str = ""  # the latest one read
    cwd: str = ""
    version: str = ""
    git_branch: str = ""
    sides: SideChains | None = None  # if the conversation is one of them

    def add(self, value: JsonObject) -> bool | None:
        """Add the next chain record; return whether it is displayed. None: it may be a branch."""
        uuid, parent = value["uuid"], value.get("parentUuid")
        if self.has(uuid):
            return None
        self._set_text(value, "timestamp", "timestamp")
        if value["type"] not in MESSAGE_TYPES:
            return self._add_non_message(value)
        is_sidechain = bool(value.get("isSidechain"))
        has_begun = self.is_subagent is not None
        if self.is_subagent is None:
            self.is_subagent = is_sidechain
        if self.is_subagent and not is_sidechain:
            return None
        if value.get("teamName") or (is_sidechain and not self.is_subagent):
            return False
        if not self.has(parent) and (has_begun or parent is not None):
            return None
        is_error = is_api_error(value)
        is_aside = is_error or bool(value.get("isMeta"))
        if is_aside and has_begun and not self.is_subagent and parent not in self.latest:
            return None  # a conversation that ends with a message goes before one that ends with a note
        if is_error:
            self._add_auxiliary(uuid)
        elif not self._add_message(value):
            return None
        if is_aside and has_begun:
            self._note_aside(uuid, parent)
        else:
            self.latest = [uuid]
        self.leaf = uuid
        for key, field in _TEXT_FIELDS.items():
            self._set_text(value, key, field)
        return not is_error

    def has(self, uuid: object) -> bool:
        """Return whether a child of this record continues the conversation."""
        return uuid == self.leaf or uuid in self.recent or uuid in self.auxiliary

    def _set_text(self, value: JsonObject, key: str, field: str) -> None:
        text = value.get(key)
        if isinstance(text, str):
            setattr(self, field, text)

    def _add_non_message(self, value: JsonObject) -> bool | None:
        uuid, parent = value["uuid"], value.get("parentUuid")
        if value.get("subtype") == "compact_boundary":
            return self._add_boundary(value)
        if self.is_subagent is not None and not self.has(parent):
            return False  # hides nothing there; its children are checked when they come
        self._add_auxiliary(uuid)
        self._note_aside(uuid, parent)
        if value["type"] != "progress" and parent == (self.leaf or None):
            self.leaf = uuid
        return False

    def _add_auxiliary(self, uuid: str) -> None:
        self.auxiliary = [*self.auxiliary[1 - _MAX_AUXILIARY :], uuid]

    def _note_aside(self, uuid: str, parent: object) -> None:
        if parent in self.latest:
            self.latest = [*self.latest[1 - _MAX_AUXILIARY :], uuid]

    def _add_recent(self, uuid: str) -> None:
        self.recent = [*self.recent[1 - _MAX_RECENT :], uuid]

    def _add_boundary(self, value: JsonObject) -> bool | None:
        if value.get("isSidechain") and self.is_subagent is False:
            return False
        continues = value.get("parentUuid") is None and self.has(value.get("logicalParentUuid"))
        if self.is_subagent is not None and not continues:
            return None
        uuid, preserved = value["uuid"], preserved_uuids(value.get("compactMetadata"))
        if preserved and uuid != boundary_uuid(_anchor_uuid(value)):
            return None  # what Claude Code preserves need not start with a message
        self._restart(uuid)
        self.latest = [uuid]
        self.leaf, first_kept = uuid, preserved[0] if preserved else None
        self.boundary = read_boundary(uuid, value.get("compactMetadata"), first_kept)
        return False

    def _restart(self, uuid: str) -> None:
        self.recent, self.auxiliary = [uuid], []
        self.open_calls, self.usage_counts = {}, {}
        self.response_id, self.boundary = "", None

    def _add_message(self, value: JsonObject) -> bool:
        uuid = value["uuid"]
        result_ids = set(block_values(value, "tool_result", "tool_use_id"))
        if not result_ids <= self.open_calls.keys():
            return False
        if value["type"] == "assistant":
            response_id = response_id_of(value)
            if response_id == self.response_id:
                self._add_recent(uuid)
            else:
                self._restart(uuid)
                self.response_id = response_id
            for block in content_blocks(value):
                if block.get("type") == "tool_use" and isinstance(block.get("id"), str):
                    self.open_calls[block["id"]] = (str(block.get("name") or ""), uuid)
                if len(self.open_calls) > _MAX_RECENT:
                    del self.open_calls[next(iter(self.open_calls))]
        elif result_ids and self._is_answer(value, len(result_ids)):
            self._add_recent(uuid)
            for call_id in result_ids:
                del self.open_calls[call_id]
        else:
            self._restart(uuid)
        return True

    def _is_answer(self, value: JsonObject, result_count: int) -> bool:
        """Return whether a record has only so many results, of calls of this agent."""
        return len(content_of(value) or ()) == result_count and (value.get("agentId") or "") == self.agent_id

    def count_usage(self, record: Record) -> Usage | None:
        """Return what a record adds to the usage of its response."""
        increment = count_usage(record, self.usage_counts)
        if len(self.usage_counts) > 1:
            del self.usage_counts[next(iter(self.usage_counts))]  # of an earlier response
        return increment


def _anchor_uuid(boundary: JsonObject) -> str:
    details = boundary.get("compactMetadata")
    messages = details.get("preservedMessages") if isinstance(details, dict) else None
    anchor = messages.get("anchorUuid") if isinstance(messages, dict) else None
    return anchor if isinstance(anchor, str) else ""


def replay_end(values: Sequence[JsonObject], conversation: Conversation) -> ConversationTail:
    """Return the end of a conversation that was found in all chain records, by replaying it."""
    positions = {value["uuid"]: position for position, value in enumerate(values)}
    parts = [
        value
        for position, value in enumerate(values)
        if positions[value["uuid"]] == position
        and (value["type"] not in MESSAGE_TYPES or value["uuid"] in conversation.visible)
    ]
    start, leaf_position, response_id = 0, len(parts), ""
    for position, value in enumerate(parts):
        if value["uuid"] == conversation.leaf:
            leaf_position = position
        if value["type"] == "assistant" and response_id_of(value) != response_id and not is_api_error(value):
            start, response_id = position, response_id_of(value)
        elif value["type"] == "user" and not value.get("isMeta"):
            start = start if block_values(value, "tool_result", "tool_use_id") else position
    tail = ConversationTail()
    for first in (start, leaf_position):
        tail = ConversationTail()
        for position, value in enumerate(parts[first:]):
            if not position and value["type"] in MESSAGE_TYPES:
                value = {**value, "parentUuid": None}  # it does not matter here
            if tail.add(value):
                tail.count_usage(record_of(value))
        if conversation.leaf is None or tail.has(conversation.leaf):
            break
    else:
        tail = ConversationTail(leaf=conversation.leaf or "", recent=[conversation.leaf or ""])
    if conversation.leaf is not None:
        tail.is_subagent = conversation.is_subagent
    timestamps = (value.get("timestamp") for value in reversed(values))
    tail.timestamp = next((timestamp for timestamp in timestamps if isinstance(timestamp, str)), "")
    return tail
