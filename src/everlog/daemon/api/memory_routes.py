"""`/api/memory`: notes, dreams and undo of an agent's memory."""

from __future__ import annotations

import time
from collections.abc import Iterable

from litestar import Controller, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody

from everlog.daemon.api.session_lookup import unquote_segment
from everlog.daemon.error_responses import ERROR_RESPONSES
from everlog.errors import NotFoundError
from everlog.ids import timestamp
from everlog.log.line_codec import replace_surrogates
from everlog.memory import note_edits
from everlog.memory.dream_plan import DreamPlan
from everlog.memory.extraction_run import today
from everlog.memory.memory_directory import MemoryDirectory
from everlog.memory.note_files import MemoryFile
from everlog.memory.note_text import parse
from everlog.memory.transaction import HistoryEntry
from everlog.runtime.runtime import Runtime
from everlog.wire.requests import DreamRequest, NewNote, NoteRevision
from everlog.wire.responses import (
    AgentMemory,
    DreamResult,
    FactSource,
    FileChange,
    MemoryChange,
    NoteFile,
    SavedNote,
    UndoResult,
)


class MemoryRoutes(Controller):
    """Memory of agents."""

    path = "/api/memory"
    tags = ("memory",)

    @get("/", responses=ERROR_RESPONSES)
    async def read_memory(self, runtime: NamedDependency[Runtime], agent: FromQuery[str | None] = None) -> AgentMemory:
        """Return the index and the notes of an agent, by default of the default agent."""
        directory = open_memory(runtime, agent)

        def read() -> AgentMemory:
            return AgentMemory(
                agent=directory.path.name,
                index=replace_surrogates(directory.truncated_index()),
                notes=[to_note_file(file) for file in directory.notes()],
            )

        return await runtime.store.call(read)

    @post("/", status_code=200, responses=ERROR_RESPONSES)
    async def write_note(
        self, runtime: NamedDependency[Runtime], data: JSONBody[NewNote], agent: FromQuery[str | None] = None
    ) -> SavedNote:
        """Write a note as a person, so that no dream changes it."""
        file = await runtime.store.call(
            note_edits.add,
            open_memory(runtime, agent),
            data.text,
            today(time.time),
            category=data.category,
            name=data.name,
            description=data.description,
            by_person=True,
        )
        return SavedNote(file=file)

    @delete("/{file:str}", responses=ERROR_RESPONSES)
    async def delete_note(
        self, runtime: NamedDependency[Runtime], file: FromPath[str], agent: FromQuery[str | None] = None
    ) -> None:
        """Delete a note by its file or its exact name; `undo` restores it."""
        directory = open_memory(runtime, agent)
        await runtime.store.call(note_edits.forget, directory, unquote_segment(file))

    @put("/{file:str}", responses=ERROR_RESPONSES)
    async def revise_note(
        self,
        runtime: NamedDependency[Runtime],
        file: FromPath[str],
        data: JSONBody[NoteRevision],
        agent: FromQuery[str | None] = None,
    ) -> SavedNote:
        """Replace a note as a person, by its file or its exact name.

        With the `version` that you read, it is a conflict if the note has changed since.
        """
        path = await runtime.store.call(
            note_edits.revise,
            open_memory(runtime, agent),
            unquote_segment(file),
            data.text,
            today(time.time),
            new_name=data.name,
            description=data.description,
            category=data.category,
            expected_version=data.version,
        )
        return SavedNote(file=path)

    @get("/changes", responses=ERROR_RESPONSES)
    async def list_changes(
        self, runtime: NamedDependency[Runtime], agent: FromQuery[str | None] = None
    ) -> list[MemoryChange]:
        """List the changes to a memory, newest first: dreams, edited notes and undos."""
        return to_memory_changes(await runtime.store.call(open_memory(runtime, agent).history))

    @post("/dream", status_code=200, responses=ERROR_RESPONSES)
    async def dream(
        self,
        runtime: NamedDependency[Runtime],
        agent: FromQuery[str | None] = None,
        data: JSONBody[DreamRequest | None] = None,
    ) -> DreamResult:
        """Consolidate a memory: facts become notes, and duplicates are merged.

        When two facts contradict, the newer one wins. Runs only if a dream is due, unless `force`;
        `dryRun` only reports what would change.
        """
        options = data or DreamRequest()
        directory = open_memory(runtime, agent)
        assert runtime.memory is not None
        name = directory.path.name
        plan, refused = await runtime.memory.dream_now(name, force=options.force, dry_run=options.dry_run)
        return to_dream_result(plan, refused, dry_run=options.dry_run)

    @post("/undo", status_code=200, responses=ERROR_RESPONSES)
    async def undo(self, runtime: NamedDependency[Runtime], agent: FromQuery[str | None] = None) -> UndoResult:
        """Undo the last dream, or the last note that was written, edited or deleted.

        It is refused, and nothing changes, if one of the files was edited since.
        """
        undone = await runtime.store.call(open_memory(runtime, agent).undo)
        return UndoResult(id=undone.id, files=list(undone.paths), report=replace_surrogates(undone.report))


def open_memory(runtime: Runtime, agent: str | None) -> MemoryDirectory:
    if runtime.memory is None:
        raise NotFoundError("this store keeps no memory")
    return runtime.memory.directory(agent or runtime.router.default_agent)


def to_memory_changes(history: Iterable[HistoryEntry]) -> list[MemoryChange]:
    """Convert the history of a memory to a response, newest first."""
    entries = list(history)
    undone = {entry.manifest.undoes for entry in entries}
    return [
        MemoryChange(
            id=entry.id,
            at=timestamp(entry.manifest.at),
            report=replace_surrogates(entry.manifest.report),
            files=[replace_surrogates(item.path) for item in entry.manifest.items],
            undoes=entry.manifest.undoes,
            undone=entry.id in undone,
        )
        for entry in reversed(entries)
    ]


def to_dream_result(plan: DreamPlan | None, refused: str, *, dry_run: bool) -> DreamResult:
    """Convert the plan of a dream to a response."""
    if plan is None:
        return DreamResult(dreamed=False, reason=refused, changes=[], remarks=[])
    return DreamResult(
        dreamed=not dry_run,
        reason="a dry run changes nothing" if dry_run else f"by {plan.maker}",
        changes=[
            FileChange(
                file=replace_surrogates(change.path), kind=change.kind, reasons=replace_surrogates(list(change.reasons))
            )
            for change in plan.changes
        ],
        remarks=replace_surrogates(list(plan.remarks)),
    )


def to_note_file(file: MemoryFile) -> NoteFile:
    """Convert a note to a response; invalid UTF-8 becomes U+FFFD."""
    note = parse(replace_surrogates(file.text))
    return NoteFile(
        file=replace_surrogates(file.path),
        name=note.name,
        description=note.description,
        text=note.body,
        category=note.category,
        confidence=note.confidence,
        updated=note.updated,
        by_person=not file.generated,
        sources=[FactSource(session=source.session, seq=source.seq) for source in note.sources],
        version=note_edits.version(file.text),
    )
