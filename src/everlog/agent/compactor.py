"""A compaction run: plan, let a model summarise, record.

Nothing is locked while the model works: what is appended meanwhile is kept, since it comes after
what was planned. The record is committed only if no rewind, tombstone or compaction came in
between; otherwise everything is planned again. A compaction that would not make the context
smaller is not recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from everlog.agent.worker_threads import foreign
from everlog.aio import AsyncSession
from everlog.context.build import Context, assemble
from everlog.context.compaction import prompts
from everlog.context.compaction.breaker import Breaker, breaker
from everlog.context.compaction.extractive import summarise
from everlog.context.compaction.file_operations import FileOps, file_ops, tags, without_tags
from everlog.context.compaction.plan import Plan, budget, plan, trigger
from everlog.context.compaction.summary import NEXT_BLOCK, cleaned, pieces
from everlog.context.tokens import Counter, choose_window, estimate, estimate_text
from everlog.errors import ConflictError, EverlogError
from everlog.log.backward_read import Live, closed, compacted
from everlog.model import Compaction, Event, Message, user
from everlog.ports import Lease, Provider, Request
from everlog.session import Session
from everlog.settings import CompactionSettings
from everlog.wire.events import CompactEnd, CompactFailed, CompactStart, Sink, ignore

ATTEMPTS = 5  # plans, if the session changes under every one of them
SUMMARY_SECONDS = 180.0
EXTRACTIVE_TOKENS = 4_000
FILLED = 0.85  # of the window for a summary call: our count may be short
PROMPT_TOKENS = 1_000  # of the instructions around a conversation
DRY_RUN = "dry run"
_NO_TROUBLE = Breaker()
_NOT_SMALLER = "the summary would not be smaller than what it replaces"


class Outcome(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What a compaction run came to."""

    compacted: bool
    reason: str | None = None  # why nothing was recorded
    record: Compaction | None = None
    messages: int = 0  # that were summarised
    tokens: int = 0  # of the context before
    tokens_freed: int = 0
    summariser: str | None = None  # "model" or "extractive"
    problem: str | None = None  # what went wrong on the way


class _SummaryFailed(Exception):
    """A model was asked and gave no summary."""


class Summary(msgspec.Struct, frozen=True):
    """A summary and where it comes from; no text: there is none."""

    text: str
    summariser: str
    breaker: Breaker
    problem: str = ""


class Draft(msgspec.Struct, frozen=True):
    """A plan with what it was made from."""

    live: Live  # the session as it is, its summary stale or not
    plan: Plan
    ops: FileOps
    context: Context  # as it is
    covered: int  # tokens of what is summarised


class Compactor:
    """Compacts sessions with one provider under one set of settings."""

    def __init__(
        self,
        settings: CompactionSettings,
        *,
        provider: Provider | None = None,
        model: str = "",
        window: int | None = None,
        emit: Sink = ignore,
        count: Counter = estimate_text,
        seconds: float = SUMMARY_SECONDS,
    ) -> None:
        self.settings = settings
        self.provider = provider
        self.model = settings.model or model  # that summarises
        self.window = window or window_of(settings, provider, model)
        self.emit = emit
        self.count = count
        self.seconds = seconds

    @property
    def trigger(self) -> int:
        """The size of context above which a session is compacted."""
        return trigger(self.settings, self.window)

    async def run(
        self,
        session: AsyncSession,
        lease: Lease,
        *,
        manual: bool = False,
        squeeze: bool = False,
        focus: str = "",
    ) -> Outcome:
        """Compact a session once, or say why not.

        `manual`: asked for by a person, so neither the breaker nor a lack of progress counts.
        `squeeze`: a provider refused the context, so keep less than usual.
        """
        known: tuple[object, Summary] | None = None  # a conflict elsewhere costs no second call
        for _ in range(ATTEMPTS):
            draft = await session.store.call(self._draft, session.sync, squeeze)
            if isinstance(draft, str):
                if known is not None:  # it was begun, so its end must be told
                    return self._failed(session, draft)
                return Outcome(False, draft)
            state = breaker(draft.live)
            if not manual and (reason := self._gave_up(state, squeeze)):
                return Outcome(False, reason)
            seen = [(one.seq, one.id) for one in draft.plan.covered], draft.plan.previous
            if known is None:
                self.emit(
                    CompactStart(
                        session_id=session.id,
                        strategy=draft.plan.strategy,
                        messages=draft.plan.cut,
                        tokens=draft.context.tokens,
                    )
                )
            if known is None or known[0] != seen:
                known = seen, await self._summary(session, draft, state, manual, focus)
            try:
                return await self._commit(session, lease, draft, known[1], manual)
            except ConflictError:
                continue
        return self._failed(session, "the session changed during every attempt")

    def _gave_up(self, state: Breaker, squeeze: bool) -> str:
        if state.stopped and not squeeze:
            return "the last compactions made too little room"
        if state.open and self.provider is not None and not self.settings.fallback:
            return f"no model is asked for summaries after {state.failures} failures in a row"
        return ""

    def preview(self, session: Session, focus: str = "") -> Outcome:
        """What a compaction would record, with the built-in summary; nothing is written."""
        draft = self._draft(session, False)
        if isinstance(draft, str):
            return Outcome(False, draft)
        record = self._record(draft, self._extract(draft, focus))
        freed = self._freed(draft, record)
        return Outcome(
            False,
            DRY_RUN if self._worth_it(draft, freed) else _NOT_SMALLER,
            record,
            draft.plan.cut,
            draft.context.tokens,
            freed,
            "extractive",
        )

    def _draft(self, session: Session, squeeze: bool) -> Draft | str:
        # Under the lease nothing is open any more; without it, this is how it would be.
        live = base = closed(session.live())
        at_least = 0
        if live.stale and live.summary is not None:
            base = closed(session.live(accept_stale=False))
            at_least = live.summary.first_kept_seq
        made = plan(
            base, self.settings, self.window, at_least=at_least, squeeze=squeeze, count=self.count
        )
        if isinstance(made, str):
            return made
        previous = made.previous
        before = FileOps()
        if previous is not None:
            before = FileOps(frozenset(previous.read_files), frozenset(previous.modified_files))
        return Draft(
            live=live,
            plan=made,
            ops=file_ops(made.covered, before),
            context=self._context(live),
            covered=self._size(made.covered),
        )

    def _context(self, live: Live) -> Context:
        budget = self.settings.tool_result_budget
        return assemble(live, window=self.window, tool_result_budget=budget, count=self.count)

    def _size(self, messages: Iterable[Message]) -> int:
        return sum(estimate(message, self.count) for message in messages)

    async def _summary(
        self, session: AsyncSession, draft: Draft, state: Breaker, manual: bool, focus: str
    ) -> Summary:
        """A model's summary, or the built-in one if there is no model or it failed."""
        problem = ""
        if self.provider is None:
            state = Breaker() if manual else state
        elif manual or not state.open:
            try:
                text = await self._ask(self.provider, session, draft, focus)
            except _SummaryFailed as failed:
                problem = str(failed)
                state = Breaker(state.failures + 1, state.stalled)
            else:
                state = Breaker(0, state.stalled)
                if self._worth_it(draft, self._freed(draft, self._record(draft, text))):
                    return Summary(text, "model", state)
                problem = _NOT_SMALLER
        else:
            problem = f"no model is asked for summaries after {state.failures} failures in a row"
        if self.provider is not None and not self.settings.fallback:
            return Summary("", "model", state, problem)
        text = await session.store.call(self._extract, draft, focus)
        return Summary(text, "extractive", state, problem)

    def _extract(self, draft: Draft, focus: str) -> str:
        plan, previous = draft.plan, draft.plan.previous
        limit = min(EXTRACTIVE_TOKENS, budget(self.settings, self.window) // 4)
        limit = min(limit, max(draft.covered // 2, 400))
        return summarise(
            plan.covered,
            strategy=plan.strategy,
            previous="" if previous is None else previous.summary,
            ops=draft.ops,
            focus=focus,
            limit=limit,
            count=self.count,
        )

    async def _ask(
        self, provider: Provider, session: AsyncSession, draft: Draft, focus: str
    ) -> str:
        plan = draft.plan
        previous = "" if plan.previous is None else without_tags(plan.previous.summary)
        window = self.window
        if self.settings.model:
            window = choose_window(self.model, provider=provider.window(self.model))
        room = window - min(self.settings.max_tokens, window // 4)
        limit = max(int(room * FILLED) - PROMPT_TOKENS - self.count(previous), 1_000)
        blocks = plan.strategy == "rounds"
        texts = await session.store.call(
            pieces, plan.strategy, plan.covered, limit // 4 if blocks else limit, self.count
        )
        made: list[str] = []
        for number, text in enumerate(texts):
            asked = prompts.request(
                plan.strategy,
                text,
                previous=previous,
                focus=focus,
                split=plan.split and number == len(texts) - 1,
            )
            answer = await self._answer(provider, asked, len(texts) if blocks else 1)
            made.append(answer)
            previous = "" if blocks else answer
        if blocks:
            return NEXT_BLOCK.join(made)
        if plan.strategy == "structured" and (files := tags(draft.ops)):
            return f"{made[-1]}\n\n{files}"
        return made[-1]

    async def _answer(self, provider: Provider, asked: str, shares: int) -> str:
        """One summary; a structured one without its headings is asked for once more."""
        strategy = self.settings.strategy
        messages: tuple[Message, ...] = (user(asked),)
        for _ in range(2):
            request = Request(
                messages=messages,
                system=prompts.SYSTEM[strategy],
                model=self.model,
                max_tokens=max(self.settings.max_tokens // shares, 512),
                temperature=0.0,
                purpose="summary",
            )
            try:
                async with asyncio.timeout(self.seconds):
                    reply = await foreign(provider.complete(request))
            except TimeoutError as error:
                raise _SummaryFailed("the summary took too long") from error
            except Exception as error:  # whatever a provider raises is its failure
                known = isinstance(error, EverlogError)
                raise _SummaryFailed(str(error) if known else repr(error)) from error
            text = without_tags(cleaned(reply.text))
            if prompts.accepted(strategy, text):
                return text
            messages = (*messages, reply, user(prompts.AGAIN))
        raise _SummaryFailed("the summary came twice without its headings")

    def _record(self, draft: Draft, summary: str) -> Compaction:
        return Compaction(
            strategy=draft.plan.strategy,
            first_kept_seq=draft.plan.first_kept_seq,
            summary=summary,
            tokens_before=draft.covered,
            read_files=tuple(sorted(draft.ops.read)),
            modified_files=tuple(sorted(draft.ops.modified)),
        )

    def _freed(self, draft: Draft, record: Compaction) -> int:
        """How many tokens smaller the context gets, by estimate."""
        after = self._context(compacted(draft.live, record))
        return self._size(draft.context.messages) - self._size(after.messages)

    async def _commit(
        self, session: AsyncSession, lease: Lease, draft: Draft, summary: Summary, manual: bool
    ) -> Outcome:
        """Record the summary with the breaker behind it. ConflictError: plan again."""
        guard = draft.plan.guard
        record = self._record(draft, summary.text)
        freed = self._freed(draft, record)
        useless = not summary.text or not self._worth_it(draft, freed)
        stalled = not manual and (useless or draft.context.tokens - freed > self.trigger)
        before, state = breaker(draft.live), summary.breaker
        failed = state.failures > before.failures  # then that is what counts
        state = Breaker(state.failures, state.stalled + (not failed) if stalled else 0)
        if useless:
            if state != before:
                await session.append(state.event(), lease=lease)
            return self._failed(session, summary.problem or _NOT_SMALLER, state)
        batch: list[Compaction | Event] = [record]
        if state != Breaker() or state != before:
            batch.append(state.event())
        stored = (await session.append_many(batch, no_marker_after=guard, lease=lease))[0]
        assert isinstance(stored, Compaction)
        self.emit(
            CompactEnd(
                session_id=session.id,
                seq=stored.seq,
                tokens_freed=freed,
                summariser=summary.summariser,
                problem=summary.problem,
            )
        )
        return Outcome(
            True,
            None,
            stored,
            draft.plan.cut,
            draft.context.tokens,
            freed,
            summary.summariser,
            summary.problem or None,
        )

    def _worth_it(self, draft: Draft, freed: int) -> bool:
        """Whether the context shrinks; a summary that tells of deleted messages goes anyway."""
        return freed > 0 or bool(draft.live.stale)

    def _failed(self, session: AsyncSession, reason: str, state: Breaker = _NO_TROUBLE) -> Outcome:
        self.emit(CompactFailed(session_id=session.id, error=reason, failures=state.failures))
        return Outcome(False, reason=reason, problem=reason)


def window_of(settings: CompactionSettings, provider: Provider | None, model: str) -> int:
    """The model's window: as set, else as its provider says, else as the table knows it."""
    stated = provider.window(model) if provider is not None else None
    return choose_window(model, setting=settings.window, provider=stated)
