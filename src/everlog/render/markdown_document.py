"""A session as a Markdown document, to read as it is or to embed in another document."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from everlog.log.plain_text import format_call
from everlog.model import Damaged, Entry, File, Image, Metadata, Text, Thinking
from everlog.render.humanize import one_line
from everlog.render.transcript_items import (
    INSERTED_LABEL,
    MessageItem,
    NoteItem,
    Redact,
    SummaryItem,
    ToolExchange,
    TranscriptItem,
    build_items,
    describe_block,
    describe_damage,
)

_ROLE_LABELS = {"user": "User", "assistant": "Assistant", "toolResult": "Tool result"}


def build_markdown_document(metadata: Metadata, entries: Iterable[Entry], redact: Redact = str) -> str:
    """Build the Markdown document of a session."""
    lines = [f"# {one_line(redact(metadata.display_title))}", "", _details(metadata)]
    for item in build_items(entries):
        if item_lines := list(_item_lines(item, redact)):
            lines += ["", *item_lines]
    return "\n".join(lines) + "\n"


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


def _item_lines(item: TranscriptItem, redact: Redact) -> Iterator[str]:
    if isinstance(item, MessageItem):
        yield from _message_lines(item, redact)
    elif isinstance(item, SummaryItem):
        head = f"*Summary for the model of all messages before {item.record.first_kept_seq}:*"
        yield from ("---", "", head, "", *_quote(redact(item.record.summary)), "", "---")
    elif isinstance(item, Damaged):
        yield f"*{one_line(describe_damage(item))}*"
    elif isinstance(item, NoteItem) and item.kind != "compacted":  # its summary is in the document
        yield f"*{one_line(redact(item.text))} · {item.timestamp}*"


def _message_lines(item: MessageItem, redact: Redact) -> Iterator[str]:
    message = item.message
    label = INSERTED_LABEL if message.role == "user" and not message.is_typed else _ROLE_LABELS[message.role]
    yield f"## {label} · {message.timestamp}"
    for block in item.blocks:
        yield ""
        if isinstance(block, Text):
            yield redact(block.text)
        elif isinstance(block, Thinking):
            yield from _quote(redact(block.thinking))
        elif isinstance(block, ToolExchange):
            yield f"**{one_line(block.call.name)}**{'' if block.state == 'done' else ' (failed)'}"
            yield from fence_code(redact(format_call(block.call)))
            if block.result is not None and block.result.text:
                yield from fence_code(redact(block.result.text))
        else:
            media_type = block.mime_type if isinstance(block, Image | File) else ""
            yield f"*{describe_block(block)}{', ' + one_line(media_type) if media_type else ''}*"


def _quote(text: str) -> list[str]:
    return [f"> {line}" for line in text.split("\n")]
