"""Routing and keys once more, written from the description of the rules and from nothing else.

Slow and plain on purpose: no compiled rules, no fast paths, one code point at a time. It takes and
gives JSON objects.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

WHITE = [9, 10, 11, 12, 13, 32, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B)]
WHITE += [0x2028, 0x2029, 0x202F, 0x205F, 0x3000]


def trim(text: str) -> str:
    while text and ord(text[0]) in WHITE:
        text = text[1:]
    while text and ord(text[-1]) in WHITE:
        text = text[:-1]
    return text


def lower(text: str) -> str:
    low = ""
    for char in text:
        low += "i" if char == "\u0130" else char.lower()
    return low


def identifier(text: str, default: str) -> str:
    text = trim(text)
    if not text:
        return default
    text = lower(text)
    if re.fullmatch("[a-z0-9][a-z0-9_-]{0,63}", text):
        return text
    out = ""
    for char in text:
        if char in "abcdefghijklmnopqrstuvwxyz0123456789_-":
            out += char
        elif not out.endswith("\0"):
            out += "\0"
    out = out.replace("\0", "-")
    while out.startswith("-"):
        out = out[1:]
    while out.endswith("-"):
        out = out[:-1]
    return out[:64] or default


def key(text: str) -> str:
    text = trim(lower(text))
    return "sk_v1_" + hashlib.sha256(text.encode()).hexdigest() if text else ""


def canonical(channel: str, sender: str, links: dict[str, list[str]]) -> str:
    sender = lower(trim(sender))
    if not sender:
        return ""
    channel = lower(trim(channel))
    candidates = [sender]
    if channel:
        candidates.append(channel + ":" + sender)
    colon = sender.find(":")
    if 0 < colon < len(sender) - 1:
        candidates.append(sender[colon + 1 :])
    for name in sorted(links):
        if trim(name):
            for one in links[name]:
                if trim(one) and lower(trim(one)) in candidates:
                    return lower(trim(name))
    return sender


def dimensions(names: list[str]) -> list[str]:
    kept: list[str] = []
    for name in names:
        name = lower(trim(name))
        if name in ("space", "chat", "topic", "sender") and name not in kept:
            kept.append(name)
    return kept


def default_agent(agents: list[dict[str, Any]]) -> str:
    """Normalised when it is found and again when it is chosen."""
    for agent in agents:
        if agent["default"] and trim(agent["id"]):
            return identifier(identifier(agent["id"], "main"), "main")
    if agents and trim(agents[0]["id"]):
        return identifier(identifier(agents[0]["id"], "main"), "main")
    return "main"


def named_agent(name: str, agents: list[dict[str, Any]]) -> str:
    if not trim(name):
        return default_agent(agents)
    name = identifier(name, "main")
    if not agents or name in [identifier(agent["id"], "main") for agent in agents]:
        return name
    return default_agent(agents)


def typed(kind: str, one: str, otherwise: str) -> str:
    one = trim(one)
    return (lower(trim(kind)) or otherwise) + ":" + lower(one) if one else ""


def matches(when: dict[str, Any], context: dict[str, Any], links: dict[str, list[str]]) -> bool:
    topic = trim(context["topic_id"])
    seen = {
        "channel": lower(trim(context["channel"])),
        "account": identifier(context["account"], "default"),
        "space": typed(context["space_type"], context["space_id"], "space"),
        "chat": typed(context["chat_type"], context["chat_id"], "direct"),
        "topic": "topic:" + lower(topic) if topic else "",
        "sender": canonical(context["channel"], context["sender_id"], links),
    }
    fields = 0
    for field, value in seen.items():
        wanted = when.get(field, "")
        if trim(wanted):
            fields += 1
            if field == "account":
                wanted = identifier(wanted, "default")
            if lower(trim(wanted)) != value:
                return False
    if when.get("mentioned") is not None:
        fields += 1
        if when["mentioned"] != context["mentioned"]:
            return False
    return fields > 0


def aliases(agent: str, context: dict[str, Any], links: dict[str, list[str]]) -> list[str]:
    channel = lower(trim(context["channel"])) or "unknown"
    account = identifier(context["account"], "default")
    chat, topic = lower(trim(context["chat_id"])), lower(trim(context["topic_id"]))
    names = [f"agent:{agent}:main"]
    if re.fullmatch("direct", trim(context["chat_type"]), re.IGNORECASE | re.ASCII):
        sender = lower(trim(context["sender_id"]))
        for peer in (sender, canonical(context["channel"], context["sender_id"], links), chat):
            if peer:
                names.append(f"agent:{agent}:direct:{peer}")
                names.append(f"agent:{agent}:{channel}:direct:{peer}")
                names.append(f"agent:{agent}:{channel}:{account}:direct:{peer}")
    elif chat:
        kind = lower(trim(context["chat_type"])) or "unknown"
        names.append(f"agent:{agent}:{channel}:{kind}:{chat}" + (f"/{topic}" if topic else ""))
    unique: list[str] = []
    for name in names:
        if name not in unique:
            unique.append(name)
    return unique


def route(line: dict[str, Any]) -> dict[str, Any]:
    """The answer to a line that gives everything."""
    context, links, agents = line["context"], line["identity_links"], line["agents"]
    agent, matched_by, chosen = default_agent(agents), "default", line["dimensions"]
    for rule in line["rules"]:
        if matches(rule["when"], context, links):
            agent = named_agent(rule["agent"], agents)
            name = lower(trim(rule["name"]))
            matched_by = "dispatch.rule:" + name if name else "dispatch.rule"
            chosen = rule["session_dimensions"] or chosen
            break
    chosen = dimensions(chosen)
    routed, agent = agent, identifier(agent, "main")  # again, for scope and aliases

    chat, topic = trim(context["chat_id"]), trim(context["topic_id"])
    is_telegram = re.fullmatch("telegram", trim(context["channel"]), re.IGNORECASE | re.ASCII)
    if chat and topic and is_telegram and "topic" not in chosen:
        chat = chat + "/" + topic
    values = {
        "space": typed(context["space_type"], context["space_id"], "space"),
        "chat": typed(context["chat_type"], chat, "direct"),
        "topic": "topic:" + lower(topic) if topic else "",
        "sender": canonical(context["channel"], context["sender_id"], links),
    }
    used = [name for name in chosen if values[name]]
    channel = lower(trim(context["channel"])) or "unknown"
    account = identifier(context["account"], "default")
    parts = ["v=1", "agent=" + agent, "channel=" + channel, "account=" + account]
    for name in used:
        parts.append(name + "=" + trim(lower(values[name])))
    signature = "|".join(parts)

    incoming = line.get("session_key", "")
    start = lower(trim(incoming))
    explicit = start.startswith("sk_v1_") or start.startswith("agent:")
    return {
        "agent": routed,
        "matched_by": matched_by,
        "scope": {
            "version": 1,
            "agent_id": agent,
            "channel": channel,
            "account": account,
            "dimensions": used or None,
            "values": {name: values[name] for name in sorted(used)} or None,
        },
        "signature": signature,
        "session_key": incoming if explicit else key(signature),
        "aliases": aliases(agent, context, links),
        "main_key": key(f"agent:{agent}:main"),
        "main_aliases": [f"agent:{agent}:main"],
    }
