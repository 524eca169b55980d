"""Recognising Claude Code's transcripts among the files of other programs."""

from __future__ import annotations

import re

from everlog.interop.formats.claude.entry_builder import is_uuid
from everlog.interop.formats.claude.records import JsonObject, is_chain_record
from everlog.interop.formats.format_types import Match, split_lines
from everlog.interop.formats.jsonl import parse_records

# Keys of its lines that hardly any other program uses.
KEYS = frozenset({"parentUuid", "isSidechain", "userType", "gitBranch", "toolUseResult", "isMeta", "leafUuid"})
# Types of records outside the chain by which a file is recognised; other types are kept too.
_AUXILIARY_TYPE = re.compile(
    r"queue-operation|last-prompt|mode|tools-used|atis-latch|cost-state|api-request(-shape|-blob)?|custom-title"
    r"|ai-title|tag|agent-(name|color|setting)|permission-mode|memory-mode|pr-link|worktree-state|bridge-session"
    r"|frame-link|fork-context-ref|content-replacement|file-history-(snapshot|delta)"
)
# Keys of look-alikes: Cersei's records, and those of Qwen Code.
_FOREIGN_KEYS = frozenset({"session_id", "systemPayload", "usageMetadata", "toolCallResult"})
_TORN_RECORD = re.compile(rb'"parentUuid":.*"isSidechain":|"isSidechain":.*"parentUuid":', re.DOTALL)
_TORN_AUXILIARY = re.compile(rb'\{"type":"([a-z-]+)",.*"sessionId":"', re.DOTALL)


def recognises(path: str, head: bytes) -> Match:
    """Return whether a file is a Claude Code transcript (Cersei's are in the same folder)."""
    if not path.endswith(".jsonl"):
        return Match.NO
    match, evidence = Match.SURE, Match.NO
    for row in parse_records(split_lines(head)):
        value = row.value
        if value is None:
            match = Match.POSSIBLE  # the first line may be lost
            if _is_torn_record(row.data):
                evidence = Match.POSSIBLE
            continue
        if _is_foreign(value):
            return Match.NO
        if _is_record(value):
            return match
        match = match if isinstance(value.get("sessionId"), str) else Match.POSSIBLE
        evidence = evidence if "type" in value and "sessionId" in value else Match.NO
    name = path.rpartition("/")[2].removesuffix(".jsonl")
    is_unreadable = match is Match.POSSIBLE and not head.lstrip(b"\0 \r\n").startswith(b"{")
    return Match.POSSIBLE if is_unreadable and is_uuid(name) else evidence


def _is_record(value: JsonObject) -> bool:
    kind = value.get("type")
    if is_chain_record(value):
        return "parentUuid" in value and "sessionId" in value
    if kind == "summary":
        return "leafUuid" in value
    return (
        isinstance(kind, str)
        and _AUXILIARY_TYPE.fullmatch(kind) is not None
        and ("sessionId" in value or "messageId" in value)
    )


def _is_foreign(value: JsonObject) -> bool:
    message = value.get("message")
    return not _FOREIGN_KEYS.isdisjoint(value) or (isinstance(message, dict) and "parts" in message)


def _is_torn_record(data: bytes) -> bool:
    """Return whether damage looks like the beginning of a record of Claude Code, not of a look-alike."""
    auxiliary = _TORN_AUXILIARY.match(data)
    is_auxiliary = auxiliary is not None and _AUXILIARY_TYPE.fullmatch(auxiliary[1].decode()) is not None
    return (is_auxiliary or _TORN_RECORD.search(data) is not None) and not any(
        b'"%b":' % key.encode() in data for key in _FOREIGN_KEYS
    )
