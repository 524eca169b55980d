"""The files of a memory: which of them are notes, how they are named, how old they are."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection

import msgspec

from everlog.memory.extracted_file import EXTRACTED_FILE
from everlog.memory.note_text import INDEX_FILE

MAX_NAME_LENGTH = 80  # characters, with the extension
_MAX_NAME_BYTES = 200


class MemoryFile(msgspec.Struct, frozen=True):
    """A Markdown file of a memory, as it was read."""

    path: str  # below the memory's directory, with `/`
    text: str
    modified: float = 0.0  # Unix time
    # Unchanged since we wrote it. Any other file is a person's, and no plan rewrites it.
    generated: bool = False


def is_note(path: str) -> bool:
    """Return whether a file of a memory is a note: neither an index nor the extracted lines."""
    return path != EXTRACTED_FILE and path.rpartition("/")[2] != INDEX_FILE


def file_name(name: str, existing: Collection[str] = ()) -> str:
    """Choose a file name for a note: safe on every system and not among the existing ones."""
    plain = unicodedata.normalize("NFKC", name).casefold()
    slug = re.sub(r"[\W_]+", "-", unicodedata.normalize("NFC", plain)).strip("-") or "note"
    used = {path.casefold() for path in (*existing, INDEX_FILE, EXTRACTED_FILE)}
    number = 1
    while True:
        ending = ".md" if number == 1 else f"-{number}.md"
        candidate = slug[: MAX_NAME_LENGTH - len(ending)]
        candidate = candidate.encode()[:_MAX_NAME_BYTES].decode(errors="ignore").strip("-") + ending
        if candidate.casefold() not in used:
            return candidate
        number += 1


def age_days(modified: float, now: float) -> int:
    """Return the whole days since a note was changed; 0 if the clock went back."""
    return max(int((now - modified) // 86_400), 0)


def age(modified: float, now: float) -> str:
    """Return how old a note is, in words."""
    days = age_days(modified, now)
    return ("today", "yesterday")[days] if days < 2 else f"{days} days ago"


def age_warning(modified: float, now: float) -> str:
    """Return a warning about a note that is older than a day, or nothing."""
    if age_days(modified, now) <= 1:
        return ""
    return f"Last changed {age(modified, now)}: check that it still holds before relying on it."
