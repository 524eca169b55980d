"""Claude Code's transcripts.

    <session>.jsonl                               the conversation, and records beside it
    <session>/subagents/**/agent-<id>.jsonl       the transcripts of agents that it asked
    <session>/tool-results/*.txt                  the full text of large results

Every line becomes an item, in the order of the file: what was said becomes messages, a compaction
a summary, everything else an event. Which messages are the conversation is `chain`'s to
say; the others are hidden, not left out.

A transcript that is used where it lies is followed (`live`) and added to (`extending`); what a
listing shows of it is `glancing`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from everlog.interop.formats.claude.append import begin, change, extend, is_id, name_of
from everlog.interop.formats.claude.chain import is_chain
from everlog.interop.formats.claude.listing_scan import glance
from everlog.interop.formats.claude.projects import project_directory
from everlog.interop.formats.claude.reader import NAME, Transcript
from everlog.interop.formats.claude.tail_reader import follow, whole
from everlog.interop.formats.claude.writer import write
from everlog.interop.formats.format_types import Read, Source, split
from everlog.interop.formats.jsonl import records
from everlog.interop.formats.live_format import Beside

__all__ = [
    "BESIDE",
    "LINE_BYTES",
    "NAME",
    "PART_BYTES",
    "TOTAL_BYTES",
    "begin",
    "change",
    "extend",
    "follow",
    "glance",
    "is_id",
    "name_of",
    "project_directory",
    "read",
    "recognises",
    "whole",
    "write",
]

BESIDE: Beside = ""
PART_BYTES = TOTAL_BYTES = LINE_BYTES = 0

# Types of records without a place in the chain, by which a file is recognised; the others are
# kept all the same.
_BESIDE = frozenset(
    {
        "queue-operation",
        "last-prompt",
        "mode",
        "tools-used",
        "atis-latch",
        "cost-state",
        "api-request",
        "api-request-shape",
        "api-request-blob",
        "custom-title",
        "ai-title",
        "tag",
        "agent-name",
        "agent-color",
        "agent-setting",
        "permission-mode",
        "memory-mode",
        "pr-link",
        "worktree-state",
        "bridge-session",
        "frame-link",
        "fork-context-ref",
        "content-replacement",
        "file-history-snapshot",
        "file-history-delta",
    }
)


def recognises(path: str, head: bytes) -> bool:
    """Whether a file is a transcript of Claude Code (Cersei's lie in the same folder)."""
    if not path.endswith(".jsonl"):
        return False
    for row in records(split(head)):
        value = row.value
        if value is None:
            # A first line may be longer than what we see of it.
            if row.end == len(head) and b'"sessionId":' in head:
                first = head.removeprefix(b'{"type":"').split(b'"')[0].decode("utf-8", "replace")
                return b'"parentUuid":' in head or first in _BESIDE
            continue
        kind = value.get("type")
        if not isinstance(kind, str) or "session_id" in value:
            return False
        if is_chain(value) and "parentUuid" in value and "sessionId" in value:
            return True
        if kind in _BESIDE and ("sessionId" in value or "messageId" in value):
            return True
        if kind == "summary" and "leafUuid" in value:
            return True
    return False


def read(source: Source) -> Read:
    """A session with those of its agents."""
    main, *others = source.paths()
    saved = {path.rpartition("/")[2]: path for path in others if "tool-results" in path.split("/")}

    def texts(name: str) -> str | None:
        return source.read(saved[name]).decode("utf-8", "replace") if name in saved else None

    own = Transcript(source, main, source.name, texts)
    children = []
    for path in others:
        folder, _, name = path.rpartition("/")
        if "subagents" in folder.split("/") and name.endswith(".jsonl"):
            inner = path[path.index("subagents/") : -len(".jsonl")]
            child = Transcript(source, path, f"{source.name}/{inner}", texts)
            parent = _parent(source, path, others, own.agents) | {"session": source.name}
            children.append(child.read({"parent": parent}, outside=own.records))
    return own.read(children=tuple(children))


def _parent(
    source: Source, path: str, paths: Sequence[str], agents: Mapping[str, str]
) -> dict[str, Any]:
    """What is known of the call that an agent was asked by."""
    facts: dict[str, Any] = {}
    beside = path.removesuffix(".jsonl") + ".meta.json"
    if beside in paths:
        try:
            told = msgspec.json.decode(source.read(beside))
        except (ValueError, RecursionError):
            told = None
        facts = dict(told) if isinstance(told, dict) else {}
    agent = path.rpartition("/agent-")[2].removesuffix(".jsonl")
    call = facts.pop("toolUseId", None) or agents.get(agent)
    return {**facts, "toolCallId": call} if isinstance(call, str) else facts
