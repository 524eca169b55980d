"""A conversation with Claude Code: what the fake model answers, what the program sent, and what we would send."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import everlog
from everlog.model import Text, ToolCall
from tests.real.fake_models import Json, call, text

_REMINDER = re.compile(r"<system-reminder>.*?</system-reminder>", re.DOTALL)
_NOTIFICATION = re.compile(r"<task-notification>.*</task-notification>", re.DOTALL)
SUMMARY = "They compared teas and chose a malty one."


def answer(request: Json) -> list[Json]:
    """Answer by what was said last."""
    last = conversation(request)[-1]
    if "user: result" in last or "task-notification" in last:
        return [text("That is done.")]
    if "detailed summary of the conversation" in last:
        return [text(f"<analysis>Tea.</analysis><summary>{SUMMARY}</summary>")]
    if last.endswith("Run a command."):
        return [text("I run it."), call("toolu_shell", "Bash", command="echo from the shell", description="say")]
    if last.endswith("Run two commands."):
        commands = [call(f"toolu_{name}", "Bash", command=f"echo {name}", description="say") for name in ("one", "two")]
        return [text("I run both."), *commands]
    if last.endswith("Run a loud command."):
        return [call("toolu_loud", "Bash", command="seq 1 20000", description="count")]
    if last.endswith("Ask another agent."):
        task = {"description": "taste", "prompt": "Taste the second tea.", "subagent_type": "general-purpose"}
        return [text("I ask it."), call("toolu_agent", "Agent", **task)]
    if last.endswith("Taste the second tea."):
        return [text("It is smoky.")]
    return [text("Assam.")]


def conversation(request: Json) -> list[str]:
    """Return what a request says, block by block, without the reminders that the program adds each time."""
    return [part for message in request["messages"] for part in _parts(message["role"], message["content"])]


def _parts(role: str, content: Any) -> Iterator[str]:
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    for block in blocks:
        match block["type"]:
            case "text":
                if words := spoken(block["text"]):
                    yield f"{role}: {words}"
            case "tool_use":
                yield f"{role}: call {block['id']} {block['name']} {json.dumps(block['input'], sort_keys=True)}"
            case "tool_result":
                yield f"{role}: result {block['tool_use_id']} {spoken(_plain(block['content']))}"
            case kind:
                yield f"{role}: {kind}"


def spoken(text: str) -> str:
    """Return a text without reminders; a notification of the program inside one is part of the conversation."""
    notification = _NOTIFICATION.search(text)
    return notification[0] if notification else _REMINDER.sub("", text).strip()


def _plain(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(block["text"] for block in content if block["type"] == "text")


def in_context(session: everlog.Session) -> list[str]:
    """Return what we would send a model next, as `conversation` does of what the program sends."""
    parts = []
    for message in session.context().messages:
        role = "assistant" if message.role == "assistant" else "user"
        if message.role == "toolResult":
            parts.append(f"{role}: result {message.tool_call_id} {message.text}")
            continue
        for block in message.content:
            if isinstance(block, Text) and (words := spoken(block.text)):
                parts.append(f"{role}: {words}")
            elif isinstance(block, ToolCall):
                arguments = json.dumps(block.arguments, sort_keys=True)
                parts.append(f"{role}: call {block.id} {block.name} {arguments}")
    return parts
