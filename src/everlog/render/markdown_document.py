"""A session as a Markdown document, to read as it is or to embed in another document."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from everlog.log.plain_text import format_call
from everlog.model import Compaction, Entry, File, Image, Metadata, OtherBlock, Text, Thinking
from everlog.render.transcript_items import CallWithResult, MessageItem, Redact, build_items

_ROLE_LABELS = {"user": "User", "assistant": "Assistant", "toolResult": "Tool result"}


def build_markdown_document(metadata: Metadata, entries: Iterable[Entry], redact: Redact = str) -> str:
    """Build the Markdown document of a session."""
    lines = [f"# {one_line(redact(metadata.display_title))}", "", _details(metadata)]
    for item in build_items(entries):
        lines.append("")
        if isinstance(item, Compaction):
            lines += _summary_lines(item, redact)
        else:
            lines += _message_lines(item, redact)
    return "\n".join(lines) + "\n"


def one_line(text: str) -> str:
    """Replace line breaks and control characters in a text with single spaces."""
    return " ".join(re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", text).split())


def fence_code(text: str, language: str = "") -> list[str]:
    """Return the lines of a code block whose fence is longer than any in the text."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return [f"{fence}{language}", text, fence]


def _details(metadata: Metadata) -> str:
    details = [f"session `{metadata.id}`", f"agent {one_line(metadata.agent)}"]
    if metadata.model:
        details.append(f"model {one_line(metadata.model)}")
    details += [f"created {metadata.created_at}", f"last message {metadata.last_message_at}"]
    return " · ".join(details)


def _message_lines(item: MessageItem, redact: Redact) -> Iterator[str]:
    message = item.message
    yield f"## {_ROLE_LABELS[message.role]} · {message.timestamp}"
    for block in item.blocks:
        yield ""
        if isinstance(block, Text):
            yield redact(block.text)
        elif isinstance(block, Thinking):
            yield from (f"> {line}" for line in redact(block.thinking).split("\n"))
        elif isinstance(block, CallWithResult):
            yield from _call_lines(block, redact)
        elif isinstance(block, Image | File):
            yield _attachment(block)
        elif isinstance(block, OtherBlock):
            yield f"*Block of kind {one_line(block.type)}*"


def _call_lines(pair: CallWithResult, redact: Redact) -> Iterator[str]:
    yield f"**{one_line(pair.call.name)}**{' (failed)' if pair.has_failed else ''}"
    yield from fence_code(redact(format_call(pair.call)))
    if pair.result is not None and pair.result.text:
        yield from fence_code(redact(pair.result.text))


def _attachment(block: Image | File) -> str:
    name = block.name if isinstance(block, File) else "image"
    return f"*{one_line(name or 'file')}{', ' + one_line(block.mime_type) if block.mime_type else ''}*"


def _summary_lines(record: Compaction, redact: Redact) -> Iterator[str]:
    yield "---"
    yield ""
    yield f"*Summary for the model of all messages before {record.first_kept_seq}:*"
    yield ""
    yield from (f"> {line}" for line in redact(record.summary).split("\n"))
    yield ""
    yield "---"
