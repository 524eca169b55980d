"""A conversation as the files of each program: texts said in turn by a user and an assistant.

Copies of a conversation share the ids and times of what they have in common, as real ones do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from uuid import NAMESPACE_OID, uuid5

from everlog.interop.formats.picoclaw.meta_file import file_stem

Files = dict[str, bytes]
ID = "0198f3c2-7b6e-4d10-8a55-1f2e3d4c5b6a"  # of the session in its program


def _uuid(texts: Sequence[str]) -> str:
    """An id of the last text, equal in all copies that say the same so far."""
    return str(uuid5(NAMESPACE_OID, "\0".join(texts)))


def _time(number: int) -> str:
    return f"2026-03-01T08:{number // 60:02}:{number % 60:02}.000Z"


def _lines(values: Sequence[Mapping[str, object]]) -> bytes:
    return b"".join(json.dumps(value, separators=(",", ":")).encode() + b"\n" for value in values)


def _role(number: int) -> str:
    return "assistant" if number % 2 else "user"


def claude(texts: Sequence[str]) -> Files:
    """A transcript of Claude Code."""
    values = []
    for number, text in enumerate(texts):
        message: dict[str, object] = {"role": _role(number), "content": text}
        if number % 2:
            message |= {
                "id": f"msg_{_uuid(texts[: number + 1])[:8]}",
                "model": "m",
                "content": [{"type": "text", "text": text}],
            }
        values.append(
            {
                "parentUuid": _uuid(texts[:number]) if number else None,
                "isSidechain": False,
                "type": _role(number),
                "message": message,
                "uuid": _uuid(texts[: number + 1]),
                "timestamp": _time(number),
                "cwd": "/w",
                "sessionId": ID,
                "version": "2.1.0",
            }
        )
    return {f"{ID}.jsonl": _lines(values)}


def cersei(texts: Sequence[str]) -> Files:
    """A transcript of Cersei."""
    values = [
        {
            "type": _role(number),
            "uuid": _uuid(texts[: number + 1]),
            "parent_uuid": _uuid(texts[:number]) if number else None,
            "timestamp": _time(number),
            "session_id": ID,
            "cwd": "/w",
            "message": {"role": _role(number), "content": text},
            "is_sidechain": False,
        }
        for number, text in enumerate(texts)
    ]
    return {f"{ID}.jsonl": _lines(values)}


def crabtalk(texts: Sequence[str]) -> Files:
    """A session of CrabTalk."""
    head = {
        "agent": "crab",
        "created_by": "user",
        "created_at": "2026-03-01T08:00:00+00:00",
        "title": "",
        "uptime_secs": 0,
    }
    return {"crab_user_1.jsonl": _lines([head, *({"role": _role(n), "content": text} for n, text in enumerate(texts))])}


def picoclaw_session(texts: Sequence[str]) -> Files:
    """A session of PicoClaw, with its metadata file."""
    stem = file_stem("agent:main:main")
    values = [{"role": _role(n), "content": text, "created_at": _time(n)} for n, text in enumerate(texts)]
    meta = {
        "key": "agent:main:main",
        "summary": "",
        "skip": 0,
        "count": len(texts),
        "created_at": _time(0),
        "updated_at": _time(0),
    }
    return {f"{stem}.jsonl": _lines(values), f"{stem}.meta.json": json.dumps(meta, indent=2).encode()}


def pi(texts: Sequence[str]) -> Files:
    """A session of pi, version 3."""
    header = {"type": "session", "version": 3, "id": ID, "timestamp": _time(0), "cwd": "/w"}
    values = [
        {
            "type": "message",
            "id": _uuid(texts[: number + 1])[:8],
            "parentId": _uuid(texts[:number])[:8] if number else None,
            "timestamp": _time(number),
            "message": {
                "role": _role(number),
                "content": [{"type": "text", "text": text}],
                "timestamp": 1_772_000_000_000 + number,
            },
        }
        for number, text in enumerate(texts)
    ]
    return {f"2026-03-01T08-00-00-000Z_{ID}.jsonl": _lines([header, *values])}


def codex(texts: Sequence[str]) -> Files:
    """A rollout of Codex."""
    meta = {"id": ID, "timestamp": _time(0), "cwd": "/w", "originator": "codex_exec", "cli_version": "0.100.0"}
    values: list[dict[str, object]] = [{"timestamp": _time(0), "type": "session_meta", "payload": meta}]
    for number, text in enumerate(texts):
        kind = "output_text" if number % 2 else "input_text"
        payload = {"type": "message", "role": _role(number), "content": [{"type": kind, "text": text}]}
        values.append({"timestamp": _time(number), "type": "response_item", "payload": payload})
    return {f"rollout-2026-03-01T08-00-00-{ID}.jsonl": _lines(values)}


def gemini(texts: Sequence[str]) -> Files:
    """A recording of Gemini CLI."""
    digest = sha256(b"/w").hexdigest()
    head = {"sessionId": ID, "projectHash": digest, "startTime": _time(0), "lastUpdated": _time(0), "kind": "main"}
    values = [
        {
            "id": _uuid(texts[: number + 1]),
            "timestamp": _time(number),
            "type": "gemini" if number % 2 else "user",
            "content": text if number % 2 else [{"text": text}],
        }
        for number, text in enumerate(texts)
    ]
    return {f"session-2026-03-01T08-00-{ID[:8]}.jsonl": _lines([head, *values])}


CONVERSATIONS: dict[str, Callable[[Sequence[str]], Files]] = {
    "claude": claude,
    "cersei": cersei,
    "crabtalk": crabtalk,
    "picoclaw": picoclaw_session,
    "pi": pi,
    "codex": codex,
    "gemini": gemini,
}
