"""Old files become sessions, each once, and nothing of them is lost on the way."""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

import everlog
from everlog.identity.route import Router
from everlog.identity.scope import Inbound
from everlog.interop.legacy_import import migrate
from everlog.interop.legacy_json import LegacyStore
from everlog.stores.file.layout import legacy_files

CREATED, UPDATED = "2025-03-04T05:06:07.5Z", "2025-04-05T06:07:08+02:00"


def _document(key: str = "agent:main:direct:42", **more: Any) -> dict[str, Any]:
    return {
        "key": key,
        "messages": [
            {"role": "system", "content": "be kind"},
            {"role": "user", "content": "hello <b> \u2028 ☃"},
            {
                "role": "assistant",
                "content": "",
                "reasoning_content": "hm",
                "model_name": "m",
                "created_at": "2025-03-05T00:00:00.123456789Z",
                "tool_calls": [
                    {
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "ls", "arguments": '{"path":"."}'},
                        "extra_content": {"google": {"thought_signature": "sig"}},
                    }
                ],
            },
            {"role": "tool", "content": "a.py", "tool_call_id": "c1"},
            {"role": "assistant", "content": "one file", "media": ["media://1"]},
        ],
        "summary": "earlier: greetings",
        "created": CREATED,
        "updated": UPDATED,
        **more,
    }


def _write(folder: Path, name: str, value: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(value if isinstance(value, str) else json.dumps(value))
    return file


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return tmp_path / "old"


def _migrate(root: Path, old: Path) -> list[Any]:
    with everlog.open_store(root, create=True) as store:
        return migrate(store.port, legacy_files(old))


def test_a_file_becomes_a_session_with_its_times(root: Path, old: Path) -> None:
    file = _write(old, "x.json", _document())
    (done,) = _migrate(root, old)
    assert (done.problem, done.records_in, done.records_out) == ("", 6, 6)
    assert not file.exists()
    assert (old / "x.json.migrated").exists()
    session = everlog.open_store(root, create=True).session("agent:main:direct:42")
    metadata = session.metadata
    assert metadata.created_at == "2025-03-04T05:06:07.500Z"
    assert metadata.last_message_at.startswith("2025-04-05T04:07:08")
    assert (metadata.agent, metadata.sender, metadata.chat) == ("main", "42", 1)
    said = session.messages()
    assert [m.role for m in said] == ["user", "assistant", "toolResult", "assistant"]
    assert said[0].text == "hello <b> \u2028 ☃"
    assert said[1].tool_calls[0].arguments == {"path": "."}
    assert said[1].timestamp == "2025-03-05T00:00:00.123456789Z"
    assert b"thought_signature" in said[1].line
    texts = [m.text for m in session.context().messages]
    assert texts == ["earlier: greetings", "hello <b> \u2028 ☃", "", "a.py", "one file"]
    assert any(isinstance(r, everlog.Event) for r in session.records())


def test_running_it_twice_changes_nothing(root: Path, old: Path) -> None:
    _write(old, "x.json", _document())
    _migrate(root, old)
    before = sorted(p.name for p in old.iterdir())
    assert _migrate(root, old) == []
    assert sorted(p.name for p in old.iterdir()) == before
    assert len(everlog.open_store(root, create=True).list()) == 1


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('{"key": "a", "messages": [', "not JSON"),
        ("[1]", "not a session"),
        ('{"key": "a"}', "no messages"),
        ('{"key": 7, "messages": []}', "key"),
        ('{"messages": [{"role": "user", "content": [1]}]}', "messages[0]"),
        ('{"messages": [3]}', "messages[0]"),
        ('{"messages": [], "created": 5}', "created"),
        ('{"messages": [{"role":"assistant","content":"","tool_calls":[1]}]}', "tool_calls"),
    ],
)
def test_a_broken_file_is_left_and_named(root: Path, old: Path, content: str, problem: str) -> None:
    broken = _write(old, "a.json", content)
    _write(old, "b.json", _document("agent:main:direct:b"))
    one, two = _migrate(root, old)
    assert problem in one.problem and not two.problem
    assert broken.read_text() == content
    assert len(everlog.open_store(root, create=True).list()) == 1


def test_other_files_are_not_touched(root: Path, old: Path) -> None:
    _write(old, "x.meta.json", "{}")
    _write(old, "x.jsonl", "{}")
    (old / "link.json").symlink_to("x.jsonl")
    before = sorted(p.name for p in old.iterdir())
    assert _migrate(root, old) == []
    assert sorted(p.name for p in old.iterdir()) == before


def test_a_run_that_was_cut_short_is_taken_up(root: Path, old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = _document()
    document["messages"] = [{"role": "user", "content": f"line {n}"} for n in range(30)]
    _write(old, "x.json", document)
    monkeypatch.setattr("everlog.interop.legacy_import.BATCH", 7)
    store = everlog.open_store(root, create=True)
    append, calls = store.port.append, iter([1, 2])

    def dying(*arguments: Any, **more: Any) -> Any:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return append(*arguments, **more)

    monkeypatch.setattr(store.port, "append", dying)
    with pytest.raises(KeyboardInterrupt):
        migrate(store.port, legacy_files(old))
    assert (old / "x.json").exists()
    (done,) = _migrate(root, old)
    assert not done.problem
    session = everlog.open_store(root, create=True).session("agent:main:direct:42")
    assert [m.text for m in session.messages()] == [f"line {n}" for n in range(30)]
    assert len(everlog.open_store(root, create=True).list()) == 1


def test_a_name_that_another_session_has_is_not_taken(root: Path, old: Path) -> None:
    _write(old, "x.json", _document())
    store = everlog.open_store(root, create=True)
    mine = store.create(key="agent:main:direct:42")
    mine.append(everlog.user("mine"))
    (done,) = _migrate(root, old)
    assert "belongs to another session" in done.problem
    assert (old / "x.json").exists()
    assert [m.text for m in mine.messages()] == ["mine"]


# --- by itself, when a store is opened


@pytest.mark.parametrize("where", ["", "sessions"])
def test_a_store_that_is_opened_on_old_files_takes_them_in(root: Path, where: str) -> None:
    file = _write(root / where, "x.json", _document())
    other = _write(root / where, "package.json", '{"name": "something else"}')
    chat = {"messages": [{"role": "user", "content": "of some other program"}]}
    alike = _write(root / where, "alike.json", chat)
    broken = _write(root / where, "torn.json", "{")
    with everlog.open_store(root, create=True) as store:
        assert len(store.session("agent:main:direct:42").messages()) == 4
        reports = list(store.port.reports)  # type: ignore[attr-defined]
    assert not file.exists() and other.exists() and broken.exists() and alike.exists()
    assert len(reports) == 1 and "torn.json" in reports[0]
    with everlog.open_store(root, create=True) as store:
        assert len(store.list()) == 1


def test_then_the_first_routed_message_takes_the_history_over(root: Path) -> None:
    _write(root, "x.json", _document())
    with everlog.open_store(root, create=True) as store:
        inbound = Inbound(channel="telegram", chat_type="direct", chat_id="42", sender_id="42")
        session = store.route_to_session(Router().route(inbound))
        assert session.messages()[0].role == "user"
        assert session.context().messages[0].text == "earlier: greetings"


def _open(root: Path) -> None:
    with everlog.open_store(root, create=True) as store:
        store.session("agent:main:direct:42")


def test_processes_that_open_it_at_once_take_each_file_once(root: Path) -> None:
    for number in range(5):
        _write(root, f"{number}.json", _document(f"agent:main:direct:4{number}"))
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_open, args=(root,)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    with everlog.open_store(root, create=True) as store:
        assert len(store.list()) == 5
        for number in range(5):
            assert len(store.session(f"agent:main:direct:4{number}").messages()) == 4
    assert legacy_files(root) == []


# --- when the new store cannot be written


def test_if_nothing_can_be_written_the_old_files_are_used(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _write(root, "x.json", _document())

    def full(*_: Any, **__: Any) -> Any:
        raise everlog.StoreFullError("the disk is full")

    monkeypatch.setattr("everlog.stores.file.file_store.FileStore.create", full)
    store = everlog.open_store(root, create=True)
    assert isinstance(store.port, LegacyStore)
    assert "disk is full" in store.port.reports[0]
    session = store.session("agent:main:direct:42")
    assert session.context().messages[0].text == "earlier: greetings"
    session.append(everlog.user("still talking"))
    new = store.create(key="agent:main:direct:43")
    new.append(everlog.user("hi"))
    assert file.exists()
    monkeypatch.undo()
    with everlog.open_store(root, create=True) as again:  # the next run brings everything in
        texts = [m.text for m in again.session("agent:main:direct:42").messages()]
        assert texts[-1] == "still talking" and len(texts) == 5
        assert [m.text for m in again.session("agent:main:direct:43").messages()] == ["hi"]


def test_an_append_that_cannot_be_written_is_not_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = everlog.Store(LegacyStore(tmp_path, {}))
    session = store.create(key="agent:a:direct:1")
    session.append(everlog.user("one"))

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(everlog.StoreFullError):
        session.append(everlog.user("two"))
    monkeypatch.undo()
    assert [m.text for m in session.messages()] == ["one"]
    assert session.append(everlog.user("three")).seq == 2
    (file,) = legacy_files(tmp_path)
    assert [m["content"] for m in json.loads(file.read_text())["messages"]] == ["one", "three"]
    assert sorted(p.name for p in tmp_path.iterdir()) == [file.name]


def test_keys_that_would_share_a_file_do_not(tmp_path: Path) -> None:
    store = everlog.Store(LegacyStore(tmp_path, {}))
    for key in ("agent:a:group:-1/42", "agent:a:group:-1_42"):
        store.create(key=key).append(everlog.user(key))
    found = [json.loads(file.read_text()) for file in legacy_files(tmp_path)]
    assert sorted(one["key"] for one in found) == ["agent:a:group:-1/42", "agent:a:group:-1_42"]
    assert all(one["messages"][0]["content"] == one["key"] for one in found)
