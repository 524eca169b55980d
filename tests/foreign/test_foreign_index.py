"""Searching foreign sessions: without mirrors of those that nobody opened, and never out of date."""

from __future__ import annotations

from pathlib import Path

import pytest

from everlog.app import open_store
from everlog.session import Store
from tests.foreign.foreign_directories import SESSIONS, crabtalk_file, made


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def mirrors(home: Path) -> list[Path]:
    """The sessions that were mirrored."""
    return list(home.glob("live/*/sessions/*"))


def hit_texts(store: Store, text: str) -> list[str]:
    """The messages that a search leads to, read by the seqs of its hits."""
    results = store.search(text).results
    return [
        message.text
        for result in results
        for hit in result.hits
        for message in store.session(result.session).messages()
        if message.seq == hit.seq
    ]


@pytest.mark.parametrize("name", SESSIONS)
def test_a_search_makes_no_mirror_and_its_hits_are_the_messages_that_are_opened(
    tmp_path: Path, home: Path, name: str
) -> None:
    files, session = SESSIONS[name]
    root = made(tmp_path / name, files)
    with open_store(f"{name}:{root}", home=home) as store:
        text = next(
            message.text.split()[0]
            for message in open_store(f"{name}:{root}", home=tmp_path / "other").session(session).messages()
            if message.role == "user" and message.text
        )
        results = store.search(text).results
        assert session in [result.session for result in results]
        assert mirrors(home) == []
        found = hit_texts(store, text)
        assert found and all(text.casefold() in message.casefold() for message in found)
        assert mirrors(home)


def test_lines_added_since_are_found_and_lead_to_their_message(tmp_path: Path, home: Path) -> None:
    root = made(tmp_path / "crab", {f"crab_user_{n}.jsonl": crabtalk_file() for n in (1, 2, 3)})
    with open_store(f"crabtalk:{root}", home=home) as store:
        assert store.search("zebra").total == 0
        with (root / "crab_user_2.jsonl").open("ab") as file:
            file.write(b'{"role":"user","content":"a zebra"}\n')
        assert hit_texts(store, "zebra") == ["a zebra"]
        assert len(mirrors(home)) == 1  # only that which grows
        assert len(hit_texts(store, "hello")) == 3


def test_a_rewritten_file_is_found_by_its_new_text_only(tmp_path: Path, home: Path) -> None:
    root = made(tmp_path / "crab", {"crab_user_1.jsonl": crabtalk_file()})
    with open_store(f"crabtalk:{root}", home=home) as store:
        assert store.search("hello").total == 1
        head = crabtalk_file().splitlines(keepends=True)[0]
        (root / "crab_user_1.jsonl").write_bytes(head + b'{"role":"user","content":"a zebra"}\n')
        assert store.search("hello").total == 0
        assert hit_texts(store, "zebra") == ["a zebra"]


def test_what_was_deleted_is_in_no_index(tmp_path: Path, home: Path) -> None:
    root = made(tmp_path / "crab", {f"crab_user_{n}.jsonl": crabtalk_file() for n in (1, 2)})
    with open_store(f"crabtalk:{root}", home=home) as store:
        assert store.search("hello").total == 2
        store.session("crab_user_1").delete()
        (root / "crab_user_2.jsonl").unlink()  # by its program
        assert store.search("hello").total == 0


def test_usage_is_counted_without_mirrors(tmp_path: Path, home: Path) -> None:
    files, session = SESSIONS["claude"]
    root = made(tmp_path / "claude", files)
    with open_store(f"claude:{root}", home=home) as store:
        used = store.usage()
        assert used.spent and used.behind == 0
        assert mirrors(home) == []
        assert store.session(session).usage().spent == used.spent
        store.search("x")
        assert store.usage().spent == used.spent
