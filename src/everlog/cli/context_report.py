"""Printed reports of a context or a compaction, as text or as JSON with the keys of the log.

Every message is shown with its seq. A message without one is the summary, an injection, or the
placeholder for a tool result that was never recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import TYPE_CHECKING

from everlog.cli import message_lines, output, transcript_output
from everlog.cli.message_lines import Line
from everlog.context.build import EXCESS_HINT, Context
from everlog.context.tokens import TokenCounter, estimate
from everlog.log.backward_read import LeftOut
from everlog.model import Message, Metadata

if TYPE_CHECKING:
    from everlog.agent.compactor import Outcome  # loads asyncio, which a context does not need

TEXT_LINES = 12  # shown of one text block
MAX_FILES = 8  # listed per kind of access


# --- a context ------------------------------------------------------------------------------


def print_context(metadata: Metadata, context: Context, count: TokenCounter, *, full: bool) -> None:
    """Print what the model would be sent, and what was left out."""
    transcript_output.print_lines(
        chain(
            message_lines.heading_lines(metadata, _details(context)),
            excess_lines(context),
            _transcript_lines(context.messages, count, full),
            omission_lines(context.left_out),
            _stale_lines(context.stale),
        )
    )


def print_context_json(context: Context, count: TokenCounter) -> None:
    """Print a context as JSON, each message as it is in its log line."""
    from everlog.wire.responses import record_objects

    answer: dict[str, object] = {
        "messages": record_objects(context.messages),
        "estimates": [estimate(message, count) for message in context.messages],
        "tokens": context.tokens,
        "window": context.window,
        "leftOut": context.left_out,
    }
    if context.stale:
        answer["stale"] = context.stale
    if context.excess:
        answer["excess"] = context.excess
    output.print_json(answer)


def _details(context: Context) -> list[str]:
    percent = context.tokens * 100 / context.window
    share = "under 1" if 0 < percent < 1 else f"{percent:.0f}"
    details = [
        f"{context.tokens:,} of {context.window:,} tokens ({share} %)",
        output.plural(len(context.messages), "message"),
    ]
    if context.left_out:
        details.append(f"{len(context.left_out):,} left out")
    if context.stale:
        details.append("the summary is stale")
    if context.excess:
        details.append("does not fit")
    return details


def excess_lines(context: Context) -> Iterator[Line]:
    """Yield by how much a context is too large, and what helps; nothing if it fits."""
    if context.excess:
        size = output.plural(context.excess, "token")
        yield (
            "red",
            f"This context does not fit: it is {size} over the model's window, with everything left out that may be.",
        )
        yield "", f"A turn would be refused. What helps: {EXCESS_HINT}."


def _transcript_lines(messages: Iterable[Message], count: TokenCounter, full: bool) -> Iterator[Line]:
    tools: dict[str, str] = {}  # call id → the tool's name
    for message in messages:
        tools.update((call.id, call.name) for call in message.tool_calls)
        yield from _message_lines(message, estimate(message, count), tools, full)


def _message_lines(message: Message, tokens: int, tools: dict[str, str], full: bool) -> Iterator[Line]:
    is_result = message.role == "toolResult"
    speaker = message_lines.describe_speaker(message, tools.get(message.tool_call_id or ""))
    yield "", ""
    head = f"{_label(message)} {speaker} · {output.plural(tokens, 'token')}"
    yield message_lines.ROLE_STYLES[message.role] if message.seq else "bold blue", head
    limit = None if full else message_lines.RESULT_LINES if is_result else TEXT_LINES
    for block in message.content:
        for style, line in message_lines.block_lines(block, limit, full):
            yield ("dim" if is_result else style), ("    " if is_result else "  ") + line


def _label(message: Message) -> str:
    if message.seq:
        return f"#{message.seq}"
    if message.role == "toolResult":
        return "not recorded:"
    return "injected:" if message.auto_injected else "summary:"


def omission_lines(omissions: Sequence[LeftOut]) -> Iterator[Line]:
    """Yield which messages were left out of a context, by reason."""
    if not omissions:
        return
    yield "", ""
    yield "bold", "left out"
    for reason, group in groupby(omissions, key=lambda item: item.why):
        seqs = [item.seq for item in group]
        numbered = [seq for seq in seqs if seq is not None]
        times = f" ({len(seqs)} times)" if not numbered and len(seqs) > 1 else ""
        prefix = f"{_format_seqs(numbered)}: " if numbered else ""
        yield "", f"  {prefix}{output.one_line(reason)}{times}"


def _format_seqs(seqs: Sequence[int]) -> str:
    if len(seqs) < 4:
        return ", ".join(f"#{seq}" for seq in seqs)
    return f"{output.plural(len(seqs), 'message')} from #{min(seqs)} to #{max(seqs)}"


def _stale_lines(seqs: Sequence[int]) -> Iterator[Line]:
    if seqs:
        yield "", ""
        yield "bold", "stale"
        yield "", f"  {_format_seqs(seqs)}: deleted or restored after the summary was written"
        yield "dim", "  the next compaction starts from a summary that does not cover them"


# --- a compaction ---------------------------------------------------------------------------


def print_outcome(outcome: Outcome) -> None:
    """Print the outcome of a compaction: its sizes, its files and its summary."""
    transcript_output.print_lines(outcome_lines(outcome))


def print_outcome_json(outcome: Outcome) -> None:
    """Print the outcome of a compaction as JSON."""
    from everlog.wire.responses import record_object

    answer: dict[str, object] = {"compacted": outcome.compacted}
    if outcome.reason is not None:
        answer["reason"] = outcome.reason
    if outcome.record is not None:
        answer["record"] = record_object(outcome.record)
    answer["tokensFreed"] = outcome.tokens_freed
    output.print_json(answer)


def outcome_lines(outcome: Outcome) -> Iterator[Line]:
    """Yield the sizes, the files and the summary of a compaction, or why there is none."""
    from everlog.agent.compactor import DRY_RUN

    record = outcome.record
    if record is None:
        yield "", f"not compacted: {output.one_line(outcome.reason or 'there is nothing to summarise')}"
        return
    summary = f"{output.plural(outcome.messages, 'message')} into a {record.strategy} summary"
    sizes = f"{outcome.tokens:,} → {outcome.tokens - outcome.tokens_freed:,} tokens"
    if outcome.compacted:
        yield "bold", f"compacted {summary}: {sizes}"
    elif outcome.reason == DRY_RUN:
        yield "bold", f"would compact {summary}: {sizes}"
    else:
        yield "bold", f"not compacted: {outcome.reason}"
    covered = output.plural(record.tokens_before, "token")
    yield "dim", f"{covered} summarised; messages from #{record.first_kept_seq} on are kept in full"
    for action, files in (("modified", record.modified_files), ("read", record.read_files)):
        if files:
            listed = ", ".join(output.one_line(file) for file in files[:MAX_FILES])
            more = len(files) - MAX_FILES
            yield "", f"{action}: {listed}{f' and {more:,} more' if more > 0 else ''}"
    yield "", ""
    yield message_lines.summary_line(record)
