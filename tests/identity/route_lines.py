"""Lines as `everlog route` takes them, for tests: asked of the library, and made up at random."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st

from everlog.cli.route_input import RouteLine
from everlog.identity.route import Router, Routing

FIELDS = ("channel", "account", "chat_id", "chat_type", "topic_id", "space_id", "space_type")
STRINGS = (*FIELDS, "sender_id")

ODD = (
    " \t\n\v\f\r\x1c\x1d\x1e\x1f\x85\xa0\u1680\u180e\u2000\u2007\u200a\u200b\u2028\u2029\u202f"
    "\u205f\u3000\ufeff"  # white space, and what only looks like it
    "İıIiΣσςKkſSßẞǅǄÅåΩﬀ"  # letters whose case is not what it seems
    "𐐀Ꭰꭰ𞤀"
    "|=:/\\_-.@*% aAzZ09\0\x7f"
)
odd = st.text(ODD, max_size=8)


def about(*common: str) -> st.SearchStrategy[str]:
    """A common value, as it is or among odd white space, or anything odd."""
    plain = st.sampled_from(["", *common])
    spaced = st.builds("{1}{0}{2}".format, plain, st.text(" \t\x85\u3000\x1c", max_size=2), odd)
    return st.one_of(plain, plain.map(str.upper), spaced, odd)


names = about("alice", "Bob", "Ümit", "İnci")
ids = about("7", "u7", "telegram:7", "slack:U7", "tg:7", ":7", "7:", "alice")
long = "a" * 63 + "-b"  # cut right behind its dash
agents = about("main", "sales", "Sales Team", "x" * 70, "---", long, "_" + long[1:], "_x_")
chats = about("direct", "group", "channel", "DİRECT")
contexts = st.fixed_dictionaries(
    {
        "channel": about("telegram", "slack", "TeleGram", "cli"),
        "account": about("default", "T0ABC", "bot@home", "b" * 70, "*"),
        "chat_id": about("-100", "C001", "7", "a|b=c"),
        "chat_type": chats,
        "topic_id": about("42", "1700.01"),
        "space_id": about("T0ABC", "9"),
        "space_type": about("guild", "workspace"),
        "sender_id": ids,
        "mentioned": st.booleans(),
    }
)
dimensions = st.lists(about("space", "chat", "topic", "sender", "bogus"), max_size=5)
whens = st.fixed_dictionaries(
    {},
    optional={
        "channel": about("telegram", "slack"),
        "account": about("default", "t0abc", "bot-home", "*"),
        "space": about("guild:9", "workspace:t0abc", "space:9"),
        "chat": about("direct:7", "group:-100", "channel:c001"),
        "topic": about("topic:42"),
        "sender": about("7", "u7", "alice"),
        "mentioned": st.none() | st.booleans(),
    },
)
rules = st.fixed_dictionaries(
    {"name": about("VIP", "Σίσυφος Σ"), "agent": agents, "when": whens, "session_dimensions": dimensions}
)
lines = st.fixed_dictionaries(
    {
        "context": contexts,
        "dimensions": dimensions,
        "identity_links": st.dictionaries(names, st.lists(ids, max_size=3), max_size=3),
        "agents": st.lists(st.fixed_dictionaries({"id": agents, "default": st.booleans()}), max_size=3),
        "rules": st.lists(rules, max_size=4),
        "session_key": about("sk_v1_x", "agent:main:main", "cli:default", "AGENT:x", "s\u212a_v1_"),
    }
)


def context(**fields: str | bool) -> dict[str, Any]:
    """A context with every field."""
    return {**dict.fromkeys(STRINGS, ""), "mentioned": False, **fields}


def ask(line: dict[str, Any]) -> dict[str, Any]:
    """What the library answers to a line that gives everything it needs."""
    asked = msgspec.convert(line, RouteLine)
    given = {name: getattr(asked, name) for name in Routing.__struct_fields__}
    routing = Routing(**{name: one for name, one in given.items() if one is not None})
    answer: dict[str, Any] = msgspec.json.decode(
        msgspec.json.encode(Router(routing).route(asked.context, asked.session_key))
    )
    return answer
