"""What must hold for every dialect whose files are used where they lie; free of any framework.

class TestMine(ForeignStoreConformance):
    dialect = mine
    directory = {"a.jsonl": b"…"}
    session = "a"
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from everlog.errors import ConflictError, InvalidIdError, NotFoundError, UnsupportedError
from everlog.interop.foreign.foreign_store import ForeignStore
from everlog.interop.formats.format_types import Given
from everlog.model import Compaction, Message, ToolCall, assistant, tool_result, user
from everlog.session import Session, Store
from everlog.stores.file.file_store import FileStore

HOSTILE = ("", ".", "..", "../x", "/etc/passwd", "a/b", "a\0b", "x" * 300, "..\\x", "\n")


class ForeignStoreConformance:
    """Tests of one dialect in one directory."""

    dialect: ClassVar[Any]  # a module
    directory: ClassVar[Mapping[str, bytes]]  # its files, made by hand
    session: ClassVar[str]  # the id of one of them, whose transcript is the first file
    titles = True  # the format has a place for a title
    tombstones = False  # and for a deletion
    junk: ClassVar[bytes] = b'{"type":"from-the-future","data":[1]}\n'  # that nobody knows

    # --- reading

    def test_it_is_listed_and_read_as_its_files_say(self) -> None:
        """With what an import would give."""
        with self._opened() as (store, root):
            rows = store.list()
            assert self.session in [row.id for row in rows]
            messages = store.session(self.session).messages()
            assert _said(messages) == self._read(root) and messages
            row = next(row for row in rows if row.id == self.session)
            count = store.session(self.session).metadata.message_count
            assert row.metadata.message_count == count
            assert row.bytes == sum(map(len, self._transcripts(root)))

    def test_reading_writes_nothing_into_the_directory(self) -> None:
        """No index, no lock, no temporary file."""
        with self._opened() as (store, root):
            session = store.session(self.session)
            session.messages(), session.context(), session.metadata, session.verify()
            with session.lease():
                pass
            assert _files(root) == dict(self.directory)

    def test_what_its_program_adds_is_there_at_once(self) -> None:
        """Line by line, as it would have come."""
        name, data = next(iter(self.directory.items()))
        lines = data.splitlines(keepends=True)
        for count in range(1, len(lines) + 1):
            part = {**self.directory, name: b"".join(lines[: max(count - 1, 1)])}
            with self._opened(part) as (store, root):
                _messages(store, self.session)
                with (root / name).open("ab") as opened:
                    opened.write(b"".join(lines[max(count - 1, 1) : count]))
                assert _said(_messages(store, self.session)) == self._read(root), count

    def test_a_file_that_was_rewritten_is_read_anew(self) -> None:
        """And shows what it says now."""
        name, data = next(iter(self.directory.items()))
        lines = data.splitlines(keepends=True)
        with self._opened() as (store, root):
            store.session(self.session).messages()
            (root / name).write_bytes(b"".join((*lines[:1], *lines[2:])))
            assert _said(_messages(store, self.session)) == self._read(root)

    # --- writing

    def test_what_is_appended_is_in_the_file_and_nothing_else_is_touched(self) -> None:
        """Durable on return, in the program's own format."""
        with self._opened() as (store, root):
            session = store.session(self.session)
            before = self._transcripts(root)
            known = _said(session.messages())
            session.append(user("one more: <&> \u2028 漢字"))
            session.append(assistant("I look.", model="m"))
            session.append(assistant([ToolCall("call_1", "bash", {"command": "ls"})]))
            session.append(tool_result("call_1", "a.py\nb.py"))
            said = _said(session.messages())
            assert said[: len(known)] == known
            assert said[len(known) :] == [
                ("user", "one more: <&> \u2028 漢字"),
                ("assistant", "I look."),
                ("assistant", ""),
                ("toolResult", "a.py\nb.py"),
            ]
            assert self._read(root) == said
            body = self._transcripts(root)[0]
            assert self._body(body).startswith(self._body(before[0]))
            assert set(_files(root)) == set(self.directory)

    def test_it_is_all_there_for_a_process_that_knows_nothing(self) -> None:
        """The files are the truth: everything else may be deleted."""
        with self._opened() as (store, root):
            session = store.session(self.session)
            session.append(user("one more"))
            said = _said(session.messages())
            with self._opened_at(root) as other:
                assert _said(_messages(other, self.session)) == said

    def test_two_stores_take_turns(self) -> None:
        """Each sees what the other wrote, and nothing is written twice."""
        with self._opened() as (store, root), self._opened_at(root) as other:
            for number in range(6):
                one = (store, other)[number % 2]
                one.session(self.session).append(user(f"number {number}"))
            for one in (store, other):
                said = [m.text for m in _messages(one, self.session)]
                assert said[-6:] == [f"number {number}" for number in range(6)]
            assert self._read(root) == _said(_messages(store, self.session))

    def test_processes_at_once_lose_nothing(self) -> None:
        """Each of them appends to the same session."""
        with self._opened() as (store, root), tempfile.TemporaryDirectory() as home:
            count = len(store.session(self.session).messages())
            work = [(str(root), home, self.dialect.__name__, self.session, n) for n in range(3)]
            context = multiprocessing.get_context("spawn")
            with context.Pool(3) as pool:
                pool.map(_write_ten, work)
            said = [m.text for m in _messages(store, self.session)]
            assert len(said) == count + 30
            for n in range(3):
                own = [text for text in said if text.startswith(f"{n}:")]
                assert own == [f"{n}:{number}" for number in range(10)]
            assert self._read(root) == _said(_messages(store, self.session))

    def test_a_torn_line_is_ended_before_the_next(self) -> None:
        """Whatever was cut off, at every byte of the last line."""
        name, data = next(iter(self.directory.items()))
        last = len(data.rstrip(b"\n")) - data.rstrip(b"\n").rfind(b"\n") - 1
        start = len(data.rstrip(b"\n")) - last
        for cut in range(start, len(data), max(last // 40, 1)):
            torn = data[:cut]
            with self._opened({**self.directory, name: torn}) as (store, root):
                store.session(self.session).append(user("after the crash"))
                assert self._read(root)[-1] == ("user", "after the crash"), cut
                assert self._body((root / name).read_bytes()).startswith(self._body(torn))
                with self._opened_at(root) as other:
                    assert _said(_messages(other, self.session)) == self._read(root), cut

    def test_what_nobody_knows_survives(self) -> None:
        """Lines of a newer version stay where they are."""
        name, data = next(iter(self.directory.items()))
        with self._opened({**self.directory, name: data + self.junk}) as (store, root):
            session = store.session(self.session)
            known = _said(session.messages())
            session.append(user("one more"))
            assert self.junk in (root / name).read_bytes()
            assert _said(session.messages()) == [*known, ("user", "one more")]

    def test_expect_guard_and_ids_are_checked_before_anything_is_written(self) -> None:
        """As in every store."""
        with self._opened() as (store, root):
            session = store.session(self.session)
            record = user("once", id="6f9619ff-8b86-4011-b42d-00c04fc964ff")
            head = session.append(record).seq
            before = _files(root)
            assert session.append(record).seq == head
            _refused(ConflictError, lambda: session.append(user("x"), expected_seq=head - 1))
            _refused(ConflictError, lambda: session.append(user("other", id=record.id)))
            assert _files(root) == before
            assert session.append(user("y"), expected_seq=head).seq == head + 1

    def test_a_summary_stands_for_what_was_before(self) -> None:
        """In the context; the view has it all, and so has a process that knows nothing."""
        with self._opened() as (store, root):
            session = store.session(self.session)
            session.append(user("a question"))
            kept = session.append(assistant("an answer"))
            known = [text for _, text in _said(session.messages())]
            session.append(Compaction(first_kept_seq=kept.seq, summary="They talked."))
            session.append(user("and now?"))
            for one in (store, None):
                if one is None:
                    with self._opened_at(root) as other:
                        self._check_summary(other.session(self.session), known)
                else:
                    self._check_summary(session, known)

    def _check_summary(self, session: Session, known: list[str]) -> None:
        context = [one.text for one in session.context().messages]
        assert "They talked." in context[0]
        assert context[-2:] == ["an answer", "and now?"]
        assert set(known) <= {one.text for one in session.messages()}

    def test_a_title_is_kept_or_refused(self) -> None:
        """In the files, where their format has a place for it."""
        with self._opened() as (store, root):
            session = store.session(self.session)
            if not self.titles:
                before = _files(root)
                _refused(UnsupportedError, lambda: session.rename("A new title"))
                assert _files(root) == before
                return
            known = _said(session.messages())
            assert session.rename("A new title").name == "A new title"
            session.append(user("one more"))
            assert _said(session.messages()) == [*known, ("user", "one more")]
            with self._opened_at(root) as other:
                assert other.session(self.session).metadata.name == "A new title"
                assert _said(_messages(other, self.session)) == [*known, ("user", "one more")]

    def test_a_deletion_is_kept_or_refused(self) -> None:
        """In the files, where their format has a place for it."""
        with self._opened() as (store, root):
            session = store.session(self.session)
            gone = session.append(user("forget this"))
            if not self.tombstones:
                before = _files(root)
                _refused(UnsupportedError, lambda: session.tombstone(gone.seq))
                assert _files(root) == before
                return
            session.append(user("but not this"))
            session.tombstone(gone.seq)
            for one in (_messages(store, self.session),):
                assert "forget this" not in [m.text for m in one]
            with self._opened_at(root) as other:
                texts = [m.text for m in _messages(other, self.session)]
                assert "forget this" not in texts and "but not this" in texts

    def test_what_we_note_of_turns_is_not_in_the_file(self) -> None:
        """The program would not know it; the mirror does."""
        with self._opened() as (store, root):
            session = store.session(self.session)
            before = self._body(self._transcripts(root)[0])
            session.end_turn(duration_ms=1500, tool_calls=1)
            assert session.metadata.metrics.total_turns == 1
            assert self._body(self._transcripts(root)[0]) == before

    def test_hostile_ids_touch_nothing(self) -> None:
        """They are checked by the dialect's own pattern, and never become a path."""
        with self._opened() as (store, root):
            before = _files(root)
            for bad in HOSTILE:
                _refused((InvalidIdError, NotFoundError), lambda bad=bad: store.session(bad))  # type: ignore[misc]
                _refused((InvalidIdError, NotFoundError), lambda bad=bad: store.port.delete(bad))  # type: ignore[misc]
            assert _files(root) == before

    def test_a_deleted_session_is_gone_and_no_other(self) -> None:
        """With everything that lay beside it."""
        with self._opened() as (store, root):
            store.session(self.session).delete()
            _refused(NotFoundError, lambda: store.session(self.session).messages())
            first = next(iter(self.directory))
            assert not (root / first).exists()

    # --- tools of the tests

    @contextmanager
    def _opened(self, files: Mapping[str, bytes] | None = None) -> Iterator[tuple[Store, Path]]:
        with tempfile.TemporaryDirectory() as place:
            root = Path(place)
            for name, data in (files or self.directory).items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_bytes(data)
            with self._opened_at(root) as store:
                yield store, root

    @contextmanager
    def _opened_at(self, root: Path) -> Iterator[Store]:
        with tempfile.TemporaryDirectory() as home, live_store(root, Path(home), self.dialect) as s:
            yield s

    def _transcripts(self, root: Path) -> list[bytes]:
        stem = next(iter(self.directory)).removesuffix(".jsonl").rpartition("/")[2]
        found = sorted(root.rglob(f"{stem}*.jsonl"))
        return [one.read_bytes() for one in found]

    def _body(self, data: bytes) -> bytes:
        """A transcript without what its program writes anew each time."""
        return data.partition(b"\n")[2] if self.dialect.BESIDE == "head" else data

    def _read(self, root: Path) -> list[tuple[str, str]]:
        """The conversation as an import of the files would have it."""
        from everlog.interop.importer import bring  # noqa: PLC0415
        from everlog.stores.in_memory import InMemoryStore  # noqa: PLC0415

        stem = next(iter(self.directory)).removesuffix(".jsonl").rpartition("/")[2]
        paths = sorted(root.rglob(f"{stem}*"), key=lambda one: (len(one.name), one.name))
        files = {one.relative_to(root).as_posix(): one.read_bytes() for one in paths}
        files = {name: data for name, data in files.items() if not name.endswith(".json")} | files
        name = next(iter(files)).removesuffix(".jsonl").rpartition("/")[2]
        with Store(InMemoryStore()) as store:
            done = bring(store.port, "x", self.dialect.read(Given(name, files)))
            return _said(_messages(store, done.id or ""))


def live_store(root: Path, home: Path, *dialects: Any) -> Store:
    """A store on a foreign directory, what is derived below `home`."""
    return Store(ForeignStore(root, dialects, FileStore(home), home, keep=lambda paths: None))


def _write_ten(work: tuple[str, str, str, str, int]) -> None:
    from importlib import import_module  # noqa: PLC0415

    root, home, dialect, session, n = work
    with live_store(Path(root), Path(home), import_module(dialect)) as store:
        for number in range(10):
            store.session(session).append(user(f"{n}:{number}"))


def _messages(store: Store, session: str) -> list[Message]:
    return store.session(session).messages()


def _said(messages: list[Message]) -> list[tuple[str, str]]:
    return [(one.role, one.text) for one in messages]


def _files(root: Path) -> dict[str, bytes]:
    return {
        Path(folder, name).relative_to(root).as_posix(): Path(folder, name).read_bytes()
        for folder, _, names in os.walk(root)
        for name in names
    }


def _refused(
    error: type[Exception] | tuple[type[Exception], ...], action: Callable[[], object]
) -> None:
    try:
        action()
    except error:
        return
    raise AssertionError(f"not refused with {error}")
