"""Where a compaction cuts."""

from __future__ import annotations

import math
from typing import Any, Literal

import pytest

from everlog.context.compaction.plan import (
    CompactionPlan,
    check_triggers,
    cut_at_open_round,
    cut_by_number,
    cut_by_tokens,
    plan_compaction,
    token_budget,
    trigger_tokens,
)
from everlog.context.tokens import estimate
from everlog.errors import SettingsError
from everlog.log.backward_read import LiveMessages
from everlog.log.tool_pairs import arrange_results, pair_results
from everlog.model import Compaction, Message, ToolCall, assistant, tool_result, user
from everlog.settings import CompactionSettings
from tests.histories import check_order

SETTINGS = CompactionSettings(keep_recent_tokens=1024)


def _numbered(*messages: Message) -> list[Message]:
    from msgspec.structs import replace

    return [replace(message, seq=seq) for seq, message in enumerate(messages, 1)]


def _words(count: int) -> str:
    return "word " * count


def _calls(*names: str) -> Message:
    return assistant([ToolCall(name, "bash", {}) for name in names])


def _plan(messages: list[Message], **settings: Any) -> CompactionPlan | str:
    chosen = CompactionSettings(**{"keep_recent_tokens": 1024, **settings})
    return plan_compaction(LiveMessages(messages=tuple(messages), last_seq=len(messages)), chosen, 200_000)


def _made(messages: list[Message], **settings: Any) -> CompactionPlan:
    made = _plan(messages, **settings)
    assert isinstance(made, CompactionPlan), made
    return made


# --- the trigger


def test_each_strategy_has_its_trigger() -> None:
    def at(strategy: Literal["structured", "rounds", "prose"], window: int = 200_000) -> int:
        return trigger_tokens(CompactionSettings(strategy=strategy), window)

    assert at("structured") == 200_000 - 16_384
    assert at("rounds") == 180_000
    assert at("prose") == 100_000
    assert at("prose", 64_000) == 64_000 - 16_384


# What the settings give, and the trigger in a window of 200,000 tokens: whatever the strategy.
TRIGGERS: list[tuple[dict[str, Any], int]] = [
    ({"reserve_tokens": 50_000}, 150_000),
    ({"reserve_tokens": 1_024}, 198_976),
    ({"threshold": 0.5}, 100_000),
    ({"threshold": 1.0}, 200_000),
    ({"compact_threshold": 30_000}, 30_000),
    ({"compact_threshold": 199_000}, 199_000),
    ({"reserve_tokens": 50_000, "threshold": 0.9}, 150_000),
    ({"reserve_tokens": 10_000, "threshold": 0.9}, 180_000),
    ({"threshold": 0.4, "compact_threshold": 100_000}, 80_000),
    ({"reserve_tokens": 20_000, "threshold": 0.95, "compact_threshold": 120_000}, 120_000),
]


@pytest.mark.parametrize("strategy", ["structured", "rounds", "prose"])
@pytest.mark.parametrize(("given", "trigger"), TRIGGERS)
def test_each_trigger_that_is_set_applies_and_the_lowest_wins(
    strategy: Any, given: dict[str, Any], trigger: int
) -> None:
    assert trigger_tokens(CompactionSettings(strategy=strategy, **given), 200_000) == trigger


@pytest.mark.parametrize("given", [{"reserve_tokens": 8_192}, {"compact_threshold": 9_000}])
def test_a_trigger_that_no_context_can_reach_is_an_error(given: dict[str, Any]) -> None:
    check_triggers(CompactionSettings(**given), 10_000)
    with pytest.raises(SettingsError, match=f"{next(iter(given))}: .* cannot apply, since the model's window has 8192"):
        check_triggers(CompactionSettings(**given), 8_192)


@pytest.mark.parametrize("window", [2_048, 8_192, 16_384, 32_768])
def test_a_small_window_is_never_wholly_reserved(window: int) -> None:
    assert token_budget(CompactionSettings(), window) >= window // 2


# --- structured


def test_about_the_newest_tokens_are_kept() -> None:
    messages = _numbered(*[user(_words(250)) for _ in range(20)])
    made = _made(messages)
    kept = sum(estimate(message) for message in made.messages[made.cut :])
    assert 1024 <= kept < 1024 + estimate(messages[0])
    assert made.first_kept_seq == made.messages[made.cut].seq
    assert not made.split


@pytest.mark.parametrize("keep", range(40, 700, 20))
def test_no_cut_falls_between_parallel_calls_and_their_results(keep: int) -> None:
    messages = _numbered(
        user(_words(60)),
        _calls("a", "b", "c"),
        tool_result("b", _words(90)),
        tool_result("a", _words(90)),
        tool_result("c", _words(90)),
        assistant(_words(60)),
        user(_words(20)),
    )
    arranged = arrange_results(messages, pair_results(messages))
    cut = cut_by_tokens(arranged, keep, math.inf)
    check_order(tuple(arranged[:cut]))
    check_order(tuple(arranged[cut:]))


def test_a_naive_cut_at_a_number_of_tokens_would_split_them() -> None:
    messages = _numbered(_calls("a", "b"), tool_result("a", "x"), tool_result("b", "y"))
    with pytest.raises(AssertionError, match="answers nothing"):
        check_order(tuple(messages[2:]))


def test_a_turn_larger_than_the_budget_is_split() -> None:
    steps = [m for n in range(9) for m in (_calls(f"c{n}"), tool_result(f"c{n}", _words(300)))]
    made = _made(_numbered(user("before"), assistant("ok"), user("the task"), *steps))
    assert made.split
    assert made.messages[made.cut].tool_calls
    assert "the task" in [message.text for message in made.covered]


def test_an_open_round_larger_than_the_budget_is_kept_whole() -> None:
    messages = _numbered(
        user(_words(500)), assistant("ok"), user("read it"), _calls("c"), tool_result("c", _words(9000))
    )
    made = _made(messages)
    assert made.first_kept_seq == 4
    assert made.split


def test_a_finished_round_larger_than_the_budget_is_summarised() -> None:
    messages = _numbered(user("read it"), _calls("c"), tool_result("c", _words(9000)), assistant("read"), user("next"))
    assert _made(messages).first_kept_seq == 4


def test_a_giant_request_is_kept() -> None:
    made = _made(_numbered(user("a"), assistant("b"), user(_words(9000))))
    assert made.first_kept_seq == 3
    assert not made.split


def test_a_result_counts_at_its_calls_place() -> None:
    messages = _numbered(_calls("a"), *[user(_words(300)) for _ in range(10)], tool_result("a", "very late"))
    made = _made(messages)
    assert made.first_kept_seq > 2
    assert [message.text for message in made.covered][:2] == ["", "very late"]


def test_a_result_before_its_call_is_not_separated_from_it() -> None:
    messages = _numbered(
        user(_words(900)), user(_words(900)), tool_result("a", "early"), user("x"), _calls("a"), user(_words(600))
    )
    made = _made(messages)
    assert made.first_kept_seq <= 3 or made.first_kept_seq == 6


def test_an_open_call_and_everything_after_it_is_never_summarised() -> None:
    messages = _numbered(user(_words(900)), _calls("open"), *[user(_words(900)) for _ in range(9)], assistant("done"))
    for strategy in ("structured", "rounds", "prose"):
        assert _made(messages, strategy=strategy).first_kept_seq == 2
    only = messages[1:]
    for strategy in ("structured", "rounds", "prose"):
        assert "waiting for its result" in str(_plan(only, strategy=strategy))


def test_little_history_is_left_alone_and_says_why() -> None:
    assert "within the newest 1024 tokens" in str(_plan(_numbered(user("a"), assistant("b"))))
    assert _plan([]) == "there is nothing new to summarise"


def test_a_squeeze_keeps_less() -> None:
    live = LiveMessages(messages=tuple(_numbered(*[user(_words(250)) for _ in range(8)])))
    settings = CompactionSettings(keep_recent_tokens=20_000)
    assert isinstance(plan_compaction(live, settings, 200_000), str)
    squeezed = plan_compaction(live, settings, 200_000, squeeze=True)
    assert isinstance(squeezed, CompactionPlan) and squeezed.cut >= 5


def test_the_next_compaction_starts_where_the_last_one_kept() -> None:
    earlier = Compaction(first_kept_seq=5, summary="S", seq=9)
    messages = tuple(_numbered(*[user(_words(250)) for _ in range(20)]))[4:]
    made = plan_compaction(LiveMessages(messages=messages, summary=earlier, last_marker_seq=9), SETTINGS, 200_000)
    assert isinstance(made, CompactionPlan)
    assert made.covered[0].seq == 5
    assert made.previous == earlier
    assert made.last_marker == 9


# --- rounds


def test_the_ten_newest_messages_are_kept() -> None:
    messages = _numbered(*[user(f"{n}") for n in range(25)])
    assert _made(messages, strategy="rounds").first_kept_seq == 16
    assert "10 newest" in str(_plan(messages[:10], strategy="rounds"))


def test_they_are_extended_to_whole_pairs() -> None:
    messages = _numbered(
        *[user("x") for _ in range(5)],
        _calls("a", "b", "c"),
        *[tool_result(name, "y") for name in "abc"],
        *[user("z") for _ in range(8)],
    )
    assert cut_by_number(messages, 10, math.inf) == 5
    check_order(tuple(messages[5:]))


# --- prose


def test_a_finished_conversation_is_summarised_whole() -> None:
    made = _made(_numbered(user("a"), assistant("b")), strategy="prose")
    assert made.cut == 2
    assert made.first_kept_seq == 3


def test_what_the_user_said_last_is_kept_until_it_is_answered() -> None:
    messages = _numbered(user("a"), assistant("b"), user("c"), user("d"))
    assert _made(messages, strategy="prose").first_kept_seq == 3
    serving = [*messages, *_numbered(*messages, _calls("t"), tool_result("t", "x"))[4:]]
    assert _made(serving, strategy="prose").first_kept_seq == 3


def test_of_a_long_open_turn_the_newest_rounds_are_kept() -> None:
    steps = [m for n in range(9) for m in (_calls(f"c{n}"), tool_result(f"c{n}", _words(300)))]
    messages = _numbered(user("old"), assistant("ok"), user("task"), *steps)
    made = _made(messages, strategy="prose")
    kept = made.messages[made.cut :]
    assert kept[0].tool_calls and made.split
    assert sum(estimate(message) for message in kept) <= 1024
    assert cut_at_open_round([], 10, math.inf) == 0
