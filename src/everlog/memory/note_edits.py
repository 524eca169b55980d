"""Edits of single notes by a person or an agent, each with its line in the index.

Both files change together, in a plan of one note: it is in the history and can be undone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import date
from typing import TypeVar

from everlog.errors import ConflictError, FormatError, NotFoundError
from everlog.memory import index_file, note_text
from everlog.memory.dream_plan import Change, DreamPlan
from everlog.memory.facts import Category, Source, is_command, is_same_fact, sanitize_line
from everlog.memory.memory_directory import MemoryDirectory
from everlog.memory.note_files import MemoryFile, file_name, is_note
from everlog.memory.note_text import INDEX_FILE
from everlog.model import MAX_NOTE_LENGTH

_MAX_NAME, _MAX_DESCRIPTION = 60, 160  # characters
_ATTEMPTS = 5

T = TypeVar("T")


def add(
    directory: MemoryDirectory,
    text: str,
    today: date,
    *,
    category: Category | None = None,
    name: str = "",
    description: str = "",
    confidence: float | None = None,
    source: Source | None = None,
    by_person: bool = False,
) -> str:
    """Write a note and return its file; FormatError if it is empty or commands its reader.

    A fact that is known already is not written twice. A dream never rewrites a person's note.
    """
    body = text.strip()[:MAX_NOTE_LENGTH] if by_person else sanitize_line(text)
    if not body:
        raise FormatError("nothing to remember: the text is empty")
    if not by_person and is_command(body):
        raise FormatError("this reads as a command to the reader of the memory, not as a fact")
    summary = sanitize_line(body, _MAX_DESCRIPTION)
    note_name = sanitize_line(name, 80) or sanitize_line(summary, _MAX_NAME)

    def write() -> str:
        files = directory.files()
        for file in files:
            note = note_text.parse(file.text)
            if is_note(file.path) and not name and is_same_fact(note.fact, body):
                return file.path
        note = note_text.compose(
            name=note_name,
            description=sanitize_line(description, 300) or summary,
            body=body,
            type="user" if category == "preference" else "project" if category else None,
            category=category,
            confidence=confidence,
            sources=(source,) if source else (),
            created=today.isoformat(),
            updated=today.isoformat(),
        )
        path = file_name(note_name, [file.path for file in files])
        line = index_file.format_pointer(note.name, path, note.description)
        before = _index_text(files)
        after = index_file.append_pointers(before or "", [line])
        plan = DreamPlan(
            (Change(path, None, note.text, ("remembered",)), Change(INDEX_FILE, before, after, (f"new: {path}",)))
        )
        directory.apply(plan, by_person=by_person)
        return path

    return _retry_on_conflict(write)


def replace_text(directory: MemoryDirectory, name: str, text: str, *, expected_text: str | None = None) -> str:
    """Replace the text of a file on behalf of a person; returns its path.

    `expected_text`: its text when it was read; ConflictError if it is different now.
    """

    def write() -> str:
        files = directory.files()
        file = find(files, name)
        if expected_text is not None and file.text != expected_text:
            raise ConflictError(f"{file.path} was changed by somebody else", hint="edit it again")
        changes = [Change(file.path, file.text, text, ("edited",))]
        before = _index_text(files)
        if before is not None and is_note(file.path):
            old, new = (note_text.parse(content) for content in (file.text, text))
            after = index_file.replace_line(
                before,
                index_file.format_pointer(old.name, file.path, old.description),
                index_file.format_pointer(new.name, file.path, new.description),
            )
            changes.append(Change(INDEX_FILE, before, after, (f"{file.path} was edited",)))
        effective = tuple(change for change in changes if change.before != change.after)
        directory.apply(DreamPlan(effective), by_person=True)
        return file.path

    return _retry_on_conflict(write)


def version(text: str) -> str:
    """Return a short digest of a file's text, to detect changes made since it was read."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def revise(
    directory: MemoryDirectory,
    name: str,
    text: str,
    today: date,
    *,
    new_name: str = "",
    description: str = "",
    category: Category | None = None,
    expected_version: str = "",
) -> str:
    """Change a note on behalf of a person; returns its file.

    A missing name or description is derived from the text, as for a new note. Other keys of the
    front matter stay. `expected_version`: its `version` when it was read; ConflictError if it is
    different now.
    """
    body = text.replace("\r\n", "\n").strip()[:MAX_NOTE_LENGTH]
    if not body:
        raise FormatError("the note would be empty", hint="nothing was changed")
    files = directory.files()
    file = find([candidate for candidate in files if is_note(candidate.path)], name)
    if expected_version and version(file.text) != expected_version:
        hint = "open it again and make the change there"
        raise ConflictError(f"{file.path} was changed by somebody else", hint=hint)
    summary = sanitize_line(body, _MAX_DESCRIPTION)
    note = note_text.edit(
        note_text.parse(file.text),
        body=body,
        name=sanitize_line(new_name, 80) or sanitize_line(summary, _MAX_NAME),
        description=sanitize_line(description, 300) or summary,
        category=category,
        updated=today.isoformat(),
    )
    return replace_text(directory, file.path, note.text, expected_text=file.text)


def forget(directory: MemoryDirectory, name: str) -> str:
    """Remove a note by its file or its exact name; returns its file. NotFoundError if none."""

    def remove() -> str:
        files = directory.files()
        file = find([candidate for candidate in files if is_note(candidate.path)], name)
        changes = [Change(file.path, file.text, None, ("forgotten",))]
        before = _index_text(files)
        if before is not None:
            pointers = index_file.parse_pointers(before)
            numbers = {pointer.number for pointer in pointers if pointer.file == file.path}
            after = index_file.remove_lines(before, numbers)
            if after != before:
                changes.append(Change(INDEX_FILE, before, after, (f"{file.path} was removed",)))
        directory.apply(DreamPlan(tuple(changes)))
        return file.path

    return _retry_on_conflict(remove)


def find(files: Sequence[MemoryFile], name: str) -> MemoryFile:
    """Return the file with this path, else the only note with this name."""
    query = name.strip()
    for file in files:
        if query and file.path in (query, f"{query}.md"):
            return file
    notes = [(file, note_text.parse(file.text)) for file in files if is_note(file.path)]
    matches = [file for file, note in notes if note.name.casefold() == query.casefold()]
    if len(matches) > 1:
        paths = ", ".join(file.path for file in matches)
        hint = "give the file name"
        raise ConflictError(f"several notes are called {query[:80]!r}: {paths}", hint=hint)
    if not matches:
        hint = "list them with everlog memory show"
        raise NotFoundError(f"there is no note {query[:80]!r} in this memory", hint=hint)
    return matches[0]


def _index_text(files: Sequence[MemoryFile]) -> str | None:
    return next((file.text for file in files if file.path == INDEX_FILE), None)


def _retry_on_conflict(write: Callable[[], T]) -> T:
    """Call `write`, again if somebody else wrote the files in the meantime."""
    for _ in range(_ATTEMPTS):
        try:
            return write()
        except ConflictError as error:
            if "paths" not in error.facts:
                raise
            last = error
    raise last
