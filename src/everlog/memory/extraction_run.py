"""Extraction runs and dreams: the asynchronous part that asks a model and writes the results.

Both ask a model if there is one and use rules otherwise; a model's answer is always checked by the
pure modules of this package. Nothing here knows about turns: the caller decides when to run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime
from typing import Literal, NamedTuple

from everlog.agent.worker_threads import run_external
from everlog.aio import AsyncStore
from everlog.errors import ConflictError
from everlog.ids import epoch_ms, timestamp
from everlog.memory import dream, dream_proposal, extraction, extraction_rules
from everlog.memory.dream_plan import DreamPlan, SessionSummary
from everlog.memory.dream_state import DreamStateFiles
from everlog.memory.extraction import MIN_MESSAGES, MIN_TOOL_CALLS, SessionActivity, check_gates
from everlog.memory.facts import Fact
from everlog.memory.memory_directory import MemoryDirectory
from everlog.model import Message, user
from everlog.ports import Provider, Request
from everlog.session import Session, Store

ANSWER_SECONDS = 120.0
_MAX_TOKENS = 4_096  # of one answer
_MAX_SUMMARIES = 50  # sessions whose summaries a dream reads

Clock = Callable[[], float]
Ask = Callable[[str, str], Awaitable[str]]  # system prompt and message → answer


def make_ask(provider: Provider, model: str = "") -> Ask | None:
    """Return a function that asks the model; None for the offline model, which extracts nothing."""
    if getattr(provider, "offline", False):
        return None

    async def ask(system: str, text: str) -> str:
        request = Request(
            messages=(user(text),),
            system=system,
            model=model,
            max_tokens=_MAX_TOKENS,
            temperature=0.0,
            purpose="summary",
        )
        async with asyncio.timeout(ANSWER_SECONDS):
            return (await run_external(provider.complete(request))).text

    return ask


def today(clock: Clock) -> date:
    """Return the current day (UTC)."""
    return datetime.fromtimestamp(clock(), UTC).date()


# --- facts ----------------------------------------------------------------------------------


class ExtractionResult(NamedTuple):
    """The outcome of an extraction."""

    facts: tuple[Fact, ...] = ()  # new ones only
    finder: Literal["model", "rules", ""] = ""  # empty: a gate was closed
    reason: str = ""  # why it ran, or not
    problem: str = ""  # why a model's answer was not used


class _SessionCheck(NamedTuple):
    verdict: extraction.Verdict
    state: extraction.ExtractionState
    messages: list[Message]


async def extract_facts(
    store: AsyncStore,
    session: Session,
    directory: MemoryDirectory,
    ask: Ask | None,
    *,
    clock: Clock = time.time,
    force: bool = False,
) -> ExtractionResult:
    """Extract facts from a session if its gates are open, or always with `force`."""
    verdict, state, messages = await store.call(_check_session, session, directory, force)
    if not verdict.ready:
        return ExtractionResult(reason=verdict.reason)
    new = messages if force else extraction.unseen_messages(messages, state)
    known_facts = await store.call(directory.known_facts)
    finder: Literal["model", "rules"] = "rules"
    facts: list[Fact] | None = None
    problem = ""
    if ask is not None:
        try:
            request = await store.call(extraction.build_request, new, known_facts)
            answer = await ask(extraction.SYSTEM, request)
            facts = extraction.attribute_facts(extraction.parse_answer(answer), new, session.id)
            finder = "model"
        except Exception as error:  # any provider error: fall back to the rules
            problem = f"{type(error).__name__}: {error}"
    if facts is None:
        facts = await store.call(extraction_rules.extract, new, session.id, known_facts)
    after = extraction.advance_state(messages, state)
    day = today(clock)
    new_facts = await store.call(directory.record_extraction, session.id, facts, after, day)
    return ExtractionResult(tuple(new_facts), finder, verdict.reason, problem)


def _check_session(session: Session, directory: MemoryDirectory, force: bool) -> _SessionCheck:
    """Check the gates, cheapest first: a long log is read only if it may be worth it."""
    state = extraction.ExtractionState()
    if not force:
        count = session.metadata.message_count  # includes deleted ones
        verdict = check_gates(SessionActivity(count, MIN_TOOL_CALLS, first=True, pending=False))
        if not verdict.ready:
            return _SessionCheck(verdict, state, [])
    state = directory.extraction_state(session.id)
    if not force and state.extraction_count:
        since = session.entries(after=state.last_extracted_message_index)
        calls = sum(len(entry.tool_calls) for entry in since if isinstance(entry, Message))
        verdict = check_gates(SessionActivity(MIN_MESSAGES, calls, first=False, pending=False))
        if not verdict.ready:
            return _SessionCheck(verdict, state, [])
    messages = session.messages()
    verdict = extraction.Verdict(True, "forced")
    if not force:
        verdict = check_gates(extraction.measure_activity(messages, state))
    return _SessionCheck(verdict, state, messages)


# --- dreams ---------------------------------------------------------------------------------


def count_sessions_since(store: Store, agent: str | None, since: int) -> int:
    """Count the sessions of an agent with messages after a Unix time; None: of all agents."""
    return store.list(agent=agent, since=timestamp(since), limit=1).total


def summaries_since(store: Store, agent: str, since: int) -> list[SessionSummary]:
    """Return the summaries of an agent's sessions since then, newest sessions first."""
    summaries: list[SessionSummary] = []
    for row in store.list(agent=agent, since=timestamp(since), limit=_MAX_SUMMARIES):
        summary = Session(store, row.metadata.id).live().summary
        if summary is not None:
            moment = (epoch_ms(summary.timestamp or "") or 0) / 1000
            day = datetime.fromtimestamp(max(moment, 0), UTC).date()
            summaries.append(SessionSummary(row.metadata.id, day, summary.summary))
    return summaries


class Dream:
    """The consolidation of one memory."""

    def __init__(
        self,
        directory: MemoryDirectory,
        *,
        clock: Clock = time.time,
        summaries: Callable[[int], list[SessionSummary]] = lambda _: [],
    ) -> None:
        self.directory = directory
        self.state_files = DreamStateFiles(directory.path, clock)
        self._clock = clock
        self._summaries = summaries  # of the sessions since a Unix time

    async def run(self, ask: Ask | None = None) -> DreamPlan:
        """Plan and apply under the lock; SessionBusyError if another dream is running."""
        await asyncio.to_thread(self.state_files.acquire)
        try:
            return await self.run_locked(ask)
        finally:
            await asyncio.to_thread(self.state_files.release)

    async def run_locked(self, ask: Ask | None = None) -> DreamPlan:
        """Plan and apply; the caller holds the lock. Plans again if somebody else wrote."""
        plan = await self.plan(ask)
        try:
            await asyncio.to_thread(self.directory.apply, plan)
        except ConflictError:
            plan = await self.plan(ask)
            await asyncio.to_thread(self.directory.apply, plan)
        await asyncio.to_thread(self.state_files.record_run)
        return plan

    async def plan(self, ask: Ask | None = None) -> DreamPlan:
        """Return the changes that a dream would make now."""
        files = await asyncio.to_thread(self.directory.files)
        since = dream.last_run(self.state_files.state, self._clock()) or 0
        summaries = await asyncio.to_thread(self._summaries, since)
        day = today(self._clock)
        answer: str | None = None
        if ask is not None and (files or summaries):
            try:
                request = dream_proposal.build_request(files, summaries, day)
                answer = await ask(dream_proposal.SYSTEM, request)
            except Exception:  # any provider error: fall back to the rules
                answer = None
        return await asyncio.to_thread(
            lambda: dream.make_plan(files, day, summaries=summaries, since=since, answer=answer)
        )
