"""`everlog memory`: what outlives sessions, read and written by hand."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from everlog.cli import output
from everlog.cli.memory_options import chosen_memory, whose_options
from everlog.cli.options import chosen_root, json_option, open_root, root_option

if TYPE_CHECKING:
    from everlog.memory.note_files import MemoryFile

CATEGORIES = ("preference", "project", "pattern", "decision", "constraint")


@click.command()
@whose_options
@json_option
@root_option()
def show(agent: str, project: str | None, as_json: bool) -> None:
    """Print MEMORY.md, as agents are shown it, and list the notes."""
    from everlog.memory.extracted_file import FILE, read
    from everlog.memory.index_file import cut
    from everlog.memory.note_files import is_note
    from everlog.memory.note_text import INDEX

    memories = chosen_memory(agent, project)
    files = memories.files()
    texts = {one.path: one.text for one in files}
    index = cut(texts.get(INDEX, ""))
    waiting = len(read(texts.get(FILE, "")))
    found = [_note(one) for one in files if is_note(one.path)]
    if as_json:
        name = str(memories.path.relative_to(chosen_root()))
        output.put_json({"memory": name, "index": index, "notes": found, "facts": waiting})
        return
    if index.strip():
        print(output.safe(index.strip()), end="\n\n")
    if not found and not waiting:
        output.note("this memory is empty")
        return
    head = ("NOTE", "CATEGORY", "SURE", "AGE", "BY")
    rows = [
        (
            one["file"],
            one["category"] or "–",
            f"{one['confidence']:.0%}",
            one["age"],
            "a person" if one["byPerson"] else "everlog",
        )
        for one in found
    ]
    if rows:
        output.put_table(head, rows, right=("SURE",), elastic="NOTE")
    if waiting:
        output.note(f"{output.plural(waiting, 'extracted fact')} will be notes after a dream")


@click.command()
@click.argument("words", metavar="QUERY…", nargs=-1, required=True)
@click.option("--limit", type=click.IntRange(1, 1_000), default=10, show_default=True)
@whose_options
@json_option
@root_option()
def search(
    words: tuple[str, ...], limit: int, agent: str, project: str | None, as_json: bool
) -> None:
    """Find notes, extracted facts and what was said in sessions."""
    import msgspec

    from everlog.memory.note_ranking import best, items

    query = " ".join(words)
    known = items(chosen_memory(agent, project).files())
    found = best(known, query, limit)
    with open_root() as store, output.progress("taking in what is new") as tell:
        which: dict[str, Any] = {} if project else {"agent": agent}
        sessions = store.search(query, limit=limit, progress=tell, **which)
    if as_json:
        told = [
            {"file": one.file, "text": one.text, "day": one.day, "session": one.session}
            for one in found
        ]
        output.put_json({"notes": told, "sessions": msgspec.to_builtins(sessions)})
        return
    for one in found:
        print(f"{one.file}  {one.day}  {output.one_line(one.text)}")
    for each in sessions.results:
        for hit in each.hits[:1]:
            place = f"{each.session} #{hit.seq}  {hit.timestamp[:10]}"
            print(f"{place}  {output.one_line(hit.snippet)}")
    if not found and not sessions.results:
        output.note("nothing was found")


@click.command()
@click.argument("text")
@click.option("--category", type=click.Choice(CATEGORIES), help="What kind of fact it is.")
@click.option("--name", default="", help="What the note is called; by default its first words.")
@click.option("--description", default="", help="Its line in MEMORY.md; by default the text.")
@whose_options
@json_option
@root_option()
def add(
    *,
    text: str,
    category: Any,
    name: str,
    description: str,
    agent: str,
    project: str | None,
    as_json: bool,
) -> None:
    """Write a note. It counts as written by hand: no dream changes it."""
    from everlog.memory import note_edits
    from everlog.memory.extraction_run import today

    file = note_edits.add(
        chosen_memory(agent, project),
        text,
        today(time.time),
        category=category,
        name=name,
        description=description,
        by_person=True,
    )
    _say(file, {"file": file}, as_json)


@click.command()
@click.argument("note")
@whose_options
@json_option
@root_option()
def edit(note: str, agent: str, project: str | None, as_json: bool) -> None:
    """Change a note in your editor, or to what is piped in. Takes its file or its exact name."""
    from everlog.errors import FormatError
    from everlog.memory import note_edits

    memories = chosen_memory(agent, project)
    found = note_edits.find(memories.files(), note)
    if output.on_terminal(sys.stdin):
        text = click.edit(found.text, extension=".md")
        if text is None:
            _say(f"{found.path} was not changed", {"file": found.path, "changed": False}, as_json)
            return
    else:
        text = "" if sys.stdin is None else sys.stdin.buffer.read().decode("utf-8", "replace")
    if not text.strip():
        raise FormatError("the note would be empty", hint="nothing was changed")
    path = note_edits.change(memories, found.path, text, expected_text=found.text)
    _say(f"{path} was changed", {"file": path, "changed": text != found.text}, as_json)


@click.command()
@whose_options
@json_option
@root_option()
def undo(agent: str, project: str | None, as_json: bool) -> None:
    """Take back the last dream, or the last note that was written, changed or forgotten.

    Refused, and nothing is changed, if one of the files was edited since.
    """
    taken = chosen_memory(agent, project).undo()
    if as_json:
        output.put_json({"id": taken.id, "files": taken.paths, "report": taken.report})
        return
    print("took back:")
    print(output.safe(taken.report))


@click.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
@whose_options
@json_option
@root_option()
def clear(yes: bool, agent: str, project: str | None, as_json: bool) -> int:
    """Delete all notes of a memory and their history, for good. Sessions stay."""
    memories = chosen_memory(agent, project)
    paths = sorted(one.path for one in memories.files())
    if paths and not yes:
        if not output.on_terminal(sys.stdin):
            raise click.UsageError("deleting for good needs --yes when nobody can be asked")
        for path in paths:
            output.note(path)
        what = f"{output.plural(len(paths), 'file')} of {memories.path}"
        if not click.confirm(f"Delete {what} for good?", err=True):
            output.note("nothing was deleted")
            return 1
    gone = memories.clear()
    if as_json:
        output.put_json({"deleted": gone})
        return 0
    for path in gone:
        print(f"deleted {output.one_line(path)}")
    if not gone:
        output.note("this memory is empty")
    return 0


def _note(one: MemoryFile) -> dict[str, Any]:
    from everlog.memory.note_files import age
    from everlog.memory.note_text import parse

    note = parse(one.text)
    return {
        "file": one.path,
        "name": note.name,
        "description": note.description,
        "category": note.category,
        "confidence": note.confidence,
        "updated": note.updated,
        "age": age(one.modified, time.time()),
        "byPerson": not one.ours,
    }


def _say(text: str, answer: dict[str, object], as_json: bool) -> None:
    if as_json:
        output.put_json(answer)
    else:
        print(output.one_line(text))
