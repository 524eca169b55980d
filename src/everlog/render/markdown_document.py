"""A session as Markdown: clean enough to read as it is, and to put into another document."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from everlog.log.plain_text import call_text
from everlog.model import (
    Compaction,
    Entry,
    File,
    Image,
    Metadata,
    OtherBlock,
    Text,
    Thinking,
)
from everlog.render.transcript_items import Call, Cover, Said, script

_WHO = {"user": "User", "assistant": "Assistant", "toolResult": "Tool result"}


def markdown(metadata: Metadata, entries: Iterable[Entry], cover: Cover = str) -> str:
    """The document."""
    lines = [f"# {one_line(cover(metadata.title))}", "", _facts(metadata)]
    for part in script(entries):
        lines.append("")
        lines += _summary(part, cover) if isinstance(part, Compaction) else _said(part, cover)
    return "\n".join(lines) + "\n"


def one_line(text: str) -> str:
    """A text without line breaks and control characters."""
    return " ".join(re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", text).split())


def fenced(text: str, language: str = "") -> list[str]:
    """A block of code whose fence is longer than any in it."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return [f"{fence}{language}", text, fence]


def _facts(metadata: Metadata) -> str:
    facts = [f"session `{metadata.id}`", f"agent {one_line(metadata.agent)}"]
    if metadata.model:
        facts.append(f"model {one_line(metadata.model)}")
    facts += [f"created {metadata.created_at}", f"last message {metadata.last_message_at}"]
    return " · ".join(facts)


def _said(part: Said, cover: Cover) -> Iterator[str]:
    message = part.message
    yield f"## {_WHO[message.role]} · {message.timestamp}"
    for block in part.blocks:
        yield ""
        if isinstance(block, Text):
            yield cover(block.text)
        elif isinstance(block, Thinking):
            yield from (f"> {line}" for line in cover(block.thinking).split("\n"))
        elif isinstance(block, Call):
            yield from _call(block, cover)
        elif isinstance(block, Image | File):
            yield _attached(block)
        elif isinstance(block, OtherBlock):
            yield f"*a block of kind {one_line(block.type)}*"


def _call(one: Call, cover: Cover) -> Iterator[str]:
    yield f"**{one_line(one.call.name)}**{' (failed)' if one.failed else ''}"
    yield from fenced(cover(call_text(one.call)))
    if one.result is not None and one.result.text:
        yield from fenced(cover(one.result.text))


def _attached(block: Image | File) -> str:
    name = block.name if isinstance(block, File) else "image"
    return (
        f"*{one_line(name or 'file')}{', ' + one_line(block.mime_type) if block.mime_type else ''}*"
    )


def _summary(part: Compaction, cover: Cover) -> Iterator[str]:
    yield "---"
    yield ""
    yield f"*What came before message {part.first_kept_seq} was summarised for the model:*"
    yield ""
    yield from (f"> {line}" for line in cover(part.summary).split("\n"))
    yield ""
    yield "---"
