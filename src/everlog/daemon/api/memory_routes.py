"""`/api/memory`: the notes of an agent."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Annotated

from litestar import Controller, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody
from msgspec import Meta

from everlog.daemon.api.requests import Asked, unquoted
from everlog.daemon.error_responses import PROBLEMS
from everlog.errors import NotFoundError
from everlog.ids import timestamp
from everlog.log.line_codec import clean
from everlog.memory import note_edits
from everlog.memory.dream_plan import Plan
from everlog.memory.extraction_run import today
from everlog.memory.facts import Category
from everlog.memory.memory_directory import Memories
from everlog.memory.note_files import MemoryFile
from everlog.memory.note_text import parse
from everlog.memory.transaction import Entry
from everlog.runtime.runtime import Runtime
from everlog.wire.responses import (
    Dreamed,
    FileChange,
    MemoryChange,
    Noted,
    NoteFile,
    Remembered,
    SaidAt,
    TakenBack,
)


class NewNote(Asked, frozen=True, kw_only=True):
    """`POST /api/memory`."""

    text: Annotated[str, Meta(min_length=1, max_length=note_edits.LONGEST)]
    category: Category | None = None
    name: Annotated[str, Meta(max_length=200)] = ""
    description: Annotated[str, Meta(max_length=1_000)] = ""


class Revision(Asked, frozen=True, kw_only=True):
    """`PUT /api/memory/{file}`: the whole note; what is not given is taken from its text."""

    text: Annotated[str, Meta(min_length=1, max_length=note_edits.LONGEST)]
    category: Category | None = None
    name: Annotated[str, Meta(max_length=200)] = ""
    description: Annotated[str, Meta(max_length=1_000)] = ""
    version: str = ""  # as it was read; empty: whatever it says now


class DreamOf(Asked, frozen=True, kw_only=True):
    """`POST /api/memory/dream`."""

    force: bool = False  # now, whatever the time and the number of sessions
    dry_run: bool = False  # only tell what would be changed


class MemoryRoutes(Controller):
    """What outlives sessions."""

    path = "/api/memory"
    tags = ("memory",)

    @get("/", responses=PROBLEMS)
    async def remembered(
        self, runtime: NamedDependency[Runtime], agent: FromQuery[str | None] = None
    ) -> Remembered:
        """The index and the notes of an agent; without a name, of the default one."""
        memories = memories_of(runtime, agent)

        def read() -> Remembered:
            return Remembered(
                agent=memories.path.name,
                index=clean(memories.shown()),
                notes=[note_file(one) for one in memories.listed()],
            )

        return await runtime.store.call(read)

    @post("/", status_code=200, responses=PROBLEMS)
    async def write(
        self,
        runtime: NamedDependency[Runtime],
        data: JSONBody[NewNote],
        agent: FromQuery[str | None] = None,
    ) -> Noted:
        """Write a note, as a person does: no dream changes it."""
        file = await runtime.store.call(
            note_edits.add,
            memories_of(runtime, agent),
            data.text,
            today(time.time),
            category=data.category,
            name=data.name,
            description=data.description,
            by_person=True,
        )
        return Noted(file=file)

    @delete("/{file:str}", responses=PROBLEMS)
    async def forget(
        self,
        runtime: NamedDependency[Runtime],
        file: FromPath[str],
        agent: FromQuery[str | None] = None,
    ) -> None:
        """Take a note away, by its file or its exact name; `undo` brings it back."""
        memories = memories_of(runtime, agent)
        await runtime.store.call(note_edits.forget, memories, unquoted(file))

    @put("/{file:str}", responses=PROBLEMS)
    async def revise(
        self,
        runtime: NamedDependency[Runtime],
        file: FromPath[str],
        data: JSONBody[Revision],
        agent: FromQuery[str | None] = None,
    ) -> Noted:
        """Let a note say something else, as a person does; by its file or its exact name.

        With the `version` that was read, a note that somebody changed since is a conflict.
        """
        path = await runtime.store.call(
            note_edits.revise,
            memories_of(runtime, agent),
            unquoted(file),
            data.text,
            today(time.time),
            called=data.name,
            description=data.description,
            category=data.category,
            expected_version=data.version,
        )
        return Noted(file=path)

    @get("/changes", responses=PROBLEMS)
    async def changes(
        self, runtime: NamedDependency[Runtime], agent: FromQuery[str | None] = None
    ) -> list[MemoryChange]:
        """What was done to a memory, newest first: dreams, notes, and what was taken back."""
        return changes_of(await runtime.store.call(memories_of(runtime, agent).history))

    @post("/dream", status_code=200, responses=PROBLEMS)
    async def dream(
        self,
        runtime: NamedDependency[Runtime],
        agent: FromQuery[str | None] = None,
        data: JSONBody[DreamOf | None] = None,
    ) -> Dreamed:
        """Put a memory in order: facts become notes, doubles one, contradictions are resolved.

        Only if it is time, unless `force`; `dryRun` only tells what would be changed.
        """
        asked = data or DreamOf()
        memories = memories_of(runtime, agent)
        assert runtime.memory is not None
        name = memories.path.name
        plan, refused = await runtime.memory.dream_now(
            name, force=asked.force, dry_run=asked.dry_run
        )
        return dreamed(plan, refused, dry_run=asked.dry_run)

    @post("/undo", status_code=200, responses=PROBLEMS)
    async def undo(
        self, runtime: NamedDependency[Runtime], agent: FromQuery[str | None] = None
    ) -> TakenBack:
        """Take back the last dream, or the last note that was written, changed or forgotten.

        Refused, and nothing is changed, if one of the files was edited since.
        """
        taken = await runtime.store.call(memories_of(runtime, agent).undo)
        return TakenBack(id=taken.id, files=list(taken.paths), report=clean(taken.report))


def memories_of(runtime: Runtime, agent: str | None) -> Memories:
    if runtime.memory is None:
        raise NotFoundError("this store forgets: there is no memory")
    return runtime.memory.memories(agent or runtime.router.default_agent)


def changes_of(history: Iterable[Entry]) -> list[MemoryChange]:
    """The history of a memory as an answer."""
    entries = list(history)
    undone = {one.manifest.undoes for one in entries}
    return [
        MemoryChange(
            id=one.id,
            at=timestamp(one.manifest.at),
            report=clean(one.manifest.report),
            files=[clean(item.path) for item in one.manifest.items],
            undoes=one.manifest.undoes,
            undone=one.id in undone,
        )
        for one in reversed(entries)
    ]


def dreamed(plan: Plan | None, refused: str, *, dry_run: bool) -> Dreamed:
    """A plan as an answer."""
    if plan is None:
        return Dreamed(dreamed=False, reason=refused, changes=[], remarks=[])
    return Dreamed(
        dreamed=not dry_run,
        reason="a dry run changes nothing" if dry_run else f"by {plan.maker}",
        changes=[
            FileChange(file=clean(one.path), kind=one.kind, reasons=clean(list(one.reasons)))
            for one in plan.changes
        ],
        remarks=clean(list(plan.remarks)),
    )


def note_file(one: MemoryFile) -> NoteFile:
    """A note as an answer; bytes that are no UTF-8 are told as U+FFFD."""
    note = parse(clean(one.text))
    return NoteFile(
        file=clean(one.path),
        name=note.name,
        description=note.description,
        text=note.body,
        category=note.category,
        confidence=note.confidence,
        updated=note.updated,
        by_person=not one.ours,
        sources=[SaidAt(session=said.session, seq=said.seq) for said in note.sources],
        version=note_edits.version(one.text),
    )
