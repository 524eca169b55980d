"""A note: one Markdown file with front matter, which people may edit as well.

    ---
    name: Prefers tabs
    description: The user prefers tabs over spaces.
    type: user
    category: preference
    confidence: 0.8
    source: {session: 01J…, seq: 12}
    created: 2026-04-03
    updated: 2026-04-03
    ---

    The user prefers tabs over spaces.

    ~~The user prefers spaces.~~ (until 2026-04-03)

A note is its text: reading never changes it, and `edit` replaces only the lines of the given keys
and no other byte, so that comments, unknown keys and a person's formatting survive. A value is the
text after the colon, as in Cersei. A file without front matter is a note too. The two other files
of a memory are its index, `MEMORY.md`, and the extracted facts that are in no note yet.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cached_property
from typing import Any, Literal, get_args

import msgspec

from everlog.model import Category
from everlog.ports.memory import CATEGORIES, Source

Kind = Literal["user", "feedback", "project", "reference"]
KINDS: tuple[Kind, ...] = get_args(Kind)
INDEX_FILE, EXTRACTED_FILE = "MEMORY.md", "extracted.md"
MAX_HEAD_LINES = 200  # longer front matter is not recognised
MAX_NAME_LENGTH = 80  # characters of a file name, with the extension
_MAX_NAME_BYTES = 200
_MAX_SOURCES = 8

_KEY = re.compile(r"([A-Za-z_][\w\-]*)[ \t]*:(.*)", re.DOTALL)
_SOURCE = re.compile(r"session[\"']?\s*:\s*[\"']?([^\s,\"'{}\[\]]+)[\"']?(?:\s*,?\s*[\"']?seq[\"']?\s*:\s*(\d{1,15}))?")
_FORMER = re.compile(r"~~(.+?)~~ \(until (\d{4}-\d\d-\d\d)\)")


@dataclass(frozen=True)
class Note:
    """A note as it is in its file."""

    text: str

    @cached_property
    def rows(self) -> list[str]:
        """Return the lines of its text; do not change the list."""
        return self.text.split("\n")

    @cached_property
    def head_end(self) -> int:
        """Return the line that closes the front matter, or 0 if there is none."""
        if self.rows[0].rstrip() != "---":
            return 0
        head = (number for number, row in enumerate(self.rows[1:MAX_HEAD_LINES], 1) if row.rstrip() == "---")
        return next(head, 0)

    @cached_property
    def fields(self) -> dict[str, str]:
        """Return the front matter, keys in lower case; the first of two equal keys wins."""
        fields: dict[str, str] = {}
        for start, end in _key_spans(self.rows, self.head_end):
            match = _KEY.fullmatch("\n".join(self.rows[start:end]))
            assert match is not None
            fields.setdefault(match[1].lower(), _parse_value(match[2]))
        return fields

    @property
    def body(self) -> str:
        """Return the text after the front matter, without surrounding empty lines."""
        return "\n".join(self.rows[self.head_end + 1 :] if self.head_end else self.rows).strip()

    @property
    def name(self) -> str:
        """Return its name, or its first words if it has none."""
        return self.fields.get("name") or _first_line(self.body)[:60].strip()

    @property
    def description(self) -> str:
        """Return its description, or its first line."""
        return self.fields.get("description") or _first_line(self.body)[:160].strip()

    @property
    def type(self) -> Kind | None:
        """Return who or what it is about."""
        return next((kind for kind in KINDS if kind == self.fields.get("type", "").lower()), None)

    @property
    def category(self) -> Category | None:
        """Return which of the five kinds of fact it states."""
        return next((name for name in CATEGORIES if name == self.fields.get("category", "").lower()), None)

    @property
    def confidence(self) -> float:
        """Return 0.0 to 1.0; a note without a number, as people write them, is certain."""
        try:
            value = float(self.fields.get("confidence", "1"))
        except ValueError:
            return 1.0
        return min(max(value, 0.0), 1.0) if math.isfinite(value) else 1.0

    @property
    def sources(self) -> tuple[Source, ...]:
        """Return where it was stated; nothing if a person wrote it."""
        matches = _SOURCE.findall(self.fields.get("source", ""))
        return tuple(Source(session, int(seq or 0)) for session, seq in matches)

    @property
    def created(self) -> str:
        """Return when it was first written, as it says."""
        return self.fields.get("created", "")

    @property
    def updated(self) -> str:
        """Return when it was last changed, as it says."""
        return self.fields.get("updated", "") or self.created

    def day(self, modified: float = 0.0) -> date:
        """Return the day (UTC) of its last update as it says, else that of its file."""
        try:
            return date.fromisoformat(self.updated[:10])
        except ValueError:
            return datetime.fromtimestamp(max(modified, 0.0), UTC).date()

    @property
    def fact(self) -> str:
        """Return the current fact: the first line of the body that is not struck through."""
        return _first_line(self.body) or self.description

    @property
    def former_facts(self) -> tuple[tuple[str, str], ...]:
        """Return the facts that no longer hold, each with the day until which it held."""
        return tuple(_FORMER.findall(self.body))

    @property
    def remainder(self) -> str:
        """Return the text besides its fact and former facts."""
        rows = [row for row in self.body.split("\n") if not row.startswith("~~")]
        plain = [row.strip().lstrip("#").strip() for row in rows]
        position = plain.index(self.fact) if self.fact in plain else 0
        return "\n".join(rows[:position] + rows[position + 1 :]).strip()


class MemoryFile(msgspec.Struct, frozen=True):
    """A Markdown file of a memory, as it was read."""

    path: str  # below the memory's directory, with `/`
    text: str
    modified: float = 0.0  # Unix time
    # Unchanged since we wrote it. Any other file is a person's, and no plan rewrites it.
    generated: bool = False

    @property
    def note(self) -> Note:
        """Return its text as a note."""
        return Note(self.text)

    @property
    def version(self) -> str:
        """Return a short digest of its text, to detect changes made since it was read."""
        return hashlib.sha256(self.text.encode("utf-8", "surrogateescape")).hexdigest()[:16]

    def age(self, now: float) -> str:
        """Return in words when it was changed; "today" if the clock went back."""
        days = max(int((now - self.modified) // 86_400), 0)
        return ("today", "yesterday")[days] if days < 2 else f"{days} days ago"

    def age_warning(self, now: float) -> str:
        """Return a warning about a note that is older than a day, or nothing."""
        age = self.age(now)
        return f"Last changed {age}: check that it still holds before relying on it." if age.endswith("ago") else ""


def is_note(path: str) -> bool:
    """Return whether a file of a memory is a note: neither an index nor the extracted facts."""
    return path != EXTRACTED_FILE and path.rpartition("/")[2] != INDEX_FILE


def select_notes(files: Iterable[MemoryFile]) -> list[MemoryFile]:
    """Return the files that are notes."""
    return [file for file in files if is_note(file.path)]


def find_text(files: Iterable[MemoryFile], path: str) -> str | None:
    """Return the text of one of the files, or None."""
    return next((file.text for file in files if file.path == path), None)


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


def compose(*, body: str, **fields: Any) -> Note:
    """Create a note with these keys, in their order; None and an empty `source` are left out."""
    head = [f"{key}: {_format_value(value)}" for key, value in fields.items() if value is not None and value != ()]
    return Note("\n".join(("---", *head, "---", "", body.strip(), "")))


def edit(note: Note, *, body: str | None = None, **fields: Any) -> Note:
    """Return the note with these keys changed; None removes a key, `source` takes a sequence."""
    rows = list(note.rows)
    end = note.head_end
    if fields and not end:
        rows, end = ["---", "---", *([] if rows[:1] == [""] else [""]), *rows], 1
    carriage_return = "\r" if end and rows[0].endswith("\r") else ""
    for key, value in fields.items():
        formatted = _format_value(value)
        new = [] if value is None else [f"{key}: {formatted}{carriage_return}"]
        for start, stop in _key_spans(rows, end):
            match = _KEY.match(rows[start])
            if match is not None and match[1].lower() == key:
                if value is not None and note.fields.get(key) == _parse_value(f" {formatted}"):
                    break  # unchanged: keep it as its author formatted it
                rows[start:stop] = new
                end += len(new) - (stop - start)
                break
        else:
            rows[end:end] = new
            end += len(new)
    if body is not None and body.strip() != note.body:
        rows = [*rows[: end + 1], "", *body.strip().split("\n"), ""] if end else body.split("\n")
    return Note("\n".join(rows))


def add_evidence(note: Note, sources: Iterable[Source | None], confidence: float = 0.0, updated: str = "") -> Note:
    """Return the note with more sources, the higher confidence and the later day."""
    all_sources = list(note.sources)
    all_sources += [source for source in sources if source is not None and source not in all_sources]
    changed: dict[str, Any] = {}
    if len(all_sources) > len(note.sources):
        changed["source"] = all_sources
    if confidence > note.confidence:
        changed["confidence"] = confidence
    if updated[:10] > note.updated[:10]:
        changed["updated"] = updated
    return edit(note, **changed) if changed else note


def strike_out(text: str, until: str) -> str:
    """Return a former fact as it is kept in a note."""
    return f"~~{text.replace('~~', '~')}~~ (until {until})"


def _key_spans(rows: Sequence[str], end: int) -> list[tuple[int, int]]:
    """Return the start and end line of each key, including its indented lines."""
    spans: list[tuple[int, int]] = []
    in_key = False  # whether indented lines belong to the key above
    for number in range(1, end):
        row = rows[number]
        if _KEY.match(row):
            spans.append((number, number + 1))
            in_key = True
        elif in_key and row.strip() and (row[0] in " \t" or row.startswith("- ")):
            spans[-1] = (spans[-1][0], number + 1)
        else:
            in_key = False
    return spans


def _parse_value(raw: str) -> str:
    """Return a value without its YAML quotes or block marker."""
    value = raw.strip()
    first, _, remainder = value.partition("\n")
    if remainder and first.strip() in (">", ">-", "|", "|-", ""):
        return " ".join(line.strip() for line in remainder.split("\n"))
    if len(value) >= 2 and value[0] == value[-1] == '"':
        try:
            return str(json.loads(value))
        except ValueError:
            return value
    if len(value) >= 2 and value[0] == value[-1] == "'":
        return value[1:-1].replace("''", "'")
    return value


def _format_value(value: Any) -> str:
    if isinstance(value, float):
        return f"{min(max(value, 0.0), 1.0):.2f}".rstrip("0").ljust(3, "0")
    if isinstance(value, tuple | list):
        sources = [f"{{session: {s.session}, seq: {s.seq}}}" for s in value[:_MAX_SOURCES]]
        return sources[0] if len(sources) == 1 else f"[{', '.join(sources)}]"
    line = " ".join(str(value).split())
    # YAML would read these characters as a quote or as the start of a block.
    return json.dumps(line, ensure_ascii=False) if line[:1] in ("'", '"', ">", "|") else line


def _first_line(text: str) -> str:
    for line in text.split("\n"):
        content = line.strip().lstrip("#").strip()
        if content and not content.startswith("~~"):
            return content
    return ""
