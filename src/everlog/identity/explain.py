"""Explanations of routing decisions, in words."""

from __future__ import annotations

from collections.abc import Iterator

from everlog.identity.key import is_explicit
from everlog.identity.key_text import account_id, agent_id, lower, trim
from everlog.identity.route import RouteDecision, Router, Routing
from everlog.identity.scope import RULE_FIELDS, Inbound, MessageFacts, Scope, chat_includes_topic
from everlog.settings import DispatchRule

_ID_FIELDS = ("channel", "account", "chat_id", "topic_id", "space_id", "sender_id")


def explain(router: Router, inbound: Inbound, session_key: str = "") -> tuple[str, ...]:
    """Return sentences that explain a route: rule, agent, links, dimensions and key."""
    facts = router.facts(inbound)
    decision = router.decide(facts)
    routed = router.build_route(decision, facts, session_key)
    return (
        *_explain_agent(router, decision),
        *_explain_sender(router, facts),
        *_explain_dimensions(facts, decision, routed.scope),
        *_explain_case(inbound),
        *_explain_key(routed.session_key, session_key),
    )


def _explain_agent(router: Router, decision: RouteDecision) -> Iterator[str]:
    rule, reason = decision.rule, _default_reason(router.routing)
    default = f"the message goes to the default agent {decision.agent} ({reason})"
    if rule is None:
        has_rules = bool(router.routing.rules)
        rules = "No dispatch rule matches" if has_rules else "No dispatch rules are configured"
        yield f"{rules}, so {default}."
        return
    name = f" {trim(rule.name)!r}" if trim(rule.name) else ""
    number = router.routing.rules.index(rule) + 1
    conditions = ", ".join(f"{field} is {value}" for field, value in _rule_conditions(rule))
    yield f"Dispatch rule {number}{name} is the first that matches: {conditions}."
    if not trim(rule.agent):
        yield f"The rule names no agent, so {default}."
    elif agent_id(rule.agent) != decision.agent:
        yield f"The rule's agent {rule.agent!r} is not configured, so {default}."
    else:
        yield f"The rule selects agent {decision.agent}."


def _default_reason(routing: Routing) -> str:
    if not routing.agents:
        return "no agents are configured"
    flagged = any(agent.default and trim(agent.id) for agent in routing.agents)
    return "marked as default" if flagged else "the first one configured"


def _rule_conditions(rule: DispatchRule) -> Iterator[tuple[str, str]]:
    for field in RULE_FIELDS:
        expected = getattr(rule.when, field)
        if isinstance(expected, bool):
            yield field, str(expected).lower()
        elif expected and trim(expected):
            yield field, trim(expected)


def _explain_sender(router: Router, facts: MessageFacts) -> Iterator[str]:
    owners = router.links.owners(facts.channel, facts.sender_id) if facts.sender_id else []
    if not owners:
        return
    first, *more_owners = owners
    yield f"Identity link: sender {facts.sender_id} is {first.canonical} (matched {first.id})."
    for owner in more_owners:
        if owner.canonical != first.canonical:
            yield f"{owner.name!r} also has {owner.id}; the name that sorts first is used."


def _explain_dimensions(facts: MessageFacts, decision: RouteDecision, scope: Scope) -> Iterator[str]:
    from_rule = decision.rule is not None and bool(decision.rule.session_dimensions)
    source = "dimensions of the rule" if from_rule else "session dimensions"
    location = f"channel {scope.channel} and account {scope.account}"
    if not decision.dimensions:
        yield f"No dimensions are set, so all messages of {location} share one session."
        return
    values = scope.values or {}
    parts = ", ".join(f"{name} {values[name]}" for name in scope.dimensions or ())
    identity = f"the session is identified by {parts}" if parts else "all messages share one session"
    yield f"Within {location}, {identity} ({source}: {', '.join(decision.dimensions)})."
    missing = [name for name in decision.dimensions if name not in values]
    if missing:
        yield f"Ignored, because the message has no value for it: {', '.join(missing)}."
    if "chat" in values and chat_includes_topic(facts, decision.dimensions):
        yield f"The chat is a Telegram forum, so its value includes topic {facts.topic_id}."


def _explain_case(inbound: Inbound) -> Iterator[str]:
    """Say which ids were changed: ids that differ only in case are the same id."""
    ids = {field: trim(getattr(inbound, field)) for field in _ID_FIELDS}
    normalized = {field: account_id(text) if field == "account" else lower(text) for field, text in ids.items()}
    changes = [
        f"{field} {text} as {normalized[field]}" for field, text in ids.items() if text and text != normalized[field]
    ]
    if changes:
        yield f"Ids are compared in lower case: {', '.join(changes)}."


def _explain_key(key: str, incoming_key: str) -> Iterator[str]:
    if is_explicit(incoming_key):
        yield f"The message has an explicit session key, which is used: {key}"
        return
    if trim(incoming_key):
        alias = trim(incoming_key)
        yield f"The key {alias!r} begins with neither sk_v1_ nor agent:, so it is only an alias."
    yield f"Session key: {key}"
