"""What a model is sent: order, injections, budgets, and what is left out with its reason."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

import everlog
from everlog.context.build import Context, build, context_tokens
from everlog.context.tokens import estimate
from everlog.errors import ContextOverflowError
from everlog.log.backward_read import LiveMessages, read_live
from everlog.log.tool_pairs import arrange_results, pair_results
from everlog.model import Compaction, Event, Message, Tombstone, ToolCall, Usage, assistant, tool_result, user
from tests.examples import examples
from tests.histories import Step, append, check_order, steps


def _live(*messages: Message) -> LiveMessages:
    return LiveMessages(messages=tuple(messages), last_seq=max((m.seq for m in messages), default=0))


def _texts(context: Context) -> list[str]:
    return [message.text for message in context.messages]


def _reasons(context: Context) -> list[tuple[int | None, str]]:
    return [(one.seq, one.why) for one in context.left_out]


# --- the summary


@pytest.mark.parametrize(
    ("strategy", "text"),
    [
        (
            "structured",
            "The conversation history before this point was compacted into the following summary:\n"
            "<summary>\nS\n</summary>",
        ),
        ("rounds", "<context_summary>\nS\n</context_summary>"),
        ("prose", "S"),
        (
            "of another version",
            "The conversation history before this point was compacted into the following summary:\n"
            "<summary>\nS\n</summary>",
        ),
    ],
)
def test_each_strategy_shows_its_summary_in_its_own_way(strategy: str, text: str) -> None:
    record = Compaction(strategy=strategy, first_kept_seq=2, summary="S", seq=3)
    context = build(LiveMessages(messages=(replace(user("kept"), seq=2),), summary=record))
    assert [(message.role, message.text) for message in context.messages] == [("user", text), ("user", "kept")]


# --- backwards and forwards are one


@given(steps)
@settings(max_examples=examples(1500), deadline=None)
def test_reading_any_history_backwards_gives_what_folding_it_forwards_gives(history: list[Step]) -> None:
    session = everlog.open_store("memory:").create()
    for step in history:
        append(session, step)
    view = session.view()
    live = session.live()
    assert live.summary == view.compaction
    first = 0 if view.compaction is None else view.compaction.first_kept_seq
    forward = [message for message in view.messages if message.seq >= first]
    assert list(live.messages) == forward
    sent = session.context(window=10_000_000)
    check_order(sent.messages)
    told = sent.messages if view.compaction is None else sent.messages[1:]
    assert [one.seq for one in told] == [one.seq for one in arrange_results(forward, pair_results(forward))]


def test_a_restored_message_that_the_summary_lacks_makes_it_stale() -> None:
    log: list[everlog.Message | Tombstone | Compaction] = [
        replace(user("a"), seq=1),
        replace(user("b"), seq=2),
        Tombstone(deletes=(1,), seq=3),
        Compaction(first_kept_seq=2, summary="of nothing", seq=4),
        Tombstone(restores=(1,), seq=5),
    ]
    assert read_live(reversed(log)).stale_seqs == (1,)
    again = read_live(reversed(log), accept_stale=False)
    assert again.summary is None
    assert [message.seq for message in again.messages] == [1, 2]


def test_a_compaction_starts_from_the_newest_summary_that_tells_nothing_deleted() -> None:
    log: list[everlog.Message | Tombstone | Compaction] = [
        replace(user("a"), seq=1),
        Compaction(first_kept_seq=2, summary="first", seq=2),
        replace(user("secret"), seq=3),
        replace(user("c"), seq=4),
        Compaction(first_kept_seq=4, summary="second, with the secret", seq=5),
        replace(user("d"), seq=6),
        Tombstone(deletes=(3,), seq=7),
    ]
    live = read_live(reversed(log))
    assert live.summary is not None and live.summary.seq == 5
    assert live.stale_seqs == (3,)
    base = read_live(reversed(log), accept_stale=False)
    assert base.summary is not None and base.summary.seq == 2
    assert [message.seq for message in base.messages] == [4, 6]
    assert base.stale_seqs == ()


# --- injections


def test_injections_stand_just_before_the_last_thing_the_user_said() -> None:
    live = _live(
        replace(user("one"), seq=1),
        replace(assistant("two"), seq=2),
        replace(user("three"), seq=3),
        replace(assistant([ToolCall("c", "x", {})]), seq=4),
        replace(tool_result("c", "five"), seq=5),
    )
    context = build(live, inject=[user("<env/>"), user("<recall/>")])
    assert _texts(context) == ["one", "two", "<env/>", "<recall/>", "three", "", "five"]
    assert [m.text for m in context.messages if m.auto_injected] == ["<env/>", "<recall/>"]
    assert context.tokens > build(live).tokens


def test_without_a_user_message_they_stand_behind_the_summary() -> None:
    record = Compaction(strategy="prose", first_kept_seq=2, summary="S", seq=3)
    live = LiveMessages(messages=(replace(assistant("a"), seq=4),), summary=record)
    assert _texts(build(live, inject=[user("<env/>")])) == ["S", "<env/>", "a"]
    assert _texts(build(LiveMessages(), inject=[user("<env/>")])) == ["<env/>"]


def test_an_injected_message_found_in_a_log_is_not_sent() -> None:
    log = [
        replace(user("a"), seq=1),
        replace(user("old recall", auto_injected=True), seq=2),
        replace(assistant("b"), seq=3),
    ]
    context = build(read_live(reversed(log)))
    assert _texts(context) == ["a", "b"]
    assert _reasons(context) == [(2, "injected into an earlier run")]


def test_injections_have_a_share_of_the_window_and_what_is_over_it_is_named() -> None:
    small, large = user("small"), user("word " * 2_000)
    context = build(_live(replace(user("hi"), seq=1)), window=8_000, inject=[small, large, small])
    assert _texts(context) == ["small", "small", "hi"]
    assert len(context.left_out) == 1
    assert "injection of" in context.left_out[0].why


# --- tool results


def _work(count: int, size: int) -> list[Message]:
    made: list[Message] = []
    for number in range(count):
        seq = len(made) + 1
        made.append(replace(assistant([ToolCall(f"c{number}", "read", {})]), seq=seq))
        made.append(replace(tool_result(f"c{number}", f"{number}" * size), seq=seq + 1))
    return made


def test_results_are_whole_as_long_as_the_context_fits() -> None:
    context = build(_live(*_work(10, 8_000)), window=200_000)
    assert [len(m.text) for m in context.messages if m.role == "toolResult"] == [8_000] * 10
    assert context.left_out == ()


def test_the_oldest_results_are_shortened_above_the_budget() -> None:
    live = _live(*_work(8, 10_000))
    context = build(live, window=20_000)
    lengths = [len(m.text) for m in context.messages if m.role == "toolResult"]
    assert lengths[4:] == [10_000] * 4
    assert all(length < 400 for length in lengths[:4])
    assert sum(lengths) <= 50_000
    shortened = context.messages[1]
    assert "9800 more characters; record 2 of this session has the whole result" in shortened.text
    assert live.messages[1].text == "0" * 10_000
    assert context.tokens < build(live).tokens
    assert _reasons(context) == [(seq, "shortened: the context would not fit otherwise") for seq in (2, 4, 6, 8)]


def test_the_newest_six_messages_are_never_shortened() -> None:
    context = build(_live(*_work(4, 30_000)), window=40_000)
    lengths = [len(m.text) for m in context.messages if m.role == "toolResult"]
    assert lengths[0] < 400
    assert lengths[1:] == [30_000] * 3


def test_short_results_are_not_worth_shortening() -> None:
    context = build(_live(*_work(10, 300)), tool_result_budget=100)
    assert all(len(m.text) == 300 for m in context.messages if m.role == "toolResult")


# --- the window


def _rounds(count: int) -> list[Message]:
    made: list[Message] = []
    for number in range(count):
        made.append(replace(user(f"question {number}"), seq=2 * number + 1))
        made.append(replace(assistant("word " * 400), seq=2 * number + 2))
    return made


def test_the_oldest_whole_rounds_are_left_out_and_named() -> None:
    live = _live(*_rounds(10), replace(user("now"), seq=21))
    context = build(live, window=2_000)
    assert context.tokens <= 2_000
    assert sum(estimate(message) for message in context.messages) <= 2_000
    note, *kept = context.messages
    assert "left out here" in note.text and note.auto_injected
    assert kept[-1].text == "now"
    first = kept[0].seq
    assert kept[0].role == "user"
    assert [seq for seq, _ in _reasons(context)] == list(range(1, first))
    assert {why for _, why in _reasons(context)} == {"the context would not fit the window"}


def test_within_a_long_turn_old_steps_go_and_the_request_stays() -> None:
    live = _live(replace(user("the task"), seq=1), *[_shift(m, 1) for m in _work(20, 2_000)])
    context = build(live, window=3_000)
    check_order(context.messages)
    assert context.messages[1].text == "the task"
    assert context.messages[-1].seq == 41


def _shift(message: Message, by: int) -> Message:
    return replace(message, seq=message.seq + by)


def test_a_round_that_is_too_large_alone_is_an_error() -> None:
    live = _live(*_rounds(3), replace(user("word " * 3_000), seq=7))
    with pytest.raises(ContextOverflowError, match="newest round"):
        build(live, window=2_000)


def test_the_summary_is_never_left_out() -> None:
    record = Compaction(strategy="prose", first_kept_seq=1, summary="S", seq=30)
    live = LiveMessages(messages=(*_rounds(10), replace(user("now"), seq=31)), summary=record)
    assert _texts(build(live, window=2_000))[0] == "S"


# --- tokens


def test_the_size_is_the_last_count_and_an_estimate_of_what_came_after() -> None:
    after = replace(user("hello there"), seq=3)
    live = _live(replace(user("a"), seq=1), replace(assistant("b", usage=Usage(total_tokens=5_000)), seq=2), after)
    assert build(live).tokens == 5_000 + estimate(after)
    parts = Usage(input_tokens=10, output_tokens=20, cache_read_tokens=30, cache_write_tokens=40)
    assert build(_live(replace(assistant("b", usage=parts), seq=2))).tokens == 100


@pytest.mark.parametrize("window", [60_000, 200_000])
def test_what_a_provider_counted_was_shortened_already(window: int) -> None:
    messages: list[Message] = [replace(user("go"), seq=1)]
    for number in range(40):
        sent = sum(estimate(m) for m in build(_live(*messages), window=window).messages)
        seq = 2 * number + 2
        call = ToolCall(f"c{number}", "read", {})
        messages.append(replace(assistant([call], usage=Usage(total_tokens=sent)), seq=seq))
        messages.append(replace(tool_result(f"c{number}", "word " * 3_000), seq=seq + 1))
        context = build(_live(*messages), window=window)
        really = sum(estimate(message) for message in context.messages)
        assert really * 0.9 < context.tokens < really + 8_000


@pytest.mark.parametrize("reason", ["error", "aborted"])
def test_the_count_of_a_failed_answer_is_passed_over(reason: str) -> None:
    live = _live(
        replace(assistant("a", usage=Usage(total_tokens=900)), seq=1),
        replace(assistant("b", usage=Usage(total_tokens=7), stop_reason=reason), seq=2),
    )
    assert 900 < build(live).tokens < 920
    nothing = _live(replace(assistant("b", usage=Usage()), seq=2))
    assert 0 < build(nothing).tokens < 20


@pytest.mark.parametrize("later", [Tombstone(deletes=(1,), seq=4), Compaction(first_kept_seq=2, summary="S", seq=4)])
def test_a_count_older_than_a_change_is_stale(later: Tombstone | Compaction) -> None:
    log = [
        replace(user("x"), seq=1),
        replace(assistant("a", usage=Usage(total_tokens=99_000)), seq=2),
        replace(user("y"), seq=3),
    ]
    assert build(read_live(reversed(log))).tokens > 99_000
    assert build(read_live(reversed([*log, later]))).tokens < 100


def test_a_count_of_a_call_that_was_not_sent_everything_says_nothing() -> None:
    log: list[Message | Event] = [
        replace(user("word " * 500), seq=1),
        Event(kind="trimmed", data={"messages": 3}, seq=2),
        replace(assistant("a", usage=Usage(total_tokens=60)), seq=3),
    ]
    assert build(read_live(reversed(log))).tokens > 400


def test_everything_is_counted_not_only_text() -> None:
    plain = estimate(user(""))
    assert estimate(assistant([everlog.Thinking("why " * 100)])) > plain + 80
    assert estimate(assistant([ToolCall("c", "n" * 400, {})])) > plain + 50
    assert estimate(assistant([ToolCall("c", "f", {"text": "what " * 200})])) > plain + 150
    assert estimate(tool_result("c", "row " * 100)) > plain + 80
    assert estimate(user([everlog.Image(mime_type="image/png", url="http://x/y.png")])) > 100


def test_the_overhead_counts_only_without_a_count() -> None:
    live = _live(replace(user("a"), seq=1))
    assert context_tokens(live, live.messages, overhead=500) > 500
    counted = _live(replace(assistant("b", usage=Usage(total_tokens=70)), seq=1))
    assert context_tokens(counted, counted.messages, overhead=500) == 70


def test_unknown_blocks_are_kept_for_providers_that_take_them() -> None:
    block = everlog.OtherBlock({"type": "video", "url": "x"})
    context = build(_live(replace(user([block]), seq=1)))
    assert context.messages[0].content == (block,)


def test_a_count_that_no_message_explains_is_not_believed() -> None:
    said = [
        replace(user("Summarise it."), seq=1),
        replace(assistant("It is done.", usage=Usage(input_tokens=140_000)), seq=2),
    ]
    context = build(_live(*said), window=128_000)
    assert len(context.messages) == 2 and context.tokens < 100
    large = [replace(said[0], content=user("word " * 60_000).content), said[1]]
    with pytest.raises(ContextOverflowError):  # it may well be right
        build(_live(*large), window=128_000)
