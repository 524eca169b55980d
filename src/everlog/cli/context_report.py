"""A context and a compaction for reading, or as objects in the names of the files.

Every message is shown with its place in the log; one that has none is the summary, injected, or
an answer in place of a result that was never recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import TYPE_CHECKING

import msgspec

from everlog.cli import message_lines, output, transcript_output
from everlog.cli.message_lines import Line
from everlog.context.build import Context
from everlog.context.tokens import Counter, estimate
from everlog.log.backward_read import LeftOut
from everlog.log.line_codec import encode, seal
from everlog.model import Compaction, Message, Metadata

if TYPE_CHECKING:
    from everlog.agent.compactor import Outcome  # loads asyncio, which a context does not need

TEXT_LINES = 12  # of what somebody said
SHOWN_FILES = 8

STYLES = {"user": "bold green", "assistant": "bold cyan"}


# --- a context ------------------------------------------------------------------------------


def put(metadata: Metadata, context: Context, count: Counter, *, full: bool) -> None:
    """Print what the model would be sent, and what not."""
    transcript_output.print_lines(
        chain(
            _header(metadata, context),
            _messages(context.messages, count, full),
            _left_out(context.left_out),
            _stale(context.stale),
        )
    )


def put_objects(context: Context, count: Counter) -> None:
    """Print a context as JSON, each message as its line has it."""
    answer: dict[str, object] = {
        "messages": [_object(message) for message in context.messages],
        "estimates": [estimate(message, count) for message in context.messages],
        "tokens": context.tokens,
        "window": context.window,
        "leftOut": context.left_out,
    }
    if context.stale:
        answer["stale"] = context.stale
    output.put_json(answer)


def _object(record: Message | Compaction) -> msgspec.Raw:
    """A record as its line has it, without the crc; one that has no place in the log has no seq."""
    line = record.line
    if not line:  # made for this context, shortened for it, or not written
        _, body = encode(record)
        line = seal(body, record.record_type, record.seq) if record.seq else body
    return msgspec.Raw(transcript_output.without_crc(line))


def _header(metadata: Metadata, context: Context) -> Iterator[Line]:
    who = f"{output.one_line(metadata.agent)} with {output.one_line(metadata.sender)}"
    yield "bold", f"{output.one_line(metadata.title)} · {metadata.id} · {who}"
    percent = context.tokens * 100 / context.window
    share = "under 1" if 0 < percent < 1 else f"{percent:.0f}"
    facts = [
        f"{context.tokens:,} of {context.window:,} tokens ({share} %)",
        output.plural(len(context.messages), "message"),
    ]
    if metadata.model:
        facts.insert(0, output.one_line(metadata.model))
    if context.left_out:
        facts.append(f"{len(context.left_out):,} left out")
    if context.stale:
        facts.append("the summary is stale")
    yield "dim", " · ".join(facts)


def _messages(messages: Iterable[Message], count: Counter, full: bool) -> Iterator[Line]:
    tools: dict[str, str] = {}  # call id → the tool's name
    for message in messages:
        tools.update((call.id, call.name) for call in message.tool_calls)
        yield from _message(message, estimate(message, count), tools, full)


def _message(message: Message, tokens: int, tools: dict[str, str], full: bool) -> Iterator[Line]:
    is_result = message.role == "toolResult"
    who: str = "tool result" if is_result else message.role
    if is_result and (name := message.tool_name or tools.get(message.tool_call_id or "")):
        who += f" of {output.one_line(name)}"
    if message.is_error:
        who += " (failed)"
    yield "", ""
    head = f"{_place(message)} {who} · {output.plural(tokens, 'token')}"
    yield STYLES.get(message.role, "yellow") if message.seq else "bold blue", head
    most = None if full else message_lines.RESULT_LINES if is_result else TEXT_LINES
    for block in message.content:
        for style, line in message_lines.block_lines(block, most, full):
            yield ("dim" if is_result else style), ("    " if is_result else "  ") + line


def _place(message: Message) -> str:
    if message.seq:
        return f"#{message.seq}"
    if message.role == "toolResult":
        return "not recorded:"
    return "injected:" if message.auto_injected else "summary:"


def _left_out(missing: Sequence[LeftOut]) -> Iterator[Line]:
    if not missing:
        return
    yield "", ""
    yield "bold", "left out"
    for why, group in groupby(missing, key=lambda one: one.why):
        seqs = [one.seq for one in group]
        known = [seq for seq in seqs if seq is not None]
        times = f" ({len(seqs)} times)" if not known and len(seqs) > 1 else ""
        yield "", f"  {f'{_seqs(known)}: ' if known else ''}{output.one_line(why)}{times}"


def _seqs(seqs: Sequence[int]) -> str:
    if len(seqs) < 4:
        return ", ".join(f"#{seq}" for seq in seqs)
    return f"{output.plural(len(seqs), 'message')} from #{min(seqs)} to #{max(seqs)}"


def _stale(seqs: Sequence[int]) -> Iterator[Line]:
    if seqs:
        yield "", ""
        yield "bold", "stale"
        yield "", f"  {_seqs(seqs)}: deleted or restored after the summary was made"
        yield "dim", "  the next compaction starts from a summary that does not cover them"


# --- a compaction ---------------------------------------------------------------------------


def put_outcome(outcome: Outcome) -> None:
    """Print what a compaction came to, its files and its summary."""
    record = outcome.record
    if record is None:
        print(f"not compacted: {output.one_line(outcome.reason or '')}")
    else:
        transcript_output.print_lines(chain(_told(outcome, record), _summary(record)))


def put_outcome_object(outcome: Outcome) -> None:
    """Print what a compaction came to as JSON."""
    answer: dict[str, object] = {"compacted": outcome.compacted}
    if outcome.reason is not None:
        answer["reason"] = outcome.reason
    if outcome.record is not None:
        answer["record"] = _object(outcome.record)
    answer["tokensFreed"] = outcome.tokens_freed
    output.put_json(answer)


def _told(outcome: Outcome, record: Compaction) -> Iterator[Line]:
    from everlog.agent.compactor import DRY_RUN

    what = f"{output.plural(outcome.messages, 'message')} into a {record.strategy} summary"
    sizes = f"{outcome.tokens:,} → {outcome.tokens - outcome.tokens_freed:,} tokens"
    if outcome.compacted:
        yield "bold", f"compacted {what}: {sizes}"
    elif outcome.reason == DRY_RUN:
        yield "bold", f"would compact {what}: {sizes}"
    else:
        yield "bold", f"not compacted: {outcome.reason}"
    covered = output.plural(record.tokens_before, "token")
    yield "dim", f"{covered} summarised; kept whole from #{record.first_kept_seq} on"
    for doing, files in (("modified", record.modified_files), ("read", record.read_files)):
        if files:
            shown = ", ".join(output.one_line(file) for file in files[:SHOWN_FILES])
            more = len(files) - SHOWN_FILES
            yield "", f"{doing}: {shown}{f' and {more:,} more' if more > 0 else ''}"


def _summary(record: Compaction) -> Iterator[Line]:
    yield "", ""
    yield from (("blue", f"  {line}") for line in output.safe(record.summary).split("\n"))
