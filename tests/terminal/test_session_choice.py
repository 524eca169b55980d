"""What a chat shows of the session that it continues."""

from __future__ import annotations

import everlog
from everlog.cli.chat.session_choice import describe_session
from everlog.model import Text, ToolCall, assistant, tool_result
from everlog.session import Store


def described(session: everlog.Session) -> list[tuple[str, str]]:
    return list(describe_session(session, "here"))


def test_the_last_question_and_its_answer_are_shown_in_brief(store: Store) -> None:
    session = store.create(title="Birds")
    session.append(everlog.user("an earlier one"))
    session.append(everlog.assistant("answered"))
    session.append(everlog.user("where do\nstorks go?"))
    session.append(assistant([Text("I look."), ToolCall("c", "search", {"query": "storks"})]))
    session.append(tool_result("c", "Africa"))
    session.append(everlog.assistant("\n".join(f"line {number}" for number in range(10))))
    assert described(session)[2:] == [
        ("", ""),
        ("dim", "› where do\n  storks go?"),
        *(("dim", f"line {number}") for number in range(6)),
        ("dim", "… 28 more characters"),
        ("", ""),
    ]


def test_a_call_of_the_last_message_is_shown_with_it(store: Store) -> None:
    session = store.create(title="Birds")
    session.append(everlog.user("where?"))
    session.append(assistant([Text("I look."), ToolCall("c", "search", {"query": "storks"})]))
    assert described(session)[3:-1] == [("dim", "› where?"), ("dim", "I look."), ("dim", "⚙ search storks …")]


def test_a_last_turn_without_an_answer_says_why(store: Store) -> None:
    session = store.create(title="Birds")
    session.append(everlog.user("where?"))
    session.end_turn(duration_ms=1, run_id="r", stop="error", error="no key")
    assert described(session)[3:-1] == [("dim", "› where?"), ("red", "✗ The turn failed: no key")]
    session.append(everlog.user("again?"))
    session.append(everlog.assistant("Africa"))
    assert described(session)[3:-1] == [("dim", "› again?"), ("dim", "Africa")]


def test_a_rewound_message_is_not_shown(store: Store) -> None:
    session = store.create(title="Birds")
    session.append(everlog.user("where?"))
    session.append(everlog.assistant("Africa"))
    session.append(everlog.user("sure?"))
    session.rewind(2)
    assert described(session)[3:-1] == [("dim", "› where?"), ("dim", "Africa")]
