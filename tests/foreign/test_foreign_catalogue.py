"""What lies in a foreign directory: sessions, those that they started, and files that are neither."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from everlog.app import load_formats, open_store, unrecognised_files
from everlog.interop.importer import import_files
from everlog.interop.transcript_sources import find_files
from everlog.ports import DirectoryBacked, Filter
from everlog.session import Store
from tests.foreign.foreign_directories import crabtalk_file, made
from tests.formats.conversations import CONVERSATIONS, ID, claude


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def subagent_file(text: str, agent: str = "x1") -> bytes:
    record = {
        "parentUuid": None,
        "isSidechain": True,
        "agentId": agent,
        "type": "assistant",
        "message": {
            "role": "assistant",
            "id": "msg_1",
            "model": "m",
            "content": [{"type": "text", "text": text}],
            "usage": {"input_tokens": 100, "output_tokens": 20},
        },
        "uuid": "b1b1b1b1-0000-4000-8000-000000000000",
        "timestamp": "2026-03-01T08:00:00.000Z",
        "cwd": "/w",
        "sessionId": ID,
        "version": "2.1.0",
    }
    return json.dumps(record).encode() + b"\n"


def skipped(store: Store) -> dict[str, str]:
    directory = store.port.capability(DirectoryBacked)
    assert directory is not None
    return {file.path: file.reason for file in directory.skipped_files()}


def test_a_subagent_is_found_by_search_counted_and_listed_under_its_session(tmp_path: Path, home: Path) -> None:
    files = {f"-w/{ID}/subagents/agent-x1.jsonl": subagent_file("a giraffe")}
    files |= {f"-w/{name}": data for name, data in claude(["hello", "hi"]).items()}
    root = made(tmp_path / "projects", files)
    with open_store(f"claude:{root}", home=home) as store:
        (row,) = store.list()
        assert row.metadata.extra["agents"] == (f"{ID}:agent-x1",)
        (result,) = store.search("giraffe").results
        assert result.session == f"{ID}:agent-x1"
        assert store.session(result.session).metadata.extra["parent"] == {"id": ID}
        assert store.port.resolve(ID[:8], prefix=True) == ID
        store.port.catch_up()
        assert sum(row.output_tokens for row in store.usage().spent) == 20


def test_every_file_that_is_no_session_is_named_with_the_reason(tmp_path: Path, home: Path) -> None:
    deep = "/".join("abcdefghi")
    root = made(
        tmp_path / "crab",
        {
            "crab_user_1.jsonl": crabtalk_file(),
            "notes.txt": b"to do\n",
            "odd.jsonl": b'{"role":1,"agent":"x","created_by":2}\n',
            "export.jsonl": b'[{"chat_messages":[],"uuid":"u"}]\n',
            ".hidden/crab_user_2.jsonl": crabtalk_file(),
            f"{deep}/crab_user_3.jsonl": crabtalk_file(),
            "session.db": b"SQLite format 3\0",
        },
    )
    (root / "link.jsonl").symlink_to(root / "crab_user_1.jsonl")
    with open_store(f"crabtalk:{root}", home=home) as store:
        assert len(list(store.list())) == 1
        reasons = skipped(store)
    assert reasons.keys() == {
        ".hidden/",
        "a/b/c/d/e/f/g/h/i/",
        "export.jsonl",
        "link.jsonl",
        "notes.txt",
        "odd.jsonl",
        "session.db",
    }
    assert reasons[".hidden/"] == "a hidden folder"
    assert reasons["link.jsonl"] == "a symbolic link"
    assert reasons["export.jsonl"].startswith("a Claude.ai export")
    assert reasons["session.db"].startswith("an SQLite database")
    assert reasons["odd.jsonl"].startswith("not a session in a known format")


@pytest.mark.parametrize("format", sorted(CONVERSATIONS))
def test_reading_a_foreign_directory_creates_nothing_in_it(tmp_path: Path, home: Path, format: str) -> None:
    root = made(tmp_path / "root", CONVERSATIONS[format](["hello zebra", "hi"]))
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in root.rglob("*")}
    with open_store(root, home=home) as store:
        (row,) = store.list()
        assert [message.text for message in store.session(row.id).messages()] == ["hello zebra", "hi"]
        assert store.search("zebra").total == 1
        assert store.port.verify(row.id) == ()
        assert store.list(limit=1).total == 1 and skipped(store) == {}
        store.port.list(Filter(title="zebra"))
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in root.rglob("*")} == before


def test_a_listing_says_how_to_go_on_in_the_program_of_each_session(tmp_path: Path, home: Path) -> None:
    root = made(tmp_path / "pi", CONVERSATIONS["pi"](["hello", "hi"]))
    with open_store(f"pi:{root}", home=home) as store:
        (row,) = store.list()
        assert row.metadata.resume_command.startswith(f"cd /w && pi --session {root}/")
    with open_store("memory:") as store:
        session = store.create()
        assert session.metadata.resume_command == f"everlog chat --resume {session.id}"


def test_an_id_stays_with_its_conversation_when_another_one_of_that_name_appears_or_grows(
    tmp_path: Path, home: Path
) -> None:
    root = made(tmp_path / "root", {f"b/{name}": data for name, data in claude(["hello", "hi"]).items()})
    with open_store(f"claude:{root}", home=home) as store:
        assert [row.id for row in store.list()] == [ID]
        store.session(ID).append("to the first")
        made(root, {f"c/{name}": data for name, data in claude(["hello", "no", "never"]).items()})
        assert {row.id for row in store.list()} == {ID, f"c:{ID}"}
        assert [message.text for message in store.session(ID).messages()] == ["hello", "hi", "to the first"]
        assert [message.text for message in store.session(f"c:{ID}").messages()] == ["hello", "no", "never"]
        store.session(f"c:{ID}").append("to the other")
        assert store.session(ID).messages()[-1].text == "to the first"


def test_sessions_in_a_folder_that_is_named_like_a_session_are_listed_too(tmp_path: Path, home: Path) -> None:
    (name, data), *_ = claude(["hello", "hi"]).items()
    files = {"work.jsonl": data, f"work/deeper/{name}": data, "work/tool-results/toolu_1.json": b"{}"}
    root = made(tmp_path / "projects", files)
    with open_store(f"claude:{root}", home=home) as store:
        assert len(list(store.list())) == 2
        assert skipped(store) == {}
    assert [file.name for file in find_files([root])[0]] == ["work.jsonl", name]
    (root / "work.jsonl").rename(root / "work.json")
    assert root / "work" / "deeper" / name in find_files([root])[0]


@pytest.mark.parametrize("format", sorted(CONVERSATIONS))
def test_a_home_of_another_program_with_folders_named_like_ours_is_read(
    tmp_path: Path, home: Path, format: str
) -> None:
    files = {f"sessions/{name}": data for name, data in CONVERSATIONS[format](["hello zebra", "hi"]).items()}
    root = made(tmp_path / "root", {**files, "config.toml": b'model = "m"\n', "index.db": b"", "tmp/x": b""})
    (root / "sessions").chmod(0o755)
    before = {path: (path.stat().st_mtime_ns, path.stat().st_mode) for path in (root, *root.rglob("*"))}
    with open_store(root, home=home) as store:
        assert len(list(store.list())) == 1
        assert store.search("zebra").total == 1
    assert {path: (path.stat().st_mtime_ns, path.stat().st_mode) for path in (root, *root.rglob("*"))} == before


def test_sessions_that_no_format_recognises_are_named_and_nothing_is_created_beside_them(tmp_path: Path) -> None:
    root = made(tmp_path / "goose", {"sessions/sessions.db": b"SQLite format 3\0"})
    (root / "sessions").chmod(0o755)
    before = {path: (path.stat().st_mtime_ns, path.stat().st_mode) for path in (root, *root.rglob("*"))}
    with open_store(root) as store:
        assert list(store.list()) == []
        assert store.search("zebra").total == 0
        assert [file.path for file in unrecognised_files(store)] == [str(root / "sessions/sessions.db")]
    assert {path: (path.stat().st_mtime_ns, path.stat().st_mode) for path in (root, *root.rglob("*"))} == before


def test_the_settings_of_a_root_without_sessions_are_not_named(tmp_path: Path) -> None:
    root = made(tmp_path / "root", {"config.toml": b"", "memory/MEMORY.md": b"x"})
    with open_store(root) as store:
        assert unrecognised_files(store) == ()


@pytest.mark.parametrize("format", sorted(CONVERSATIONS))
@pytest.mark.parametrize("rest", [0, 20])
def test_a_file_that_was_seen_cut_off_shows_all_its_messages_when_it_is_restored(
    tmp_path: Path, home: Path, format: str, rest: int
) -> None:
    texts = ["hello", "hi", "one more", "done"]
    files = CONVERSATIONS[format](texts)
    root = made(tmp_path / "root", files)
    file = root / next(iter(files))
    with open_store(f"{format}:{root}", home=home) as store:
        (row,) = store.list()
        assert len(store.session(row.id).messages()) == 4
        file.write_bytes(files[file.name][:rest])
        assert store.session(row.id).messages() == []
        file.write_bytes(files[file.name])
        assert [message.text for message in store.session(row.id).messages()] == texts


def test_two_subagents_of_one_name_are_two_sessions(tmp_path: Path, home: Path) -> None:
    files = {
        f"-w/{ID}/subagents/agent-x1.jsonl": subagent_file("a giraffe"),
        f"-w/{ID}/subagents/later/agent-x1.jsonl": subagent_file("a zebra"),
    }
    files |= {f"-w/{name}": data for name, data in claude(["hello", "hi"]).items()}
    root = made(tmp_path / "projects", files)
    with open_store(f"claude:{root}", home=home) as store:
        (row,) = store.list()
        agents = row.metadata.extra["agents"]
        texts = {store.session(agent).messages()[0].text for agent in agents}
        assert texts == {"a giraffe", "a zebra"}
        assert {store.search(word).results[0].session for word in ("giraffe", "zebra")} == set(agents)


def test_a_name_like_that_of_a_part_hides_no_session_of_a_format_without_parts(tmp_path: Path, home: Path) -> None:
    one, other = (next(iter(CONVERSATIONS["pi"]([text]).values())) for text in ("hello", "goodbye"))
    other = other.replace(ID.encode(), ID.replace("0198", "0199").encode())
    root = made(tmp_path / "pi", {"foo.jsonl": one, "foo_part2.jsonl": other})
    with open_store(f"pi:{root}", home=home) as store:
        texts = [store.session(row.id).messages()[0].text for row in store.list()]
        assert sorted(texts) == ["goodbye", "hello"]
    formats = load_formats()
    files, skipped = find_files([root], formats)
    assert (len(files), skipped) == (2, [])
    with open_store("memory:") as store:
        results = list(import_files(store.port, files, formats))
        assert [(result.problem, result.stored) for result in results] == [("", 2), ("", 2)]
