"""Two conversations never become one, and one is never two: imports of any files in any order."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import everlog
from everlog.app import load_formats
from everlog.interop.exporter import export
from everlog.interop.import_result import ImportResult
from everlog.interop.importer import import_files
from everlog.interop.transcript_sources import find_files
from everlog.session import Store
from tests.formats.conversations import CONVERSATIONS, ID

FORMATS = sorted(CONVERSATIONS)


def put(folder: Path, format: str, texts: Sequence[str]) -> Path:
    """The files of a conversation in a folder; returns the transcript."""
    folder.mkdir(parents=True, exist_ok=True)
    files = CONVERSATIONS[format](texts)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder / next(iter(files))


def import_all(store: Store, *files: Path) -> list[ImportResult]:
    """The results, each with consistent counts."""
    results = list(import_files(store.port, files, load_formats()))
    for result in results:
        assert not result.problem
        assert result.records_in == result.stored + result.already_there + result.lost
        assert result.lost == 0
    return results


def stored_texts(store: Store) -> list[tuple[str, ...]]:
    """What each session says."""
    return sorted(tuple(message.text for message in store.session(row.id).messages()) for row in store.walk())


@pytest.mark.parametrize("format", FORMATS)
def test_two_conversations_under_one_name_are_two_sessions_and_the_report_says_so(tmp_path: Path, format: str) -> None:
    one = put(tmp_path / "a", format, ["hello", "hi", "one thing", "done"])
    other = put(tmp_path / "b", format, ["hello", "hi", "another thing", "no"])
    third = put(tmp_path / "c", format, ["something else", "yes"])
    with everlog.open_store("memory:") as store:
        first, second, last = import_all(store, one, other, third)
        assert len({first.id, second.id, last.id}) == 3
        assert (first.differs_from, second.differs_from, last.differs_from) == (None, first.id, first.id)
        assert len(stored_texts(store)) == 3
        again = import_all(store, third, other, one)
        assert [result.id for result in again] == [last.id, second.id, first.id]
        assert [result.stored for result in again] == [0, 0, 0]


@pytest.mark.parametrize("format", FORMATS)
def test_a_conversation_imported_twice_moved_grown_cut_and_restored_is_one_session(tmp_path: Path, format: str) -> None:
    texts = [f"text {number}" for number in range(8)]
    file = put(tmp_path / "a", format, texts[:4])
    moved = put(tmp_path / "elsewhere" / "b", format, texts[:4])
    with everlog.open_store("memory:") as store:
        results = import_all(store, file, file, moved)
        put(tmp_path / "a", format, texts)  # grown
        results += import_all(store, file)
        put(tmp_path / "a", format, texts[:2])  # cut
        results += import_all(store, file)
        put(tmp_path / "a", format, texts)  # restored
        results += import_all(store, file)
        assert len({result.id for result in results}) == 1
        # A metadata file that tells of fewer messages is another one, and is kept too.
        assert [bool(result.stored) for result in (*results[:4], results[5])] == [True, False, False, True, False]
        assert stored_texts(store) == [tuple(texts)]


@settings(deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("format", FORMATS)
def test_any_files_in_any_order_store_each_conversation_once(
    tmp_path_factory: pytest.TempPathFactory, format: str, data: st.DataObject
) -> None:
    # Conversations that begin alike, and files that have some beginning of one of them.
    paths = data.draw(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=5), min_size=1, max_size=4))
    said = [[f"{number}{''.join(path[: number + 1])}" for number in range(len(path))] for path in paths]
    files = data.draw(st.permutations([texts[:end] for texts in said for end in range(1, len(texts) + 1)]))
    files = files + data.draw(st.lists(st.sampled_from(files), max_size=4))
    root = tmp_path_factory.mktemp("files")
    with everlog.open_store("memory:") as store:
        import_all(store, *(put(root / str(number), format, texts) for number, texts in enumerate(files)))
        distinct = {tuple(texts) for texts in said}
        longest = [texts for texts in distinct if not any(o[: len(texts)] == texts and o != texts for o in distinct)]
        stored = stored_texts(store)
        assert Counter(text for texts in stored for text in texts) == Counter(
            text for texts in longest for text in texts
        )
        assert stored == sorted(longest)


@pytest.mark.parametrize("format", FORMATS)
def test_messages_without_a_time_are_found_again(tmp_path: Path, format: str) -> None:
    file = put(tmp_path / "a", format, ["hello", "hi", "one more", "done"])
    first, *others = map(json.loads, file.read_bytes().splitlines())
    for line in others:
        line |= {key: [] for key in ("timestamp", "created_at") if key in line}
    file.write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in (first, *others)))
    with everlog.open_store("memory:") as store:
        one, again = import_all(store, file, file)
        assert (again.id, again.stored) == (one.id, 0)


@pytest.mark.parametrize("format", FORMATS)
def test_a_session_that_was_continued_here_and_there_becomes_two(tmp_path: Path, format: str) -> None:
    file = put(tmp_path, format, ["hello", "hi"])
    with everlog.open_store("memory:") as store:
        (first,) = import_all(store, file)
        store.session(first.id or "").append("continued here")
        assert [result.stored for result in import_all(store, file)] == [0]
        put(tmp_path, format, ["hello", "hi", "continued there"])
        (second,) = import_all(store, file)
        assert second.differs_from == first.id
        assert stored_texts(store) == [("hello", "hi", "continued here"), ("hello", "hi", "continued there")]


def test_the_key_of_a_conversation_that_went_another_way_has_a_number(tmp_path: Path) -> None:
    with everlog.open_store("memory:") as store:
        import_all(store, put(tmp_path / "a", "claude", ["x", "y"]), put(tmp_path / "b", "claude", ["x", "z"]))
        assert store.session(f"claude:{ID}").messages()[1].text == "y"
        assert store.session(f"claude:{ID}~2").messages()[1].text == "z"


def test_files_that_are_no_sessions_are_named_with_the_reason(tmp_path: Path) -> None:
    put(tmp_path, "crabtalk", ["hello"])
    (tmp_path / "notes.txt").write_text("text\n")
    (tmp_path / "empty.jsonl").write_bytes(b"")
    (tmp_path / "export.json").write_text('[{"title":"t","mapping":{},"current_node":"n"}]')
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "empty.jsonl")
    (tmp_path / "db.sqlite").write_bytes(b"SQLite format 3\0rest")
    files, skipped = find_files([tmp_path])
    assert {Path(skip.path).name: skip.reason for skip in skipped} == {
        "notes.txt": "not a session in a known format: no line of it is a JSON object",
        "link.jsonl": "a symbolic link",
        "db.sqlite": "an SQLite database, which everlog does not read as sessions",
    }
    with everlog.open_store("memory:") as store:
        problems = {
            Path(result.path).name: result.problem for result in import_files(store.port, files, load_formats())
        }
    assert problems == {
        "crab_user_1.jsonl": "",
        "empty.jsonl": "an empty file",
        "export.json": "a ChatGPT export, which everlog does not read yet",
    }


def test_a_pipe_is_named_without_waiting_for_its_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    with everlog.open_store("memory:") as store:
        (result,) = import_files(store.port, [tmp_path / "pipe.jsonl"], load_formats())
    assert result.problem == "not a regular file"


def test_the_command_that_continues_a_session_is_no_loss_of_its_export(tmp_path: Path) -> None:
    file = put(tmp_path / "a", "claude", ["hello", "hi"])
    with everlog.open_store("memory:") as store:
        (result,) = import_all(store, file)
        assert result.id is not None
        assert export(store.session(result.id), *load_formats("claude")).losses == ()
