"""Calls and results find each other wherever they lie."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from everlog.log.tool_pairs import arrange_results, exchange_seqs, pair_results, split_rounds
from everlog.model import Message, ToolCall, assistant, tool_result, user


def _call(seq: int, *names: str) -> Message:
    return replace(assistant([ToolCall(name, "bash", {}) for name in names]), seq=seq)


def _result(seq: int, name: str) -> Message:
    return replace(tool_result(name, f"result {seq}"), seq=seq)


def _arranged(*messages: Message) -> list[tuple[str, int]]:
    return [(one.role[0], one.seq) for one in arrange_results(messages, pair_results(messages))]


@pytest.mark.parametrize(
    ("messages", "arranged"),
    [
        pytest.param([_call(1, "a"), _result(2, "a")], [("a", 1), ("t", 2)], id="in order"),
        pytest.param(
            [_call(1, "a", "b"), _result(2, "b"), _result(3, "a")],
            [("a", 1), ("t", 2), ("t", 3)],
            id="parallel, the other way round",
        ),
        pytest.param(
            [_call(1, "a"), replace(user("x"), seq=2), _result(3, "a")], [("a", 1), ("t", 3), ("u", 2)], id="late"
        ),
        pytest.param([_result(1, "a"), _call(2, "a")], [("a", 2), ("t", 1)], id="early"),
        pytest.param([_call(1, "a", "b"), _result(2, "b")], [("a", 1), ("t", 2), ("t", 0)], id="open"),
        pytest.param([replace(user("x"), seq=1), _result(2, "a")], [("u", 1)], id="stray"),
        pytest.param([_call(1, "a"), _result(2, "a"), _result(3, "a")], [("a", 1), ("t", 2)], id="second"),
        pytest.param(
            [_call(1, "a"), _result(2, "a"), _call(3, "a"), _result(4, "a")],
            [("a", 1), ("t", 2), ("a", 3), ("t", 4)],
            id="one id twice",
        ),
        pytest.param([], [], id="nothing"),
    ],
)
def test_every_result_stands_behind_its_call(messages: list[Message], arranged: list[tuple[str, int]]) -> None:
    assert _arranged(*messages) == arranged


def test_an_open_call_is_answered_by_an_error_that_says_so() -> None:
    answer = arrange_results([_call(1, "a")], pair_results([_call(1, "a")]))[1]
    assert answer.is_error and answer.tool_call_id == "a" and answer.tool_name == "bash"
    assert "interrupted" in answer.text


def test_an_exchange_is_a_call_with_all_its_results() -> None:
    log = [_call(1, "a", "b"), _result(2, "a"), replace(user("x"), seq=3), _result(4, "b")]
    assert exchange_seqs(log, 4) == exchange_seqs(log, 1) == (1, 2, 4)
    assert exchange_seqs(log, 3) == (3,)


def test_a_round_is_what_was_said_the_answer_and_its_results() -> None:
    log = [
        user("a"),
        user("b"),
        _call(3, "a"),
        _result(4, "a"),
        _call(5, "b"),
        _result(6, "b"),
        assistant("done"),
        user("c"),
    ]
    assert [(one.start, one.stop) for one in split_rounds(log)] == [(0, 4), (4, 6), (6, 7), (7, 8)]
    assert split_rounds([]) == []
