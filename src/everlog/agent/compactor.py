"""A compaction run: plan, let a model summarise, record.

Nothing is locked while the model works: messages appended meanwhile are kept, since they come after
the planned range. The record is committed only if no rewind, tombstone or compaction was appended
in between; otherwise the run plans again. A compaction that would not make the context smaller is
not recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass

import msgspec

from everlog.agent.worker_threads import run_external
from everlog.aio import AsyncSession
from everlog.context.build import Context, assemble
from everlog.context.compaction import prompts
from everlog.context.compaction.breaker import Breaker, read_breaker
from everlog.context.compaction.extractive import summarise
from everlog.context.compaction.file_operations import FileOps, collect_file_ops, format_tags, strip_tags
from everlog.context.compaction.plan import (
    CompactionPlan,
    check_triggers,
    plan_compaction,
    token_budget,
    trigger_tokens,
)
from everlog.context.compaction.summary import NEXT_BLOCK, clean_answer, split_conversation
from everlog.context.tokens import TokenCounter, choose_window, estimate, estimate_text
from everlog.errors import ConflictError, EverlogError
from everlog.log.backward_read import LiveMessages, apply_compaction, close_calls
from everlog.model import Compaction, Event, Message, user
from everlog.ports import Lease, Provider, Request, ToolSpec
from everlog.session import Session
from everlog.settings import CompactionSettings
from everlog.wire.events import CompactEnd, CompactFailed, CompactStart, Sink, ignore_event

ATTEMPTS = 5  # plans per run, if the session changes during each attempt
SUMMARY_SECONDS = 180.0
EXTRACTIVE_TOKENS = 4_000
MAX_FILL = 0.85  # share of the window for a summary call: our estimate may be too low
PROMPT_TOKENS = 1_000  # reserved for the instructions around the conversation
DRY_RUN = "dry run"
_NO_FAILURES = Breaker()
_NOT_SMALLER = "the summary would not be smaller than what it replaces"
_BREAKER_OPEN = "no model is asked for summaries after {} consecutive failures"


class Outcome(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The result of a compaction run."""

    compacted: bool
    reason: str | None = None  # why nothing was recorded
    record: Compaction | None = None
    messages: int = 0  # number summarised
    tokens: int = 0  # of the context before the compaction
    tokens_freed: int = 0
    summariser: str | None = None  # "model" or "extractive"
    problem: str | None = None  # a failure that the run recovered from, or why it failed


class _SummaryError(Exception):
    """The model call for a summary failed."""


class Summary(msgspec.Struct, frozen=True):
    """A summary and its source; an empty text means that there is none."""

    text: str
    summariser: str
    breaker: Breaker
    problem: str = ""


class Draft(msgspec.Struct, frozen=True):
    """A plan with the data that it was made from."""

    live: LiveMessages  # of the session now, whether its summary is stale or not
    plan: CompactionPlan
    ops: FileOps
    context: Context  # before the compaction
    covered: int  # tokens of the messages to summarise


@dataclass(frozen=True)
class Compactor:
    """Compaction of sessions with one provider, one set of settings and one size of contexts."""

    settings: CompactionSettings
    _: KW_ONLY
    provider: Provider | None = None  # None: use the built-in summary
    model: str = ""  # of the agent; the settings may name another one that summarises
    window: int = 0  # of the agent's model; 0: look it up
    emit: Sink = ignore_event
    count: TokenCounter = estimate_text
    seconds: float = SUMMARY_SECONDS  # for one summary
    tools: Sequence[ToolSpec] = ()  # of the agent, as far as they are known

    def __post_init__(self) -> None:
        object.__setattr__(self, "window", self.window or window_of(self.settings, self.provider, self.model))
        object.__setattr__(self, "model", self.settings.model or self.model)
        check_triggers(self.settings, self.window)

    @property
    def trigger(self) -> int:
        """The context size in tokens above which a session is compacted."""
        return trigger_tokens(self.settings, self.window)

    @property
    def limit(self) -> int:
        """The tokens that a context may have: below the trigger everything must be sent."""
        return max(token_budget(self.settings, self.window), self.trigger)

    async def run(
        self, session: AsyncSession, lease: Lease, *, manual: bool = False, squeeze: bool = False, focus: str = ""
    ) -> Outcome:
        """Compact a session once; the outcome says why if nothing was recorded.

        `manual`: requested by a person, so the breaker and the stall count are ignored.
        `squeeze`: the provider refused the context, so keep less than usual.
        """
        cached: tuple[object, Summary] | None = None  # a conflict must not cost a second call
        for _ in range(ATTEMPTS):
            draft = await session.store.call(self._draft, session.sync, squeeze)
            if isinstance(draft, str):
                if cached is not None:  # CompactStart was emitted, so an end must follow
                    return self._fail(session, draft)
                return Outcome(False, draft)
            state = read_breaker(draft.live)
            if not manual and (reason := self._refusal_reason(state, squeeze)):
                return Outcome(False, reason)
            cache_key = [(m.seq, m.id) for m in draft.plan.covered], draft.plan.previous
            if cached is None:
                self.emit(
                    CompactStart(
                        session_id=session.id,
                        strategy=draft.plan.strategy,
                        messages=draft.plan.cut,
                        tokens=draft.context.tokens,
                    )
                )
            if cached is None or cached[0] != cache_key:
                cached = cache_key, await self._summarise(session, draft, state, manual, focus)
            try:
                return await self._commit(session, lease, draft, cached[1], manual)
            except ConflictError:
                continue
        return self._fail(session, "the session changed during every attempt")

    def _refusal_reason(self, state: Breaker, squeeze: bool) -> str:
        if state.is_stopped and not squeeze:
            return "the last compactions freed too little space"
        if state.is_open and self.provider is not None and not self.settings.fallback:
            return _BREAKER_OPEN.format(state.failures)
        return ""

    def preview(self, session: Session, focus: str = "") -> Outcome:
        """Return what a compaction would record with the built-in summary; write nothing."""
        draft = self._draft(session, False)
        if isinstance(draft, str):
            return Outcome(False, draft)
        record = self._record(draft, self._extract(draft, focus))
        freed = self._tokens_freed(draft, record)
        return Outcome(
            False,
            DRY_RUN if self._is_worthwhile(draft, freed) else _NOT_SMALLER,
            record,
            draft.plan.cut,
            draft.context.tokens,
            freed,
            "extractive",
        )

    def _draft(self, session: Session, squeeze: bool) -> Draft | str:
        # Under the lease no tool call is open; without it, close the calls in this copy only.
        live = base = close_calls(session.live())
        covered_before = 0
        if live.stale_seqs and live.summary is not None:
            base = close_calls(session.live(accept_stale=False))
            covered_before = live.summary.first_kept_seq
        new_plan = plan_compaction(
            base, self.settings, self.window, covered_before=covered_before, squeeze=squeeze, count=self.count
        )
        if isinstance(new_plan, str):
            return new_plan
        previous = new_plan.previous
        old_ops = FileOps()
        if previous is not None:
            old_ops = FileOps(frozenset(previous.read_files), frozenset(previous.modified_files))
        return Draft(
            live=live,
            plan=new_plan,
            ops=collect_file_ops(
                new_plan.covered, old_ops, {spec.name: spec.file for spec in self.tools if spec.file is not None}
            ),
            context=self.context(live),
            covered=self._estimate(new_plan.covered),
        )

    def context(self, live: LiveMessages, inject: Sequence[Message] = (), overhead: int = 0) -> Context:
        """Build a context, before it is made to fit; `overhead` are the tokens of prompt and tools."""
        return assemble(
            live,
            window=self.window,
            limit=self.limit,
            overhead=overhead,
            inject=inject,
            tool_result_budget=self.settings.tool_result_budget,
            count=self.count,
        )

    def _estimate(self, messages: Iterable[Message]) -> int:
        return sum(estimate(message, self.count) for message in messages)

    async def _summarise(
        self, session: AsyncSession, draft: Draft, state: Breaker, manual: bool, focus: str
    ) -> Summary:
        """Return a model's summary, or the built-in one if there is no model or it failed."""
        problem = ""
        if self.provider is None:
            state = Breaker() if manual else state
        elif manual or not state.is_open:
            try:
                text = await self._ask_model(self.provider, session, draft, focus)
            except _SummaryError as error:
                problem = str(error)
                state = Breaker(state.failures + 1, state.stalled)
            else:
                state = Breaker(0, state.stalled)
                if self._is_worthwhile(draft, self._tokens_freed(draft, self._record(draft, text))):
                    return Summary(text, "model", state)
                problem = _NOT_SMALLER
        else:
            problem = _BREAKER_OPEN.format(state.failures)
        if self.provider is not None and not self.settings.fallback:
            return Summary("", "model", state, problem)
        text = await session.store.call(self._extract, draft, focus)
        return Summary(text, "extractive", state, problem)

    def _extract(self, draft: Draft, focus: str) -> str:
        plan, previous = draft.plan, draft.plan.previous
        limit = min(EXTRACTIVE_TOKENS, token_budget(self.settings, self.window) // 4)
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

    async def _ask_model(self, provider: Provider, session: AsyncSession, draft: Draft, focus: str) -> str:
        plan = draft.plan
        previous = "" if plan.previous is None else strip_tags(plan.previous.summary)
        window = self.window
        if self.settings.model:
            window = choose_window(self.model, provider=provider.window(self.model))
        room = window - min(self.settings.max_tokens, window // 4)
        limit = max(int(room * MAX_FILL) - PROMPT_TOKENS - self.count(previous), 1_000)
        per_round = plan.strategy == "rounds"
        chunk_limit = limit // 4 if per_round else limit
        texts = await session.store.call(split_conversation, plan.strategy, plan.covered, chunk_limit, self.count)
        summaries: list[str] = []
        for number, text in enumerate(texts):
            prompt = prompts.build_request(
                plan.strategy, text, previous=previous, focus=focus, split=plan.split and number == len(texts) - 1
            )
            answer = await self._request_summary(provider, prompt, len(texts) if per_round else 1)
            summaries.append(answer)
            previous = "" if per_round else answer
        if per_round:
            return NEXT_BLOCK.join(summaries)
        if plan.strategy == "structured" and (files := format_tags(draft.ops)):
            return f"{summaries[-1]}\n\n{files}"
        return summaries[-1]

    async def _request_summary(self, provider: Provider, prompt: str, shares: int) -> str:
        """Request one summary; retry once if a structured one lacks its headings."""
        strategy = self.settings.strategy
        messages: tuple[Message, ...] = (user(prompt),)
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
                    reply = await run_external(provider.complete(request))
            except TimeoutError as error:
                raise _SummaryError("the summary timed out") from error
            except Exception as error:  # a provider may raise anything
                is_own_error = isinstance(error, EverlogError)
                raise _SummaryError(str(error) if is_own_error else repr(error)) from error
            text = clean_answer(reply.text)
            if prompts.is_accepted(strategy, text):
                return text
            messages = (*messages, reply, user(prompts.RETRY))
        raise _SummaryError("two summaries in a row lacked the required headings")

    def _record(self, draft: Draft, summary: str) -> Compaction:
        return Compaction(
            strategy=draft.plan.strategy,
            first_kept_seq=draft.plan.first_kept_seq,
            summary=summary,
            tokens_before=draft.covered,
            read_files=tuple(sorted(draft.ops.read)),
            modified_files=tuple(sorted(draft.ops.modified)),
        )

    def _tokens_freed(self, draft: Draft, record: Compaction) -> int:
        """Estimate how many tokens smaller the context becomes."""
        after = self.context(apply_compaction(draft.live, record))
        return self._estimate(draft.context.messages) - self._estimate(after.messages)

    async def _commit(
        self, session: AsyncSession, lease: Lease, draft: Draft, summary: Summary, manual: bool
    ) -> Outcome:
        """Append the summary and the breaker state; the caller plans again on `ConflictError`."""
        last_marker = draft.plan.last_marker
        record = self._record(draft, summary.text)
        freed = self._tokens_freed(draft, record)
        useless = not summary.text or not self._is_worthwhile(draft, freed)
        stalled = not manual and (useless or draft.context.tokens - freed > self.trigger)
        before, state = read_breaker(draft.live), summary.breaker
        failed = state.failures > before.failures  # counted as a failure, not as a stall too
        state = Breaker(state.failures, state.stalled + (not failed) if stalled else 0)
        if useless:
            if state != before:
                await session.append(state.event(), lease=lease)
            return self._fail(session, summary.problem or _NOT_SMALLER, state)
        batch: list[Compaction | Event] = [record]
        if state != Breaker() or state != before:
            batch.append(state.event())
        stored = (await session.append_many(batch, no_marker_after=last_marker, lease=lease))[0]
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
            True, None, stored, draft.plan.cut, draft.context.tokens, freed, summary.summariser, summary.problem or None
        )

    def _is_worthwhile(self, draft: Draft, freed: int) -> bool:
        """Return whether the context shrinks; a summary of deleted messages is replaced anyway."""
        return freed > 0 or bool(draft.live.stale_seqs)

    def _fail(self, session: AsyncSession, reason: str, state: Breaker = _NO_FAILURES) -> Outcome:
        self.emit(CompactFailed(session_id=session.id, error=reason, failures=state.failures))
        return Outcome(False, reason=reason, problem=reason)


def window_of(settings: CompactionSettings, provider: Provider | None, model: str) -> int:
    """Return the model's window: from the settings, else the provider, else the built-in table."""
    stated = provider.window(model) if provider is not None else None
    return choose_window(model, setting=settings.window, provider=stated)
