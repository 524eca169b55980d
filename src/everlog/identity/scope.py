"""From an inbound message to its scope: the facts that decide which conversation it belongs to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from everlog.identity.key_text import account_id, plain, trim
from everlog.identity.links import Links
from everlog.settings import DIMENSIONS, DmScope

VERSION = 1
DEFAULT_DIMENSIONS = ("chat",)
UNKNOWN = "unknown"  # the channel of a message that names none

# What the older setting dm_scope means in dimensions.
DM_SCOPES: dict[DmScope, tuple[str, ...]] = {
    "per-channel-peer": ("chat", "sender"),
    "per-channel": ("chat",),
    "per-peer": ("sender",),
    "global": (),
}


class Inbound(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """What a channel says about a message; what it does not know stays empty."""

    channel: str = ""  # telegram, slack, cli …
    account: str = ""  # which of our bots or workspaces on that channel
    chat_id: str = ""
    chat_type: str = ""  # direct, group, channel
    topic_id: str = ""  # forum topic or thread within the chat
    space_id: str = ""
    space_type: str = ""  # guild, workspace, tenant
    sender_id: str = ""
    mentioned: bool = False


class Facts(NamedTuple):
    """An inbound message in the form that rules are matched against and keys are made of.

    The first seven are the fields that a rule may name, in the order of `RULE_FIELDS`; an empty
    one has no value.
    """

    channel: str
    account: str
    space: str  # type:id
    chat: str  # type:id, without the topic
    topic: str  # topic:id
    sender: str  # canonical: links applied
    mentioned: bool
    chat_type: str
    chat_id: str
    topic_id: str
    sender_id: str
    is_direct: bool


RULE_FIELDS = Facts._fields[:7]


class Scope(msgspec.Struct, frozen=True, gc=False):
    """Which conversation: the agent, where it was addressed, and what sets chats apart there."""

    version: int
    agent_id: str
    channel: str
    account: str
    dimensions: tuple[str, ...] | None = None  # those that have a value; None for none
    values: dict[str, str] | None = None


def normalise(inbound: Inbound, links: Links) -> Facts:
    """The facts of an inbound message."""
    channel, sender_id = plain(inbound.channel), plain(inbound.sender_id)
    chat_type, chat_id = plain(inbound.chat_type), plain(inbound.chat_id)
    topic_id, space_id = plain(inbound.topic_id), plain(inbound.space_id)
    return Facts(
        channel,
        account_id(inbound.account),
        f"{plain(inbound.space_type) or 'space'}:{space_id}" if space_id else "",
        f"{chat_type or 'direct'}:{chat_id}" if chat_id else "",
        f"topic:{topic_id}" if topic_id else "",
        links.canonical(channel, sender_id) if sender_id else "",
        inbound.mentioned,
        chat_type,
        chat_id,
        topic_id,
        sender_id,
        # By case folding, not by lower case: a dotted capital I becomes i and is not one.
        chat_type == "direct" and trim(inbound.chat_type).isascii(),
    )


def normal_dimensions(names: Iterable[str]) -> tuple[str, ...]:
    """The dimensions among names, each once, in the given order."""
    return tuple(dict.fromkeys(name for name in map(plain, names) if name in DIMENSIONS))


def folds_topic(facts: Facts, dimensions: tuple[str, ...]) -> bool:
    """Whether the chat's value holds the topic: Telegram's forums, unless topics are told apart."""
    return facts.channel == "telegram" and facts.topic != "" and "topic" not in dimensions


def build(facts: Facts, agent: str, dimensions: tuple[str, ...]) -> Scope:
    """The scope of a message for an agent; a dimension without a value is left out."""
    channel = facts.channel or UNKNOWN
    values = {name: value for name in dimensions if (value := getattr(facts, name))}
    if not values:
        return Scope(VERSION, agent, channel, facts.account)
    if "chat" in values and folds_topic(facts, dimensions):
        values["chat"] = f"{facts.chat}/{facts.topic_id}"
    ordered = dict(sorted(values.items())) if len(values) > 1 else values
    return Scope(VERSION, agent, channel, facts.account, tuple(values), ordered)


def signature(scope: Scope) -> str:
    """The scope as one line of text, from which its key is made. Nothing in it is escaped."""
    text = (
        f"v={scope.version}|agent={scope.agent_id}|channel={scope.channel}|account={scope.account}"
    )
    if scope.dimensions and scope.values:
        for name in scope.dimensions:
            text += f"|{name}={scope.values[name]}"
    return text
