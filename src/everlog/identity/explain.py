"""Why a message is routed as it is, in words."""

from __future__ import annotations

from collections.abc import Iterator

from everlog.identity.key import is_explicit
from everlog.identity.key_text import account_id, agent_id, lower, trim
from everlog.identity.route import Router, Routing, Way
from everlog.identity.scope import RULE_FIELDS, Facts, Inbound, Scope, folds_topic
from everlog.settings import DispatchRule

_IDS = ("channel", "account", "chat_id", "topic_id", "space_id", "sender_id")


def explain(router: Router, inbound: Inbound, session_key: str = "") -> tuple[str, ...]:
    """Sentences on what decided: the rule, the agent, the links, the dimensions, the key."""
    facts = router.facts(inbound)
    way = router.choose(facts)
    routed = router.follow(way, facts, session_key)
    return (
        *_who(router, way),
        *_sender(router, facts),
        *_dimensions(facts, way, routed.scope),
        *_case(inbound),
        *_key(routed.session_key, session_key),
    )


def _who(router: Router, way: Way) -> Iterator[str]:
    """The rule and the agent."""
    default = f"the default agent {way.agent} ({_why_default(router.routing)})"
    if way.rule is None:
        rules = (
            "No dispatch rule matches" if router.routing.rules else "There are no dispatch rules"
        )
        yield f"{rules}, so {default} takes it."
        return
    name = f" {trim(way.rule.name)!r}" if trim(way.rule.name) else ""
    place = router.routing.rules.index(way.rule) + 1
    asked = ", ".join(f"{field} is {value}" for field, value in _asked(way.rule))
    yield f"Dispatch rule {place}{name} is the first to match: {asked}."
    if not trim(way.rule.agent):
        yield f"It names no agent, so {default} takes it."
    elif agent_id(way.rule.agent) != way.agent:
        yield f"Its agent {way.rule.agent!r} is not listed, so {default} takes it."
    else:
        yield f"It chooses agent {way.agent}."


def _why_default(routing: Routing) -> str:
    if not routing.agents:
        return "no agents are listed"
    flagged = any(one.default and trim(one.id) for one in routing.agents)
    return "flagged as default" if flagged else "the first listed"


def _asked(rule: DispatchRule) -> Iterator[tuple[str, str]]:
    for field in RULE_FIELDS:
        wanted = getattr(rule.when, field)
        if isinstance(wanted, bool):
            yield field, str(wanted).lower()
        elif wanted and trim(wanted):
            yield field, trim(wanted)


def _sender(router: Router, facts: Facts) -> Iterator[str]:
    owners = router.links.owners(facts.channel, facts.sender_id) if facts.sender_id else []
    if not owners:
        return
    first, *others = owners
    yield f"Identity link: sender {facts.sender_id} is {first.canonical}, by {first.id}."
    for other in others:
        if other.canonical != first.canonical:
            yield f"{other.name!r} has {other.id} too; the name that sorts first counts."


def _dimensions(facts: Facts, way: Way, scope: Scope) -> Iterator[str]:
    of_rule = way.rule is not None and bool(way.rule.session_dimensions)
    source = "the rule's dimensions" if of_rule else "the session dimensions"
    where = f"channel {scope.channel} and account {scope.account}"
    if not way.dimensions:
        yield f"There are no dimensions, so all of {where} share one session."
        return
    values = scope.values or {}
    told = ", ".join(f"{name} {values[name]}" for name in scope.dimensions or ())
    apart = f"set apart by {told}" if told else "nothing sets chats apart"
    yield f"Within {where}, {apart} ({source}: {', '.join(way.dimensions)})."
    lacking = [name for name in way.dimensions if name not in values]
    if lacking:
        yield f"Without a value, and so left out: {', '.join(lacking)}."
    if "chat" in values and folds_topic(facts, way.dimensions):
        yield f"It is a Telegram forum, so the chat holds its topic {facts.topic_id}."


def _case(inbound: Inbound) -> Iterator[str]:
    """Ids that differ in case alone are one; where case matters, people should hear of it."""
    given = {field: trim(getattr(inbound, field)) for field in _IDS}
    forms = {
        field: account_id(text) if field == "account" else lower(text)
        for field, text in given.items()
    }
    told = [
        f"{field} {text} as {forms[field]}"
        for field, text in given.items()
        if text and text != forms[field]
    ]
    if told:
        yield f"Ids count without regard to case: {', '.join(told)}."


def _key(key: str, incoming: str) -> Iterator[str]:
    if is_explicit(incoming):
        yield f"The message names its session, and that key is kept: {key}"
        return
    if trim(incoming):
        yield f"Its own key {trim(incoming)!r} is neither sk_v1_… nor agent:…, so an alias only."
    yield f"Session: {key}"
