"""Routing: which agent takes a message, and which session it goes to.

Agents, rules and links are compiled once; routing a message looks nothing up elsewhere and
keeps nothing. Rules are tried in their order and the first match wins. A field that a rule does
not name matches any value, and a rule that names none is skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from everlog.identity.key import is_explicit, legacy_aliases, main_alias, main_key, session_key
from everlog.identity.key_text import DEFAULT_AGENT, account_id, agent_id, plain, trim
from everlog.identity.links import Links
from everlog.identity.scope import (
    DEFAULT_DIMENSIONS,
    DM_SCOPES,
    RULE_FIELDS,
    Facts,
    Inbound,
    Scope,
    build,
    normal_dimensions,
    normalise,
    signature,
)
from everlog.settings import DispatchRule, DispatchWhen, Settings


class ListedAgent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """An agent that messages may be routed to."""

    id: str = ""
    default: bool = False


class Routing(msgspec.Struct, frozen=True):
    """What routing goes by."""

    dimensions: tuple[str, ...] = DEFAULT_DIMENSIONS
    identity_links: dict[str, tuple[str, ...]] = {}
    agents: tuple[ListedAgent, ...] = ()  # none listed: any name that a rule gives stands
    rules: tuple[DispatchRule, ...] = ()

    @classmethod
    def of(cls, settings: Settings) -> Routing:
        """The routing that the settings describe."""
        given = settings.session
        dimensions = given.dimensions
        if dimensions is None:
            dimensions = DM_SCOPES[given.dm_scope] if given.dm_scope else DEFAULT_DIMENSIONS
        agents = tuple(ListedAgent(name, one.default) for name, one in settings.agents.items())
        return cls(dimensions, given.identity_links, agents, settings.dispatch.rules)


class Routed(msgspec.Struct, frozen=True, gc=False):
    """Where a message goes."""

    agent: str
    matched_by: str  # default, dispatch.rule or dispatch.rule:<name>
    scope: Scope
    signature: str
    session_key: str  # the scope's, or the explicit one that came with the message
    aliases: tuple[str, ...]
    main_key: str
    main_aliases: tuple[str, ...]


class Way(NamedTuple):
    """What a rule, or the lack of one, decides."""

    agent: str
    # The agent in scope, key and aliases: made an id once more. It differs for a long name alone
    # that begins with _ and was cut right behind a dash.
    scope_agent: str
    matched_by: str
    dimensions: tuple[str, ...]
    main_key: str
    main_aliases: tuple[str, ...]
    rule: DispatchRule | None


class Router:
    """Routes messages by agents, dispatch rules, dimensions and identity links."""

    def __init__(self, routing: Routing | None = None) -> None:
        self.routing = routing or Routing()
        self.links = Links(self.routing.identity_links)
        self.dimensions = normal_dimensions(self.routing.dimensions)
        self.default_agent = _default_agent(self.routing.agents)
        self._known = frozenset(agent_id(one.id) for one in self.routing.agents)
        self._default = _way(self.default_agent, "default", self.dimensions, None)
        self._ways = tuple(
            (*checks[0], checks[1:], self._way_of(rule))
            for rule in self.routing.rules
            if (checks := _checks(rule.when))
        )

    def route(self, inbound: Inbound, session_key: str = "") -> Routed:
        """The agent, scope, key and aliases of a message.

        `session_key` is what came with the message; an explicit one is kept as it is.
        """
        facts = self.facts(inbound)
        return self.follow(self.choose(facts), facts, session_key)

    def facts(self, inbound: Inbound) -> Facts:
        """What the router knows of a message."""
        return normalise(inbound, self.links)

    def choose(self, facts: Facts) -> Way:
        """The way of the first rule that matches, else the default's."""
        for field, wanted, others, way in self._ways:
            if facts[field] == wanted and all(facts[place] == value for place, value in others):
                return way
        return self._default

    def follow(self, way: Way, facts: Facts, incoming: str = "") -> Routed:
        """Where a way leads a message."""
        scope = build(facts, way.scope_agent, way.dimensions)
        text = signature(scope)
        return Routed(
            way.agent,
            way.matched_by,
            scope,
            text,
            incoming if incoming and is_explicit(incoming) else session_key(text),
            legacy_aliases(facts, way.scope_agent),
            way.main_key,
            way.main_aliases,
        )

    def _way_of(self, rule: DispatchRule) -> Way:
        agent = agent_id(rule.agent) if trim(rule.agent) else self.default_agent
        if self._known and agent not in self._known:
            agent = self.default_agent
        name = plain(rule.name)
        given = rule.session_dimensions
        dimensions = normal_dimensions(given) if given else self.dimensions
        return _way(agent, f"dispatch.rule:{name}" if name else "dispatch.rule", dimensions, rule)


def claims(routed: Routed, incoming: str = "") -> tuple[str, ...]:
    """The aliases that the session of a routed message may take as its own.

    Never that of the main session, which every message of the agent has. None at all if the
    message brought an explicit key: that session is another's, such as a cron run's, and must not
    take the names of the chat. A key that came along and is not explicit is one more alias.
    """
    if is_explicit(incoming):
        return ()
    names = (name for name in (*routed.aliases, trim(incoming)) if name)
    return tuple(dict.fromkeys(name for name in names if name not in routed.main_aliases))


def _way(
    agent: str, matched_by: str, dimensions: tuple[str, ...], rule: DispatchRule | None
) -> Way:
    main = (main_alias(agent),)
    return Way(agent, agent_id(agent), matched_by, dimensions, main_key(agent), main, rule)


def _default_agent(agents: Sequence[ListedAgent]) -> str:
    """The flagged one, else the first; a blank id is never flagged, and as the first it is main."""
    flagged = [one.id for one in agents if one.default and trim(one.id)]
    first = [one.id for one in agents[:1]]
    return agent_id(agent_id((*flagged, *first, DEFAULT_AGENT)[0]))


def _checks(when: DispatchWhen) -> tuple[tuple[int, str | bool], ...]:
    """What a rule asks: places in the facts, and the values that must stand there."""
    asked: list[tuple[int, str | bool]] = []
    for place, field in enumerate(RULE_FIELDS):
        wanted = getattr(when, field)
        if isinstance(wanted, str):
            if trim(wanted):
                asked.append((place, account_id(wanted) if field == "account" else plain(wanted)))
        elif wanted is not None:
            asked.append((place, wanted))
    return tuple(asked)
