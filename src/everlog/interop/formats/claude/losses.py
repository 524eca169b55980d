"""What Claude Code's transcripts cannot hold of a session, apart from blocks that its API refuses."""

from __future__ import annotations

import re

from everlog.ids import epoch_ms
from everlog.interop.formats.claude.entry_builder import STOP_REASONS, safe_tool_name
from everlog.interop.formats.writer import Losses
from everlog.model import PROGRAM, Compaction, Message, Metadata, ToolCall

_FINE_TIME = re.compile(r"\.\d{3}\d*[1-9]")
# In the records, or found again from the file's place.
_WRITTEN_KEYS = frozenset({"agents", "cwd", "parent", "programTitle", "resume", "source"})


def count_message(losses: Losses, message: Message) -> None:
    """Count what the record of a message lacks."""
    usage = message.usage
    if usage is not None:
        parts = usage.input_tokens + usage.output_tokens + usage.cache_read_tokens + usage.cache_write_tokens
        losses.add("usage of a message that is not the model's", message.role != "assistant")
        losses.add("total of a usage count", usage.total_tokens not in (0, parts))
        losses.add("cost of an answer", usage.cost != 0)
    losses.add("stop reason", message.stop_reason is not None and message.stop_reason not in STOP_REASONS)
    losses.add("name of a sender", message.sender not in (None, "user", PROGRAM))
    losses.add("id of a turn", message.run_id is not None)
    is_time_lost = epoch_ms(message.timestamp) is None or _FINE_TIME.search(message.timestamp) is not None
    losses.add("exact time of a message", bool(message.timestamp) and is_time_lost)
    losses.count_blocks(message, (ToolCall,))
    losses.add(
        "tool name that the API refuses", sum(call.name != safe_tool_name(call.name) for call in message.tool_calls)
    )


def count_compaction(losses: Losses, record: Compaction) -> None:
    """Count what the records of a compaction lack."""
    losses.add("list of files of a summary", bool(record.read_files or record.modified_files))
    losses.add("strategy of a summary", record.strategy != "prose")


def count_metadata(losses: Losses, metadata: Metadata, *, has_records: bool) -> None:
    """Count the metadata that no record has."""
    import_keys = ("claude:", f"{metadata.source}:")
    names = [name for name in metadata.names if not name.startswith(import_keys)]
    lost = {
        "agent": metadata.agent != "main",
        "sender": metadata.sender != "user",
        "key": bool(names),
        "scope": bool(metadata.scope),
        "model": metadata.model_chosen,
        "system prompt": metadata.system_prompt_override is not None,
        "cron job": metadata.cron_job_id is not None,
        "origin": any((metadata.forked_from, metadata.promoted_from, metadata.promoted_to)),
        "creation time": bool(metadata.created_at) and not has_records,
        "cwd": bool(metadata.extra.get("cwd")) and not has_records,
    }
    lost |= {key: True for key, value in metadata.extra.items() if value and key not in _WRITTEN_KEYS}
    for name, is_lost in lost.items():
        losses.add(f"metadata {name}", is_lost)
