"""Builds transcripts of Claude Code record by record, as its reference describes them."""

from __future__ import annotations

import json
from typing import Any

from everlog.interop.formats.claude import FORMAT as claude
from everlog.interop.formats.format_types import ForeignSession, HiddenMessages, InMemorySource
from everlog.model import Message

ID = "7c0ffee0-0000-4000-8000-00000000cafe"


def uuid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012x}"


class Session:
    """Each record hangs from the one before unless `parent` says otherwise."""

    def __init__(self) -> None:
        self.objects: list[dict[str, Any]] = []
        self.leaf: str | None = None
        self.count = 0

    def add(self, kind: str, *, parent: str | bool | None = True, **keys: Any) -> str:
        self.count += 1
        made = {
            "parentUuid": self.leaf if parent is True else parent,
            "isSidechain": False,
            "userType": "external",
            "cwd": "/work",
            "sessionId": ID,
            "version": "2.1.325",
            "gitBranch": "main",
            "type": kind,
            "uuid": uuid(self.count),
            "timestamp": f"2026-01-01T00:{self.count // 60 % 60:02d}:{self.count % 60:02d}.000Z",
            **keys,
        }
        self.objects.append(made)
        self.leaf = made["uuid"]
        return str(made["uuid"])

    def user(self, content: Any, **keys: Any) -> str:
        return self.add("user", message={"role": "user", "content": content}, **keys)

    def answer(self, *blocks: Any, response: str | None = None, **keys: Any) -> str:
        given = [{"type": "text", "text": one} if isinstance(one, str) else one for one in blocks]
        name = response or f"msg_{self.count}"
        usage = keys.pop("usage", {"input_tokens": 1, "output_tokens": 2})
        message = {
            "id": name,
            "type": "message",
            "role": "assistant",
            "model": "claude-test",
            "content": given,
            "stop_reason": None,
            "usage": usage,
        }
        keys.setdefault("requestId", f"req_{name}")
        return self.add("assistant", message=message, **keys)

    def call(self, name: str, **keys: Any) -> str:
        return self.answer({"type": "tool_use", "id": name, "name": "Bash", "input": {}}, **keys)

    def result(self, name: str, text: str, **keys: Any) -> str:
        block = {"type": "tool_result", "tool_use_id": name, "content": text}
        return self.user([block], **keys)

    def compact(self, summary: str, **details: Any) -> str:
        boundary = self.add(
            "system",
            parent=None,
            logicalParentUuid=self.leaf,
            subtype="compact_boundary",
            content="Conversation compacted",
            compactMetadata={"trigger": "auto", "preTokens": 99, **details},
        )
        return self.user(summary, parent=boundary, isCompactSummary=True)

    def meta(self, kind: str, **keys: Any) -> None:
        self.objects.append({"type": kind, **keys, "sessionId": ID})

    def data(self) -> bytes:
        return encode(self.objects)

    def read(self) -> ForeignSession:
        return read(self.data())


def encode(objects: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(one, ensure_ascii=False, separators=(",", ":")).encode() + b"\n" for one in objects)


def read(data: bytes, **files: bytes) -> ForeignSession:
    return claude.read(InMemorySource(ID, {f"{ID}.jsonl": data, **files}))


def hidden(made: ForeignSession) -> set[str]:
    return {one for item in made.items if isinstance(item, HiddenMessages) for one in item.ids}


def shown(made: ForeignSession) -> list[str]:
    """The texts of the conversation."""
    away = hidden(made)
    return [item.text for item in made.items if isinstance(item, Message) and item.id not in away]
