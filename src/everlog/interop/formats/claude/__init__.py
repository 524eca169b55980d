"""Claude Code's transcripts.

    <session>.jsonl                               the conversation, and auxiliary records
    <session>/subagents/**/agent-<id>.jsonl       the transcripts of its subagents
    <session>/tool-results/*.txt                  the full text of large results

Every line becomes an item, in file order: user and assistant records become messages, a compaction
a summary, everything else an event. `chain` determines which messages are the conversation; the
others are hidden, not dropped.

A transcript used in place is read by `tail_reader` and extended by `append`; `listing_scan` finds
what a listing shows of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from everlog.interop.formats.claude.append import (
    build_session,
    encode_metadata,
    encode_record,
    is_id,
    name_fields,
    session_id_of,
)
from everlog.interop.formats.claude.chain import is_chain_record
from everlog.interop.formats.claude.listing_scan import scan_listing
from everlog.interop.formats.claude.projects import project_directory
from everlog.interop.formats.claude.reader import NAME, Transcript
from everlog.interop.formats.claude.tail_reader import read_all, read_tail
from everlog.interop.formats.claude.writer import write
from everlog.interop.formats.format_types import ForeignSession, Source, split_lines
from everlog.interop.formats.jsonl import parse_records
from everlog.interop.formats.live_format import ListingScan, MetadataLocation
from everlog.model import Message

__all__ = [
    "ANCESTOR_FILE",
    "IS_REWRITTEN",
    "LINE_BYTES",
    "METADATA_LOCATION",
    "NAME",
    "PART_BYTES",
    "TOTAL_BYTES",
    "build_session",
    "encode_metadata",
    "encode_record",
    "fingerprint",
    "is_id",
    "name_fields",
    "project_directory",
    "read",
    "read_all",
    "read_tail",
    "recognises",
    "resume_command",
    "scan_listing",
    "session_id_of",
    "write",
]

METADATA_LOCATION: MetadataLocation = ""
PART_BYTES = TOTAL_BYTES = LINE_BYTES = 0

# Types of records outside the chain by which a file is recognised; other types are kept too.
_AUXILIARY_TYPES = frozenset(
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
    """Return whether a file is a Claude Code transcript (Cersei's are in the same folder)."""
    if not path.endswith(".jsonl"):
        return False
    for row in parse_records(split_lines(head)):
        value = row.value
        if value is None:
            # The first line may be longer than the head.
            if row.end == len(head) and b'"sessionId":' in head:
                first_type = head.removeprefix(b'{"type":"').split(b'"')[0].decode("utf-8", "replace")
                return b'"parentUuid":' in head or first_type in _AUXILIARY_TYPES
            continue
        kind = value.get("type")
        if not isinstance(kind, str) or "session_id" in value:
            return False
        if is_chain_record(value) and "parentUuid" in value and "sessionId" in value:
            return True
        if kind in _AUXILIARY_TYPES and ("sessionId" in value or "messageId" in value):
            return True
        if kind == "summary" and "leafUuid" in value:
            return True
    return False


def read(source: Source) -> ForeignSession:
    """Read a session with the sessions of its subagents."""
    transcript_path, *other_paths = source.paths()
    saved_results = {path.rpartition("/")[2]: path for path in other_paths if "tool-results" in path.split("/")}

    def load_text(name: str) -> str | None:
        path = saved_results.get(name)
        return None if path is None else source.read(path).decode("utf-8", "replace")

    transcript = Transcript(source, transcript_path, source.name, load_text)
    children = []
    for path in other_paths:
        folder, _, name = path.rpartition("/")
        if "subagents" in folder.split("/") and name.endswith(".jsonl"):
            inner_path = path[path.index("subagents/") : -len(".jsonl")]
            child = Transcript(source, path, f"{source.name}/{inner_path}", load_text)
            parent = _parent_call(source, path, other_paths, transcript.agent_calls)
            metadata = {"parent": parent | {"session": source.name}}
            children.append(child.read(metadata, external_records=transcript.records_by_uuid))
    return transcript.read(children=tuple(children))


def _parent_call(source: Source, path: str, paths: Sequence[str], agent_calls: Mapping[str, str]) -> dict[str, Any]:
    """Return what is known of the tool call that started a subagent."""
    metadata: dict[str, Any] = {}
    meta_path = path.removesuffix(".jsonl") + ".meta.json"
    if meta_path in paths:
        try:
            decoded = msgspec.json.decode(source.read(meta_path))
        except (ValueError, RecursionError):
            decoded = None
        metadata = dict(decoded) if isinstance(decoded, dict) else {}
    agent_id = path.rpartition("/agent-")[2].removesuffix(".jsonl")
    call_id = metadata.pop("toolUseId", None) or agent_calls.get(agent_id)
    return {**metadata, "toolCallId": call_id} if isinstance(call_id, str) else metadata


KEYS: frozenset[str] = frozenset()
ANCESTOR_FILE = ""
IS_REWRITTEN = False


def fingerprint(message: Message) -> str:
    """Return what identifies a message in every copy of its session."""
    return message.id


def resume_command(facts: ListingScan, path: str) -> tuple[str, ...]:
    """Return the command that continues the session in its own program."""
    return ("claude", "--resume", facts.program_id) if facts.program_id else ()
