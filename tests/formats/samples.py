"""Checks of a format on real files, where there are any."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from everlog.app import open_store
from everlog.interop.formats.format_types import HiddenMessages, ListingScan, TailState
from everlog.interop.importer import import_files
from everlog.interop.transcript_sources import FileSource
from everlog.model import PROGRAM, Message

CUTS = 20


def needs_corpus(folder: Path) -> pytest.MarkDecorator:
    """Skip a test where a folder of real files is missing."""
    return pytest.mark.skipif(not folder.is_dir(), reason=f"no {folder.name} files")


def check_sample(format: Any, path: Path, session_id: str, expected: tuple[int, int, int, str]) -> None:
    """Import a file and compare its counts and title; then follow and list it from random cuts."""
    prompts, answers, calls, title = expected
    with open_store("memory:") as store:
        (result,) = import_files(store.port, [path], [format])
        assert (result.problem, result.lost) == ("", 0)
        session = store.session(f"{format.NAME}:{session_id}")
        messages = session.messages()
        assert session.metadata.title == title
    texts = [(message.role, message.sender, message.text) for message in messages]
    assert sum(role == "user" and sender != PROGRAM for role, sender, _ in texts) == prompts
    assert sum(role == "assistant" and bool(text.strip()) for role, _, text in texts) == answers
    assert sum(len(message.tool_calls) for message in messages) == calls

    transcript, parts = format.open_source(FileSource(path))
    lines = list(parts[0][1])
    random = Random(len(lines))
    for _ in range(CUTS):
        cut = random.randrange(len(lines) + 1)
        state: TailState = {}
        scan = ListingScan()
        items: dict[str, Message] = {}
        hidden: set[str] = set()
        for start, end in ((0, cut), (cut, len(lines))):
            followed = format.read_tail(state, lines[start:end], transcript)
            followed = followed or format.read_all(lines[:end], transcript)
            state = followed.state
            for item in followed.items:
                if isinstance(item, Message):
                    items.setdefault(item.id, item)
                elif isinstance(item, HiddenMessages):
                    hidden = set(item.ids)
            scan = format.scan_listing(scan, lines[start:end], transcript)
        live = [(item.role, item.sender, item.text) for item in items.values() if item.id not in hidden]
        assert live == texts, cut
        assert (scan.title, scan.messages, scan.program_id) == (title, len(items), session_id), cut
