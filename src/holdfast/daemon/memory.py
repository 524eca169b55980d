"""`/api/memory`: the notes of an agent."""

from __future__ import annotations

import time
from typing import Annotated

from litestar import Controller, delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody
from msgspec import Meta

from holdfast.client.answers import Noted, NoteFile, Remembered
from holdfast.daemon.problems import PROBLEMS
from holdfast.daemon.wire import Asked, unquoted
from holdfast.engine import notes
from holdfast.engine.learning import today
from holdfast.engine.runtime import Runtime
from holdfast.errors import NotFound
from holdfast.memory.facts import Category
from holdfast.memory.files import MemoryFile
from holdfast.memory.notes import parse
from holdfast.stores.memories import Memories


class NewNote(Asked, frozen=True, kw_only=True):
    """`POST /api/memory`."""

    text: Annotated[str, Meta(min_length=1, max_length=notes.LONGEST)]
    category: Category | None = None
    name: Annotated[str, Meta(max_length=200)] = ""
    description: Annotated[str, Meta(max_length=1_000)] = ""


class MemoryRoutes(Controller):
    """What outlives sessions."""

    path = "/api/memory"
    tags = ("memory",)

    @get("/", responses=PROBLEMS)
    async def remembered(
        self, runtime: NamedDependency[Runtime], agent: FromQuery[str | None] = None
    ) -> Remembered:
        """The index and the notes of an agent; without a name, of the default one."""
        memories = _memories(runtime, agent)

        def read() -> Remembered:
            return Remembered(
                agent=memories.path.name,
                index=memories.shown(),
                notes=[_note(one) for one in memories.listed()],
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
            notes.add,
            _memories(runtime, agent),
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
        """Take a note away, by its file or its exact name; it can be undone on the command line."""
        memories = _memories(runtime, agent)
        await runtime.store.call(notes.forget, memories, unquoted(file))


def _memories(runtime: Runtime, agent: str | None) -> Memories:
    if runtime.memory is None:
        raise NotFound("this store forgets: there is no memory")
    return runtime.memory.memories(agent or runtime.router.default_agent)


def _note(one: MemoryFile) -> NoteFile:
    note = parse(one.text)
    return NoteFile(
        file=one.path,
        name=note.name,
        description=note.description,
        text=note.body,
        category=note.category,
        confidence=note.confidence,
        updated=note.updated,
        by_person=not one.ours,
    )
