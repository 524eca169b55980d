"""What a memory learns between turns: facts of a session, and order among its notes.

Both ask a model if there is one and go by rules otherwise; whatever a model does, its answer is
checked by the pure half in `everlog.memory`. Nothing here knows of turns: who calls it says when.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime
from typing import Literal, NamedTuple

from everlog.agent.worker_threads import foreign
from everlog.aio import AsyncStore
from everlog.errors import ConflictError
from everlog.ids import epoch_ms, timestamp
from everlog.memory import dream, dream_proposal, extraction, extraction_rules
from everlog.memory.dream_plan import Plan, Summary
from everlog.memory.dream_state import Consolidation
from everlog.memory.facts import Fact
from everlog.memory.memory_directory import Memories
from everlog.model import Message, user
from everlog.ports import Provider, Request
from everlog.session import Session, Store

SECONDS = 120.0  # for one answer
_TOKENS = 4_096  # of one
_SUMMARIES = 50  # sessions whose summaries a dream reads

Clock = Callable[[], float]
Ask = Callable[[str, str], Awaitable[str]]  # system prompt and message → what the model says


def asking(provider: Provider, model: str = "") -> Ask | None:
    """How a model is asked; None for the offline one, which finds nothing."""
    if getattr(provider, "offline", False):
        return None

    async def ask(system: str, text: str) -> str:
        request = Request(
            messages=(user(text),),
            system=system,
            model=model,
            max_tokens=_TOKENS,
            temperature=0.0,
            purpose="summary",
        )
        async with asyncio.timeout(SECONDS):
            return (await foreign(provider.complete(request))).text

    return ask


def today(clock: Clock) -> date:
    """The day (UTC)."""
    return datetime.fromtimestamp(clock(), UTC).date()


# --- facts ----------------------------------------------------------------------------------


class Learnt(NamedTuple):
    """What an extraction came to."""

    facts: tuple[Fact, ...] = ()  # that were not known
    finder: Literal["model", "rules", ""] = ""  # none: a gate was closed
    reason: str = ""  # why it was made, or not
    problem: str = ""  # why a model's answer was not used


class _Looked(NamedTuple):
    verdict: extraction.Verdict
    state: extraction.State
    messages: list[Message]


async def learn(
    store: AsyncStore,
    session: Session,
    memories: Memories,
    ask: Ask | None,
    *,
    clock: Clock = time.time,
    force: bool = False,
) -> Learnt:
    """Look a session through for facts, if its gates are open or it is forced."""
    verdict, state, messages = await store.call(_look, session, memories, force)
    if not verdict.ready:
        return Learnt(reason=verdict.reason)
    new = messages if force else extraction.unseen(messages, state)
    known = await store.call(memories.known)
    finder: Literal["model", "rules"] = "rules"
    found: list[Fact] | None = None
    problem = ""
    if ask is not None:
        try:
            said = await ask(extraction.SYSTEM, await store.call(extraction.request, new, known))
            found = extraction.attributed(extraction.parse(said), new, session.id)
            finder = "model"
        except Exception as error:  # whatever a provider raises: the rules find something too
            problem = f"{type(error).__name__}: {error}"
    if found is None:
        found = await store.call(extraction_rules.extract, new, session.id, known)
    after = extraction.extracted(messages, state)
    facts = await store.call(memories.record, session.id, found, after, today(clock))
    return Learnt(tuple(facts), finder, verdict.reason, problem)


def _look(session: Session, memories: Memories, force: bool) -> _Looked:
    """The gates, cheapest first: a long log is read only when it may be worth it."""
    state = extraction.State()
    if not force:
        count = session.metadata.message_count  # also of those that are deleted
        seen = extraction.Seen(count, extraction.MIN_TOOL_CALLS, first=True, pending=False)
        verdict = extraction.gate(seen)
        if not verdict.ready:
            return _Looked(verdict, state, [])
    state = memories.extraction_state(session.id)
    if not force and state.extraction_count:
        since = session.entries(after=state.last_extracted_message_index)
        calls = sum(len(one.tool_calls) for one in since if isinstance(one, Message))
        seen = extraction.Seen(extraction.MIN_MESSAGES, calls, first=False, pending=False)
        verdict = extraction.gate(seen)
        if not verdict.ready:
            return _Looked(verdict, state, [])
    messages = session.messages()
    verdict = extraction.Verdict(True, "forced")
    if not force:
        verdict = extraction.gate(extraction.observe(messages, state))
    return _Looked(verdict, state, messages)


# --- dreams ---------------------------------------------------------------------------------


def sessions_since(store: Store, agent: str | None, since: int) -> int:
    """How many sessions of an agent had something said after a Unix time; None: of all."""
    return store.list(agent=agent, since=timestamp(since), limit=1).total


def summaries_since(store: Store, agent: str, since: int) -> list[Summary]:
    """The summaries of an agent's sessions since then, the newest sessions first."""
    found: list[Summary] = []
    for listed in store.list(agent=agent, since=timestamp(since), limit=_SUMMARIES):
        summary = Session(store, listed.metadata.id).live().summary
        if summary is not None:
            moment = (epoch_ms(summary.timestamp or "") or 0) / 1000
            day = datetime.fromtimestamp(max(moment, 0), UTC).date()
            found.append(Summary(listed.metadata.id, day, summary.summary))
    return found


class Dream:
    """The consolidation of one memory."""

    def __init__(
        self,
        memories: Memories,
        *,
        clock: Clock = time.time,
        summaries: Callable[[int], list[Summary]] = lambda _: [],
    ) -> None:
        self.memories = memories
        self.files = Consolidation(memories.path, clock)
        self._clock = clock
        self._summaries = summaries  # of the sessions since a Unix time

    async def run(self, ask: Ask | None = None) -> Plan:
        """Make a plan and apply it, under the lock; SessionBusyError if another dream is under way."""
        await asyncio.to_thread(self.files.acquire)
        try:
            return await self.run_locked(ask)
        finally:
            await asyncio.to_thread(self.files.release)

    async def run_locked(self, ask: Ask | None = None) -> Plan:
        """The same, by whoever holds the lock. If somebody writes meanwhile it is planned anew."""
        plan = await self.plan(ask)
        try:
            await asyncio.to_thread(self.memories.apply, plan)
        except ConflictError:
            plan = await self.plan(ask)
            await asyncio.to_thread(self.memories.apply, plan)
        await asyncio.to_thread(self.files.update)
        return plan

    async def plan(self, ask: Ask | None = None) -> Plan:
        """What would be changed now."""
        files = await asyncio.to_thread(self.memories.files)
        since = dream.last_run(self.files.state, self._clock()) or 0
        summaries = await asyncio.to_thread(self._summaries, since)
        day = today(self._clock)
        answer: str | None = None
        if ask is not None and (files or summaries):
            try:
                answer = await ask(
                    dream_proposal.SYSTEM, dream_proposal.request(files, summaries, day)
                )
            except Exception:  # whatever a provider raises: there are rules
                answer = None
        return await asyncio.to_thread(
            lambda: dream.make_plan(files, day, summaries=summaries, since=since, answer=answer)
        )
