"""What a format cannot hold of a session.

An export counts it: what was written is read back and compared with the record that it was written
from, so that nothing is lost that is not named. An append refuses it instead.
"""

from __future__ import annotations

import re
from collections import Counter

from everlog.errors import UnsupportedError
from everlog.ids import epoch_ms
from everlog.interop.formats.format_types import ListingScan, Summary
from everlog.model import Compaction, File, Image, Message, Metadata, OtherBlock, Text, Thinking, ToolCall, Usage

IMPORT_HINT = "import the session (everlog import) and continue it there"
_FINER_THAN_MS = re.compile(r"\.\d{3}\d*[1-9]")
_BLOCK_NAMES: dict[type, str] = {Image: "image", File: "file", OtherBlock: "block of an unknown type"}
# Stop reasons of any program → that of Anthropic's API.
STOP_REASONS = {"stop": "end_turn", "toolUse": "tool_use", "tool_calls": "tool_use", "length": "max_tokens"}
# Metadata that the place of a file says, or that an import made.
_IMPORT_KEYS = frozenset({"agents", "cwd", "parent", "programTitle", "resume", "source"})


class Losses:
    """Counts of what an export leaves out."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, description: str, count: int = 1) -> None:
        """Count a loss."""
        if count:
            self._counts[description] += count

    def refuse(self, description: str, problem: str, *, hint: str = IMPORT_HINT) -> None:
        """Count something that cannot be written; it is left out.

        For an append it is an UnsupportedError with the problem. Without a description it is counted
        when the lines are read back.
        """
        if description:
            self.add(description)

    def describe(self) -> tuple[str, ...]:
        """Return one text per kind of loss."""
        return tuple(f"{description}: {count}" for description, count in sorted(self._counts.items()))


class _Refusal(Losses):
    def refuse(self, description: str, problem: str, *, hint: str = IMPORT_HINT) -> None:
        raise UnsupportedError(problem, hint=hint)


REFUSAL = _Refusal()  # of appends: nothing is left out


# --- comparison with what was read back -------------------------------------------------------


def compare_messages(message: Message, read: Message, session: Metadata, losses: Losses) -> None:
    """Count what a message has that its line does not."""
    _compare_blocks(message, read, losses)
    _compare_usage(message.usage, read.usage, losses)
    lost = {
        "time": bool(time := epoch_ms(message.timestamp)) and time != epoch_ms(read.timestamp),
        "model": bool(message.model) and not f":{message.model}".endswith(f":{read.model}"),
        "stop reason": bool(message.stop_reason) and _stop_reason(message) != _stop_reason(read),
        "sender": message.sender not in (None, session.sender, read.sender),
        "working directory": bool(message.cwd) and message.cwd != read.cwd,
        "turn": message.run_id not in (None, read.run_id),
    }
    for field, is_lost in lost.items():
        losses.add(f"{field} of a message", is_lost)
    losses.add("mark of a failed tool", bool(message.is_error) and not read.is_error)
    is_finer = _FINER_THAN_MS.search(message.timestamp) is not None
    losses.add("exact time of a message", is_finer and not lost["time"] and message.timestamp != read.timestamp)


def _stop_reason(message: Message) -> str:
    return STOP_REASONS.get(message.stop_reason or "", message.stop_reason or "")


def _compare_blocks(message: Message, read: Message, losses: Losses) -> None:
    losses.add("text of a message", _text(message) != _text(read))
    counts, read_counts = ({kind: _count_blocks(item, kind) for kind in _BLOCK_NAMES} for item in (message, read))
    if sum(counts.values()) > sum(read_counts.values()):  # else one is read back as another kind
        for kind, name in _BLOCK_NAMES.items():
            losses.add(name, max(counts[kind] - read_counts[kind], 0))
    thoughts, read_thoughts = _thoughts(message), _thoughts(read)
    if "".join(thoughts).strip() and not read_thoughts:
        is_signed = any(isinstance(block, Thinking) and block.signature for block in message.content)
        losses.add("thinking" if is_signed else "thinking without a signature")
    for kind, name in ((Thinking, "thinking block"), (ToolCall, "tool call")):
        if any(isinstance(block, kind) for block in read.content):
            losses.add(f"signature of a {name}", max(_signatures(message, kind) - _signatures(read, kind), 0))
    losses.add("tool call", max(len(message.tool_calls) - len(read.tool_calls), 0))
    for call, read_call in zip(message.tool_calls, read.tool_calls, strict=False):
        losses.add("name of a tool", call.name != read_call.name)
        losses.add("arguments of a tool call", call.arguments != read_call.arguments)


def _text(message: Message) -> str:
    return "\n".join(block.text for block in message.content if isinstance(block, Text) and block.text)


def _count_blocks(message: Message, kind: type) -> int:
    return sum(type(block) is kind for block in message.content)


def _thoughts(message: Message) -> list[str]:
    return [block.thinking for block in message.content if isinstance(block, Thinking)]


def _signatures(message: Message, kind: type[Thinking | ToolCall]) -> int:
    return sum(isinstance(block, kind) and bool(block.signature) for block in message.content)


def _compare_usage(usage: Usage | None, read: Usage | None, losses: Losses) -> None:
    if usage is None or usage == read:
        return
    if read is None:
        losses.add("usage of a message")
        return
    counts, read_counts = (
        (item.input_tokens, item.output_tokens, item.cache_read_tokens, item.cache_write_tokens)
        for item in (usage, read)
    )
    losses.add("usage of a message", counts[:2] != read_counts[:2])
    losses.add("cached tokens of a message", counts[2:] != read_counts[2:])
    losses.add("total of a usage count", usage.total_tokens not in (0, sum(counts), read.total_tokens))
    losses.add("cost of a message", usage.cost not in (0, read.cost))


def compare_summaries(record: Compaction, read: Summary, losses: Losses) -> None:
    """Count what a summary has that its line does not."""
    files, read_files = ((tuple(item.read_files), tuple(item.modified_files)) for item in (record, read))
    losses.add("list of the files of a summary", any(files) and files != read_files)
    losses.add("strategy of a summary", record.strategy != read.strategy)


def compare_metadata(metadata: Metadata, facts: ListingScan, format_name: str, losses: Losses) -> None:
    """Count what a session has that a listing of its files does not show."""
    is_scope_kept = metadata.scope is not None and metadata.scope == facts.scope  # it says who takes part
    prefixes = (f"{format_name}:", f"{metadata.source}:")  # of names that an import gave
    program_ids = {name.partition(":")[2] for name in metadata.names if name.startswith(prefixes)}
    names = {name for name in metadata.names if not name.startswith(prefixes)} - program_ids
    cwd = metadata.extra.get("cwd")
    lost = {
        "title": (metadata.title or "").strip() not in ("", facts.title),
        "agent": metadata.agent != (facts.agent or "main") and not is_scope_kept,
        "sender": metadata.sender != (facts.sender or "user") and not is_scope_kept,
        "key": bool(names - {facts.key, *facts.aliases}),
        "scope": bool(metadata.scope) and not is_scope_kept,
        "model of the session": metadata.model_chosen and metadata.model != facts.model,
        "working directory": bool(cwd) and cwd != facts.cwd,
        "system prompt of the session": bool(metadata.system_prompt_override),
        "cron job": metadata.cron_job_id is not None,
        "origin": any((metadata.forked_from, metadata.promoted_from, metadata.promoted_to)),
    }
    lost |= {f"metadata {key}": bool(value) for key, value in metadata.extra.items() if key not in _IMPORT_KEYS}
    for field, is_lost in lost.items():
        losses.add(field, is_lost)
