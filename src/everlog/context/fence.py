"""The fence: the one way in which text of a user, a tool, a file or a model enters a prompt.

A prompt separates data from instructions by blocks such as `<memory>` … `</memory>`. Text inside a
block must not end it or begin another one, must not contain characters that nobody sees, and must
not fill the window. `fence` makes a text safe in these three ways and leaves its words alone;
`block` accepts only fenced text, and no other module writes the tag of a block. Every place where
stored or foreign text enters a prompt has a member of `Origin`, which says whose words they are
and how many of them are shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import Enum


class Origin(Enum):
    """Where a text in a prompt comes from, and the most characters that are shown of it."""

    SUMMARY = "a summary in a session's log", 400_000
    BRANCH_SUMMARY = "a summary in a session of pi", 400_000
    CONVERSATION = "messages to be summarised", 4_000_000  # and at most a window of tokens
    PREVIOUS_SUMMARY = "the summary to be updated", 400_000
    FOCUS = "what a person asks a summary to keep", 2_000
    QUOTATION = "messages and tool results quoted by the built-in summary", 20_000
    PATH = "the path of a file that was read or changed", 4_096
    TITLE = "a message of a session to be named", 240
    SYSTEM_DATA = "what a hook adds to a system prompt", 100_000
    INJECTION = "a message of a hook", 400_000
    SUBAGENT = "the name and description of a subagent", 2_000
    DIRECTORY = "the client's working directory", 4_096
    INSTRUCTIONS = "AGENTS.md and CLAUDE.md", 50_000
    ATTACHMENT = "a text file attached to a message", 1_000_000
    TOOL = "the description of a tool", 20_000
    RECALL = "notes and passages that fit a message", 100_000
    EXTRACTION = "messages in which facts are looked for", 100_000
    KNOWN_FACT = "a fact that is known already", 400
    MEMORY_FILE = "a note, extracted facts or a summary shown to a dream", 20_000
    MEMORY_INDEX = "MEMORY.md in a system prompt", 50_000

    def __init__(self, description: str, limit: int) -> None:
        self.description = description
        self.limit = limit


class Fenced(str):
    """Text that is safe inside a block: fenced, or written by this program."""

    __slots__ = ()


# Names of blocks in our prompts, and those that other programs give authority to.
_NAMES = (
    r"(?:[\w-]{0,40}[-_])?(?:summary|summaries|files|conversation|reminder|context)"
    r"|memory|notes|known-facts|recall|environment|instructions|agents"
)
# `<file>` is left alone: it stands in the usage line of many a command. The end of a text counts as
# a tag that begins, since the next text may go on with it.
_AFTER_BRACKET = rf"(?=(?i:\s*+/?\s*+(?:(?:{_NAMES})(?![\w.-])|\Z)|\s*+file\s+(?:path|name)\b|\s*+/\s*+file\b))"
_OWN_BLOCK = re.compile(r"(<(recall|environment)>)(.*)(</\2>)", re.DOTALL)  # that a hook may write itself
_EMPTY_BLOCK = re.compile(r"<(?:recall|environment)/>")

_ESCAPE = re.compile(
    r"\x1b\][^\x07\x1b\n]{0,500}(?:\x07|\x1b\\)"  # titles and links of a terminal
    r"|(?:\x1b\[|\x9b)[0-?]*+[ -/]*+[@-~]"  # colours, cursor
    r"|\x1b[@-Z\\-_]"
)
# Characters that are not seen, or that change how others are displayed: line ends other than ours,
# broken surrogates, those that join letters of some scripts and emoji, and all others.
_LINE_ENDS, _JOINERS = "\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\u2028\u2029", "\u200c\u200d\ufe0e\ufe0f"
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e01ff]+"
)


def fence(text: str, origin: Origin, *, limit: int | None = None, keep_end: bool = False) -> Fenced:
    """Return a text that is safe in a prompt: no tag of a block, no invisible character, not too long.

    `limit` replaces the number of characters of the origin; a cut is marked. `keep_end` cuts the
    beginning instead of the end. Fencing a fenced text changes nothing.
    """
    text = str(text)
    limit = origin.limit if limit is None else limit
    if len(text) > limit:
        mark = f"[… {len(text)} characters, of which {limit} are shown]"
        room = max(limit - len(mark) - 1, 0)
        text = f"{mark}\n{text[-room:] if room else ''}" if keep_end else f"{text[:room]}\n{mark}"
    text = strip_invisible(text)
    for bracket in "<＜﹤":
        if bracket in text:
            text = re.sub(bracket + _AFTER_BRACKET, "‹", text)
    return Fenced(text)


def join_fenced(parts: Iterable[Fenced], separator: str) -> Fenced:
    """Return fenced texts as one, with a separator that this program wrote."""
    return Fenced(separator.join(parts))


def block(tag: str, *parts: Fenced, **attributes: Fenced) -> Fenced:
    """Return a block of a prompt: fenced texts, each on lines of its own, between tags."""
    values = "".join(f' {name}="{_attribute(value)}"' for name, value in attributes.items())
    return Fenced("\n".join((f"<{tag}{values}>", *parts, f"</{tag}>")))


def restore_blocks(text: Fenced, tags: Sequence[str]) -> Fenced:
    """Return fenced text in which blocks with these tags are blocks again.

    Each tag must be a line of its own, and only a complete block is restored.
    """
    rows: list[str] = text.split("\n") if "‹" in text else [text]
    opened: tuple[str, int] | None = None
    for number, row in enumerate(rows):
        tag = row.strip("‹/>")
        if row == f"‹{tag}>" and tag in tags:
            opened = tag, number
        elif opened is not None and row == f"‹/{opened[0]}>":
            rows[opened[1]], rows[number] = f"<{tag}>", f"</{tag}>"
            opened = None
    return Fenced("\n".join(rows))


# Programs insert blocks with such names into the messages of a user: `<system-reminder>`, `<ide_selection>`.
_INSERTED_TAG = re.compile(r"<([a-z]+[-_][a-z_-]+|tick)(?:\s[^<>]{0,200})?>")


def remove_insertions(text: str) -> str:
    """Return a user's text without the closed blocks that a program inserted into it."""
    parts: list[str] = []
    position = 0
    never_closed: set[str] = set()  # searched once, so that the scan stays linear
    for tag in _INSERTED_TAG.finditer(text):
        if tag.start() >= position and tag[1] not in never_closed:
            end = text.find(closing := f"</{tag[1]}>", tag.end())
            if end < 0:
                never_closed.add(tag[1])
            else:
                parts.append(text[position : tag.start()])
                position = end + len(closing)
    return "\n".join((*parts, text[position:]))


_QUOTED = str.maketrans('"<>', "'‹›")


def _attribute(value: str) -> str:
    return " ".join(value.split("\n")).translate(_QUOTED)


def fence_injection(text: str) -> Fenced:
    """Return the text of a message from a hook; the block that a hook writes around it stays."""
    if isinstance(text, Fenced) or _EMPTY_BLOCK.fullmatch(text):
        return Fenced(text)
    if own := _OWN_BLOCK.fullmatch(text):
        return Fenced(f"{own[1]}{fence(own[3], Origin.INJECTION)}{own[4]}")
    return fence(text, Origin.INJECTION)


def strip_invisible(text: str) -> str:
    """Remove escape sequences and invisible characters; replace broken code points.

    Lines end with `\\n` afterwards, whatever ended them before.
    """
    if "\x1b" in text or "\x9b" in text:
        text = _ESCAPE.sub("", text)
    return _UNSEEN.sub(_replace_unseen, text.replace("\r\n", "\n"))


def _replace_unseen(match: re.Match[str]) -> str:
    """Keep what joins characters beyond ASCII; elsewhere a joiner only hides a word."""
    run, start = match[0], match.start()
    if not run.strip(_JOINERS):
        return run[:2] if start and not match.string[start - 1].isascii() else ""
    return "".join("\n" if c in _LINE_ENDS else "\ufffd" if "\ud800" <= c <= "\udfff" else "" for c in run)
