"""The pure half of a summary call: what is handed over, piece by piece.

A conversation that is larger than the summarising model's window is handed over in pieces, cut
between rounds; each piece updates the summary of those before it. The `rounds` strategy instead
gives every piece a block of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from everlog.context.compaction.prompts import without_wrappers
from everlog.context.tokens import Counter
from everlog.log.plain_text import flat
from everlog.log.tool_pairs import rounds
from everlog.model import Message
from everlog.settings import Strategy

PROSE_RESULT_BYTES = 1_024  # of a tool result in a request of `prose`
NEXT_BLOCK = "\n</context_summary>\n<context_summary>\n"


def pieces(strategy: Strategy, covered: Sequence[Message], limit: int, count: Counter) -> list[str]:
    """The conversation as flat texts of at most `limit` tokens each."""
    result_bytes = PROSE_RESULT_BYTES if strategy == "prose" else None
    made: list[str] = []
    room = 0
    for places in rounds(covered):
        text = flat(covered[places.start : places.stop], result_bytes=result_bytes)
        size = count(text)
        if size > limit:
            text, size = _middle_left_out(text, limit / size), limit
        if size <= room:
            made[-1] += "\n" + text
            room -= size
        else:
            made.append(text)
            room = limit - size
    return made


def _middle_left_out(text: str, share: float) -> str:
    half = int(len(text) * share * 0.45)
    gone = len(text) - 2 * half
    return f"{text[:half]}\n[... {gone} characters left out ...]\n{text[-half:] if half else ''}"


def cleaned(answer: str) -> str:
    """A model's answer without the fence or the tags that it may have put around it.

    What is left cannot close the tags that a context or a later request puts around it.
    """
    text = answer.strip()
    for first, last in (("```markdown", "```"), ("```", "```"), ("<summary>", "</summary>")):
        if text.startswith(first) and text.endswith(last) and len(text) > len(first) + len(last):
            text = text[len(first) : -len(last)].strip()
    return without_wrappers(text)
