"""Directories of other programs, made by hand from their formats."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from everlog.interop.formats.picoclaw.meta_file import file_stem
from tests.formats.round_trips import golden


def made(root: Path, files: Mapping[str, bytes]) -> Path:
    """The files on the disk."""
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def crabtalk_file(agent: str = "crab", sender: str = "user", title: str = "") -> bytes:
    """A session of CrabTalk with one exchange."""
    head = (
        f'{{"agent":"{agent}","created_by":"{sender}","created_at":"2026-03-01T08:00:00+00:00",'
        f'"title":"{title}","uptime_secs":0}}\n'
    )
    return head.encode() + (b'{"role":"user","content":"hello"}\n{"role":"assistant","content":"hi there"}\n')


def cersei_file(session: str) -> bytes:
    """A session of Cersei with one exchange."""
    user, answer = (f"{n:08x}-0000-4000-8000-000000000000" for n in (1, 2))
    common = f'"session_id":"{session}","cwd":"/w"'
    return (
        f'{{"type":"user","uuid":"{user}","timestamp":"2026-03-01T08:00:00+00:00",{common},'
        '"message":{"role":"user","content":"hello"},"is_sidechain":false}\n'
        f'{{"type":"assistant","uuid":"{answer}","parent_uuid":"{user}",'
        f'"timestamp":"2026-03-01T08:00:01+00:00",{common},'
        '"message":{"role":"assistant","content":"hi there"},"is_sidechain":false}\n'
    ).encode()


def picoclaw_files(key: str) -> dict[str, bytes]:
    """A session of PicoClaw with one exchange."""
    stem = file_stem(key)
    at = "2026-03-01T08:00:00.123456789Z"
    lines = (
        f'{{"role":"user","content":"hello","created_at":"{at}"}}\n'
        f'{{"role":"assistant","content":"hi there","created_at":"{at}"}}\n'
    )
    meta = (
        f'{{\n  "key": "{key}",\n  "summary": "",\n  "skip": 0,\n  "count": 2,\n'
        f'  "created_at": "{at}",\n  "updated_at": "{at}"\n}}'
    )
    return {f"{stem}.jsonl": lines.encode(), f"{stem}.meta.json": meta.encode()}


CLAUDE = "3f1c7f0e-5c1a-4d0b-9a52-0c8f6a3b1d01"
PI = "2026-01-05T09-00-00-000Z_0198f3c2-7b6e-7d10-8a55-1f2e3d4c5b6a"

# One session of each program, and its id.
SESSIONS: dict[str, tuple[Mapping[str, bytes], str]] = {
    "claude": (golden("claude", CLAUDE).files, CLAUDE),
    "cersei": ({"s-1.jsonl": cersei_file("s-1")}, "s-1"),
    "crabtalk": ({"crab_user_1.jsonl": crabtalk_file()}, "crab_user_1"),
    "picoclaw": (picoclaw_files("agent:main:main"), "agent_main_main"),
    "pi": (golden("pi", PI).files, PI),
}
