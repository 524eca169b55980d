"""What notes' files are called, and how old they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.memory import notes
from everlog.memory.notes import MemoryFile, file_name


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("Prefers tabs", "prefers-tabs.md"),
        ("../../etc/passwd", "etc-passwd.md"),
        ("日本語のメモ", "日本語のメモ.md"),
        ("...", "note.md"),
        ("", "note.md"),
        ("MEMORY", "memory-2.md"),
        ("extracted", "extracted-2.md"),
    ],
)
def test_a_file_name_is_safe(name: str, file: str) -> None:
    assert file_name(name) == file


def test_a_taken_name_gets_a_number_whatever_its_case() -> None:
    assert file_name("A", ["a.md", "A-2.MD"]) == "a-3.md"


@given(st.text(), st.lists(st.text(), max_size=3))
def test_any_name_gives_a_name_that_is_short_free_and_in_its_directory(name: str, others: list[str]) -> None:
    taken = [file_name(one) for one in others]
    made = file_name(name, taken)
    assert len(made) <= notes.MAX_NAME_LENGTH and len(made.encode()) <= 255
    assert made.endswith(".md") and not made.startswith(".") and "/" not in made and "\0" not in made
    assert made.casefold() not in {one.casefold() for one in taken}


@pytest.mark.parametrize(("days", "text"), [(0, "today"), (1, "yesterday"), (5, "5 days ago")])
def test_age_in_words(days: int, text: str) -> None:
    assert MemoryFile("a.md", "", 1_000_000.0).age(1_000_000.0 + days * 86_400) == text


def test_a_clock_that_went_back_makes_nothing_older_or_younger() -> None:
    assert MemoryFile("a.md", "", 1_000_000.0).age(1_000_000.0 - 7_200) == "today"
    assert MemoryFile("a.md", "", 1_000_000.0).age_warning(0.0) == ""


def test_a_note_older_than_a_day_warns() -> None:
    assert MemoryFile("a.md", "", 0.0).age_warning(86_400.0) == ""
    assert "2 days ago" in MemoryFile("a.md", "", 0.0).age_warning(2 * 86_400.0)
