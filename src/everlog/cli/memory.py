"""`everlog memory`: read, write and consolidate a memory by hand."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from everlog.cli import output
from everlog.cli.options import (
    chosen_home,
    command,
    complete_agent,
    limit_option,
    open_chosen_store,
    open_session,
    session_argument,
)
from everlog.model import Category

if TYPE_CHECKING:
    from everlog.memory.file_memory import FileMemory
    from everlog.memory.notes import MemoryFile
    from everlog.ports.memory import Ask
    from everlog.session import Store

CATEGORIES = get_args(Category)
F = TypeVar("F", bound=Callable[..., Any])


def memory_options(function: F) -> F:
    """Add `--agent NAME` and `--project DIR`, which select a memory."""
    agent_option = click.option(
        "--agent",
        metavar="NAME",
        default="main",
        show_default=True,
        help="Use the memory of this agent.",
        shell_complete=complete_agent,
    )
    project_option = click.option("--project", metavar="DIR", help="Use the memory of the project in DIR instead.")
    return agent_option(project_option(function))


def chosen_memory(agent: str, project: str | None, store: Store | None = None) -> FileMemory:
    """Return the memory that the user selected; with a store, it can extract and dream."""
    from pathlib import Path

    from everlog.memory.file_memory import FileMemories

    memories = FileMemories(chosen_home(), store.port if store else None)
    if project is not None:
        return memories.open_project(str(Path(project).expanduser().absolute()))
    return memories.open(agent)


@command()
@memory_options
def show(agent: str, project: str | None, as_json: bool) -> None:
    """Show MEMORY.md, as agents see it, and list the notes."""
    memory = chosen_memory(agent, project)
    index, files, facts = memory.contents()
    pending = len(facts)
    notes = [_note_json(file) for file in files]
    if as_json:
        name = str(memory.path.relative_to(chosen_home()))
        output.print_json({"memory": name, "index": index, "notes": notes, "facts": pending})
        return
    if index.strip():
        print(output.safe(index.strip()), end="\n\n")
    if not notes and not pending:
        output.info("this memory is empty")
        return
    head = ("NOTE", "CATEGORY", "CONFIDENCE", "AGE", "BY")
    rows = [
        (
            note["file"],
            note["category"] or "–",
            f"{note['confidence']:.0%}",
            note["age"],
            "a person" if note["byPerson"] else "everlog",
        )
        for note in notes
    ]
    if rows:
        output.print_table(head, rows, right=("CONFIDENCE",), elastic="NOTE")
    if pending:
        output.info(f"{output.plural(pending, 'extracted fact')}: the next dream makes notes of it")


@command()
@click.argument("words", metavar="QUERY…", nargs=-1, required=True)
@limit_option(1_000, 10, "notes, and this many sessions")
@memory_options
def search(words: tuple[str, ...], limit: int, agent: str, project: str | None, as_json: bool) -> None:
    """Search notes, extracted facts and messages."""
    import msgspec

    query = " ".join(words)
    matches = chosen_memory(agent, project).search(query, limit)
    with open_chosen_store() as store, output.progress("indexing new messages") as on_progress:
        criteria: dict[str, Any] = {} if project else {"agent": agent}
        sessions = store.search(query, limit=limit, progress=on_progress, **criteria)
    if as_json:
        notes = [{"file": note.file, "text": note.text, "day": note.day, "session": note.session} for note in matches]
        output.print_json({"notes": notes, "sessions": msgspec.to_builtins(sessions)})
        return
    for note in matches:
        print(f"{note.file}  {note.day}  {output.one_line(note.text)}")
    for session in sessions.results:
        for hit in session.hits[:1]:
            label = f"{session.session} #{hit.seq}  {hit.timestamp[:10]}"
            print(f"{label}  {output.one_line(hit.snippet)}")
    if not matches and not sessions.results:
        output.info("no matches")


@command()
@click.argument("text")
@click.option("--category", type=click.Choice(CATEGORIES), help="Set the kind of fact.")
@click.option("--name", default="", help="Name the note; default: its first words.")
@click.option("--description", default="", help="Set its line in MEMORY.md; default: the text.")
@memory_options
def add(
    *, text: str, category: Any, name: str, description: str, agent: str, project: str | None, as_json: bool
) -> None:
    """Add a note. It counts as written by a person, so no dream changes it."""
    from everlog.ports.memory import NoteEdit

    edit = NoteEdit(text=text, category=category, name=name, description=description, by_person=True)
    file = chosen_memory(agent, project).edit(edit)
    output.print_answer({"file": file}, file, as_json)


@command()
@click.argument("note")
@memory_options
def edit(note: str, agent: str, project: str | None, as_json: bool) -> None:
    """Edit a note in your editor, or replace it by piped input. NOTE is its file or exact name."""
    from everlog.memory.note_edits import find
    from everlog.ports.memory import NoteEdit

    memory = chosen_memory(agent, project)
    file = find(memory.files(), note)
    if output.is_terminal(sys.stdin):
        text = click.edit(file.text, extension=".md")
        if text is None:
            answer = {"file": file.path, "changed": False}
            return output.print_answer(answer, f"{file.path} was not changed", as_json)
    else:
        text = "" if sys.stdin is None else sys.stdin.buffer.read().decode("utf-8", "replace")
    path = memory.edit(NoteEdit(note=file.path, text=text, is_whole_file=True, by_person=True, version=file.version))
    output.print_answer({"file": path, "changed": text != file.text}, f"{path} was changed", as_json)


@command()
@session_argument
def extract(session_id: str, as_json: bool) -> None:
    """Extract facts from a session into the memory of its agent.

    Works on sessions of any length. Uses the agent's model, or rules if that is the offline model.
    """
    import asyncio

    with open_session(session_id) as session:
        store, agent = session.store, session.metadata.agent
        memory = chosen_memory(agent, None, store)
        extraction = asyncio.run(memory.extract(session.id, _find_model(store, agent), force=True))
    if extraction.problem:
        output.warn(f"the model could not be used: {extraction.problem}")
    if as_json:
        facts = [
            {
                "category": fact.category,
                "text": fact.text,
                "confidence": fact.confidence,
                "seq": fact.source.seq if fact.source else 0,
            }
            for fact in extraction.facts
        ]
        output.print_json({"sessionId": session.id, "finder": extraction.finder, "facts": facts})
        return
    for fact in extraction.facts:
        print(f"{fact.category}  {fact.confidence:.0%}  {output.one_line(fact.text)}")
    if not extraction.facts:
        output.info("no new facts")


@command()
@click.option("--force", is_flag=True, help="Run now, even if no run is due yet.")
@click.option("--dry-run", is_flag=True, help="Print the changes without making them.")
@memory_options
def dream(force: bool, dry_run: bool, agent: str, project: str | None, as_json: bool) -> None:
    """Consolidate a memory.

    Facts become notes. Duplicates are merged; when two facts contradict, the newer one wins.
    Without --force or --dry-run it runs only when due: by default a day and five sessions after the
    last run. `everlog memory undo` reverts the changes.
    """
    import asyncio

    from everlog.wire.responses import DreamResult

    with open_chosen_store() as store:
        memory = chosen_memory(agent, project, store)
        if not (force or dry_run):
            settings = store.settings.memory
            verdict = memory.check_dream(min_hours=settings.dream_hours, min_sessions=settings.dream_sessions)
            if not verdict.ready:
                answer = DreamResult.of(None, verdict.reason)
                return output.print_answer(answer, f"not due: {verdict.reason} (--force runs it anyway)", as_json)
        plan = asyncio.run(memory.dream(_find_model(store, agent), dry_run=dry_run))
    if as_json:
        output.print_json(DreamResult.of(plan, dry_run=dry_run))
        return None
    print(output.safe(plan.report()))
    if plan.changes:
        output.info("nothing was changed" if dry_run else "everlog memory undo reverts this")
    return None


@command()
@memory_options
def undo(agent: str, project: str | None, as_json: bool) -> None:
    """Undo the last change: a dream, or an edit of a note.

    Refused, and nothing is changed, if one of the files was edited since.
    """
    undone = chosen_memory(agent, project).undo()
    if as_json:
        output.print_json({"id": undone.id, "files": undone.paths, "report": undone.report})
        return
    print("undone:")
    print(output.safe(undone.report))


@command()
@click.option("--yes", is_flag=True, help="Delete without asking.")
@memory_options
def clear(yes: bool, agent: str, project: str | None, as_json: bool) -> int:
    """Delete all notes of a memory and their history permanently. Sessions stay."""
    memories = chosen_memory(agent, project)
    paths = sorted(file.path for file in memories.files())
    if paths and not yes:
        if not output.is_terminal(sys.stdin):
            raise click.UsageError("deleting needs --yes when stdin is not a terminal")
        for path in paths:
            output.info(path)
        label = f"{output.plural(len(paths), 'file')} of {memories.path}"
        if not click.confirm(f"Delete {label} permanently?", err=True):
            output.info("nothing was deleted")
            return 1
    deleted = memories.clear()
    if as_json:
        output.print_json({"deleted": deleted})
        return 0
    for path in deleted:
        print(f"deleted {output.one_line(path)}")
    if not deleted:
        output.info("this memory is empty")
    return 0


def _find_model(store: Store, agent: str) -> Ask | None:
    """Return the model of an agent, or None if it is offline or cannot be used."""
    from everlog.agent.memory_hook import make_ask
    from everlog.errors import SettingsError

    model = store.settings.model_of(agent)
    if model == "offline":
        return None
    try:
        return make_ask(store.provider(model), model)
    except SettingsError as error:
        output.info(f"using rules instead of a model: {error}")
        return None


def _note_json(file: MemoryFile) -> dict[str, Any]:
    note = file.note
    return {
        "file": file.path,
        "name": note.name,
        "description": note.description,
        "category": note.category,
        "confidence": note.confidence,
        "updated": note.updated,
        "age": file.age(time.time()),
        "byPerson": not file.generated,
    }
