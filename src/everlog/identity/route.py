"""Routing: which agent handles a message, and which session it goes to.

Agents, rules and links are compiled once; routing a message does no I/O and keeps no state. Rules
are tried in order and the first match wins. A field that a rule does not name matches any value,
and a rule that names no field is skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from everlog.identity.key import is_explicit, legacy_aliases, main_alias, main_key, session_key
from everlog.identity.key_text import DEFAULT_AGENT, account_id, agent_id, normalize, trim
from everlog.identity.links import Links
from everlog.identity.scope import (
    DEFAULT_DIMENSIONS,
    DM_SCOPES,
    RULE_FIELDS,
    Inbound,
    MessageFacts,
    Scope,
    build_scope,
    extract_facts,
    normalize_dimensions,
    signature,
)
from everlog.settings import DispatchRule, DispatchWhen, Settings


class ListedAgent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """An agent that messages may be routed to."""

    id: str = ""
    default: bool = False


class Routing(msgspec.Struct, frozen=True):
    """The configuration of routing."""

    dimensions: tuple[str, ...] = DEFAULT_DIMENSIONS
    identity_links: dict[str, tuple[str, ...]] = {}
    agents: tuple[ListedAgent, ...] = ()  # if empty, rules may name any agent
    rules: tuple[DispatchRule, ...] = ()

    @classmethod
    def of(cls, settings: Settings) -> Routing:
        """Return the routing configured in the settings."""
        session = settings.session
        dimensions = session.dimensions
        if dimensions is None:
            dimensions = DM_SCOPES[session.dm_scope] if session.dm_scope else DEFAULT_DIMENSIONS
        agents = tuple(ListedAgent(name, agent.default) for name, agent in settings.agents.items())
        return cls(dimensions, session.identity_links, agents, settings.dispatch.rules)


class Routed(msgspec.Struct, frozen=True, gc=False):
    """The agent and session that a message is routed to."""

    agent: str
    matched_by: str  # default, dispatch.rule or dispatch.rule:<name>
    scope: Scope
    signature: str
    session_key: str  # of the scope, or the explicit key that came with the message
    aliases: tuple[str, ...]
    main_key: str
    main_aliases: tuple[str, ...]


class RouteDecision(NamedTuple):
    """The result of matching rules: the agent, its main session and the dimensions."""

    agent: str
    # The agent in scope, key and aliases: converted to an id twice. The second conversion changes
    # only a long name that begins with _ and was truncated right after a dash.
    scope_agent: str
    matched_by: str
    dimensions: tuple[str, ...]
    main_key: str
    main_aliases: tuple[str, ...]
    rule: DispatchRule | None


class Router:
    """A router of messages by agents, dispatch rules, dimensions and identity links."""

    def __init__(self, routing: Routing | None = None) -> None:
        self.routing = routing or Routing()
        self.links = Links(self.routing.identity_links)
        self.dimensions = normalize_dimensions(self.routing.dimensions)
        self.default_agent = _default_agent(self.routing.agents)
        self._agent_ids = frozenset(agent_id(agent.id) for agent in self.routing.agents)
        self._default = _build_decision(self.default_agent, "default", self.dimensions, None)
        self._decisions = tuple(
            (*conditions[0], conditions[1:], self._decision_for(rule))
            for rule in self.routing.rules
            if (conditions := _conditions(rule.when))
        )

    def route(self, inbound: Inbound, session_key: str = "") -> Routed:
        """Return the agent, scope, key and aliases of a message.

        `session_key` is the key that came with the message; an explicit one is used unchanged.
        """
        facts = self.facts(inbound)
        return self.build_route(self.decide(facts), facts, session_key)

    def facts(self, inbound: Inbound) -> MessageFacts:
        """Return the normalized fields of a message, with identity links applied."""
        return extract_facts(inbound, self.links)

    def decide(self, facts: MessageFacts) -> RouteDecision:
        """Return the decision of the first rule that matches, else the default."""
        for position, expected, remainder, decision in self._decisions:
            if facts[position] == expected and all(facts[n] == value for n, value in remainder):
                return decision
        return self._default

    def build_route(self, decision: RouteDecision, facts: MessageFacts, incoming: str = "") -> Routed:
        """Build the route of a message from a decision."""
        scope = build_scope(facts, decision.scope_agent, decision.dimensions)
        text = signature(scope)
        return Routed(
            decision.agent,
            decision.matched_by,
            scope,
            text,
            incoming if incoming and is_explicit(incoming) else session_key(text),
            legacy_aliases(facts, decision.scope_agent),
            decision.main_key,
            decision.main_aliases,
        )

    def _decision_for(self, rule: DispatchRule) -> RouteDecision:
        agent = agent_id(rule.agent) if trim(rule.agent) else self.default_agent
        if self._agent_ids and agent not in self._agent_ids:
            agent = self.default_agent
        name = normalize(rule.name)
        rule_dimensions = rule.session_dimensions
        dimensions = normalize_dimensions(rule_dimensions) if rule_dimensions else self.dimensions
        matched_by = f"dispatch.rule:{name}" if name else "dispatch.rule"
        return _build_decision(agent, matched_by, dimensions, rule)


def claimable_aliases(routed: Routed, incoming: str = "") -> tuple[str, ...]:
    """Return the aliases that the session of a routed message may claim.

    Never the alias of the main session, which every message of the agent has. None at all if the
    message came with an explicit key: that session belongs to something else, such as a cron run,
    and must not claim the names of the chat. An incoming key that is not explicit is an alias too.
    """
    if is_explicit(incoming):
        return ()
    names = (name for name in (*routed.aliases, trim(incoming)) if name)
    return tuple(dict.fromkeys(name for name in names if name not in routed.main_aliases))


def _build_decision(
    agent: str, matched_by: str, dimensions: tuple[str, ...], rule: DispatchRule | None
) -> RouteDecision:
    main = (main_alias(agent),)
    return RouteDecision(agent, agent_id(agent), matched_by, dimensions, main_key(agent), main, rule)


def _default_agent(agents: Sequence[ListedAgent]) -> str:
    """Return the agent marked as default, unless its id is blank, else the first (blank: main)."""
    flagged = [agent.id for agent in agents if agent.default and trim(agent.id)]
    first = [agent.id for agent in agents[:1]]
    return agent_id(agent_id((*flagged, *first, DEFAULT_AGENT)[0]))


def _conditions(when: DispatchWhen) -> tuple[tuple[int, str | bool], ...]:
    """Return the conditions of a rule: positions in the facts and the expected values."""
    conditions: list[tuple[int, str | bool]] = []
    for position, field in enumerate(RULE_FIELDS):
        expected = getattr(when, field)
        if isinstance(expected, str):
            if trim(expected):
                conditions.append((position, account_id(expected) if field == "account" else normalize(expected)))
        elif expected is not None:
            conditions.append((position, expected))
    return tuple(conditions)
