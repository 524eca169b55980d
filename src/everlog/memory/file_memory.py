"""Memory in files: the four verbs of `ports.Memory` on the directories below one home.

    memory/AGENT/               the memory of an agent
    memory/projects/KEY/        the memory of a project, if one was created for its directory

A model is asked if there is one, and rules are used otherwise; a model's answer is always checked
by the pure modules of this package. The caller decides when to extract and to dream.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from everlog.context.fence import Origin
from everlog.context.tokens import TokenCounter, estimate_text
from everlog.errors import ConflictError, EverlogError, InvalidIdError
from everlog.ids import epoch_ms, timestamp
from everlog.log.backward_read import read_live
from everlog.memory import dream, dream_proposal, extraction, note_edits, recall
from everlog.memory.dream_proposal import SessionSummary
from everlog.memory.dream_state import MIN_HOURS, MIN_SESSIONS, DreamStateFiles, last_run
from everlog.memory.extraction import quote_as_data
from everlog.memory.memory_directory import LOCK_SECONDS, MemoryDirectory
from everlog.memory.notes import INDEX_FILE
from everlog.ports import Filter, Store
from everlog.ports.memory import Ask, DreamPlan, ExtractionResult, Fact, NoteEdit, ProblemCallback, RecallQuery, Verdict

_MAX_SUMMARIES = 50  # sessions whose summaries a dream reads
_ATTEMPTS = 5  # to edit a note while somebody else writes

T = TypeVar("T")


class ThreadCall(Protocol):
    """Runs a function in a thread, as `asyncio.to_thread` does."""

    def __call__(self, function: Callable[[], T], /) -> Coroutine[Any, Any, T]: ...


def memory_path(home: Path, *, agent: str = "", project: str = "") -> Path:
    """Return the directory of an agent's or a project's memory; InvalidIdError for a bad name."""
    name = project or agent
    if not re.fullmatch(r"[\w\-][\w\-.@+=]{0,199}", name) or (not project and agent == "projects"):
        raise InvalidIdError(f"{name[:80]!r} cannot be the name of a memory")
    return home / "memory" / "projects" / project if project else home / "memory" / agent


def project_key(directory: str) -> str:
    """Return the name of a project's memory: its directory's name and a hash of the path.

    The hash keeps two directories apart whose names differ only in replaced characters.
    """
    name = re.sub(r"[^\w\-]+", "-", directory.rstrip("/").rpartition("/")[2]).strip("-")[:80]
    digest = hashlib.sha256(os.fsencode(directory.rstrip("/") or "/")).hexdigest()[:12]
    return f"{name or 'root'}-{digest}"


@dataclass(frozen=True, slots=True)
class FileMemories:
    """The memories below one home directory."""

    home: Path
    store: Store | None = None  # has the sessions
    count_tokens: TokenCounter = estimate_text
    clock: Callable[[], float] = time.time
    lock_seconds: float = LOCK_SECONDS
    call: ThreadCall = asyncio.to_thread  # runs what blocks

    def open(self, agent: str, cwd: str | None = None) -> FileMemory:
        """Return the memory of an agent; InvalidIdError for a name that cannot have one.

        With `cwd`, reading includes the memory of the innermost project around that directory.
        """
        project = self._project_around(cwd)
        try:
            return FileMemory(self, memory_path(self.home, agent=agent), agent=agent, project=project)
        except InvalidIdError:
            if project is None:
                raise
            return FileMemory(self, project.path, agent=agent)

    def open_project(self, directory: str) -> FileMemory:
        """Return the memory of the project in a directory, whether it exists or not."""
        return FileMemory(self, self._project_path(directory))

    def agents(self) -> list[str]:
        """Return the agents that have a memory."""
        folder = self.home / "memory"
        entries = list(folder.iterdir()) if folder.is_dir() else []
        return sorted(
            entry.name
            for entry in entries
            if entry.is_dir() and entry.name != "projects" and not entry.name.startswith(".")
        )

    def _project_around(self, cwd: str | None) -> FileMemory | None:
        if not cwd or not cwd.startswith("/") or "\0" in cwd:
            return None
        around = (self._project_path(str(directory)) for directory in (Path(cwd), *Path(cwd).parents))
        return next((FileMemory(self, path) for path in around if path.is_dir()), None)

    def _project_path(self, directory: str) -> Path:
        return memory_path(self.home, project=project_key(directory))


class FileMemory(MemoryDirectory):
    """The memory in one directory: its files, and the four verbs on them."""

    def __init__(
        self, home: FileMemories, path: Path, *, agent: str | None = None, project: FileMemory | None = None
    ) -> None:
        """Set up a memory; nothing is created before the first write.

        `agent` is whose sessions belong to it. `project` is read with it, and never written.
        """
        super().__init__(path, home.clock, home.lock_seconds)
        self.dream_state = DreamStateFiles(path, home.clock)
        self._memories = home
        self._agent = agent
        self._readable = (self, project) if project else (self,)

    def _today(self) -> date:
        return datetime.fromtimestamp(self._clock(), UTC).date()

    @property
    def _store(self) -> Store:
        assert self._memories.store is not None, "this memory was opened without a store"
        return self._memories.store

    # --- recall

    def index(self, on_problem: ProblemCallback | None = None) -> str:
        """Return the indexes of the agent and the project, each below the name of its file."""
        indexes: list[str] = []
        for memory in self._readable:
            with _reported("cannot read the memory", on_problem):
                if text := quote_as_data(memory.truncated_index().strip(), Origin.MEMORY_INDEX):
                    indexes.append(f"[{memory.path.relative_to(self._memories.home)}/{INDEX_FILE}]\n{text}")
        return "\n\n".join(indexes)

    def recall(self, query: RecallQuery, on_problem: ProblemCallback | None = None) -> str:
        """Return notes and passages about a message, or nothing.

        With `on_problem`, what cannot be read is left out and reported, otherwise it is raised: a
        damaged index does not prevent an answer.
        """
        notes: list[str] = []
        passages: list[recall.Passage] = []
        with _reported("recall failed", on_problem):
            files = [file for memory in self._readable for file in memory.files()]
            notes = recall.find_notes(files, query)
        with _reported("recall failed", on_problem):
            passages = list(recall.find_passages(self._store, query, self._agent, self._clock()))
        return recall.format_recall(notes, passages, query, self._memories.count_tokens)

    # --- extract

    async def extract(self, session: str, ask: Ask | None = None, *, force: bool = False) -> ExtractionResult:
        """Extract facts from a session if its gates are open, or always with `force`."""
        call = self._memories.call
        verdict, state, messages = await call(
            lambda: extraction.read_session(self._store, session, self.extraction_state, force=force)
        )
        if not verdict.ready:
            return ExtractionResult(reason=verdict.reason)
        new = messages if force else extraction.unseen_messages(messages, state)
        known_facts = await call(self.known_facts)
        facts: list[Fact] | None = None
        problem = ""
        if ask is not None:
            try:
                request = await call(lambda: extraction.build_request(new, known_facts))
                answer = await ask(extraction.SYSTEM, request)
                facts = extraction.attribute_facts(extraction.parse_answer(answer), new, session)
            except Exception as error:  # any provider error: fall back to the rules
                problem = f"{type(error).__name__}: {error}"
        finder: Literal["model", "rules"] = "rules" if facts is None else "model"
        if facts is None:
            facts = await call(lambda: extraction.extract_by_rules(new, session, known_facts))
        after = extraction.advance_state(messages, state)
        new_facts = await call(partial(self.record_extraction, session, facts, after, self._today()))
        return ExtractionResult(tuple(new_facts), finder, verdict.reason, problem)

    # --- dream

    async def dream(self, ask: Ask | None = None, *, dry_run: bool = False) -> DreamPlan:
        """Consolidate under the lock; SessionBusyError if another dream is running."""
        if dry_run:
            return await self._plan_dream(ask)
        call = self._memories.call
        await call(self.dream_state.acquire)
        try:
            plan = await self._plan_dream(ask)
            try:
                await call(partial(self.apply, plan))
            except ConflictError:  # somebody else wrote in the meantime
                plan = await self._plan_dream(ask)
                await call(partial(self.apply, plan))
            await call(self.dream_state.record_run)
            return plan
        finally:
            await call(self.dream_state.release)

    async def _plan_dream(self, ask: Ask | None) -> DreamPlan:
        call = self._memories.call
        files = await call(self.files)
        since = last_run(self.dream_state.state, self._clock()) or 0
        summaries = await call(partial(self._read_summaries, since))
        today = self._today()
        answer: str | None = None
        if ask is not None and (files or summaries):
            with suppress(Exception):  # any provider error: fall back to the rules
                answer = await ask(dream_proposal.SYSTEM, dream_proposal.build_request(files, summaries, today))
        return await call(lambda: dream.make_plan(files, today, summaries=summaries, since=since, answer=answer))

    def _read_summaries(self, since: int) -> list[SessionSummary]:
        """Return the summaries of the agent's sessions since then, newest sessions first."""
        summaries: list[SessionSummary] = []
        if self._agent is None:
            return summaries
        for row in self._store.list(Filter(agent=self._agent, since=timestamp(since)), limit=_MAX_SUMMARIES):
            summary = read_live(self._store.tail(row.id)).summary
            if summary is not None:
                moment = (epoch_ms(summary.timestamp or "") or 0) / 1000
                day = datetime.fromtimestamp(max(moment, 0), UTC).date()
                summaries.append(SessionSummary(row.id, day, summary.summary))
        return summaries

    def check_dream(self, *, min_hours: float = MIN_HOURS, min_sessions: int = MIN_SESSIONS) -> Verdict:
        """Return whether a dream is due; sessions count from their last message."""

        def count_sessions(since: int) -> int:
            return self._store.list(Filter(agent=self._agent, since=timestamp(since)), limit=1).total

        return self.dream_state.verdict(count_sessions, min_hours=min_hours, min_sessions=min_sessions)

    # --- edit

    def edit(self, edit: NoteEdit) -> str:
        """Edit a note and its line in the index; tries again if somebody else wrote meanwhile."""
        for attempt in range(_ATTEMPTS):
            path, plan = note_edits.plan_edit(self.files(), edit, self._today())
            try:
                self.apply(plan, by_person=edit.by_person)
                break
            except ConflictError:
                if attempt == _ATTEMPTS - 1:
                    raise
        return path


@contextmanager
def _reported(action: str, on_problem: ProblemCallback | None) -> Iterator[None]:
    """Report an error in a `with` block instead of raising it, if there is a callback."""
    try:
        yield
    except EverlogError as error:
        if on_problem is None:
            raise
        on_problem(f"{action}: {error.message}")
