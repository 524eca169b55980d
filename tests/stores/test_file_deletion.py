"""Deleted means gone: after `rm` no file of a store has a word of the session."""

from __future__ import annotations

import random
from pathlib import Path

import everlog
from everlog.index.database import Database
from everlog.model import user
from tests.stores.stored_text import files_with, rare_words


def fill(store: everlog.Store, words: list[str], *, sessions: int = 6) -> list[str]:
    """Make sessions of 40 messages with common words; return their ids."""
    chance = random.Random(7)
    ids = []
    for number in range(sessions):
        session = store.create(sender=f"s{number}")
        ids.append(session.id)
        session.append_many([user(" ".join(chance.choices(words, k=30))) for _ in range(40)])
        store.search("nothing")  # each is indexed by itself, so that the index has several segments
    return ids


def test_no_byte_of_a_deleted_session_stays_in_any_file(tmp_path: Path) -> None:
    *secret, old, new = rare_words(122, "secret")
    common = rare_words(200, "common")
    with everlog.open_store(tmp_path, create=True) as store:
        ids = fill(store, common)
        session = store.create(sender="me", title=f"about {old}")
        for first in range(0, len(secret), 10):
            session.append(user(f"snake_{secret[first]}_case " + " ".join((*secret[first : first + 10], *common[:20]))))
            store.search(secret[first])
        session.tombstone(2)
        session.rename(f"about {new}")
        store.list()
        with everlog.open_store(tmp_path) as other:  # another process has the index open
            assert other.search(secret[33]).results
            session.delete()
            assert not files_with(tmp_path, [*secret, old, new])
            assert not other.search(secret[33]).results
        assert len(store.search(common[0]).results) == len(ids)
        store.port.catch_up()
        assert store.search(f"{common[1][2:8]}").total == 0
    database = Database(tmp_path / "index.db", print)
    with database.write_transaction() as cursor:
        cursor.execute("INSERT INTO word (word, rank) VALUES ('integrity-check', 1)")
        cursor.execute("INSERT INTO inside (inside) VALUES ('integrity-check')")
    database.close()


def test_sessions_deleted_by_hand_leave_the_index_at_the_next_listing(tmp_path: Path) -> None:
    secret = rare_words(30, "secret")
    with everlog.open_store(tmp_path, create=True) as store:
        session = store.create(sender="me")
        session.append(user(" ".join(secret)))
        store.create(sender="other").append(user("kept"))
        store.search(secret[0])
    for path in sorted((tmp_path / "sessions" / session.id).iterdir()):
        path.unlink()
    (tmp_path / "sessions" / session.id).rmdir()
    with everlog.open_store(tmp_path) as store:
        assert store.list().total == 1
        assert not files_with(tmp_path, secret)


def test_a_deletion_removes_what_crashes_left(tmp_path: Path) -> None:
    """Stages of dead processes, and sessions that were moved to the trash and not unlinked."""
    with everlog.open_store(tmp_path, create=True) as store:
        session = store.create(sender="me")
        session.append(user("kept elsewhere"))
        other = store.create(sender="other")
        dead = 2**22 + 7  # above the highest possible pid
        for place in ("tmp", "trash"):
            left = tmp_path / place / f"{other.id}.{dead}.abcd1234"
            left.mkdir()
            (left / "session.jsonl").write_bytes(b"qzsecret")
        running = tmp_path / "tmp" / f"{other.id}.1.abcd1234"
        running.mkdir()
        (running / "session.jsonl").write_bytes(b"being made")
        (tmp_path / "sessions" / session.id / "torn.session.jsonl.7").write_bytes(b"qzsecret")
        session.delete()
        assert not files_with(tmp_path, ["qzsecret", "kept elsewhere"])
        assert running.exists()
