"""`/memory`: the notes, facts, dreams and changes of an agent's memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from litestar import Request, Response, get
from litestar.di import NamedDependency
from litestar.params import FromQuery
from markupsafe import Markup

from everlog.daemon.api.memory_routes import open_memory, to_memory_changes, to_note_file
from everlog.daemon.web.templating import render_response, session_address
from everlog.errors import EverlogError, InvalidIdError
from everlog.ids import timestamp
from everlog.log.line_codec import replace_surrogates
from everlog.memory.dream_state import last_run
from everlog.memory.file_memory import FileMemory
from everlog.memory.memory_directory import LISTING_LIMIT
from everlog.model import MAX_NOTE_LENGTH
from everlog.ports import Store
from everlog.ports.memory import CATEGORIES, Fact, Verdict
from everlog.render.html_text import make_readable, render_markdown
from everlog.runtime.runtime import Runtime
from everlog.wire.responses import DreamResult, FactSource, MemoryChange, NoteFile

MAX_CHANGES = 20
MAX_FACTS = 200
FOLD_CHARACTERS = 1_500  # longer notes are folded
_CHANGE_LABELS = {"remembered": "Note written", "edited": "Note edited", "forgotten": "Note forgotten"}


class SourceLink(msgspec.Struct, frozen=True):
    """A link to the message that a fact comes from."""

    text: str
    address: str  # empty: the session is deleted


class NoteCard(msgspec.Struct, frozen=True):
    """A note as the page shows it."""

    note: NoteFile
    id: str
    api_path: str
    body: Markup
    sources: list[SourceLink]

    @property
    def is_long(self) -> bool:
        """Whether only its description is shown at first."""
        return len(self.note.text) > FOLD_CHARACTERS


class FactLine(msgspec.Struct, frozen=True):
    """An extracted fact that is not in a note yet."""

    fact: Fact
    day: str
    sources: list[SourceLink]


class ChangeEntry(msgspec.Struct, frozen=True):
    """A change to the memory, as the page shows it."""

    change: MemoryChange
    label: str
    lines: list[str]
    is_undo_target: bool  # the next undo reverts this change


class _MemoryView(msgspec.Struct, frozen=True):
    index: str
    cards: list[NoteCard]
    note_count: int
    facts: list[FactLine]
    changes: list[ChangeEntry]
    last_dream: str  # its time; empty: never
    next_dream: str  # when the next automatic one is due; empty: now


@get("/memory", include_in_schema=False)
async def show_memory(
    request: Request[Any, Any, Any],
    runtime: NamedDependency[Runtime],
    agent: FromQuery[str | None] = None,
    preview: FromQuery[str | None] = None,
) -> Response[str]:
    """Show a memory; with `preview`, also what a dream would change now."""
    memory = open_memory(runtime, agent)
    name = memory.path.name
    view = await runtime.store.call(_read_memory, runtime, memory)
    plan = None
    if preview and runtime.memory is not None:
        dream_plan, _ = await runtime.memory.dream_now(name, dry_run=True)
        plan = DreamResult.of(dream_plan, dry_run=True)
    query = urlencode({"agent": name})
    return render_response(
        "memory.html",
        request,
        current_path="/memory",
        agent=name,
        chips=[
            (agent_name, f"/memory?{urlencode({'agent': agent_name})}")
            for agent_name in await runtime.store.call(_agents, runtime, name)
        ],
        query=query,
        view=view,
        plan=plan,
        enabled=runtime.settings.memory.enabled,
        categories=CATEGORIES,
        max_length=MAX_NOTE_LENGTH,
    )


def _agents(runtime: Runtime, selected: str) -> list[str]:
    """Return the agents that have a memory or may have one."""
    assert runtime.memories is not None
    agents = []
    for name in sorted({*runtime.memories.agents(), *runtime.settings.agents, runtime.router.default_agent, selected}):
        with suppress(InvalidIdError):  # not a valid directory name: such an agent has no memory
            runtime.memories.open(name)
            agents.append(name)
    return agents


def _read_memory(runtime: Runtime, memory: FileMemory) -> _MemoryView:
    index, notes, facts = memory.contents()
    link = _make_linker(runtime.store.sync.port)
    state = memory.dream_state.state
    min_hours, min_sessions = runtime.settings.memory.dream_hours, runtime.settings.memory.dream_sessions
    verdict = memory.check_dream(min_hours=min_hours, min_sessions=min_sessions)
    return _MemoryView(
        index=make_readable(replace_surrogates(index).strip()),
        cards=[_note_card(to_note_file(file), memory.path.name, link) for file in notes[:LISTING_LIMIT]],
        note_count=len(notes),
        facts=[
            FactLine(
                line.fact,
                line.day.isoformat(),
                [link(FactSource(session=replace_surrogates(source.session), seq=source.seq))]
                if (source := line.fact.source)
                else [],
            )
            for line in facts[:MAX_FACTS]
        ],
        changes=_change_entries(to_memory_changes(memory.history())),
        last_dream="" if state.last_consolidated_at is None else timestamp(state.last_consolidated_at),
        next_dream=_next_dream(verdict, last_run(state, time.time()), min_hours),
    )


def _next_dream(verdict: Verdict, last: int | None, min_hours: float) -> str:
    """Describe when the next automatic dream is due; empty if it is due now."""
    if verdict.ready:
        return ""
    hours = 0.0 if last is None else min(min_hours, min_hours - (time.time() - last) / 3600)
    if hours > 0:
        return f"Next automatic run in {hours:.1f} h"
    return f"No automatic run yet: {verdict.reason}"


def _note_card(note: NoteFile, agent: str, link: Callable[[FactSource], SourceLink]) -> NoteCard:
    file = quote(note.file, safe="", errors="replace")
    return NoteCard(
        note=note,
        id=f"note-{file}",
        api_path=f"/api/memory/{file}?{urlencode({'agent': agent})}",
        body=Markup(render_markdown(note.text)),
        sources=[link(source) for source in note.sources],
    )


def _change_entries(changes: list[MemoryChange]) -> list[ChangeEntry]:
    undo_target = next((change.id for change in changes if not change.undoes and not change.undone), "")
    return [
        ChangeEntry(
            change=change,
            label=_change_label(change),
            lines=[line.removeprefix("- ") for line in change.report.split("\n") if line.strip()],
            is_undo_target=change.id == undo_target,
        )
        for change in changes[:MAX_CHANGES]
    ]


def _change_label(change: MemoryChange) -> str:
    if change.undoes:
        return "Undo"
    reason = change.report.partition("\n")[0].partition(": ")[2]
    return _CHANGE_LABELS.get(reason, "Dream")


def _make_linker(port: Store) -> Callable[[FactSource], SourceLink]:
    """Return a function that links to the message of a fact; each title is looked up once."""

    @cache
    def find_title(session: str) -> str | None:
        try:
            return port.metadata(session).display_title
        except EverlogError:  # deleted, or an invalid name written by a person
            return None

    def link(source: FactSource) -> SourceLink:
        label = f" #{source.seq}" if source.seq else ""
        title = find_title(source.session)
        if title is None:
            return SourceLink(f"{source.session[:40]}{label} (deleted)", "")
        return SourceLink(f"{title}{label}", session_address(source.session, seq=source.seq))

    return link
