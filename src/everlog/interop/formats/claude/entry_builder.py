"""New records of a Claude Code transcript, for what was said elsewhere.

They hang from the end of the conversation, one behind the other, and have nothing in them that
Claude Code or the model's API would refuse: no thinking without its signature, no empty text, no
call id in other letters than theirs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple
from uuid import UUID

from everlog.ids import epoch_ms, timestamp
from everlog.interop.formats.claude.blocks import Result, give_block, give_result
from everlog.interop.formats.claude.chain import is_chain
from everlog.interop.formats.format_types import made_id
from everlog.model import (
    AnyBlock,
    Compaction,
    File,
    Image,
    Message,
    Metadata,
    OtherBlock,
    Text,
    Thinking,
    ToolCall,
)

VERSION = "2.1.325"  # of the Claude Code whose form this is, where no record names another
UNSIGNED = "thoughts without a signature"  # which is what the API knows them by
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
_CALL = re.compile(r"[A-Za-z0-9_-]{1,64}")
_STOPS = frozenset({"end_turn", "tool_use", "max_tokens", "stop_sequence", "refusal", "pause_turn"})


def is_uuid(text: str) -> bool:
    """Whether a text is a UUID as Claude Code writes them."""
    return _UUID.fullmatch(text) is not None


def boundary_uuid(summary: str) -> str:
    """The uuid of the boundary that we write before a summary."""
    return _made("claude boundary", summary)


def _made(name: str, place: str) -> str:
    return str(UUID(bytes=UUID(made_id(name, place)).bytes, version=4))


class Start(NamedTuple):
    """Where new records begin, and what they share with those before them."""

    session: str
    leaf: str | None = None  # of the conversation so far
    used: frozenset[str] = frozenset()  # uuids
    at: str = ""
    cwd: str = ""
    version: str = ""
    branch: str = ""
    inner: bool = False  # in a subagent's transcript
    agent: str = ""  # that subagent


def start_after(metadata: Metadata, values: Sequence[Mapping[str, Any]], session: str) -> Start:
    """Where they begin behind all records of a transcript; its leaf is not looked for."""
    last = [value for value in values if is_chain(value)]
    agent = last[-1].get("agentId") if last else None
    cwd = metadata.extra.get("cwd")
    inner = isinstance(agent, str) and all(value.get("isSidechain") for value in last)
    return Start(
        session=session,
        used=frozenset(value["uuid"] for value in last),
        at=next((_stamp(value.get("timestamp")) for value in reversed(last)), ""),
        cwd=_latest(last, "cwd") or (cwd if isinstance(cwd, str) else ""),
        version=_latest(last, "version"),
        branch=_latest(last, "gitBranch"),
        inner=inner,
        agent=agent if inner and isinstance(agent, str) else "",
    )


class NewRecords:
    """Makes records, each the child of the one before."""

    def __init__(self, metadata: Metadata, start: Start) -> None:
        self._metadata = metadata
        self.session = start.session
        self.leaf = start.leaf
        self._used = set(start.used)
        self._at = _stamp(start.at)
        inner = f"{start.session}/subagents/agent-{start.agent}.jsonl"
        self.path = inner if start.inner else f"{start.session}.jsonl"
        self._common: dict[str, Any] = {
            "isSidechain": start.inner,
            "userType": "external",
            "cwd": start.cwd or "/",
            "sessionId": start.session,
            "version": start.version or VERSION,
            "gitBranch": start.branch,
        }
        if start.agent:
            self._common["agentId"] = start.agent

    def _record(self, name: str, place: object, at: str, rest: dict[str, Any]) -> dict[str, Any]:
        """A record behind the last one, which becomes the last itself."""
        uuid = self._free(name, f"{place} {rest['type']}")
        self._used.add(uuid)
        self._at = _stamp(at) or self._at or _stamp(self._metadata.created_at) or timestamp(0)
        head = {"parentUuid": self.leaf, **self._common}
        self.leaf = uuid
        return {**head, **rest, "uuid": uuid, "timestamp": self._at}

    def _free(self, name: str, place: str) -> str:
        """The uuid that a record is named, if it is one and free; else one for its place."""
        if is_uuid(name) and name not in self._used:
            return name
        return _made(f"claude {self._metadata.id}", place)

    def message(
        self, message: Message, caller: str | None, place: object, lost: Counter[str]
    ) -> dict[str, Any] | None:
        """The record of a message; None if nothing of it can be written."""
        if message.cwd:
            self._common["cwd"] = message.cwd
        if message.role == "toolResult":
            blocks = _allowed(message.content, "user", lost)
            result = Result(call_id(message.tool_call_id or ""), blocks, message.is_error or None)
            rest: dict[str, Any] = {
                "type": "user",
                "message": {"role": "user", "content": [give_result(result)]},
            }
            if caller:
                rest["sourceToolAssistantUUID"] = caller
            return self._record(message.id, place, message.timestamp, rest)
        content = _allowed(message.content, message.role, lost)
        if not content:
            lost["messages without anything that can be written"] += 1
            return None
        if message.role == "user":
            only = content[0].text if len(content) == 1 and isinstance(content[0], Text) else None
            said = [give_block(block) for block in content] if only is None else only
            rest = {"type": "user", "message": {"role": "user", "content": said}}
            return self._record(message.id, place, message.timestamp, rest)
        rest = {"type": "assistant", "message": self._answer(message, content, place)}
        return self._record(message.id, place, message.timestamp, rest)

    def _answer(
        self, message: Message, content: Sequence[AnyBlock], place: object
    ) -> dict[str, Any]:
        """An answer as the API gives it."""
        usage, stop = message.usage, message.stop_reason
        if stop not in _STOPS:
            stop = "tool_use" if message.tool_calls else "end_turn"
        name = made_id(f"claude {self._metadata.id}", f"{place} message")
        return {
            "id": f"msg_{name.replace('-', '')}",
            "type": "message",
            "role": "assistant",
            "model": message.model or self._metadata.model or "unknown",
            "content": [give_block(block) for block in content],
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": {
                "input_tokens": usage.input_tokens if usage else 0,
                "output_tokens": usage.output_tokens if usage else 0,
                "cache_read_input_tokens": usage.cache_read_tokens if usage else 0,
                "cache_creation_input_tokens": usage.cache_write_tokens if usage else 0,
            },
        }

    def compaction(
        self, record: Compaction, kept: Sequence[str], place: object
    ) -> list[dict[str, Any]]:
        """A boundary and its summary; `kept` are the uuids that stay in the context."""
        before = self.leaf
        self.leaf = None
        details: dict[str, Any] = {"trigger": "auto", "preTokens": record.tokens_before}
        rest = {
            "logicalParentUuid": before,
            "type": "system",
            "subtype": "compact_boundary",
            "content": "Conversation compacted",
            "isMeta": False,
            "level": "info",
            "compactMetadata": details,
        }
        name = self._free(record.id, f"{place} user")
        boundary = self._record(boundary_uuid(name), place, record.timestamp, rest)
        said = {
            "type": "user",
            "message": {"role": "user", "content": record.summary},
            "isVisibleInTranscriptOnly": True,
            "isCompactSummary": True,
        }
        summary = self._record(name, place, record.timestamp, said)
        if kept:
            anchor = summary["uuid"]
            details["preservedSegment"] = {
                "headUuid": kept[0],
                "anchorUuid": anchor,
                "tailUuid": kept[-1],
            }
            details["preservedMessages"] = {
                "anchorUuid": anchor,
                "uuids": list(kept),
                "allUuids": list(kept),
            }
        return [boundary, summary]

    def title(self, name: str) -> dict[str, Any]:
        """The record of a title."""
        return {"type": "custom-title", "customTitle": name, "sessionId": self.session}


def _allowed(content: Sequence[AnyBlock], role: str, lost: Counter[str]) -> tuple[AnyBlock, ...]:
    """The blocks that the API takes in a message of this role."""
    made: list[AnyBlock] = []
    for block in content:
        if isinstance(block, Text):
            if block.text:
                made.append(block)
        elif _is_signed(block) and role == "assistant":
            made.append(block)
        elif isinstance(block, ToolCall) and role == "assistant":
            made.append(ToolCall(call_id(block.id), block.name, block.arguments))
        elif isinstance(block, Image | File) and role == "user" and give_block(block):
            made.append(block)
        else:
            lost[_WORDS.get(type(block), "blocks of an unknown kind")] += 1
    return tuple(made)


def _is_signed(block: AnyBlock) -> bool:
    """Whether a thought is one that the API knows again."""
    if isinstance(block, OtherBlock):
        return block.type == "redacted_thinking"
    return isinstance(block, Thinking) and bool(block.signature)


_WORDS: dict[type, str] = {
    Thinking: UNSIGNED,
    Image: "images of the model",
    File: "files of a kind that Claude Code cannot hold",
}


def call_id(name: str) -> str:
    """A call's id in the letters that the API takes; the same for the call and its result."""
    if _CALL.fullmatch(name):
        return name
    letters = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:40]
    return f"{letters}_{sha256(name.encode('utf-8', 'replace')).hexdigest()[:16]}"


def _stamp(text: object) -> str:
    """A time as Claude Code writes it; empty if it is none."""
    if not isinstance(text, str) or _STAMP.fullmatch(text):
        return text if isinstance(text, str) else ""
    moment = epoch_ms(text)
    return "" if moment is None else timestamp(moment / 1000)


def _latest(values: Sequence[Mapping[str, Any]], key: str) -> str:
    found = (value.get(key) for value in reversed(values))
    return next((one for one in found if isinstance(one, str)), "")
