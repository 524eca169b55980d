"""Which agent, which rule, whose links, and what keeps conversations apart."""

from __future__ import annotations

import json
from typing import Any

import pytest

import everlog
from everlog.identity.explain import explain
from everlog.identity.key import main_key
from everlog.identity.route import ListedAgent, Routed, Router, Routing, claimable_aliases
from everlog.identity.scope import Inbound
from everlog.settings import DispatchRule, DispatchWhen, Settings, parse
from tests.identity.route_lines import ask, context

TELEGRAM = Inbound(channel="telegram", chat_id="42", chat_type="direct", sender_id="42")
SLACK = context(
    channel="Slack",
    account="T0ABC",
    chat_id="C001",
    chat_type="channel",
    topic_id="1700.01",
    space_id="T0ABC",
    space_type="workspace",
    sender_id="U7",
    mentioned=True,
)


def routed(line: dict[str, Any]) -> tuple[str, str]:
    answer = ask({"context": SLACK, **line})
    return answer["agent"], answer["matched_by"]


# --- rules


@pytest.mark.parametrize(
    "when",
    [
        {"channel": " SLACK"},
        {"account": "t0abc"},
        {"account": " T0ABC "},
        {"space": "Workspace:T0ABC"},
        {"chat": "channel:c001"},
        {"topic": "topic:1700.01"},
        {"sender": "u7"},
        {"mentioned": True},
        {"channel": "slack", "account": "t0abc", "chat": "channel:c001", "mentioned": True},
        {"channel": "slack", "account": " ", "space": ""},
    ],
)
def test_a_rule_matches_by_the_fields_that_it_names(when: dict[str, Any]) -> None:
    rules = [{"name": "ΣΟΦΟΣ Σ ", "agent": "x", "when": when}]
    assert routed({"rules": rules}) == ("x", "dispatch.rule:σοφοσ σ")


@pytest.mark.parametrize(
    "when",
    [
        {"channel": "telegram"},
        {"account": "default"},
        {"account": "*"},  # becomes an id, as every account does: the default's
        {"space": "t0abc"},
        {"chat": "channel:c001/1700.01"},
        {"topic": "1700.01"},
        {"sender": "u8"},
        {"mentioned": False},
        {"channel": "slack", "sender": "u8"},
    ],
)
def test_one_field_that_differs_is_enough_not_to_match(when: dict[str, Any]) -> None:
    assert routed({"rules": [{"agent": "x", "when": when}]}) == ("main", "default")


@pytest.mark.parametrize("rule", [{}, {"when": {}}, {"when": {"channel": " ", "account": "\t", "chat": ""}}])
def test_a_rule_that_names_no_field_is_skipped(rule: dict[str, Any]) -> None:
    after = {"agent": "y", "when": {"mentioned": True}}
    assert routed({"rules": [{"agent": "x", **rule}]}) == ("main", "default")
    assert routed({"rules": [{"agent": "x", **rule}, after]}) == ("y", "dispatch.rule")


def test_the_first_rule_that_matches_wins() -> None:
    rules = [
        {"name": "no", "agent": "x", "when": {"channel": "telegram"}},
        {"name": "first", "agent": "y", "when": {"channel": "slack"}},
        {"name": "second", "agent": "z", "when": {"channel": "slack", "mentioned": True}},
    ]
    assert routed({"rules": rules}) == ("y", "dispatch.rule:first")


def test_a_rule_without_an_account_matches_any_account() -> None:
    """The one difference from the original, which compares it with the default account."""
    rules = [{"agent": "x", "when": {"channel": "slack"}}]
    for account in ("", "default", "T0ABC", "anything"):
        assert routed({"context": {**SLACK, "account": account}, "rules": rules})[0] == "x"


def test_mentioned_false_is_a_field() -> None:
    rules = [{"agent": "x", "when": {"mentioned": False}}]
    assert routed({"context": {**SLACK, "mentioned": False}, "rules": rules})[0] == "x"


def test_a_message_without_a_channel_is_not_of_the_channel_unknown() -> None:
    rules = [{"agent": "x", "when": {"channel": "unknown"}}]
    assert routed({"context": context(), "rules": rules}) == ("main", "default")


@pytest.mark.parametrize(("own", "used"), [(["sender"], ["sender"]), (["bogus"], None), ([], ["space"])])
def test_a_rule_may_bring_its_own_dimensions(own: list[str], used: list[str] | None) -> None:
    rule = {"when": {"channel": "slack"}, "session_dimensions": own}
    answer = ask({"context": SLACK, "dimensions": ["space"], "rules": [rule]})
    assert answer["scope"]["dimensions"] == used


# --- agents

ANY = {"when": {"channel": "slack"}}


@pytest.mark.parametrize(
    ("agents", "default"),
    [
        ([], "main"),
        ([("x", False)], "x"),
        ([("x", False), ("Y z", True)], "y-z"),
        ([("x", True), ("y", True)], "x"),
        ([("x", False), (" ", True)], "x"),
        ([("", True), ("y", True)], "y"),
        ([("", True), ("y", False)], "main"),
        ([("\u3000", False), ("y", False)], "main"),
        ([("@@", True), ("y", False)], "main"),
        ([("x" * 70, False)], "x" * 64),
    ],
)
def test_the_default_agent(agents: list[tuple[str, bool]], default: str) -> None:
    listed = [{"id": name, "default": flag} for name, flag in agents]
    assert routed({"agents": listed}) == (default, "default")
    # What a rule cannot have goes to the default as well.
    for name in ("", " \t", *(["nobody"] if agents else [])):
        rules = [{"agent": name, **ANY}]
        assert routed({"agents": listed, "rules": rules}) == (default, "dispatch.rule")


def test_without_a_list_any_agent_stands() -> None:
    assert routed({"rules": [{"agent": "No Body", **ANY}]})[0] == "no-body"


def test_with_a_list_a_rule_chooses_from_it() -> None:
    agents = [{"id": "x"}, {"id": "Sales Team"}, {"id": ""}]
    assert routed({"agents": agents, "rules": [{"agent": "SALES team", **ANY}]})[0] == "sales-team"
    assert routed({"agents": agents, "rules": [{"agent": "Main", **ANY}]})[0] == "main"  # the blank


def test_a_name_that_is_cut_at_a_dash_is_cut_again_for_the_key() -> None:
    name = "_" + "a" * 62 + "-b"
    answer = ask({"context": SLACK, "rules": [{"agent": name, **ANY}]})
    assert answer["agent"] == "_" + "a" * 62 + "-"
    assert answer["scope"]["agent_id"] == "_" + "a" * 62
    assert answer["aliases"][0] == answer["main_aliases"][0] == f"agent:_{'a' * 62}:main"


# --- links


def sender(links: dict[str, list[str]], channel: str, sender_id: str) -> str:
    line = {
        "context": context(channel=channel, sender_id=sender_id),
        "dimensions": ["sender"],
        "identity_links": links,
        "rules": [],
    }
    values = ask(line)["scope"]["values"]
    return values["sender"] if values else ""


@pytest.mark.parametrize(
    ("linked", "channel", "sender_id", "found"),
    [
        ("7", "telegram", "7", True),
        ("telegram:7", "Telegram ", "7", True),
        ("telegram:7", "slack", "7", False),
        ("telegram:7", "slack", "telegram:7", True),  # as it is
        ("7", "slack", "telegram:7", True),  # behind the first colon
        ("b:7", "slack", "a:b:7", True),
        ("7", "slack", "a:b:7", False),
        ("7", "slack", ":7", False),
        ("7:", "slack", "7:", True),
        ("slack:7:", "slack", "7:", True),
        (" U\u0130 ", "slack", "uI", True),
        (":7", "", "7", False),  # no channel, no candidate
        ("", "slack", "7", False),
        ("7", "slack", "", False),
    ],
)
def test_how_a_sender_is_found(linked: str, channel: str, sender_id: str, found: bool) -> None:
    name = sender({" Alice ": [linked]}, channel, sender_id)
    assert name == ("alice" if found else sender_id.strip())


def test_a_blank_name_links_nothing() -> None:
    assert sender({" ": ["7"]}, "slack", "7") == "7"


def test_links_count_for_rules_and_for_keys() -> None:
    line = {
        "context": SLACK,
        "dimensions": ["sender"],
        "identity_links": {"Alice": ["slack:u7", "slack:u8"]},
        "rules": [{"agent": "x", "when": {"sender": "ALICE"}}],
    }
    first = ask(line)
    second = ask({**line, "context": {**SLACK, "sender_id": "U8"}})
    assert first["agent"] == "x" and first["session_key"] == second["session_key"]
    by_id = {**line, "rules": [{"agent": "x", "when": {"sender": "u7"}}]}
    assert ask(by_id)["matched_by"] == "default"  # the sender is alice now


@pytest.mark.parametrize("second", ["tg:1", " TG:1\u3000"])
def test_an_id_under_two_names_is_an_error_that_names_both(second: str) -> None:
    with pytest.raises(everlog.SettingsError) as caught:
        Router(Routing(identity_links={"alice": ("x", "tg:1"), "bob": (second,)}))
    assert "'alice'" in str(caught.value) and "'bob'" in str(caught.value)
    assert "identity_links" in str(caught.value) and "tg:1" in str(caught.value).lower()


def test_an_id_twice_under_one_name_is_fine() -> None:
    assert sender({"alice": ["7", "7"], " ALICE": ["7"]}, "slack", "7") == "alice"


def test_ids_that_meet_in_one_sender_go_by_the_name_that_sorts_first() -> None:
    links = {"bob": ["telegram:7"], "alice": ["7"]}
    for order in (links, dict(reversed(links.items()))):
        assert sender(order, "telegram", "7") == "alice"
        assert sender(order, "slack", "telegram:7") == "alice"
    assert sender({"bob": ["telegram:7"], "alice": ["8"]}, "telegram", "7") == "bob"


# --- keys that come with a message


@pytest.mark.parametrize("key", ["sk_v1_abc", " Agent:Main:Direct:X\t", "agent:cron-1-uuid"])
def test_an_explicit_key_is_kept_as_it_is(key: str) -> None:
    line = {"context": SLACK, "session_key": key}
    assert ask(line) == {**ask({"context": SLACK}), "session_key": key}


@pytest.mark.parametrize("key", ["", " ", "cli:default", "heartbeat", "\x1cagent:x"])
def test_any_other_key_gives_way_to_the_routed_one(key: str) -> None:
    assert ask({"context": SLACK, "session_key": key}) == ask({"context": SLACK})


def test_a_session_takes_the_names_of_its_chat_and_not_the_main_one() -> None:
    where = Router().route(TELEGRAM)
    assert claimable_aliases(where) == where.aliases[1:]
    assert claimable_aliases(where, " Cli:Default ") == (*where.aliases[1:], "Cli:Default")


def test_a_cron_run_takes_no_name_of_the_chat_it_reports_to() -> None:
    key = "agent:cron-7-0b5c"
    where = Router().route(TELEGRAM, key)
    assert where.session_key == key and where.aliases == Router().route(TELEGRAM).aliases
    assert claimable_aliases(where, key) == ()


# --- what keeps conversations apart


def keys(*fields: dict[str, Any], dimensions: tuple[str, ...] = ("chat", "sender")) -> set[str]:
    router = Router(Routing(dimensions=dimensions, identity_links={"alice": ("42", "U7")}))
    base: dict[str, Any] = {"channel": "telegram", "chat_id": "1", "chat_type": "direct", "sender_id": "42"}
    return {router.route(Inbound(**{**base, **one})).session_key for one in fields}


def test_a_link_never_joins_channels_or_accounts() -> None:
    one, other = {"channel": "telegram"}, {"channel": "slack", "sender_id": "U7"}
    assert len(keys(one, other, {"account": "second"}, dimensions=("sender",))) == 3


def test_ids_that_only_look_alike_stay_apart() -> None:
    assert len(keys(*({"sender_id": one} for one in ("tg:1", "tg-1", "TG_1")))) == 3
    chats = ({"chat_id": one} for one in ("-1/42", "-1_42", "-1:42", "-1\\42"))
    assert len(keys(*chats)) == 4


def test_an_agent_with_an_underscore_is_no_pair_of_agent_and_sender() -> None:
    def of(agent: str, sender_id: str) -> Routed:
        router = Router(Routing(dimensions=("sender",), agents=(ListedAgent(agent),)))
        return router.route(Inbound(channel="cli", chat_type="direct", sender_id=sender_id))

    first, second = of("crab_user", "x"), of("crab", "user_x")
    assert first.session_key != second.session_key
    assert not set(first.aliases) & set(second.aliases)


def test_ids_that_differ_in_case_alone_are_one_and_explain_says_so() -> None:
    assert len(keys({"chat_id": "Cx"}, {"chat_id": "cX"})) == 1
    told = explain(Router(), Inbound(channel="slack", chat_id="Cx", account="T 1"))
    assert "Ids are compared in lower case: account T 1 as t-1, chat_id Cx as cx." in told
    assert not any("case" in one for one in explain(Router(), TELEGRAM))


# --- settings


def router(text: str) -> Router:
    return Router(Routing.of(parse(text, {})))


def test_without_settings_the_router_is_the_plain_one() -> None:
    assert Routing.of(Settings()) == Routing()


@pytest.mark.parametrize(
    ("text", "dimensions"),
    [
        ("", ("chat",)),
        ('dimensions = ["sender", "CHAT"]', ("sender", "chat")),
        ("dimensions = []", ()),
        ('dm_scope = "per-channel-peer"', ("chat", "sender")),
        ('dm_scope = "per-channel"', ("chat",)),
        ('dm_scope = "per-peer"', ("sender",)),
        ('dm_scope = "global"', ()),
        ('dimensions = ["space"]\ndm_scope = "per-peer"', ("space",)),
        ('dimensions = []\ndm_scope = "per-peer"', ()),
    ],
)
def test_dimensions_come_from_the_settings(text: str, dimensions: tuple[str, ...]) -> None:
    assert router(f"[session]\n{text}").dimensions == dimensions


def test_agents_and_rules_keep_the_order_of_the_file() -> None:
    text = """
        [agents.zoe]
        [agents.adam]
        [[dispatch.rules]]
        agent = "adam"
        when = { channel = "telegram", account = "second" }
        [[dispatch.rules]]
        name = "all"
        when.channel = "telegram"
        session_dimensions = ["sender"]
        [session.identity_links]
        Alice = ["telegram:42"]
    """
    made = router(text)
    assert made.default_agent == "zoe"
    assert router(f"{text}\n[agents.eve]\ndefault = true").default_agent == "eve"
    answer = made.route(TELEGRAM)
    assert (answer.agent, answer.matched_by) == ("zoe", "dispatch.rule:all")
    assert answer.scope.values == {"sender": "alice"}
    second = Inbound(channel="telegram", account="Second")
    assert made.route(second).agent == "adam"


# --- words


def told(inbound: Inbound, key: str = "", **routing: Any) -> str:
    return " ".join(explain(Router(Routing(**routing)), inbound, key))


def test_explain_names_what_decided() -> None:
    rules = (
        DispatchRule(name="none", agent="x"),
        DispatchRule(
            name="VIP",
            agent="sales",
            when=DispatchWhen(channel="telegram", mentioned=False),
            session_dimensions=("chat", "sender", "space"),
        ),
    )
    inbound = Inbound(channel="telegram", chat_id="-1", chat_type="group", topic_id="42", sender_id="7")
    links = {"Alice": ("telegram:7",), "bob": ("7",)}
    text = told(inbound, rules=rules, identity_links=links)
    for piece in (
        "Dispatch rule 2 'VIP' is the first that matches: channel is telegram, mentioned is false.",
        "The rule selects agent sales.",
        "Identity link: sender 7 is alice (matched telegram:7).",
        "'bob' also has 7",
        "identified by chat group:-1/42, sender alice (dimensions of the rule: chat, sender, space)",
        "no value for it: space",
        "Telegram forum, so its value includes topic 42",
        "Session key: sk_v1_",
    ):
        assert piece in text


def test_explain_says_who_takes_what_no_rule_does() -> None:
    plain = Inbound(channel="telegram")
    assert (
        "No dispatch rules are configured, so the message goes to the default agent main (no agents are configured)"
    ) in told(plain)
    rules = (DispatchRule(when=DispatchWhen(channel="x")),)
    listed = (ListedAgent("a"), ListedAgent("b", default=True))
    assert "No dispatch rule matches" in told(plain, rules=rules)
    assert "agent b (marked as default)" in told(plain, agents=listed)
    assert "agent a (the first one configured)" in told(plain, agents=listed[:1])
    rules = (DispatchRule(agent="x", when=DispatchWhen(channel="telegram")),)
    assert "'x' is not configured, so the message goes to the default agent b" in told(
        plain, rules=rules, agents=listed
    )
    rules = (DispatchRule(when=DispatchWhen(channel="telegram")),)
    assert "names no agent, so the message goes to the default agent main" in told(plain, rules=rules)


def test_explain_tells_of_keys_and_of_nothing_to_tell_apart() -> None:
    plain = Inbound(channel="telegram")
    assert "all messages of channel telegram and account default share one" in told(plain, dimensions=())
    assert "all messages share one session (session dimensions: chat)" in told(plain)
    assert "explicit session key, which is used: agent:x:y" in told(plain, "agent:x:y")
    assert "'cli:default' begins with neither sk_v1_ nor agent:" in told(plain, "cli:default")


def test_the_scope_for_a_store_is_as_it_is_read_from_a_file() -> None:
    route = Router().route(TELEGRAM).route()
    assert route.scope == json.loads(json.dumps(route.scope)) and isinstance(route.scope["dimensions"], list)
    assert route.origin == "telegram/default" and not route.is_main


@pytest.mark.parametrize("key", ["agent:sales:main", " Agent:Sales:Main ", main_key("main")])
def test_the_name_of_a_main_session_leads_there_whoever_brings_it(key: str) -> None:
    route = Router().route(TELEGRAM, key).route(key)
    assert route.is_main and route.sender == "system"
    agent = "main" if key.startswith("sk_") else "sales"
    assert (route.agent, route.key, route.aliases) == (agent, main_key(agent), (f"agent:{agent}:main",))
