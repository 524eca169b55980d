"""Which notes a message is about."""

from __future__ import annotations

import pytest

from everlog.memory.notes import MemoryFile
from everlog.memory.recall import collect_items, rank_items

FILES = [
    MemoryFile("tabs.md", "The user prefers tabs for indentation."),
    MemoryFile("deploy.md", "---\nname: Deploys\nupdated: 2025-10-02\n---\n\nWe deploy on Fridays."),
    MemoryFile("old.md", "The port is 81.\n\n~~The port was called zanzibar~~ (until 2025-10-01)"),
    MemoryFile("db.md", "我们使用数据库 PostgreSQL"),
    MemoryFile("MEMORY.md", "- [Deploys](deploy.md)"),
    MemoryFile(
        "extracted.md",
        "## Auto-extracted memories\n\n### Session memories — 2025-10-03\n"
        "- **[project]** The linter is ruff *(confidence: 60%)* <!-- session:S1 seq:4 -->\n",
    ),
]


@pytest.mark.parametrize(
    ("message", "files"),
    [
        ("Which indentation do I like?", ["tabs.md"]),
        ("When are we deploying?", ["deploy.md"]),
        ("what about the LINTER", ["extracted.md"]),
        ("数据库是什么", ["db.md"]),
        ("zanzibar", []),
        ("What do you know about it?", []),
        ("", []),
        ("\0 \ud800 ~~ ]] (((", []),
    ],
)
def test_a_message_finds_the_notes_that_it_is_about(message: str, files: list[str]) -> None:
    assert [one.file for one in rank_items(collect_items(FILES), message, 5)] == files


def test_an_extracted_fact_says_where_and_when_it_was_said() -> None:
    (found,) = rank_items(collect_items(FILES), "linter", 5)
    assert (found.text, found.day, found.session) == ("The linter is ruff", "2025-10-03", "S1")


def test_equal_notes_come_newest_first_and_always_in_the_same_order() -> None:
    same = [
        MemoryFile(f"{name}.md", f"---\nupdated: {day}\n---\n\nThe deploy rule.")
        for name, day in (("b", "2025-01-01"), ("a", "2025-01-01"), ("c", "2025-02-01"))
    ]
    for files in (same, same[::-1]):
        assert [one.file for one in rank_items(collect_items(files), "deploy rule", 2)] == ["c.md", "a.md"]
