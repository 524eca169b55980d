"""Writing a session exactly as the ULID format describes it.

    session.jsonl    messages of text and tool calls, and compactions, numbered from 1 without gaps
    metadata.json    the keys of the format, each in its place

Messages that were removed are left out, and with them the records that only we have. What was
written is read back and compared with the records, so that what is missing is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from everlog.interop.formats.format_types import ExportedFiles, ListingScan, Summary
from everlog.interop.formats.losses import Losses, compare_messages, compare_metadata, compare_summaries
from everlog.log.line_codec import decode
from everlog.log.markers import Markers
from everlog.model import AnyRecord, Compaction, Event, Message, Metadata, Text, ToolCall, Unknown

NAME = "ulid"
_SOURCES = ("interactive", "cron")


def export_session(metadata: Metadata, records: Sequence[AnyRecord]) -> ExportedFiles:
    """Return the files of a session in this format, and what they cannot hold."""
    losses = Losses()
    markers = Markers.of(records)
    written: list[Message | Compaction] = []
    for record in records:
        if isinstance(record, Message):
            losses.add("message that is hidden or was rewound", not markers.is_live(record.seq))
            if markers.is_live(record.seq):
                written.append(record)
        elif isinstance(record, Compaction):
            if markers.is_standing(record):
                written.append(record)
        elif isinstance(record, Event):
            losses.add(f"event {record.kind}")
        elif isinstance(record, Unknown):
            losses.add("record of an unknown kind")
    lines = []
    for seq, record in enumerate(written, 1):
        if isinstance(record, Message):
            line = _message_line(seq, record)
            read = decode(line).record
            assert isinstance(read, Message)
            compare_messages(record, read, metadata, losses)
            losses.add("name of a result's tool", bool(record.tool_name))
        else:
            line = _compaction_line(seq, record, written)
            compare_summaries(record, _as_summary(record), losses)
        lines.append(line)
    content = _metadata_object(metadata, [record for record in written if isinstance(record, Message)], losses)
    document = msgspec.json.format(msgspec.json.encode(content), indent=2)
    files = {
        f"{metadata.id}/session.jsonl": b"".join(line + b"\n" for line in lines),
        f"{metadata.id}/metadata.json": document + b"\n",
    }
    return ExportedFiles(files, losses.describe())


def _message_line(seq: int, message: Message) -> bytes:
    content: list[dict[str, Any]] = []
    for block in message.content:
        if isinstance(block, Text):
            content.append({"type": "text", "text": block.text})
        elif isinstance(block, ToolCall):
            call = {"type": "toolCall", "id": block.id, "name": block.name, "arguments": block.arguments}
            content.append(call)
    line: dict[str, Any] = {
        "recordType": "message",
        "schemaVersion": 1,
        "seq": seq,
        "role": message.role,
        "content": content,
    }
    if message.role == "toolResult":
        line |= {"toolCallId": message.tool_call_id or "", "isError": bool(message.is_error)}
    return msgspec.json.encode({**line, "timestamp": message.timestamp})


def _compaction_line(seq: int, record: Compaction, written: Sequence[AnyRecord]) -> bytes:
    """Return the line of a summary; the first message that it keeps has another number here."""
    kept = (
        at for at, other in enumerate(written, 1) if isinstance(other, Message) and other.seq >= record.first_kept_seq
    )
    return msgspec.json.encode(
        {
            "recordType": "compaction",
            "schemaVersion": 1,
            "seq": seq,
            "firstKeptSeq": next(kept, seq + 1),
            "summary": record.summary,
            "tokensBefore": record.tokens_before,
            "readFiles": record.read_files,
            "modifiedFiles": record.modified_files,
            "timestamp": record.timestamp,
        }
    )


def _as_summary(record: Compaction) -> Summary:
    """Return what a reader makes of the line of a summary: one of the format's own strategy."""
    read, modified = record.read_files, record.modified_files
    return Summary(
        id="", text=record.summary, first_kept=None, strategy="structured", read_files=read, modified_files=modified
    )


def _metadata_object(metadata: Metadata, messages: Sequence[Message], losses: Losses) -> dict[str, Any]:
    metrics = metadata.metrics
    facts = ListingScan(title=metadata.title or "", model=metadata.model)
    compare_metadata(replace(metadata, system_prompt_override=None, cron_job_id=None), facts, NAME, losses)
    losses.add("cost of the turns", metrics.total_cost > 0)
    content: dict[str, Any] = {
        "id": metadata.id,
        "name": metadata.title,
        "createdAt": metadata.created_at,
        "lastMessageAt": messages[-1].timestamp if messages else metadata.created_at,
        "model": metadata.model,
        "messageCount": len(messages),
        "source": metadata.source if metadata.source in _SOURCES else "interactive",
        "cronJobId": metadata.cron_job_id,
        "systemPromptOverride": metadata.system_prompt_override,
    }
    content = {key: value for key, value in content.items() if value is not None}
    if metrics.total_turns:
        content["metrics"] = {
            "sessionId": metadata.id,
            "totalTurns": metrics.total_turns,
            "totalTokens": msgspec.to_builtins(metrics.total_tokens),
            "totalToolCalls": metrics.total_tool_calls,
            "totalDurationMs": metrics.total_duration_ms,
        }
    return content
