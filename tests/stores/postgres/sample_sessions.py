"""A root with sessions of every kind, to be moved: parts, names, chats, deletions, damage."""

from __future__ import annotations

import os
import random
from pathlib import Path

from everlog.log import line_codec
from everlog.model import Compaction, Event, Rewind, Tombstone, assistant, user
from everlog.settings import SessionSettings, Settings
from everlog.stores.file.file_store import FileStore

SMALL = Settings(session=SessionSettings(part_bytes=3000, durability="os"))
DAMAGES = 5  # kinds of it


def fill(root: Path, count: int, seed: int = 9) -> dict[str, str]:
    """Make so many sessions; which of them are damaged, and how."""
    chance = random.Random(seed)
    store = FileStore(root, SMALL)
    damaged: dict[str, str] = {}
    for number in range(count):
        facts: dict[str, object] = {"agent": "main", "sender": f"u{number % 7}"}
        if number % 3 == 0:
            facts |= {"key": f"key-{number % 9}", "aliases": [f"also-{number}", f"old-{number % 6}"]}
        session = store.create(facts).id
        if number % 11 == 10:
            continue  # nothing was said
        for turn in range(chance.randint(1, 14)):
            said = chance.choice(("short", "größer \u2028 and \U0001f41a ", "x" * 700)) * 2
            run = f"r{turn}"
            store.append(session, [user(f"{number}.{turn} {said}", run_id=run), assistant(said)])
            if chance.random() < 0.2:
                store.append(session, [Event(kind="turn_end", data={"usage": {"inputTokens": 5}})])
        head = store.metadata(session).through.seq
        if number % 2:
            store.append(session, [Tombstone(deletes=(1,))])
        if number % 4 == 1:
            short = Compaction(strategy="extractive", summary="what was said", first_kept_seq=head)
            store.append(session, [short])
        if number % 5 == 2:
            store.append(session, [Rewind(to_seq=head - 1), Tombstone(restores=(1,))])
        if number % 6 == 3:
            store.update(session, {"name": f"Session {number}"})
        if number % 8 == 7:
            store.resume(session)
    store.close()
    whole = sorted(one.name for one in (root / "sessions").iterdir() if (one / "session.jsonl").stat().st_size)
    for number, session in enumerate(chance.sample(whole, min(max(count // 10, DAMAGES), len(whole)))):
        damaged[session] = _damage(root / "sessions" / session, number % DAMAGES)
    return damaged


def _damage(folder: Path, kind: int) -> str:
    """Do something to a log that no writer of ours does."""
    part = folder / "session.jsonl"
    part.chmod(0o600)
    rows = part.read_bytes().split(b"\n")
    middle = len(rows) // 2
    if kind == 0:
        rows[middle] = rows[middle][:20] + b"?" + rows[middle][21:]
        what = "crc does not match"
    elif kind == 1:
        rows.insert(middle, b"somebody else wrote this")
        what = "left out"
    elif kind == 2:
        rows.insert(middle + 1, rows[middle])
        what = "left out"
    elif kind == 3:
        record = assistant("from elsewhere")
        seq = max(line_codec.peek_seq(row) or 0 for row in _rows(folder)) + 1
        body = b'{"recordType":"message","schemaVersion":1,"seq":%d,' % seq
        last = sorted(folder.glob("session*.jsonl"), key=_number)[-1]
        last.chmod(0o600)
        with open(last, "ab") as file:
            file.write(body + line_codec.encode(record)[1][len(b'{"recordType":"message",') :] + b"\n")
        return "no crc"
    else:
        last = sorted(folder.glob("session*.jsonl"), key=_number)[-1]
        last.chmod(0o600)
        with open(last, "ab") as file:
            file.write(b'{"recordType":"mess')
        return "torn"
    part.write_bytes(b"\n".join(rows))
    return what


def _rows(folder: Path) -> list[bytes]:
    return [row for file in folder.glob("session*.jsonl") for row in file.read_bytes().split(b"\n") if row]


def _number(part: Path) -> int:
    return int(part.stem.removeprefix("session").removeprefix("_part") or 1)


def logs(root: Path) -> dict[str, bytes]:
    """Every part of every session, by name."""
    return {
        f"{folder}/{name}": (root / "sessions" / folder / name).read_bytes()
        for folder in os.listdir(root / "sessions")
        for name in os.listdir(root / "sessions" / folder)
        if name.startswith("session")
    }
