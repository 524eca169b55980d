"""Keys and aliases: the opaque name of a scope, and the names that older versions gave it."""

from __future__ import annotations

from hashlib import sha256

from everlog.errors import FormatError
from everlog.identity.key_text import agent_id, plain
from everlog.identity.scope import UNKNOWN, Facts

PREFIX = "sk_v1_"
LEGACY = "agent:"


def session_key(signature: str) -> str:
    """The key of a signature, or of an alias; empty text has none."""
    text = plain(signature)
    if not text:
        return ""
    try:
        return PREFIX + sha256(text.encode()).hexdigest()
    except UnicodeEncodeError as error:
        raise FormatError(f"not valid text: {signature[:60]!r}") from error


def main_alias(agent: str) -> str:
    """The readable name of an agent's main session."""
    return f"{LEGACY}{agent_id(agent)}:main"


def main_key(agent: str) -> str:
    """The key of an agent's main session: that of its alias, not of a scope."""
    return session_key(main_alias(agent))


def is_explicit(key: str) -> bool:
    """Whether a key that came with a message names its session, whatever routing says."""
    return plain(key).startswith((PREFIX, LEGACY))


def legacy_aliases(facts: Facts, agent: str) -> tuple[str, ...]:
    """The names that older versions gave this conversation, that of the main session first.

    A direct chat was named by its sender, a chat of several by its id and topic.
    """
    channel = facts.channel or UNKNOWN
    names = [f"{LEGACY}{agent}:main"]
    if facts.is_direct:
        for peer in dict.fromkeys((facts.sender_id, facts.sender, facts.chat_id)):
            if peer:
                names += (
                    f"{LEGACY}{agent}:direct:{peer}",
                    f"{LEGACY}{agent}:{channel}:direct:{peer}",
                    f"{LEGACY}{agent}:{channel}:{facts.account}:direct:{peer}",
                )
    elif facts.chat_id:
        topic = f"/{facts.topic_id}" if facts.topic_id else ""
        kind = facts.chat_type or UNKNOWN
        names.append(f"{LEGACY}{agent}:{channel}:{kind}:{facts.chat_id}{topic}")
    return tuple(dict.fromkeys(names))
