"""What was spent, by day and model: however it is folded, it is the same, and it is all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from everlog.log.fold import MetadataFold, from_builtins, to_builtins
from everlog.log.usage_fold import day_of, session_usage, sum_by_day_and_model, total_usage, usage_weight
from everlog.model import (
    REREAD,
    TURN_END,
    TURN_INTERRUPTED,
    USAGE,
    AnyRecord,
    Event,
    Message,
    Meta,
    Metadata,
    ToolCall,
    Usage,
    UsageRow,
    assistant,
    tool_result,
    user,
)
from tests.examples import examples

ID = "01KGE3H97TGVVEZJ8D2YTM5SQ1"  # of 2026-02-02
counts = st.integers(-5, 10_000)
costs = st.sampled_from([0.0, 0.1, 0.2, 0.7, -1.0])
models = st.sampled_from(["", "a", "b"])
stamps = st.sampled_from(
    [
        "2026-11-16T08:00:00.000Z",
        "2026-11-16T08:00:59.999Z",
        "2026-11-17T00:00:00.000Z",
        "2026-11-16T23:30:00-05:00",
        "2026-11-16T08:00 or soZ",
        "soon",
        "",
    ]
)
usages = st.builds(
    Usage, input_tokens=counts, output_tokens=counts, cache_read_tokens=counts, cache_write_tokens=counts, cost=costs
)


@st.composite
def records(draw: st.DrawFn) -> AnyRecord:
    stamp = draw(stamps)
    kind = draw(st.sampled_from(["user", "run", "assistant", "assistant", "tool", "end", "cut"]))
    if kind == "user":
        return user("u", timestamp=stamp)
    if kind == "run":
        return user("u", run_id="r", timestamp=stamp)
    if kind == "assistant":
        calls = [ToolCall(str(n), "t", {}) for n in range(draw(st.integers(0, 2)))]
        usage = draw(st.none() | usages)
        return assistant(calls, model=draw(models) or None, usage=usage, timestamp=stamp)
    if kind == "tool":
        return tool_result("1", "r", timestamp=stamp)
    if kind == "cut":
        return Event(kind=TURN_INTERRUPTED, data={}, timestamp=stamp)
    return Event(kind=TURN_END, data=_end(draw(usages), draw(counts), draw(models)), timestamp=stamp)


@st.composite
def logs(draw: st.DrawFn) -> list[AnyRecord]:
    made: list[AnyRecord] = draw(st.lists(records(), max_size=40))
    if draw(st.booleans()):
        fork = Meta(set={"forkedFrom": {"id": "x", "seq": 1}})
        made.insert(draw(st.integers(0, len(made))), fork)
    if draw(st.booleans()):
        made.insert(0, Meta(set={"promotedFrom": {"id": "x", "seq": 1, "messages": 3}}))
    return [replace(one, seq=seq) for seq, one in enumerate(made, 1)]


def _end(usage: Usage, calls: int, model: str) -> dict[str, Any]:
    said = {"durationMs": 1, "toolCalls": calls, "usage": msgspec.to_builtins(usage)}
    return said | {"cost": max(usage.cost, 0.0)} | ({"model": model} if model else {})


def _folded(log: Sequence[AnyRecord], start: Metadata | None = None) -> Metadata:
    tally = MetadataFold.empty(ID) if start is None else MetadataFold(start)
    for record in log:
        tally.add(record)
    return tally.metadata(1, 1)


@given(logs(), st.integers(0, 40))
@settings(max_examples=examples(1500), deadline=None)
def test_folded_at_once_and_in_two_halves_with_metadata_in_between_it_is_equal(log: list[AnyRecord], at: int) -> None:
    half = from_builtins(msgspec.json.decode(msgspec.json.encode(to_builtins(_folded(log[:at])))))
    assert _folded(log[at:], half) == _folded(log)


@given(st.lists(st.tuples(usages, counts, models, stamps), max_size=20))
@settings(max_examples=examples(500), deadline=None)
def test_the_sum_over_days_of_turn_ends_equals_the_metrics(turns: list[tuple[Usage, int, str, str]]) -> None:
    log = [
        Event(kind=TURN_END, data=_end(usage, calls, model), timestamp=stamp, seq=seq)
        for seq, (usage, calls, model, stamp) in enumerate(turns, 1)
    ]
    metadata = _folded(log)
    metrics, all_of_it = metadata.metrics, total_usage(metadata.spent)
    assert metadata.spending == ()
    assert all_of_it.turns == metrics.total_turns
    assert all_of_it.tool_calls == metrics.total_tool_calls
    assert all_of_it.input_tokens == metrics.total_tokens.input_tokens
    assert all_of_it.output_tokens == metrics.total_tokens.output_tokens
    assert all_of_it.cost == pytest.approx(metrics.total_cost)


@given(logs())
@settings(max_examples=examples(1000), deadline=None)
def test_without_turns_every_message_counts_once(log: list[AnyRecord]) -> None:
    plain = [one for one in log if isinstance(one, Message)]
    plain = [replace(one, run_id=None) for one in plain]
    found = total_usage(session_usage(_folded(plain)))
    told = [one.usage for one in plain if one.usage is not None]
    assert found.input_tokens == sum(max(one.input_tokens, 0) for one in told)
    assert found.cache_write_tokens == sum(max(one.cache_write_tokens, 0) for one in told)
    assert found.tool_calls == sum(len(one.tool_calls) for one in plain)
    assert found.turns == sum(one.role == "user" for one in plain)


def test_usage_in_an_event_of_its_own_counts_as_in_its_message() -> None:
    usage = Usage(input_tokens=7, output_tokens=2, cache_read_tokens=3, cost=0.5)
    answer = assistant("a", model="m", usage=usage, timestamp="2026-11-16T08:00:00.000Z")
    late = Event(
        kind=USAGE, data={"model": "m", "usage": msgspec.to_builtins(usage)}, timestamp="2026-11-16T08:00:00.000Z"
    )
    prompt = user("u", timestamp="2026-11-16T08:00:00.000Z")
    log: list[AnyRecord] = [prompt, replace(answer, usage=None), late]
    assert _folded(log).spending == _folded([prompt, answer]).spending
    odd = Event(kind=USAGE, data={"model": 1, "usage": [1]})
    assert total_usage(_folded([*log, odd]).spending) == total_usage(_folded(log).spending)


def test_a_file_that_is_read_again_counts_as_if_it_had_never_been_read() -> None:
    log: list[AnyRecord] = [user("u"), assistant("a", model="m", usage=Usage(input_tokens=1))]
    again = _folded([*log, Event(kind=REREAD), user("u")])
    assert (again.model, again.spent, again.spending) == ("", (), _folded([user("u")]).spending)
    chosen = _folded([Meta(set={"model": "mine"}), *log, Event(kind=REREAD)])
    assert chosen.model == "mine"


def test_a_turn_that_only_began_counts_and_is_kept_apart() -> None:
    usage = Usage(input_tokens=7)
    log = [replace(user("u", run_id="r"), seq=1), replace(assistant("a", model="m", usage=usage), seq=2)]
    metadata = _folded(log)
    assert metadata.spent == ()
    (one,) = metadata.spending
    assert (one.day, one.model, one.turns, one.input_tokens) == ("2026-02-02", "m", 1, 7)
    again = _folded([replace(user("again", run_id="s"), seq=3)], metadata)
    assert again.spent == (one,)


def test_a_message_while_a_turn_runs_begins_no_other() -> None:
    log: list[AnyRecord] = [
        replace(user("u", run_id="r"), seq=1),
        replace(user("by the way"), seq=2),
        Event(kind=TURN_END, data={}, seq=3),
    ]
    assert total_usage(session_usage(_folded(log))).turns == 1


def test_an_absurd_count_is_none() -> None:
    usage = Usage(input_tokens=1 << 62, output_tokens=3, cost=1e300)
    (one,) = session_usage(_folded([replace(assistant("a", usage=usage), seq=1)]))
    assert (one.input_tokens, one.output_tokens, one.cost) == (0, 3, 0.0)


def test_the_first_messages_of_a_promoted_session_were_paid_for_elsewhere() -> None:
    usage = Usage(input_tokens=5)
    said = [user("u"), assistant("a", usage=usage), user("u"), assistant("a", usage=usage)]
    meta = Meta(set={"promotedFrom": {"id": "x", "seq": 9, "messages": 2}})
    log: list[AnyRecord] = [replace(meta, seq=1)]
    log += [replace(one, seq=seq) for seq, one in enumerate(said, 2)]
    assert total_usage(session_usage(_folded(log))).input_tokens == 5
    assert total_usage(session_usage(_folded(log))).turns == 1


@pytest.mark.parametrize(
    ("stamp", "day"),
    [
        ("2026-11-16T23:59:59.999Z", "2026-11-16"),
        ("2026-11-16T23:30:00-05:00", "2026-11-17"),
        ("2026-11-17T00:30:00+02:00", "2026-11-16"),
        ("2026-13-77T10:00:00Z", "2000-01-01"),
        ("nonsense", "2000-01-01"),
        ("", "2000-01-01"),
    ],
)
def test_the_day_of_a_time_is_that_of_utc(stamp: str, day: str) -> None:
    assert day_of(stamp, "2000-01-01T10:00:00Z") == day


def test_rows_are_summed_and_weighed() -> None:
    rows = [UsageRow("2", "a", 1, 2, 3), UsageRow("1", "b", cost=0.5), UsageRow("2", "a", 1, 2, 3)]
    assert sum_by_day_and_model(rows) == (UsageRow("1", "b", cost=0.5), UsageRow("2", "a", 2, 4, 6))
    assert usage_weight(UsageRow("1", "a", output_tokens=2)) == 10.0
