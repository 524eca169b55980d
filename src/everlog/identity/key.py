"""Keys and aliases: the opaque name of a scope, and the names that older versions used."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256

from everlog.errors import FormatError
from everlog.identity.key_text import agent_id, normalize
from everlog.identity.scope import UNKNOWN, MessageFacts

KEY_PREFIX = "sk_v1_"
LEGACY_PREFIX = "agent:"


def session_key(signature: str) -> str:
    """Return the key of a signature or an alias; empty for empty text."""
    text = normalize(signature)
    if not text:
        return ""
    try:
        return KEY_PREFIX + sha256(text.encode()).hexdigest()
    except UnicodeEncodeError as error:
        raise FormatError(f"not valid text: {signature[:60]!r}") from error


def main_alias(agent: str) -> str:
    """Return the readable name of an agent's main session."""
    return f"{LEGACY_PREFIX}{agent_id(agent)}:main"


@lru_cache(maxsize=256)
def main_key(agent: str) -> str:
    """Return the key of an agent's main session. It is derived from its alias, not from a scope."""
    return session_key(main_alias(agent))


def main_agent(name: str) -> str:
    """Return the agent whose main session has this readable name; empty if it is another name."""
    parts = normalize(name).split(":")
    return parts[1] if len(parts) == 3 and parts[0] == "agent" and parts[2] == "main" else ""


def is_of_main(name: str) -> bool:
    """Return whether only a main session can have a name: the readable one, or the key of agent `main`."""
    return bool(main_agent(name)) or name == main_key("main")


def own_aliases(key: str, aliases: Iterable[str]) -> tuple[str, ...]:
    """Return the aliases that name the session with a key: those of a main session name no other one.

    PicoClaw lists `agent:NAME:main` in every session of the agent.
    """
    return tuple(
        name for name in aliases if not is_of_main(name) or key in (name, main_key(main_agent(name) or "main"))
    )


def is_explicit(key: str) -> bool:
    """Return whether a key that came with a message selects its session, overriding routing."""
    return normalize(key).startswith((KEY_PREFIX, LEGACY_PREFIX))


def legacy_aliases(facts: MessageFacts, agent: str) -> tuple[str, ...]:
    """Return the names that older versions gave a session, the agent's main session first.

    A direct chat was named after its sender, any other chat after its id and topic.
    """
    channel = facts.channel or UNKNOWN
    names = [f"{LEGACY_PREFIX}{agent}:main"]
    if facts.is_direct:
        for peer in dict.fromkeys((facts.sender_id, facts.sender, facts.chat_id)):
            if peer:
                names += (
                    f"{LEGACY_PREFIX}{agent}:direct:{peer}",
                    f"{LEGACY_PREFIX}{agent}:{channel}:direct:{peer}",
                    f"{LEGACY_PREFIX}{agent}:{channel}:{facts.account}:direct:{peer}",
                )
    elif facts.chat_id:
        topic = f"/{facts.topic_id}" if facts.topic_id else ""
        kind = facts.chat_type or UNKNOWN
        names.append(f"{LEGACY_PREFIX}{agent}:{channel}:{kind}:{facts.chat_id}{topic}")
    return tuple(dict.fromkeys(names))
