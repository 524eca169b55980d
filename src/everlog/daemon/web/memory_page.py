"""`/memory`: what an agent knows beyond its sessions, and what was done to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from litestar import Request, Response, get
from litestar.di import NamedDependency
from litestar.params import FromQuery
from markupsafe import Markup

from everlog.daemon.api.memory_routes import changes_of, dreamed, memories_of, note_file
from everlog.daemon.web.list_page import address_of
from everlog.daemon.web.templating import answer
from everlog.errors import EverlogError, InvalidIdError
from everlog.ids import timestamp
from everlog.log.line_codec import clean
from everlog.memory import extracted_file
from everlog.memory.extraction_run import sessions_since
from everlog.memory.facts import CATEGORIES, Fact
from everlog.memory.index_file import cut
from everlog.memory.memory_directory import LISTED, Memories
from everlog.memory.memory_hook import Remembering
from everlog.memory.note_edits import LONGEST
from everlog.memory.note_files import is_note
from everlog.memory.note_text import INDEX
from everlog.render.html_text import readable, rendered
from everlog.runtime.runtime import Runtime
from everlog.wire.responses import MemoryChange, NoteFile, SaidAt

CHANGES = 20  # that are shown
FACTS = 200
LONG = 1_500  # characters of a note that are shown unfolded
_WHAT = {
    "remembered": "A note was written",
    "edited": "A note was changed",
    "forgotten": "A note was forgotten",
}


class Origin(msgspec.Struct, frozen=True):
    """Where a fact was said."""

    text: str
    address: str  # empty: the session is gone


class Card(msgspec.Struct, frozen=True):
    """A note as the page shows it."""

    note: NoteFile
    id: str
    call: str
    body: Markup
    origins: list[Origin]

    @property
    def long(self) -> bool:
        """Whether only its description is shown at first."""
        return len(self.note.text) > LONG


class Line(msgspec.Struct, frozen=True):
    """An extracted fact that is no note yet."""

    fact: Fact
    day: str
    origins: list[Origin]


class Past(msgspec.Struct, frozen=True):
    """Something that was done to the memory."""

    change: MemoryChange
    what: str
    lines: list[str]
    next: bool  # an undo would take back this one


class _Read(msgspec.Struct, frozen=True):
    index: str
    cards: list[Card]
    total: int
    lines: list[Line]
    past: list[Past]
    dreamt: str  # when the last dream was
    gate: str  # why no dream comes by itself yet


@get("/memory", include_in_schema=False)
async def memory(
    request: Request[Any, Any, Any],
    runtime: NamedDependency[Runtime],
    agent: FromQuery[str | None] = None,
    preview: FromQuery[str | None] = None,
) -> Response[str]:
    """The view; with `preview`, also what a dream would change now."""
    memories = memories_of(runtime, agent)
    remembering = runtime.memory
    assert remembering is not None
    name = memories.path.name
    read = await runtime.store.call(_read, runtime, memories, remembering)
    plan = None
    if preview:
        made, _ = await remembering.dream_now(name, dry_run=True)
        plan = dreamed(made, "", dry_run=True)
    here = urlencode({"agent": name})
    return answer(
        "memory.html",
        request,
        here="/memory",
        agent=name,
        chips=[
            (one, f"/memory?{urlencode({'agent': one})}")
            for one in await runtime.store.call(_agents, runtime, remembering, name)
        ],
        query=here,
        read=read,
        plan=plan,
        enabled=runtime.settings.memory.enabled,
        categories=CATEGORIES,
        longest=LONGEST,
    )


def _agents(runtime: Runtime, remembering: Remembering, shown: str) -> list[str]:
    """Those who have a memory or may have one."""
    named = {*remembering.agents(), *runtime.settings.agents, runtime.router.default_agent, shown}
    found = []
    for name in sorted(named):
        try:
            remembering.memories(name)
        except InvalidIdError:
            continue  # an agent by such a name remembers nothing
        found.append(name)
    return found


def _read(runtime: Runtime, memories: Memories, remembering: Remembering) -> _Read:
    files = memories.files()
    texts = {one.path: clean(one.text) for one in files}
    titles = _Titles(runtime)
    name = memories.path.name
    notes = [note_file(one) for one in files if is_note(one.path)]
    dream = remembering.dream(memories, name)
    last = dream.files.state.last_consolidated_at
    verdict = dream.files.verdict(
        lambda since: sessions_since(runtime.store.sync, name, since),
        hours=remembering.settings.dream_hours,
        least=remembering.settings.dream_sessions,
    )
    lines = extracted_file.read(texts.get(extracted_file.FILE, ""))
    return _Read(
        index=readable(cut(texts.get(INDEX, "")).strip()),
        cards=[_card(one, name, titles) for one in notes[:LISTED]],
        total=len(notes),
        lines=[
            Line(
                one.fact,
                one.day.isoformat(),
                titles.of([SaidAt(session=said.session, seq=said.seq)])
                if (said := one.fact.source)
                else [],
            )
            for one in lines[:FACTS]
        ],
        past=_past(changes_of(memories.history())),
        dreamt=timestamp(last) if last is not None else "",
        gate="" if verdict.ready else verdict.reason,
    )


def _card(note: NoteFile, agent: str, titles: _Titles) -> Card:
    where = quote(note.file, safe="", errors="replace")
    return Card(
        note=note,
        id=f"note-{where}",
        call=f"/api/memory/{where}?{urlencode({'agent': agent})}",
        body=Markup(rendered(note.text)),
        origins=titles.of(note.sources),
    )


def _past(changes: list[MemoryChange]) -> list[Past]:
    takes = next((one.id for one in changes if not one.undoes and not one.undone), "")
    return [
        Past(
            change=one,
            what=_what(one),
            lines=[line.removeprefix("- ") for line in one.report.split("\n") if line.strip()],
            next=one.id == takes,
        )
        for one in changes[:CHANGES]
    ]


def _what(change: MemoryChange) -> str:
    if change.undoes:
        return "Something was taken back"
    reason = change.report.partition("\n")[0].partition(": ")[2]
    return _WHAT.get(reason, "A dream")


class _Titles:
    """The sessions that facts were said in, each looked up once."""

    def __init__(self, runtime: Runtime) -> None:
        self._port = runtime.store.sync.port
        self._known: dict[str, str | None] = {}

    def of(self, sources: Iterable[SaidAt]) -> list[Origin]:
        """Links to them."""
        return [self._origin(one) for one in sources]

    def _origin(self, source: SaidAt) -> Origin:
        place = f" #{source.seq}" if source.seq else ""
        title = self._title(source.session)
        if title is None:
            return Origin(f"{source.session[:40]}{place} (not there any more)", "")
        at = f"?at={source.seq}#m{source.seq}" if source.seq else ""
        return Origin(f"{title}{place}", f"{address_of(source.session)}{at}")

    def _title(self, session: str) -> str | None:
        if session not in self._known:
            try:
                self._known[session] = self._port.metadata(session).title
            except EverlogError:  # deleted, or a name that a person made up
                self._known[session] = None
        return self._known[session]
