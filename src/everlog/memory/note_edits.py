"""Single notes that a person or an agent writes and takes away, each with its line in the index.

Both files change together, in a plan of one note: it is in the history and can be undone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import date
from typing import TypeVar

from everlog.errors import ConflictError, FormatError, NotFoundError
from everlog.memory import index_file, note_text
from everlog.memory.dream_plan import Change, Plan
from everlog.memory.facts import Category, Source, inert, is_command, same
from everlog.memory.memory_directory import Memories
from everlog.memory.note_files import MemoryFile, file_name, is_note

LONGEST = 20_000  # characters of a note
_NAME, _DESCRIPTION = 60, 160  # characters
_TRIES = 5

T = TypeVar("T")


def add(
    memories: Memories,
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
    """Write a note and return its file; FormatError if it says nothing, or commands its reader.

    What is known already is not written twice. A person's note is never rewritten by a dream.
    """
    body = text.strip()[:LONGEST] if by_person else inert(text)
    if not body:
        raise FormatError("there is nothing to remember: the text is empty")
    if not by_person and is_command(body):
        raise FormatError("this reads as a command to whoever reads the memory, not as a fact")
    first = inert(body, _DESCRIPTION)
    called = inert(name, 80) or inert(first, _NAME)

    def write() -> str:
        files = memories.files()
        for one in files:
            if is_note(one.path) and not name and same(note_text.parse(one.text).fact, body):
                return one.path
        made = note_text.compose(
            name=called,
            description=inert(description, 300) or first,
            body=body,
            type="user" if category == "preference" else "project" if category else None,
            category=category,
            confidence=confidence,
            sources=(source,) if source else (),
            created=today.isoformat(),
            updated=today.isoformat(),
        )
        path = file_name(called, [one.path for one in files])
        line = index_file.pointer(made.name, path, made.description)
        before = _index(files)
        after = index_file.extended(before or "", [line])
        plan = Plan(
            (
                Change(path, None, made.text, ("remembered",)),
                Change(note_text.INDEX, before, after, (f"new: {path}",)),
            )
        )
        memories.apply(plan, by_person=by_person)
        return path

    return _again(write)


def change(memories: Memories, name: str, text: str, *, expected_text: str | None = None) -> str:
    """Give a file another text, by the hand of a person; returns its path.

    `expect`: what it said when it was read; ConflictError if it says something else now.
    """

    def write() -> str:
        files = memories.files()
        one = find(files, name)
        if expected_text is not None and one.text != expected_text:
            raise ConflictError(f"{one.path} was changed by somebody else", hint="edit it again")
        changes = [Change(one.path, one.text, text, ("edited",))]
        before = _index(files)
        if before is not None and is_note(one.path):
            old, new = (note_text.parse(said) for said in (one.text, text))
            after = index_file.replaced(
                before,
                index_file.pointer(old.name, one.path, old.description),
                index_file.pointer(new.name, one.path, new.description),
            )
            changes.append(Change(note_text.INDEX, before, after, (f"{one.path} was edited",)))
        kept = tuple(each for each in changes if each.before != each.after)
        memories.apply(Plan(kept), by_person=True)
        return one.path

    return _again(write)


def version(text: str) -> str:
    """What tells one text of a file from another, for whoever read it and will change it."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def revise(
    memories: Memories,
    name: str,
    text: str,
    today: date,
    *,
    called: str = "",
    description: str = "",
    category: Category | None = None,
    expected_version: str = "",
) -> str:
    """Let a note say something else, by the hand of a person; returns its file.

    What is not given is taken from the text, as when a note is written. Keys of its front matter
    that are not asked for stay. `expect`: its `version` when it was read; ConflictError if it says
    something else now.
    """
    body = text.replace("\r\n", "\n").strip()[:LONGEST]
    if not body:
        raise FormatError("the note would be empty", hint="nothing was changed")
    files = memories.files()
    one = find([each for each in files if is_note(each.path)], name)
    if expected_version and version(one.text) != expected_version:
        hint = "open it again and make the change there"
        raise ConflictError(f"{one.path} was changed by somebody else", hint=hint)
    first = inert(body, _DESCRIPTION)
    made = note_text.edited(
        note_text.parse(one.text),
        body=body,
        name=inert(called, 80) or inert(first, _NAME),
        description=inert(description, 300) or first,
        category=category,
        updated=today.isoformat(),
    )
    return change(memories, one.path, made.text, expected_text=one.text)


def forget(memories: Memories, name: str) -> str:
    """Take a note away, by its file or its exact name; returns its file. NotFoundError if none."""

    def remove() -> str:
        files = memories.files()
        one = find([each for each in files if is_note(each.path)], name)
        changes = [Change(one.path, one.text, None, ("forgotten",))]
        before = _index(files)
        if before is not None:
            gone = {each.number for each in index_file.pointers(before) if each.file == one.path}
            after = index_file.without(before, gone)
            if after != before:
                changes.append(Change(note_text.INDEX, before, after, (f"{one.path} is gone",)))
        memories.apply(Plan(tuple(changes)))
        return one.path

    return _again(remove)


def find(files: Sequence[MemoryFile], name: str) -> MemoryFile:
    """The file of a memory that is meant: by its path, else the only note of that name."""
    wanted = name.strip()
    for one in files:
        if wanted and one.path in (wanted, f"{wanted}.md"):
            return one
    called = [
        one
        for one in files
        if is_note(one.path) and note_text.parse(one.text).name.casefold() == wanted.casefold()
    ]
    if len(called) > 1:
        paths = ", ".join(one.path for one in called)
        raise ConflictError(
            f"several notes are called {wanted[:80]!r}: {paths}", hint="name the file"
        )
    if not called:
        raise NotFoundError(
            f"there is no note {wanted[:80]!r} in this memory",
            hint="everlog memory show lists them",
        )
    return called[0]


def _index(files: Sequence[MemoryFile]) -> str | None:
    return next((one.text for one in files if one.path == note_text.INDEX), None)


def _again(write: Callable[[], T]) -> T:
    """Do something to the files as they are, again if somebody wrote meanwhile."""
    for _ in range(_TRIES):
        try:
            return write()
        except ConflictError as error:
            if "paths" not in error.facts:
                raise
            last = error
    raise last
