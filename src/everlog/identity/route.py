"""Routing: which agent handles a message, and which session it goes to.

Agents, rules and links are compiled once; routing a message does no I/O and keeps no state. Rules
are tried in order and the first match wins. A field that a rule does not name matches any value,
and a rule that names no field is skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from everlog.errors import SettingsError
from everlog.identity.key import is_explicit, legacy_aliases, main_agent, main_alias, main_key, session_key
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
from everlog.ports import Route
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

    def route(self, incoming: str = "", *, sender: str | None = None) -> Route:
        """Return what a store finds the session by; `incoming` is the key that came with the message.

        The name of a main session leads to that session, whoever sends it.
        """
        if agent := main_agent(self.session_key):
            return main_route(agent)
        if self.session_key == self.main_key:
            return main_route(self.agent)
        is_explicit_key = is_explicit(incoming)
        return Route(
            agent=self.agent,
            sender=sender or "",
            key=self.session_key,
            is_explicit=is_explicit_key,
            name="" if is_explicit_key else trim(incoming),
            aliases=claimable_aliases(self, incoming),
            scope=msgspec.json.decode(msgspec.json.encode(self.scope)),  # as it is read from a file
        )


def main_route(agent: str) -> Route:
    """Return the route to the main session of an agent."""
    names = (main_alias(agent),)
    return Route(agent=agent_id(agent), sender="system", key=main_key(agent), aliases=names, is_main=True)


def check_dimensions(settings: Settings, allowed: Sequence[str]) -> None:
    """Raise SettingsError if sessions are configured to be separated by other dimensions than a store can."""
    session = settings.session
    configured = [("session.dimensions", session.dimensions)]
    if session.dimensions is None and session.dm_scope:
        configured.append(("session.dm_scope", DM_SCOPES[session.dm_scope]))
    configured += [(f"rule {rule.name!r}", rule.session_dimensions or None) for rule in settings.dispatch.rules]
    for place, dimensions in configured:
        if dimensions is not None and normalize_dimensions(dimensions) != tuple(allowed):
            names = ", ".join(dimensions) or "nothing"
            raise SettingsError(
                f"{place} separates sessions by {names}, but the files of this store by agent and {', '.join(allowed)}",
                hint=f"set it to {list(allowed)} or leave it out, or use another store",
            )


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

    def __init__(self, routing: Routing | None = None, *, default_agent: str = "") -> None:
        """Compile the configuration; `default_agent` is that of a configuration without agents."""
        self.routing = routing or Routing()
        self.links = Links(self.routing.identity_links)
        self.dimensions = normalize_dimensions(self.routing.dimensions)
        self.default_agent = _default_agent(self.routing.agents or (ListedAgent(default_agent),))
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
