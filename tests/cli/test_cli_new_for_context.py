"""`sessions new --context`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from everlog.session import Store
from tests.cli.runner import Cli

CONTEXT = json.dumps({"channel": "telegram", "chat_type": "direct", "chat_id": "42", "sender_id": "42"})


def test_new_for_a_context_is_the_next_chat_there(cli: Cli, store: Store) -> None:
    one = cli("sessions", "new", "--context", CONTEXT, "--json").json
    two = cli("sessions", "new", "--context", CONTEXT, "--title", "T", "--json").json
    assert (one["chat"], two["chat"]) == (1, 2)
    assert one["key"] == two["key"] and one["key"].startswith("sk_v1_")
    assert (two["agent"], two["sender"], two["name"]) == ("main", "42", "T")
    assert two["scope"]["values"] == {"chat": "direct:42"}
    assert store.session("agent:main:telegram:direct:42").id == two["id"]
    routed = cli("route", stdin=f'{{"context": {CONTEXT}}}\n'.encode()).json
    assert routed["session_key"] == one["key"]


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (("--context", "nonsense"), 1),
        (("--context", "[]"), 1),
        (("--context", '{"chanel": "x"}'), 1),
        (("--context", CONTEXT, "--agent", "a"), 2),
        (("--context", CONTEXT, "--key", "sk_v1_x"), 2),
        (("--context", CONTEXT, "--alias", "agent:x"), 2),
    ],
)
def test_a_bad_context_makes_nothing(cli: Cli, root: Path, given: tuple[str, ...], code: int) -> None:
    done = cli("sessions", "new", *given)
    assert done.code == code
    assert done.out == "" and done.err.count("\n") == 1
    assert not (root / "sessions").exists()
