"""A note: one Markdown file with front matter, which people edit as well.

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

A note is its text: reading never changes it, and `edited` replaces the lines of the keys that it is
given and no other byte, so that comments, unknown keys and the hand of a person survive. Values
are what stands behind the colon, as in Cersei. A file without front matter is a note too.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from datetime import UTC, date, datetime
from functools import cached_property
from typing import Any, Literal, get_args

from everlog.memory.facts import CATEGORIES, Category, Source

Kind = Literal["user", "feedback", "project", "reference"]
KINDS: tuple[Kind, ...] = get_args(Kind)
KEYS = (
    *("name", "description", "type", "category", "confidence"),
    *("source", "created", "updated"),
)
INDEX = "MEMORY.md"
HEAD_LINES = 200  # front matter that goes on longer than this is none
_MOST_SOURCES = 8

_KEY = re.compile(r"([A-Za-z_][\w\-]*)[ \t]*:(.*)", re.DOTALL)
_SOURCE = re.compile(
    r"session[\"']?\s*:\s*[\"']?([^\s,\"'{}\[\]]+)[\"']?(?:\s*,?\s*[\"']?seq[\"']?\s*:\s*(\d{1,15}))?"
)
_OLD = re.compile(r"~~(.+?)~~ \(until (\d{4}-\d\d-\d\d)\)")


class Note:
    """A note as its file has it. Equal texts are equal notes."""

    def __init__(self, text: str) -> None:
        self.text = text
        rows = text.split("\n")
        self._end = _head_end(rows)  # the line of the closing fence, or 0
        self._rows = rows

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Note) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Note({self.text!r})"

    @cached_property
    def fields(self) -> dict[str, str]:
        """All of the front matter, keys in small letters; the first of two equal keys counts."""
        found: dict[str, str] = {}
        for start, end in _entries(self._rows, self._end):
            match = _KEY.fullmatch("\n".join(self._rows[start:end]))
            assert match is not None
            found.setdefault(match[1].lower(), _value(match[2]))
        return found

    @property
    def body(self) -> str:
        """What follows the front matter, without the empty lines around it."""
        return "\n".join(self._rows[self._end + 1 :] if self._end else self._rows).strip()

    @property
    def name(self) -> str:
        """Its name; without one, its first words."""
        return self.fields.get("name") or _first_line(self.body)[:60].strip()

    @property
    def description(self) -> str:
        """What it says, in a line."""
        return self.fields.get("description") or _first_line(self.body)[:160].strip()

    @property
    def type(self) -> Kind | None:
        """Whom or what it is about."""
        given = self.fields.get("type", "").lower()
        return next((kind for kind in KINDS if kind == given), None)

    @property
    def category(self) -> Category | None:
        """Which of the five kinds of fact it is."""
        given = self.fields.get("category", "").lower()
        return next((one for one in CATEGORIES if one == given), None)

    @property
    def confidence(self) -> float:
        """0.0 to 1.0. What a person wrote without a number is certain."""
        try:
            given = float(self.fields.get("confidence", "1"))
        except ValueError:
            return 1.0
        return min(max(given, 0.0), 1.0) if math.isfinite(given) else 1.0

    @property
    def sources(self) -> tuple[Source, ...]:
        """Where it was said; none if a person wrote it."""
        found = _SOURCE.findall(self.fields.get("source", ""))
        return tuple(Source(session, int(seq or 0)) for session, seq in found)

    @property
    def created(self) -> str:
        """When it was written first, as it says."""
        return self.fields.get("created", "")

    @property
    def updated(self) -> str:
        """When it was changed last, as it says."""
        return self.fields.get("updated", "") or self.created

    @property
    def fact(self) -> str:
        """What holds now: the first line of the body that is not struck through."""
        return _first_line(self.body) or self.description

    @property
    def former(self) -> tuple[tuple[str, str], ...]:
        """What held once, and until which day."""
        return tuple((old, until) for old, until in _OLD.findall(self.body))


def parse(text: str) -> Note:
    """A note from the text of its file."""
    return Note(text)


def compose(
    *,
    name: str,
    description: str,
    body: str,
    type: Kind | None = None,
    category: Category | None = None,
    confidence: float | None = None,
    sources: Sequence[Source] = (),
    created: str = "",
    updated: str = "",
) -> Note:
    """A new note; facts that are not given are left out."""
    given: dict[str, Any] = {
        "name": name,
        "description": description,
        "type": type,
        "category": category,
        "confidence": confidence,
        "source": tuple(sources) or None,
        "created": created or None,
        "updated": updated or None,
    }
    head = [f"{key}: {_shown(value)}" for key, value in given.items() if value is not None]
    return Note("\n".join(("---", *head, "---", "", body.strip(), "")))


def edited(note: Note, *, body: str | None = None, **fields: Any) -> Note:
    """The note with these keys changed (`source` takes a sequence), None takes one away."""
    rows = list(note._rows)
    end = note._end
    if fields and not end:
        rows, end = ["---", "---", *([] if rows[:1] == [""] else [""]), *rows], 1
    break_ = "\r" if end and rows[0].endswith("\r") else ""
    for key, value in fields.items():
        new = [] if value is None else [f"{key}: {_shown(value)}{break_}"]
        for start, stop in _entries(rows, end):
            match = _KEY.match(rows[start])
            if match is not None and match[1].lower() == key:
                if value is not None and note.fields.get(key) == _value(f" {_shown(value)}"):
                    break  # as it is, in the hand of whoever wrote it
                rows[start:stop] = new
                end += len(new) - (stop - start)
                break
        else:
            rows[end:end] = new
            end += len(new)
    if body is not None and body.strip() != note.body:
        rows = [*rows[: end + 1], "", *body.strip().split("\n"), ""] if end else body.split("\n")
    return Note("\n".join(rows))


def struck(text: str, until: str) -> str:
    """A fact that no longer holds, as it is kept."""
    return f"~~{text.replace('~~', '~')}~~ (until {until})"


def _head_end(rows: Sequence[str]) -> int:
    if rows[0].rstrip() != "---":
        return 0
    for number in range(1, min(len(rows), HEAD_LINES)):
        if rows[number].rstrip() == "---":
            return number
    return 0


def _entries(rows: Sequence[str], end: int) -> list[tuple[int, int]]:
    """From which line to which each key goes, with the indented lines that belong to it."""
    found: list[tuple[int, int]] = []
    open_ = False  # whether indented lines belong to the key above
    for number in range(1, end):
        row = rows[number]
        if _KEY.match(row):
            found.append((number, number + 1))
            open_ = True
        elif open_ and row.strip() and (row[0] in " \t" or row.startswith("- ")):
            found[-1] = (found[-1][0], number + 1)
        else:
            open_ = False
    return found


def _value(written: str) -> str:
    """A value without what YAML puts around one."""
    value = written.strip()
    first, _, rest = value.partition("\n")
    if rest and first.strip() in (">", ">-", "|", "|-", ""):
        return " ".join(line.strip() for line in rest.split("\n"))
    if len(value) >= 2 and value[0] == value[-1] == '"':
        try:
            return str(json.loads(value))
        except ValueError:
            return value
    if len(value) >= 2 and value[0] == value[-1] == "'":
        return value[1:-1].replace("''", "'")
    return value


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{min(max(value, 0.0), 1.0):.2f}".rstrip("0").ljust(3, "0")
    if isinstance(value, tuple | list):
        given = [f"{{session: {one.session}, seq: {one.seq}}}" for one in value[:_MOST_SOURCES]]
        return given[0] if len(given) == 1 else f"[{', '.join(given)}]"
    line = " ".join(str(value).split())
    # A quote would be taken for YAML's, and these signs for the beginning of a block.
    return json.dumps(line, ensure_ascii=False) if line[:1] in ("'", '"', ">", "|") else line


def _first_line(text: str) -> str:
    for line in text.split("\n"):
        said = line.strip().lstrip("#").strip()
        if said and not said.startswith("~~"):
            return said
    return ""


def day_of(note: Note, modified: float = 0.0) -> str:
    """The day (UTC) of which a note tells: its own word for it, else that of its file."""
    try:
        return date.fromisoformat(note.updated[:10]).isoformat()
    except ValueError:
        return datetime.fromtimestamp(max(modified, 0.0), UTC).date().isoformat()
