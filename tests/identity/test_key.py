"""Scopes, keys and aliases: the kept cases, and each rule by itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import everlog
from everlog.identity.key import is_explicit, main_alias, main_key, session_key
from tests.identity.route_lines import ask

GOLDEN = Path(__file__).parents[1] / "golden" / "identity_vectors.json"
CASES = json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"]


@pytest.mark.parametrize("case", CASES, ids=[case["case"] for case in CASES])
def test_a_kept_case_answers_as_ever(case: dict[str, Any]) -> None:
    answer = ask(case["line"])
    assert answer == case["answer"]
    assert list(answer) == list(case["answer"])
    assert list(answer["scope"]) == list(case["answer"]["scope"])


def test_the_main_key_is_that_of_the_alias() -> None:
    key = "sk_v1_6d9217fe77c7f11d9cc992aabe81a2d09604e9c48babbda8fdad3791f9c19f3b"
    assert main_alias(" Main ") == "agent:main:main"
    assert main_key("") == session_key(" Agent:Main:main\n") == key


def test_empty_text_has_no_key() -> None:
    assert session_key("") == session_key(" \u3000\n") == ""


def test_text_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(everlog.FormatError, match="not valid text"):
        session_key("chat=\ud800")


@pytest.mark.parametrize(
    ("key", "explicit"),
    [
        ("sk_v1_", True),
        ("SK_V1_abc", True),
        (" agent:main:main", True),
        ("Agent:", True),
        ("s\u212a_v1_x", True),  # the Kelvin sign is a k in lower case
        ("\x1cagent:x", False),
        ("agent", False),
        ("sk_v2_x", False),
        ("cli:default", False),
        ("", False),
    ],
)
def test_an_explicit_key_begins_like_one(key: str, explicit: bool) -> None:
    assert is_explicit(key) is explicit


# --- scope


def chat(**fields: Any) -> dict[str, Any]:
    return {"channel": "telegram", "chat_id": "-1", "chat_type": "group", **fields}


def scope(dimensions: list[str], **fields: Any) -> dict[str, Any]:
    answer: dict[str, Any] = ask({"context": chat(**fields), "dimensions": dimensions})["scope"]
    return answer


def test_without_dimensions_the_default_is_the_chat() -> None:
    assert ask({"context": chat(sender_id="7")})["scope"]["dimensions"] == ["chat"]


@pytest.mark.parametrize("dimensions", [[], ["bogus"], ["", "chats"]])
def test_no_dimension_is_null(dimensions: list[str]) -> None:
    found = scope(dimensions)
    assert found["dimensions"] is None and found["values"] is None


def test_dimensions_keep_their_order_and_values_are_sorted() -> None:
    found = scope(["Topic", "chat", " TOPIC "], topic_id="42")
    assert found["dimensions"] == ["topic", "chat"]
    assert list(found["values"].items()) == [("chat", "group:-1"), ("topic", "topic:42")]


def test_a_dimension_without_a_value_is_left_out() -> None:
    assert scope(["space", "sender", "topic"])["dimensions"] is None
    assert scope(["space", "chat"], space_id=" ")["dimensions"] == ["chat"]


@pytest.mark.parametrize(
    ("fields", "values"),
    [
        ({"chat_type": ""}, {"chat": "direct:-1"}),
        ({"chat_id": "C\u0130", "chat_type": " Channel "}, {"chat": "channel:ci"}),
        ({"space_id": "G1"}, {"space": "space:g1", "chat": "group:-1"}),
        ({"space_id": "G1", "space_type": "Guild"}, {"space": "guild:g1", "chat": "group:-1"}),
        ({"sender_id": " Bob "}, {"chat": "group:-1", "sender": "bob"}),
    ],
)
def test_values_are_type_and_id(fields: dict[str, str], values: dict[str, str]) -> None:
    assert scope(["space", "chat", "sender"], **fields)["values"] == values


@pytest.mark.parametrize("channel", ["telegram", " TeleGram\t"])
def test_a_forum_topic_is_kept_apart_in_the_chat(channel: str) -> None:
    found = scope(["chat"], channel=channel, topic_id=" 42 ")
    assert found["values"] == {"chat": "group:-1/42"}
    assert scope(["sender"], channel=channel, topic_id="42")["values"] is None


def test_a_forum_topic_that_is_a_dimension_leaves_the_chat_alone() -> None:
    found = scope(["chat", "topic"], topic_id="42")
    assert found["values"] == {"chat": "group:-1", "topic": "topic:42"}


def test_a_thread_elsewhere_shares_its_channel() -> None:
    assert scope(["chat"], channel="slack", topic_id="42")["values"] == {"chat": "group:-1"}


def test_a_message_of_nobody_knows_where_still_has_a_key() -> None:
    answer = ask({"context": {}})
    assert answer["signature"] == "v=1|agent=main|channel=unknown|account=default"
    assert answer["aliases"] == ["agent:main:main"]


# --- aliases


def aliases(**fields: Any) -> list[str]:
    links = {"Alice": ["telegram:7"]}
    found: list[str] = ask({"context": chat(**fields), "identity_links": links})["aliases"]
    return found


def test_a_direct_chat_has_the_names_of_sender_person_and_chat() -> None:
    found = aliases(chat_type=" Direct", account="B 1", chat_id="C", sender_id="7", topic_id="42")
    assert found == [
        "agent:main:main",
        *(
            name
            for peer in ("7", "alice", "c")
            for name in (
                f"agent:main:direct:{peer}",
                f"agent:main:telegram:direct:{peer}",
                f"agent:main:telegram:b-1:direct:{peer}",
            )
        ),
    ]


def test_a_direct_chat_of_nobody_has_the_main_alias_only() -> None:
    assert aliases(chat_type="direct", chat_id=" ") == ["agent:main:main"]


@pytest.mark.parametrize(
    ("fields", "alias"),
    [
        ({}, "agent:main:telegram:group:-1"),
        ({"topic_id": "T"}, "agent:main:telegram:group:-1/t"),
        ({"channel": "Slack", "topic_id": "T"}, "agent:main:slack:group:-1/t"),
        ({"chat_type": ""}, "agent:main:telegram:unknown:-1"),
        ({"channel": ""}, "agent:main:unknown:group:-1"),
        # Lower case makes it direct; compared without regard to case it is not.
        ({"chat_type": "D\u0130RECT"}, "agent:main:telegram:direct:-1"),
    ],
)
def test_any_other_chat_has_one_name(fields: dict[str, str], alias: str) -> None:
    assert aliases(**fields, sender_id="7") == ["agent:main:main", alias]


def test_a_chat_without_an_id_has_none() -> None:
    assert aliases(chat_id="", sender_id="7") == ["agent:main:main"]
