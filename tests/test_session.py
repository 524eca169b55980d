"""The public interface: what `Store` and `Session` accept, compare and print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import everlog
from everlog.settings import CompactionSettings, MemorySettings, SessionSettings


def test_a_string_is_a_user_message() -> None:
    with everlog.open_store("memory:") as store:
        session = store.create()
        message = session.append("hello")
        assert (message.role, message.text, message.seq) == ("user", "hello", 1)
        session.append_many(["again", everlog.assistant("yes")])
        assert [message.role for message in session.messages()] == ["user", "user", "assistant"]


@pytest.mark.parametrize("wrong", [7, None, b"bytes", {"role": "user"}, ["a", "b"], Path("x")])
def test_anything_else_is_a_type_error_that_names_what_is_accepted(wrong: Any) -> None:
    with everlog.open_store("memory:") as store:
        session = store.create()
        for append in (session.append, lambda value: session.append_many(["x", value])):
            with pytest.raises(TypeError, match=rf"str .* or a record .* not {type(wrong).__name__}"):
                append(wrong)
        assert session.records() == []


def test_stores_and_sessions_are_equal_by_location_and_id(tmp_path: Path) -> None:
    with (
        everlog.open_store(tmp_path / "a", create=True) as store,
        everlog.open_store(tmp_path / "b", create=True) as other,
    ):
        session = store.create()
        with everlog.open_store(str(tmp_path / "." / "a")) as again:
            assert again == store and hash(again) == hash(store)
            assert again.session(session.id) == session
            assert len({session, again.session(session.id), store.session(session.id)}) == 1
        assert store != other and session != other.create() and session != store.create()
        assert repr(store) == f"Store({str(tmp_path / 'a')!r})"
        assert repr(session) == f"Session({session.id!r})"
    with everlog.open_store("memory:") as one, everlog.open_store("memory:") as two:
        assert one != two and one in {one} and repr(one) == "Store('memory:')"
        assert one != object() and one.create() != object()


def test_the_password_of_a_database_is_not_in_the_location() -> None:
    store = everlog.open_store("postgresql://me:secret@localhost:1/x")
    assert "secret" not in repr(store) and "localhost" in repr(store)
    store.close()


def test_metadata_has_a_title_and_files_a_name() -> None:
    with everlog.open_store("memory:") as store:
        session = store.create(title="First")
        assert session.update(title="Second", model="m").title == "Second"
        assert session.metadata.model == "m"
        assert store.list(title="second")[0].metadata.title == "Second"
        assert session.update(title=None).title is None
        assert session.update() == session.metadata
        record = session.records()[-1]
        assert isinstance(record, everlog.Meta) and record.set == {"name": None}
        with pytest.raises(TypeError, match="name"):
            session.update(name="x")  # type: ignore[call-arg]


def test_the_first_characters_of_an_id_are_an_id_of_their_own(tmp_path: Path) -> None:
    with everlog.open_store(tmp_path, create=True) as store:
        existing = store.create()
        made = store.session(existing.id[:10], create=True)
        assert made != existing and made.metadata.aliases == (existing.id[:10],)


@pytest.mark.parametrize(
    ("make", "accepted"),
    [
        (lambda: CompactionSettings(compact_threshold=0.9), "a whole number at least 1024"),  # type: ignore[arg-type]
        (lambda: CompactionSettings(strategy="Rounds"), "one of structured, rounds, prose"),  # type: ignore[arg-type]
        (lambda: CompactionSettings(threshold=1.5), "a number above 0 and at most 1"),
        (lambda: MemorySettings(recall=99), "a whole number at least 0 and at most 50"),
        (lambda: SessionSettings(durability="maybe"), "one of always, os"),  # type: ignore[arg-type]
        (lambda: everlog.Settings(session="x"), "Expected `object`"),  # type: ignore[arg-type]
    ],
)
def test_settings_are_checked_in_python_too(make: Any, accepted: str) -> None:
    with pytest.raises(everlog.SettingsError) as caught:
        make()
    assert accepted in str(caught.value)
