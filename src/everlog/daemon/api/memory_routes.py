"""`/api/memory`: notes, dreams and undo of an agent's memory."""

from __future__ import annotations

from collections.abc import Sequence

from litestar import Controller, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody
from msgspec.structs import asdict

from everlog.daemon.api.session_lookup import unquote_segment
from everlog.daemon.error_responses import ERROR_RESPONSES
from everlog.errors import NotFoundError
from everlog.ids import timestamp
from everlog.log.line_codec import replace_surrogates
from everlog.memory.file_memory import FileMemory
from everlog.memory.memory_directory import LISTING_LIMIT
from everlog.memory.notes import MemoryFile, Note
from everlog.memory.transaction import HistoryEntry
from everlog.ports.memory import NoteEdit
from everlog.runtime.runtime import Runtime
from everlog.wire.requests import DreamRequest, NewNote, NoteRevision
from everlog.wire.responses import AgentMemory, DreamResult, FactSource, MemoryChange, NoteFile, SavedNote, UndoResult


class MemoryRoutes(Controller):
    """Memory of agents."""

    path = "/api/memory"
    tags = ("memory",)

    @get("/", responses=ERROR_RESPONSES)
    async def read_memory(self, runtime: NamedDependency[Runtime], agent: FromQuery[str | None] = None) -> AgentMemory:
        """Return the index and the notes of an agent, by default of the default agent."""
        memory = open_memory(runtime, agent)

        def read() -> AgentMemory:
            index, notes, _ = memory.contents()
            files = [to_note_file(file) for file in notes[:LISTING_LIMIT]]
            return AgentMemory(agent=memory.path.name, index=replace_surrogates(index), notes=files)

        return await runtime.store.call(read)

    @post("/", status_code=200, responses=ERROR_RESPONSES)
    async def write_note(
        self, runtime: NamedDependency[Runtime], data: JSONBody[NewNote], agent: FromQuery[str | None] = None
    ) -> SavedNote:
        """Write a note as a person, so that no dream changes it."""
        return await _edit_note(runtime, agent, None, data)

    @delete("/{file:str}", responses=ERROR_RESPONSES)
    async def delete_note(
        self, runtime: NamedDependency[Runtime], file: FromPath[str], agent: FromQuery[str | None] = None
    ) -> None:
        """Delete a note by its file or its exact name; `undo` restores it."""
        await runtime.store.call(open_memory(runtime, agent).edit, NoteEdit(note=unquote_segment(file)))

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
        return await _edit_note(runtime, agent, unquote_segment(file), data)

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
        name = open_memory(runtime, agent).path.name
        assert runtime.memory is not None
        plan, refused = await runtime.memory.dream_now(name, force=options.force, dry_run=options.dry_run)
        return DreamResult.of(plan, refused, dry_run=options.dry_run)

    @post("/undo", status_code=200, responses=ERROR_RESPONSES)
    async def undo(self, runtime: NamedDependency[Runtime], agent: FromQuery[str | None] = None) -> UndoResult:
        """Undo the last dream, or the last note that was written, edited or deleted.

        It is refused, and nothing changes, if one of the files was edited since.
        """
        undone = await runtime.store.call(open_memory(runtime, agent).undo)
        return UndoResult(id=undone.id, files=list(undone.paths), report=replace_surrogates(undone.report))


def open_memory(runtime: Runtime, agent: str | None) -> FileMemory:
    """Return the memory of an agent, by default of the default agent."""
    if runtime.memories is None:
        raise NotFoundError("this store keeps no memory")
    return runtime.memories.open(agent or runtime.router.default_agent)


async def _edit_note(runtime: Runtime, agent: str | None, note: str | None, data: NewNote) -> SavedNote:
    """Write or change a note as a person."""
    edit = NoteEdit(note=note, by_person=True, **asdict(data))
    return SavedNote(file=await runtime.store.call(open_memory(runtime, agent).edit, edit))


def to_memory_changes(history: Sequence[HistoryEntry]) -> list[MemoryChange]:
    """Convert the history of a memory to a response, newest first."""
    return [
        MemoryChange(
            id=entry.id,
            at=timestamp(entry.manifest.at),
            report=replace_surrogates(entry.manifest.report),
            files=[replace_surrogates(item.path) for item in entry.manifest.items],
            undoes=entry.manifest.undoes,
            undone=entry.undone,
        )
        for entry in reversed(history)
    ]


def to_note_file(file: MemoryFile) -> NoteFile:
    """Convert a note to a response; invalid UTF-8 becomes U+FFFD."""
    note = Note(replace_surrogates(file.text))
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
        version=file.version,
    )
