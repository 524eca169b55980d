"""PicoClaw's SessionStore on its own files, and the defects of its own one."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterator
from pathlib import Path

import pytest

from everlog.errors import ConflictError, FormatError, StoreFullError, UnsupportedError
from everlog.identity.key import session_key
from everlog.integrations.picoclaw import SessionStore
from everlog.interop.archive.archive_listing import list_archive
from everlog.model import Image, assistant, user

KEY = "agent:main:direct:42"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SessionStore]:
    with SessionStore(tmp_path / "s", home=tmp_path / "home") as made:
        yield made


def texts(store: SessionStore, key: str = KEY) -> list[str]:
    return [one.text for one in store.get_history(key)]


def meta(tmp_path: Path, key: str = KEY) -> dict[str, object]:
    found: dict[str, object] = json.loads((tmp_path / "s" / f"{key.replace(':', '_')}.meta.json").read_bytes())
    return found


def say(store: SessionStore, count: int, key: str = KEY) -> None:
    for number in range(count):
        store.add_message(key, ("user", "assistant")[number % 2], f"{number}")


def test_messages_are_written_as_picoclaw_writes_them(store: SessionStore, tmp_path: Path) -> None:
    store.add_message(KEY, "user", "a <b> & c")
    store.add_full_message(KEY, {"role": "assistant", "content": "hi", "model_name": "m"})
    assert texts(store) == ["a <b> & c", "hi"]
    first, second = (tmp_path / "s" / "agent_main_direct_42.jsonl").read_bytes().splitlines()
    assert first.startswith(b'{"role":"user","content":"a \\u003cb\\u003e \\u0026 c","created_at":')
    assert json.loads(second)["content"] == "hi"
    about = meta(tmp_path)
    assert list(about)[:6] == ["key", "summary", "skip", "count", "created_at", "updated_at"]
    assert (about["key"], about["skip"], about["count"]) == (KEY, 0, 2)
    assert store.list_sessions() == [KEY]


def test_truncating_hides_and_saving_takes_out_what_was_archived(store: SessionStore, tmp_path: Path) -> None:
    say(store, 6)
    before = (tmp_path / "s" / "agent_main_direct_42.jsonl").read_bytes()
    store.truncate_history(KEY, 2)
    assert texts(store) == ["4", "5"]
    assert (meta(tmp_path)["skip"], meta(tmp_path)["count"]) == (4, 6)
    assert (tmp_path / "s" / "agent_main_direct_42.jsonl").read_bytes() == before
    store.save(KEY)
    assert texts(store) == ["4", "5"]
    assert (meta(tmp_path)["skip"], meta(tmp_path)["count"]) == (0, 2)
    after = (tmp_path / "s" / "agent_main_direct_42.jsonl").read_bytes()
    assert before.endswith(after) and len(after) < len(before)
    kept = [one.path for one in list_archive(tmp_path / "home", (), limit=10).files]
    assert any(path.endswith("agent_main_direct_42.jsonl") for path in kept)
    store.save(KEY)  # nothing more to take out
    store.add_message(KEY, "user", "6")
    assert texts(store) == ["4", "5", "6"]


def test_a_summary_is_kept_and_stands_for_what_is_skipped(store: SessionStore) -> None:
    say(store, 6)
    store.set_summary(KEY, "They counted.")
    store.truncate_history(KEY, 2)
    assert store.get_summary(KEY) == "They counted."
    assert texts(store) == ["4", "5"]
    store.save(KEY)
    assert (store.get_summary(KEY), texts(store)) == ("They counted.", ["4", "5"])
    store.set_summary("agent:main:direct:new", "x")  # its metadata is made
    assert (store.get_summary("agent:main:direct:new"), texts(store, "agent:main:direct:new")) == ("x", [])


def test_another_history_takes_the_place_of_the_old_one(store: SessionStore, tmp_path: Path) -> None:
    say(store, 4)
    store.set_history(KEY, [user("x"), {"role": "assistant", "content": "y"}])
    assert texts(store) == ["x", "y"]
    assert (meta(tmp_path)["skip"], meta(tmp_path)["count"]) == (0, 2)
    store.add_message(KEY, "user", "z")
    assert texts(store) == ["x", "y", "z"]
    store.set_history(KEY, [])
    assert texts(store) == []


def test_two_keys_that_would_share_a_file_are_told_apart(store: SessionStore) -> None:
    store.add_message("agent:main:-1/42", "user", "one")
    with pytest.raises(ConflictError):
        store.add_message("agent:main:-1_42", "user", "two")
    assert texts(store, "agent:main:-1/42") == ["one"]
    with pytest.raises((FormatError, ConflictError)):
        store.add_message("x" * 300, "user", "too long for a file name")


def test_a_line_that_picoclaw_could_not_read_is_refused(store: SessionStore, tmp_path: Path) -> None:
    store.add_message(KEY, "user", "one")
    with pytest.raises(StoreFullError):
        store.add_message(KEY, "user", "x" * (11 << 20))
    with pytest.raises(UnsupportedError):
        store.add_full_message(KEY, user([Image(mime_type="image/png", data="aGk=")]))
    assert texts(store) == ["one"]
    path = tmp_path / "s" / "agent_main_direct_42.jsonl"
    with path.open("ab") as opened:  # PicoClaw writes such lines all the same
        opened.write(b'{"role":"user","content":"%b"}\n' % (b"x" * (11 << 20)))
    store.add_message(KEY, "user", "two")
    assert texts(store)[0] == "one" and texts(store)[-1] == "two"


def test_a_garbled_second_file_neither_empties_nor_unlists_a_session(store: SessionStore, tmp_path: Path) -> None:
    say(store, 3)
    (tmp_path / "s" / "agent_main_direct_42.meta.json").write_bytes(b'{"key": "agen')
    assert texts(store) == ["0", "1", "2"]
    assert len(store.list_sessions()) == 1
    store.add_message(KEY, "assistant", "3")
    assert meta(tmp_path)["count"] == 4
    (aside,) = (tmp_path / "s").glob("*.meta.json.damaged-*")
    assert aside.read_bytes() == b'{"key": "agen', "it is set aside, not overwritten"
    assert [one for one in store.reports if "set aside" in one]
    (tmp_path / "s" / "agent_main_direct_42.meta.json").unlink()
    store.add_message(KEY, "assistant", "4")
    assert texts(store) == ["0", "1", "2", "3", "4"]


def test_a_history_under_an_old_name_is_taken_over_once(store: SessionStore) -> None:
    say(store, 2)
    new, other = (session_key(name) for name in ("telegram", "slack"))
    store.ensure_session_metadata(new, {"version": 1}, [KEY])
    assert texts(store, new) == ["0", "1"]
    store.ensure_session_metadata(other, {"version": 1}, [KEY])
    assert texts(store, other) == []  # one promotion only
    store.truncate_history(new, 0)  # /clear
    store.ensure_session_metadata(new, {"version": 1}, [KEY])
    assert texts(store, new) == []
    assert texts(store) == ["0", "1"]  # the old files stay


def test_a_main_session_is_nobodys_history(store: SessionStore) -> None:
    say(store, 2, "agent:main:main")
    new = session_key("telegram")
    store.ensure_session_metadata(new, None, ["agent:main:main"])
    assert texts(store, new) == []


def test_a_name_that_several_sessions_list_is_no_name_of_one_of_them(store: SessionStore) -> None:
    first, second, main = session_key("first"), session_key("second"), "agent:main:main"
    store.ensure_session_metadata(first, {"version": 1}, [main, KEY])
    assert store.resolve_session_key(KEY) == first
    store.add_message(KEY, "user", "by its alias")
    store.set_summary(KEY, "One message.")
    assert texts(store, first) == texts(store) == ["by its alias"]
    assert store.get_summary(first) == store.get_summary(KEY) == "One message."
    store.ensure_session_metadata(second, {"version": 1}, [main, KEY])
    assert store.resolve_session_key(KEY) == KEY
    assert store.resolve_session_key(main) == main
    store.add_message(main, "user", "to the main session")
    assert (texts(store, main), texts(store, first), texts(store, second)) == (
        ["to the main session"],
        ["by its alias"],
        [],
    )
    assert store.resolve_session_key(first) == first
    assert store.resolve_session_key("agent:main:nobody") == "agent:main:nobody"


def _add(work: tuple[str, str, int]) -> None:
    directory, home, number = work
    with SessionStore(directory, home=home) as store:
        for count in range(40):
            store.add_message(KEY, "user", f"{number}:{count}")


def test_two_processes_count_right(store: SessionStore, tmp_path: Path) -> None:
    work = [(str(tmp_path / "s"), str(tmp_path / "home"), number) for number in range(2)]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.map(_add, work)
    assert meta(tmp_path)["count"] == 80
    said = texts(store)
    assert sorted(said) == sorted(f"{n}:{count}" for n in range(2) for count in range(40))


def test_what_is_not_shown_by_picoclaw_is_not_written(store: SessionStore) -> None:
    with pytest.raises(FormatError):
        store.add_message(KEY, "tool", "x")
    store.add_full_message(KEY, assistant("done"))
    assert texts(store) == ["done"]
