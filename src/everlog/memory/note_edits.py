"""Edits of single notes by a person or an agent, each with its line in the index.

Both files change together, in a plan of one note: it is in the history and can be undone. A note
that is forgotten leaves the history as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date

from everlog.errors import ConflictError, FormatError, NotFoundError
from everlog.memory import index_file, notes
from everlog.memory.facts import is_command, is_same_fact, sanitize_line
from everlog.memory.notes import INDEX_FILE, MemoryFile, Note, is_note, select_notes
from everlog.model import MAX_NOTE_LENGTH
from everlog.ports.memory import Change, DreamPlan, NoteEdit

_MIN_TEXT = 4  # characters; shorter lines, such as "---", are in every file


def plan_edit(files: Sequence[MemoryFile], edit: NoteEdit, today: date) -> tuple[str, DreamPlan]:
    """Return the file of the edited note, and the changes to it and to the index.

    A fact that is known already is not written twice, unless it gets a name of its own.
    """
    if edit.note is None:
        return _plan_new_note(files, edit, today)
    if edit.text is not None and not edit.text.strip():
        raise FormatError("the note would be empty", hint="nothing was changed")
    file = find(files if edit.is_whole_file else select_notes(files), edit.note)
    if edit.version and file.version != edit.version:
        hint = "edit it again" if edit.is_whole_file else "open it again and make the change there"
        raise ConflictError(f"{file.path} was changed by somebody else", hint=hint)
    if edit.text is None:
        return file.path, _make_plan(files, file.path, None, "forgotten", f"{file.path} was removed")
    text = edit.text
    if not edit.is_whole_file:
        body = text.replace("\r\n", "\n").strip()[:MAX_NOTE_LENGTH]
        name, description = _describe(edit, body)
        text = notes.edit(
            file.note, body=body, name=name, description=description, category=edit.category, updated=today.isoformat()
        ).text
    return file.path, _make_plan(files, file.path, text, "edited", f"{file.path} was edited")


def _plan_new_note(files: Sequence[MemoryFile], edit: NoteEdit, today: date) -> tuple[str, DreamPlan]:
    text = edit.text or ""
    body = text.strip()[:MAX_NOTE_LENGTH] if edit.by_person else sanitize_line(text)
    if not body:
        raise FormatError("nothing to remember: the text is empty")
    if not edit.by_person and is_command(body):
        raise FormatError("this reads as a command to the reader of the memory, not as a fact")
    for file in select_notes(files):
        if not edit.name and is_same_fact(file.note.fact, body):
            return file.path, DreamPlan()
    name, description = _describe(edit, body)
    note = notes.compose(
        name=name,
        description=description,
        type="user" if edit.category == "preference" else "project" if edit.category else None,
        category=edit.category,
        confidence=edit.confidence,
        source=(edit.source,) if edit.source else (),
        created=today.isoformat(),
        updated=today.isoformat(),
        body=body,
    )
    path = notes.file_name(name, [file.path for file in files])
    return path, _make_plan(files, path, note.text, "remembered", f"new: {path}")


def _describe(edit: NoteEdit, body: str) -> tuple[str, str]:
    """Return the name and the description of a note."""
    summary = sanitize_line(body, 160)
    return sanitize_line(edit.name, 80) or sanitize_line(summary, 60), sanitize_line(edit.description, 300) or summary


def texts_of(path: str, versions: Iterable[str]) -> tuple[str, ...]:
    """Return the texts by which versions of a note are found elsewhere: path, names, descriptions and lines."""
    texts = {path}
    for note in map(Note, versions):
        former = (fact for fact, _ in note.former_facts)
        texts |= {text.strip() for text in (note.name, note.description, *note.body.splitlines(), *former)}
    return tuple(sorted(text for text in texts if len(text) >= _MIN_TEXT))


def _make_plan(files: Sequence[MemoryFile], path: str, after: str | None, reason: str, index_reason: str) -> DreamPlan:
    """Return the change of a file, with the one that keeps its line in the index in step."""
    before = notes.find_text(files, path)
    changes = [Change(path, before, after, (reason,))]
    index = notes.find_text(files, INDEX_FILE)
    if is_note(path) and (index is not None or before is None):
        changes.append(Change(INDEX_FILE, index, _update_index(index or "", path, before, after), (index_reason,)))
    return DreamPlan(tuple(change for change in changes if change.before != change.after))


def _update_index(index: str, path: str, before: str | None, after: str | None) -> str:
    if after is None:
        pointers = index_file.parse_pointers(index)
        return index_file.remove_lines(index, {pointer.number for pointer in pointers if pointer.file == path})
    line = index_file.note_pointer(Note(after), path)
    if before is None:
        return index_file.append_pointers(index, [line])
    return index_file.replace_line(index, index_file.note_pointer(Note(before), path), line)


def find(files: Sequence[MemoryFile], name: str) -> MemoryFile:
    """Return the file with this path, else the only note with this name."""
    query = name.strip()
    for file in files:
        if query and file.path in (query, f"{query}.md"):
            return file
    matches = [file for file in select_notes(files) if file.note.name.casefold() == query.casefold()]
    if len(matches) > 1:
        paths = ", ".join(file.path for file in matches)
        raise ConflictError(f"several notes are called {query[:80]!r}: {paths}", hint="give the file name")
    if not matches:
        hint = "list them with everlog memory show"
        raise NotFoundError(f"there is no note {query[:80]!r} in this memory", hint=hint)
    return matches[0]
