"""Files that changed otherwise than by growing, or grew in an odd way, under a store that follows them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.app import open_store
from everlog.interop.foreign.file_lines import RunningChecksum, iter_lines
from everlog.interop.foreign.transcript_files import MAX_COMPARED
from everlog.interop.formats.cersei import FORMAT as cersei
from everlog.interop.formats.codex import FORMAT as codex
from everlog.interop.formats.picoclaw import FORMAT as picoclaw
from everlog.interop.importer import import_session
from everlog.interop.transcript_sources import FileSource
from everlog.log.usage_fold import total_usage
from everlog.model import Event, Message
from everlog.session import Session, Store
from everlog.testing.foreign_store_suite import open_foreign_store
from tests.foreign.foreign_directories import cersei_file, made, picoclaw_files
from tests.foreign.test_foreign_faults import module
from tests.formats.conversations import CONVERSATIONS

TEXTS = ("How many?", "Three.", "And now?", "Four.", "Thanks", "Gladly.")
CHANGED = ("Now many?", *TEXTS[1:])
EVERY = pytest.mark.parametrize("name", CONVERSATIONS)


class Directory:
    """The files of one conversation, and a store that follows them."""

    def __init__(self, top: Path, name: str) -> None:
        self.root = made(top / "theirs", CONVERSATIONS[name](TEXTS))
        self.path = next(self.root.glob("*.jsonl"))
        self._home = top / "home"
        self._format = module(name)
        self._now = 1_780_000_000

    @contextmanager
    def open(self) -> Iterator[Session]:
        with open_foreign_store(self.root, self._home, self._format) as store:
            yield store.session(store.list()[0].id)

    def write(self, data: bytes) -> None:
        """Change the file in place, at a later time."""
        self._now += 1
        with self.path.open("r+b") as file:
            file.write(data)
            file.truncate()
        os.utime(self.path, (self._now, self._now))


def texts(session: Session) -> list[str]:
    return [message.text for message in session.messages()]


@EVERY
def test_a_line_that_is_changed_in_place_is_noticed(tmp_path: Path, name: str) -> None:
    """Its length is the same, and so is the last line. So it is by a process that comes later."""
    directory = Directory(tmp_path, name)
    data = directory.path.read_bytes()
    with directory.open() as session:
        assert texts(session) == list(TEXTS)
        directory.write(data.replace(b"How many?", b"Now many?"))
        assert texts(session) == list(CHANGED)
        directory.write(data)
        assert texts(session) == list(TEXTS)
    directory.write(data.replace(b"How many?", b"Now many?"))
    with directory.open() as session:
        assert texts(session) == list(CHANGED)


@EVERY
def test_a_change_in_place_before_lines_that_are_added_is_noticed(tmp_path: Path, name: str) -> None:
    directory = Directory(tmp_path, name)
    lines = directory.path.read_bytes().splitlines(keepends=True)
    directory.write(b"".join(lines[:-2]))
    with directory.open() as session:
        assert texts(session) == list(TEXTS[:-2])
        directory.write(b"".join(lines).replace(b"How many?", b"Now many?"))
        assert texts(session) == list(CHANGED)


@EVERY
def test_a_file_with_another_time_and_the_same_content_keeps_its_records(tmp_path: Path, name: str) -> None:
    directory = Directory(tmp_path, name)
    with directory.open() as session:
        before = session.messages()
        directory.write(directory.path.read_bytes())
        assert session.messages() == before
        temporary = directory.path.with_suffix(".tmp")
        temporary.write_bytes(directory.path.read_bytes())
        temporary.rename(directory.path)
        assert session.messages() == before


def test_of_a_large_file_that_grew_the_last_line_stands_for_all(tmp_path: Path) -> None:
    """A change in place is noticed unless the file grew as well; then it is when it changes again."""
    directory = Directory(tmp_path, "cersei")
    data = directory.path.read_bytes()
    first, *others = data.splitlines(keepends=True)
    first = first.replace(b"How many?", b"How many?" + b" " * MAX_COMPARED)
    data = first + b"".join(others)
    changed = data.replace(b"How many?", b"Now many?")
    directory.write(data)
    with directory.open() as session:
        assert session.messages()[0].text.startswith("How")
        directory.write(changed)
        assert session.messages()[0].text.startswith("Now")
        directory.write(data + others[0].replace(b"Three.", b"Seven.").replace(b'"uuid":"', b'"uuid":"x'))
        assert [message.text[:9] for message in session.messages()][:1] == ["Now many?"]
        assert texts(session)[-1] == "Seven."
        directory.write(data)
        assert session.messages()[0].text.startswith("How")


@EVERY
def test_a_last_line_without_a_newline_that_goes_on_is_read_again(tmp_path: Path, name: str) -> None:
    directory = Directory(tmp_path, name)
    lines = directory.path.read_bytes().splitlines(keepends=True)
    directory.write(b"".join(lines[:-1]).rstrip(b"\n"))
    with directory.open() as session:
        assert texts(session) == list(TEXTS[:-1])
        directory.write(b"".join(lines[:-1]).rstrip(b"\n") + b"\0\0" + lines[-1])
        with open_foreign_store(directory.root, tmp_path / "fresh", module(name)) as fresh:
            assert texts(session) == texts(fresh.session(session.id))


def test_a_file_of_another_program_in_its_place_is_read_as_such(tmp_path: Path) -> None:
    directory = Directory(tmp_path, "cersei")
    (other,) = CONVERSATIONS["pi"](CHANGED).values()
    with open_store(f"auto:{directory.root}", home=tmp_path / "home") as store:
        assert texts(store.session(store.list()[0].id)) == list(TEXTS)
        directory.write(other)
        (row,) = store.list()
        assert row.metadata.source == "pi"
        assert texts(store.session(row.id)) == list(CHANGED)


@given(st.binary(max_size=60).map(lambda data: data.replace(b"0", b"\n")), st.integers(1, 9), st.integers(0, 20))
def test_the_checksum_of_lines_is_that_of_their_bytes(data: bytes, chunk_size: int, start: int) -> None:
    start = min(start, len(data))
    with TemporaryFile() as file:
        file.write(data)
        file.flush()
        checksum, ends = RunningChecksum(start, crc32(data[:start])), [start]
        for line in iter_lines(file.fileno(), start, chunk_size, lambda chunk: checksum.add(chunk, ends[-1])):
            ends.append(line.start + len(line.data) + line.ended)
            if len(line.data) % 2:
                assert checksum.up_to(ends[-1]) == crc32(data[: ends[-1]])
        assert checksum.up_to(ends[-1]) == crc32(data[: ends[-1]])
        assert checksum.of_all() == crc32(data)


# --- Cersei


def test_a_repeated_uuid_of_cersei_is_two_messages_that_a_tombstone_deletes(tmp_path: Path) -> None:
    root = made(tmp_path / "theirs", {"s-1.jsonl": cersei_file("s-1")})
    path = root / "s-1.jsonl"
    _, answer = path.read_bytes().splitlines(keepends=True)
    tombstone = {"type": "tombstone", "deleted_uuid": json.loads(answer)["uuid"], "timestamp": "2026-03-01T08:00:02Z"}
    with open_foreign_store(root, tmp_path / "home", cersei) as store:
        session = store.session("s-1")
        assert texts(session) == ["hello", "hi there"]
        with path.open("ab") as file:
            file.write(answer)
        assert texts(session) == ["hello", "hi there", "hi there"]
        assert session.metadata.message_count == 3
        with path.open("ab") as file:
            file.write(json.dumps(tombstone).encode() + b"\n")
        assert texts(session) == ["hello"]
    assert texts(imported(path, cersei)) == ["hello"]


def imported(path: Path, format: Any) -> Session:
    store = open_store("memory:")
    return store.session(import_session(store.port, format, format.read(FileSource(path))).id or "")


# --- PicoClaw


def test_a_summary_of_nothing_does_not_outlast_its_removal(tmp_path: Path) -> None:
    """It keeps the first message, so that no rewind of the mirror undoes it."""
    root = made(tmp_path / "theirs", picoclaw_files("agent:main:main"))
    meta = root / "agent_main_main.meta.json"
    with open_foreign_store(root, tmp_path / "home", picoclaw) as store:
        session = store.session("agent_main_main")
        assert session.live().summary is None
        meta.write_bytes(meta.read_bytes().replace(b'"summary": ""', b'"summary": "S"'))
        standing = session.live().summary
        assert standing is not None and standing.summary == "S"
        meta.write_bytes(meta.read_bytes().replace(b'"summary": "S"', b'"summary": ""'))
        assert session.live().summary is None
        assert texts(session) == ["hello", "hi there"]


# --- Codex


def codex_usage(store: Store) -> tuple[int, int]:
    usage = total_usage(store.usage().spent)
    return usage.input_tokens, usage.output_tokens


@pytest.mark.parametrize("kind", ["token_usage_record", "event_msg"])
def test_usage_that_codex_writes_after_an_answer_was_read_is_counted(tmp_path: Path, kind: str) -> None:
    root = made(tmp_path / "theirs", CONVERSATIONS["codex"](TEXTS))
    (path,) = root.glob("*.jsonl")
    counts = {"input_tokens": 5, "cached_input_tokens": 1, "output_tokens": 2}
    info = {"total_token_usage": counts, "last_token_usage": counts}
    payload = {"usage": counts} if kind == "token_usage_record" else {"type": "token_count", "info": info}
    line = {"timestamp": "2026-03-01T08:00:09.000Z", "type": kind, "payload": payload}
    with open_foreign_store(root, tmp_path / "home", codex) as store:
        session = store.session(store.list()[0].id)
        before = session.messages()
        assert codex_usage(store) == (0, 0)
        with path.open("ab") as file:  # twice: it is of one answer
            file.write(2 * (json.dumps(line).encode() + b"\n"))
        assert codex_usage(store) == (4, 2)
        assert session.messages() == before
        assert [record.kind for record in session.records() if isinstance(record, Event)] == ["usage"]
    with open_foreign_store(root, tmp_path / "fresh", codex) as store:
        assert codex_usage(store) == (4, 2)
    (answer,) = [one for one in imported(path, codex).records() if isinstance(one, Message) and one.usage]
    assert answer.usage is not None and (answer.usage.input_tokens, answer.usage.output_tokens) == (4, 2)
