"""What a program takes from a file after our lines were acknowledged, during a turn and after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from everlog.errors import ConflictError
from everlog.interop.foreign.foreign_tail import ForeignTail
from everlog.interop.foreign.lost_lines import LineContext, find_lost, make_context
from everlog.interop.formats.claude import FORMAT as claude
from everlog.interop.formats.crabtalk import FORMAT as crabtalk
from everlog.interop.formats.foreign_format import ForeignFormat
from everlog.interop.formats.picoclaw import FORMAT as picoclaw
from everlog.model import Message, assistant, user
from everlog.session import Store
from everlog.stores.file import disk
from everlog.testing.foreign_store_suite import open_foreign_store
from tests.foreign.foreign_directories import SESSIONS, made
from tests.foreign.test_foreign_faults import EVERY, module, said, said_anew, transcript


def reports(store: Store) -> list[str]:
    port: Any = store.port
    return list(port.reports)


@EVERY
def test_what_a_rewrite_takes_during_a_turn_is_written_again_once_and_in_order(tmp_path: Path, dialect: str) -> None:
    files, session = SESSIONS[dialect]
    root = made(tmp_path / "root", files)
    file = transcript(root, dialect)
    with open_foreign_store(root, tmp_path / "home", module(dialect)) as store:
        before = said(store, session)
        stale = file.read_bytes()
        one = store.session(session)
        with one.lease() as lease:
            one.append(user("our first"), lease=lease)
            one.append(assistant("our second"), lease=lease)
            file.write_bytes(stale)
            one.append(user("our third"), lease=lease)
            assert said(store, session) == [*before, "our first", "our second", "our third"]
            temporary = file.with_suffix(".tmp")
            temporary.write_bytes(stale)
            temporary.rename(file)
        assert said(store, session) == [*before, "our first", "our second", "our third"]
    assert said_anew(root, tmp_path / "fresh", dialect) == [*before, "our first", "our second", "our third"]
    data = file.read_bytes()
    assert [data.count(text) for text in (b"our first", b"our second", b"our third")] == [1, 1, 1]


@EVERY
def test_what_a_rewrite_kept_of_a_turn_is_not_written_twice(tmp_path: Path, dialect: str) -> None:
    files, session = SESSIONS[dialect]
    root = made(tmp_path / "root", files)
    file = transcript(root, dialect)
    with open_foreign_store(root, tmp_path / "home", module(dialect)) as store:
        before = said(store, session)
        one = store.session(session)
        with one.lease() as lease:
            one.append(user("again"), lease=lease)
            kept = file.read_bytes()
            one.append(user("again"), lease=lease)
            file.write_bytes(kept)
        assert said(store, session) == [*before, "again", "again"]
    assert file.read_bytes().count(b'"again"') == 2


@EVERY
def test_what_another_program_appends_to_its_rewrite_is_kept_before_ours(tmp_path: Path, dialect: str) -> None:
    files, session = SESSIONS[dialect]
    root = made(tmp_path / "root", files)
    file = transcript(root, dialect)
    with open_foreign_store(root, tmp_path / "home", module(dialect)) as store:
        before = said(store, session)
        stale = file.read_bytes()
        one = store.session(session)
        with one.lease() as lease:
            one.append(user("ours"), lease=lease)
            file.write_bytes(stale)
            with open_foreign_store(root, tmp_path / "their-home", module(dialect)) as other:
                other.session(session).append(user("theirs"))
        assert said(store, session) == [*before, "theirs", "ours"]
    assert said_anew(root, tmp_path / "fresh", dialect) == [*before, "theirs", "ours"]


@EVERY
def test_what_is_taken_after_the_turn_is_reported_and_stays_in_the_mirror(tmp_path: Path, dialect: str) -> None:
    files, session = SESSIONS[dialect]
    root = made(tmp_path / "root", files)
    file = transcript(root, dialect)
    with open_foreign_store(root, tmp_path / "home", module(dialect)) as store:
        before = said(store, session)
        stale = file.read_bytes()
        one = store.session(session)
        with one.lease() as lease:
            stored = one.append(user("ours"), lease=lease)
        file.write_bytes(stale)
        for _ in range(2):
            assert said(store, session) == before
        assert sum("1 records of ours" in report for report in reports(store)) == 1
        record: Any = next(store.port.read(session, after=stored.seq - 1))
        assert record.text == "ours"
    assert file.read_bytes() == stale


def test_lines_that_picoclaw_compacted_away_are_not_written_again(tmp_path: Path) -> None:
    files, session = SESSIONS["picoclaw"]
    root = made(tmp_path / "root", files)
    file = transcript(root, "picoclaw")
    with open_foreign_store(root, tmp_path / "home", picoclaw) as store:
        said(store, session)
        one = store.session(session)
        with one.lease() as lease:
            for number in range(4):
                one.append(user(f"number {number}"), lease=lease)
            lines = file.read_bytes().splitlines(keepends=True)
            file.write_bytes(b"".join(lines[-2:]))  # Save, after a truncation to two messages
        assert said(store, session) == ["number 2", "number 3"]
    assert file.read_bytes() == b"".join(lines[-2:])


def test_a_line_newer_than_what_picoclaw_compacted_is_written_again(tmp_path: Path) -> None:
    files, session = SESSIONS["picoclaw"]
    root = made(tmp_path / "root", files)
    file = transcript(root, "picoclaw")
    with open_foreign_store(root, tmp_path / "home", picoclaw) as store:
        said(store, session)
        one = store.session(session)
        with one.lease() as lease:
            for number in range(4):
                one.append(user(f"number {number}"), lease=lease)
            lines = file.read_bytes().splitlines(keepends=True)
            file.write_bytes(b"".join(lines[-3:-1]))  # Save, by a program that had not read the last one
        assert said(store, session) == ["number 1", "number 2", "number 3"]


# --- one write


def test_a_file_that_is_rewritten_at_every_write_is_an_error_and_nothing_else(tmp_path: Path) -> None:
    files, session = SESSIONS["claude"]
    root = made(tmp_path / "root", files)
    file = transcript(root, "claude")
    stale = file.read_bytes()

    class Rewritten:
        """A lock on nothing: their program rewrites the file whenever its parts are counted."""

        def __getattr__(self, name: str) -> Any:
            if name == "IS_REWRITTEN":  # asked for after our file was opened
                temporary = file.with_suffix(".tmp")
                temporary.write_bytes(stale)
                temporary.rename(file)
            return getattr(claude, name)

    with open_foreign_store(root, tmp_path / "home", cast("ForeignFormat", Rewritten())) as store:
        said(store, session)
        with pytest.raises(ConflictError, match="by another program"):
            store.session(session).append(user("ours"))
    assert file.read_bytes() == stale


def test_a_batch_of_which_a_part_survives_is_completed(tmp_path: Path) -> None:
    files, session = SESSIONS["crabtalk"]
    root = made(tmp_path / "root", files)
    file = transcript(root, "crabtalk")
    taken: list[bool] = []

    class Cut:
        """Their program cuts the last line off, once, after our write."""

        def __getattr__(self, name: str) -> Any:
            if name == "METADATA_LOCATION" and b"third" in file.read_bytes() and not taken:
                taken.append(True)
                file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1]))
            return getattr(crabtalk, name)

    with open_foreign_store(root, tmp_path / "home", cast("ForeignFormat", Cut())) as store:
        before = said(store, session)
        stored = store.session(session).append_many([user("first"), user("second"), user("third")])
        assert [record.text for record in stored if isinstance(record, Message)] == ["first", "second", "third"]
        assert said(store, session) == [*before, "first", "second", "third"]
    assert taken and file.read_bytes().count(b"second") == 1


# --- cuts


@pytest.fixture
def tail(tmp_path: Path) -> Any:
    (tmp_path / "a.jsonl").write_bytes(b'{"a":1}\n')
    folder = disk.open_directory(str(tmp_path))
    opened = ForeignTail("a.jsonl", folder, print)
    opened.append(b'{"ours":1}\n')
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("change", "result"),
    [
        (b'{"a":1}\n{"ours":1}\n', b'{"a":1}\n'),
        (b'{"a":1}\n{"ours', b'{"a":1}\n'),
        (b'{"a"', b'{"a"'),
        (b"", b""),
        (b'{"a":1}\n{"ours":1}\n{"theirs":1}\n', b'{"a":1}\n{"ours":1}\n{"theirs":1}\n'),
        (b'{"a":1}\n{"ouch":1}\n', b'{"a":1}\n{"ouch":1}\n'),
    ],
)
def test_a_cut_takes_our_own_bytes_at_the_end_and_nothing_else(
    change: bytes, result: bytes, tail: ForeignTail, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_bytes(change)
    tail.cut()
    assert (tmp_path / "a.jsonl").read_bytes() == result


def test_a_file_that_another_program_has_open_is_not_cut(tail: ForeignTail, tmp_path: Path) -> None:
    with (tmp_path / "a.jsonl").open("ab"):
        tail.cut()
    assert (tmp_path / "a.jsonl").read_bytes() == b'{"a":1}\n{"ours":1}\n'
    tail.cut()
    assert (tmp_path / "a.jsonl").read_bytes() == b'{"a":1}\n'


# --- what is lost


def test_equal_lines_are_told_apart_by_what_precedes_them() -> None:
    context = make_context(0, b"a\nx\n", b"")
    assert find_lost(context, [b"x"], b"a\nx\n", drops_oldest=False) == [0]
    assert find_lost(context, [b"x"], b"a\nx\nx\n", drops_oldest=False) == []
    assert find_lost(context, [b"x"], b"a\nx\nother\nx\n", drops_oldest=False) == []
    assert find_lost(context, [b"x", b"x"], b"a\nx\nx\n", drops_oldest=False) == [1]
    assert find_lost(LineContext(8, b"x\n"), [b"x"], b"x\nb\n", drops_oldest=False) == [0]


def test_a_line_whose_keys_were_ordered_anew_is_not_lost() -> None:
    context = make_context(0, b"a\n", b"")
    assert find_lost(context, [b'{"a":1,"b":2}'], b'a\n{"b": 2, "a": 1}\n', drops_oldest=False) == []
