"""The pure part of a summary call: the conversation in chunks, and the answer cleaned.

A conversation larger than the summarising model's window is sent in chunks, cut between rounds;
each chunk updates the summary of those before it. The `rounds` strategy instead gives every chunk
a block of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from everlog.context.compaction.file_operations import strip_tags
from everlog.context.fence import Origin, fence
from everlog.context.tokens import TokenCounter
from everlog.log.plain_text import render_plain_text
from everlog.log.tool_pairs import split_rounds
from everlog.model import Message
from everlog.settings import Strategy

PROSE_RESULT_BYTES = 1_024  # per tool result in a request of `prose`
NEXT_BLOCK = "\n</context_summary>\n<context_summary>\n"


def split_conversation(strategy: Strategy, covered: Sequence[Message], limit: int, count: TokenCounter) -> list[str]:
    """Return the conversation as plain texts of at most `limit` tokens each."""
    result_bytes = PROSE_RESULT_BYTES if strategy == "prose" else None
    chunks: list[str] = []
    room = 0
    for span in split_rounds(covered):
        text = render_plain_text(covered[span.start : span.stop], result_bytes=result_bytes)
        size = count(text)
        if size > limit:
            text, size = _omit_middle(text, limit / size), limit
        if size <= room:
            chunks[-1] += "\n" + text
            room -= size
        else:
            chunks.append(text)
            room = limit - size
    return chunks


def _omit_middle(text: str, share: float) -> str:
    half = int(len(text) * share * 0.45)
    omitted = len(text) - 2 * half
    return f"{text[:half]}\n[... {omitted} characters left out ...]\n{text[-half:] if half else ''}"


def clean_answer(answer: str) -> str:
    """Return a model's answer, fenced, without surrounding marks and without lists of files."""
    text = answer.strip()
    for first, last in (("```markdown", "```"), ("```", "```"), ("<summary>", "</summary>")):
        if text.startswith(first) and text.endswith(last) and len(text) > len(first) + len(last):
            text = text[len(first) : -len(last)].strip()
    return str(fence(strip_tags(text), Origin.SUMMARY))
