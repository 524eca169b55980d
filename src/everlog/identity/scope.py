"""The scope of an inbound message: the facts that decide which session it belongs to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from everlog.identity.key_text import account_id, normalize, trim
from everlog.identity.links import Links
from everlog.settings import DIMENSIONS, DmScope

SCOPE_VERSION = 1
DEFAULT_DIMENSIONS = ("chat",)
UNKNOWN = "unknown"  # the channel or chat type of a message that names none

# The dimensions that the values of the older setting dm_scope stand for.
DM_SCOPES: dict[DmScope, tuple[str, ...]] = {
    "per-channel-peer": ("chat", "sender"),
    "per-channel": ("chat",),
    "per-peer": ("sender",),
    "global": (),
}


class Inbound(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The routing fields of a message, as its channel reports them; unknown ones are empty."""

    channel: str = ""  # telegram, slack, cli …
    account: str = ""  # which of our bots or workspaces on that channel
    chat_id: str = ""
    chat_type: str = ""  # direct, group, channel
    topic_id: str = ""  # forum topic or thread within the chat
    space_id: str = ""
    space_type: str = ""  # guild, workspace, tenant
    sender_id: str = ""
    mentioned: bool = False


class MessageFacts(NamedTuple):
    """The normalized fields of a message that rules match and keys are computed from.

    The first seven are the fields that a rule may name, in the order of `RULE_FIELDS`. An empty
    string means no value.
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


RULE_FIELDS = MessageFacts._fields[:7]


class Scope(msgspec.Struct, frozen=True, gc=False):
    """The identity of a session: agent, channel, account, and the values that separate chats."""

    version: int
    agent_id: str
    channel: str
    account: str
    dimensions: tuple[str, ...] | None = None  # those with a value; None if there are none
    values: dict[str, str] | None = None


def extract_facts(inbound: Inbound, links: Links) -> MessageFacts:
    """Normalize the fields of an inbound message and apply the identity links."""
    channel, sender_id = normalize(inbound.channel), normalize(inbound.sender_id)
    chat_type, chat_id = normalize(inbound.chat_type), normalize(inbound.chat_id)
    topic_id, space_id = normalize(inbound.topic_id), normalize(inbound.space_id)
    return MessageFacts(
        channel,
        account_id(inbound.account),
        f"{normalize(inbound.space_type) or 'space'}:{space_id}" if space_id else "",
        f"{chat_type or 'direct'}:{chat_id}" if chat_id else "",
        f"topic:{topic_id}" if topic_id else "",
        links.canonical(channel, sender_id) if sender_id else "",
        inbound.mentioned,
        chat_type,
        chat_id,
        topic_id,
        sender_id,
        # isascii() excludes a dotted capital I, which becomes i in lower case but not when folded.
        chat_type == "direct" and trim(inbound.chat_type).isascii(),
    )


def normalize_dimensions(names: Iterable[str]) -> tuple[str, ...]:
    """Return the valid dimensions among names, without duplicates, in the same order."""
    return tuple(dict.fromkeys(name for name in map(normalize, names) if name in DIMENSIONS))


def chat_includes_topic(facts: MessageFacts, dimensions: tuple[str, ...]) -> bool:
    """Return whether a chat's value includes the topic: in Telegram, if topic is no dimension."""
    return facts.channel == "telegram" and facts.topic != "" and "topic" not in dimensions


def build_scope(facts: MessageFacts, agent: str, dimensions: tuple[str, ...]) -> Scope:
    """Build the scope of a message for an agent, without the dimensions that have no value."""
    channel = facts.channel or UNKNOWN
    values = {name: value for name in dimensions if (value := getattr(facts, name))}
    if not values:
        return Scope(SCOPE_VERSION, agent, channel, facts.account)
    if "chat" in values and chat_includes_topic(facts, dimensions):
        values["chat"] = f"{facts.chat}/{facts.topic_id}"
    ordered = dict(sorted(values.items())) if len(values) > 1 else values
    return Scope(SCOPE_VERSION, agent, channel, facts.account, tuple(values), ordered)


def signature(scope: Scope) -> str:
    """Return the scope as one line of text, which its key is the hash of. Nothing is escaped."""
    text = f"v={scope.version}|agent={scope.agent_id}|channel={scope.channel}|account={scope.account}"
    if scope.dimensions and scope.values:
        for name in scope.dimensions:
            text += f"|{name}={scope.values[name]}"
    return text
