"""Whatever the history: a compaction cuts no pair, loses nothing, and shrinks or says why not."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import everlog
from everlog.agent.compactor import Compactor, Outcome
from everlog.aio import AsyncSession, AsyncStore
from everlog.settings import CompactionSettings
from tests.examples import examples
from tests.histories import Step, append, check_order, steps

WINDOW = 8_000
Strategy = Literal["structured", "rounds", "prose"]


def _compact(session: everlog.Session, strategy: Strategy) -> Outcome:
    chosen = CompactionSettings(strategy=strategy, reserve_tokens=1024, keep_recent_tokens=1024)

    async def run() -> Outcome:
        async with AsyncStore(session.store) as store:
            own = AsyncSession(store, session)
            with await own.lease() as lease:
                await own.close_calls(lease=lease)
                return await Compactor(chosen, window=WINDOW).run(own, lease, manual=True)

    return asyncio.run(run())


@pytest.mark.parametrize("strategy", ["structured", "rounds", "prose"])
@given(steps, st.lists(steps, max_size=2))
@settings(max_examples=examples(120), deadline=None)
def test_no_history_breaks_a_compaction(strategy: Strategy, first: list[Step], more: list[list[Step]]) -> None:
    store = everlog.open_store("memory:")
    session = store.create()
    for part in (first, *more):
        for step in part:
            append(session, step)
        _compact_and_check(session, strategy)


def _compact_and_check(session: everlog.Session, strategy: Strategy) -> None:
    lines = [record.line for record in session.records()]
    before = session.context(window=10_000_000)
    outcome = _compact(session, strategy)
    after = session.context(window=10_000_000)
    records = session.records()

    assert [record.line for record in records[: len(lines)]] == lines, "the log was rewritten"
    check_order(before.messages)
    check_order(after.messages)
    if not outcome.compacted:
        assert outcome.reason
        # Calls that a crash left open may have been closed; nothing else was added.
        assert all(isinstance(one, everlog.Message) for one in records[len(lines) :])
        assert after.tokens <= before.tokens + 1
        return
    record = outcome.record
    assert record is not None and record.strategy == strategy
    assert record.tokens_before > 0
    assert not after.stale
    if not before.stale:
        assert _estimated(after) < _estimated(before), "the context did not shrink"
        assert outcome.tokens_freed > 0
    left_out = {one.seq for one in after.left_out}
    sent = {message.seq for message in after.messages}
    for message in session.view().messages:
        assert message.seq in sent or message.seq < record.first_kept_seq or message.seq in left_out, (
            f"{message.seq} is neither sent nor summarised"
        )


def _estimated(context: everlog.Context) -> int:
    from everlog.context.tokens import estimate

    return sum(estimate(message) for message in context.messages)
