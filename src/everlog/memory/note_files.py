"""The files of a memory: which are notes, what they are called, how old they are."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection

import msgspec

from everlog.memory.extracted_file import FILE
from everlog.memory.note_text import INDEX

NAME_LENGTH = 80  # characters of a file's name, ending included
_NAME_BYTES = 200


class MemoryFile(msgspec.Struct, frozen=True):
    """A Markdown file of a memory, as it was read."""

    path: str  # below the memory's directory, with `/`
    text: str
    modified: float = 0.0  # Unix time
    # It reads as we wrote it last; else it is a person's, and no plan rewrites it.
    ours: bool = False


def is_note(path: str) -> bool:
    """Whether a file of a memory is a note: neither an index nor the extracted lines."""
    return path != FILE and path.rpartition("/")[2] != INDEX


def file_name(name: str, taken: Collection[str] = ()) -> str:
    """A name for a note's file: safe on every system, and none of those that are taken."""
    plain = unicodedata.normalize("NFKC", name).casefold()
    slug = re.sub(r"[\W_]+", "-", unicodedata.normalize("NFC", plain)).strip("-") or "note"
    used = {one.casefold() for one in (*taken, INDEX, FILE)}
    number = 1
    while True:
        ending = ".md" if number == 1 else f"-{number}.md"
        made = slug[: NAME_LENGTH - len(ending)]
        made = made.encode()[:_NAME_BYTES].decode(errors="ignore").strip("-") + ending
        if made.casefold() not in used:
            return made
        number += 1


def age_days(modified: float, now: float) -> int:
    """Whole days since a note was changed; none when the clock went back."""
    return max(int((now - modified) // 86_400), 0)


def age(modified: float, now: float) -> str:
    """How old a note is, in words."""
    days = age_days(modified, now)
    return ("today", "yesterday")[days] if days < 2 else f"{days} days ago"


def warning(modified: float, now: float) -> str:
    """What to say of a note that is older than a day, or nothing."""
    if age_days(modified, now) <= 1:
        return ""
    return f"Last changed {age(modified, now)}: check that it still holds before relying on it."
