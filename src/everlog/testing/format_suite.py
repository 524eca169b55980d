"""What every dialect must do, whatever its format; free of any test framework.

    class TestMine(FormatConformance):
        dialect = mine
        sessions = (Given("a", {"a.jsonl": b"…"}),)

Sessions that the dialect reads are brought into a store of ours and written out again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import msgspec

from everlog.errors import FormatError
from everlog.interop.exporter import export
from everlog.interop.formats.format_types import Format, Given, Read, Written
from everlog.interop.importer import bring
from everlog.model import Compaction, Message, ToolCall, assistant, tool_result, user
from everlog.session import Session, Store
from everlog.stores.in_memory import InMemoryStore

CUTS = 200  # places at which a file is cut


class FormatConformance:
    """Tests of one dialect."""

    dialect: ClassVar[Any]  # a module
    sessions: ClassVar[Sequence[Given]]  # sound ones, made by hand
    exact = False  # goes back byte for byte; else the same objects in the same order
    writable = True
    # A line that no version knows; None where the format has no place for one.
    unknown: ClassVar[bytes | None] = b'{"type":"from-the-future","uuid":"u-1","data":{"a":[1]}}'

    # --- reading

    def test_it_recognises_its_own_files(self) -> None:
        """By their beginning."""
        for source in self.sessions:
            path = source.paths()[0]
            assert self._dialect.recognises(path, source.files[path][:65536]), path

    def test_it_recognises_nothing_else(self) -> None:
        """Neither other formats nor nonsense."""
        for head in (
            b"",
            b"\0" * 100,
            b"[]\n",
            b"{}\n",
            b'{"a":1}\n',
            b"# text\n",
            b'"x"\n',
            b"\xff\xfe",
        ):
            assert not self._dialect.recognises("x.jsonl", head), head

    def test_a_sound_file_has_no_damage(self) -> None:
        """And something to show."""
        for source in self.sessions:
            read = self._dialect.read(source)
            assert not read.lost, read.lost
            assert read.items and read.lines

    def test_ids_are_unique_and_the_same_each_time(self) -> None:
        """Or a second import would add things twice."""
        for source in self.sessions:
            first, second = self._dialect.read(source), self._dialect.read(source)
            ids = [item.id for item in first.items]
            assert all(ids) and len(set(ids)) == len(ids)
            assert ids == [item.id for item in second.items]

    def test_a_file_cut_at_any_byte_is_read(self) -> None:
        """Whole lines before the cut are all there."""
        for source in self.sessions:
            whole = {item.id: item for item in self._dialect.read(source).items}
            path, data = next(iter(source.files.items()))
            for at in range(0, len(data), max(len(data) // CUTS, 1)):
                read = self._dialect.read(_with(source, path, data[:at]))
                lines = data[:at].count(b"\n")
                assert read.lines >= sum(map(bool, data.split(b"\n")[:lines]))
                said = [item for item in read.items if isinstance(item, Message)]
                assert all(item.id not in whole or item.role for item in said)

    def test_a_damaged_line_is_named_and_hides_no_other(self) -> None:
        """Each line in turn is overwritten."""
        for source in self.sessions:
            path, data = next(iter(source.files.items()))
            lines = data.split(b"\n")
            sound = self._texts(self._dialect.read(source))
            for at, line in enumerate(lines):
                if not line:
                    continue
                for junk in (b"\0" * len(line), line[: len(line) // 2], b"\xff" + line[1:]):
                    broken = b"\n".join((*lines[:at], junk, *lines[at + 1 :]))
                    read = self._dialect.read(_with(source, path, broken))
                    assert read.lost, (at, junk[:20])
                    missing = set(sound) - set(self._texts(read))
                    assert len(missing) <= self._said_in(source, path, lines, at)

    def test_records_of_the_future_survive(self) -> None:
        """They are kept, shown nowhere, and go back out."""
        if self.unknown is None:
            return
        for source in self.sessions:
            path, data = next(iter(source.files.items()))
            grown = _with(source, path, data + self.unknown + b"\n")
            assert self._texts(self._dialect.read(grown)) == self._texts(self._dialect.read(source))
            if self.writable:
                with _memory() as store:
                    written = self._round(store, grown)
                assert msgspec.json.decode(self.unknown) in _objects(written.files[path])

    # --- in a store

    def test_what_came_in_goes_back_out(self) -> None:
        """Through the records of a store."""
        if not self.writable:
            return
        for source in self.sessions:
            with _memory() as store:
                written = self._round(store, source)
            for path, data in written.files.items():
                if self.exact:
                    assert data == source.files[path], path
                elif path.endswith(".jsonl"):
                    assert _objects(data) == _objects(source.files[path]), path

    def test_importing_again_adds_nothing(self) -> None:
        """Neither records nor sessions."""
        for source in self.sessions:
            read = self._dialect.read(source)
            with _memory() as store:
                first = bring(store.port, self._dialect.NAME, read)
                before = self._session(store, first.id).records()
                again = bring(store.port, self._dialect.NAME, read)
                assert (again.id, again.added) == (first.id, 0)
                assert self._session(store, first.id).records() == before

    def test_a_file_that_has_grown_adds_what_is_new(self) -> None:
        """And the conversation is the same as if it had been imported at once."""
        for source in self.sessions:
            path, data = next(iter(source.files.items()))
            lines = data.split(b"\n")
            with _memory() as store, _memory() as other:
                for count in (2, len(lines) // 2, len(lines)):
                    part = _with(source, path, b"\n".join(lines[:count]).rstrip(b"\n") + b"\n")
                    done = bring(store.port, self._dialect.NAME, self._dialect.read(part))
                at_once = bring(other.port, self._dialect.NAME, self._dialect.read(source))
                grown = self._session(store, done.id).messages()
                assert [one.text for one in grown] == [
                    one.text for one in self._session(other, at_once.id).messages()
                ]

    def test_a_session_of_ours_can_be_written_and_read_back(self) -> None:
        """With its calls, results and summary."""
        if not self.writable:
            return
        with _memory() as store:
            session = store.create(title="A title", model="m")
            _talk(session)
            written = export(session, self._dialect)
            path = next(iter(written.files))
            assert self._dialect.recognises(path, written.files[path][:65536])
            name = path.rpartition("/")[2].rpartition(".")[0]
            read = self._dialect.read(Given(name, written.files))
            assert not read.lost
            back = self._session(store, bring(store.port, self._dialect.NAME, read).id)
            assert [(one.role, one.text) for one in back.messages()] == [
                (one.role, one.text) for one in session.messages()
            ]
            calls = [call.name for one in back.messages() for call in one.tool_calls]
            assert calls == ["read_file", "bash"]
            ours, theirs = session.context(), back.context()
            assert [one.text for one in theirs.messages][1:] == [one.text for one in ours.messages][
                1:
            ]

    def test_a_format_that_cannot_be_written_says_so(self) -> None:
        """In one clear error."""
        if self.writable:
            return
        with _memory() as store:
            try:
                export(store.create(), self._dialect)
            except FormatError:
                return
        raise AssertionError

    # --- tools of the tests

    @property
    def _dialect(self) -> Format:
        made: Format = type(self).dialect
        return made

    def _round(self, store: Store, source: Given) -> Written:
        done = bring(store.port, self._dialect.NAME, self._dialect.read(source))
        return export(self._session(store, done.id), self._dialect)

    @staticmethod
    def _session(store: Store, name: str | None) -> Session:
        assert name is not None
        return store.session(name)

    @staticmethod
    def _texts(read: Read) -> list[str]:
        return [item.text for item in read.items if isinstance(item, Message) and item.text]

    def _said_in(self, source: Given, path: str, lines: list[bytes], at: int) -> int:
        """How many texts one line may take with it when it is lost."""
        without = b"\n".join((*lines[:at], *lines[at + 1 :]))
        read = self._dialect.read(_with(source, path, without))
        return len(set(self._texts(self._dialect.read(source))) - set(self._texts(read)))


def _memory() -> Store:
    return Store(InMemoryStore())


def _with(source: Given, path: str, data: bytes) -> Given:
    return source._replace(files={**source.files, path: data})


def _objects(data: bytes) -> list[Any]:
    return [msgspec.json.decode(line) for line in _lines(data)]


def _lines(data: bytes) -> Iterator[bytes]:
    return (line for line in data.split(b"\n") if line.strip())


def _talk(session: Session) -> None:
    session.append(user("please fix the tests"))
    calls = [
        ToolCall("call_1", "read_file", {"path": "a.py"}),
        ToolCall("call_2", "bash", {"command": "pytest"}),
    ]
    session.append(assistant("I look at it.\nTwice.", model="m"))
    session.append(assistant(calls))
    session.append(tool_result("call_1", "x = 1 <&> \u2028"))
    session.append(tool_result("call_2", "1 failed", is_error=True))
    session.append(assistant("It is x."))
    session.append(Compaction(first_kept_seq=8, summary="They fixed x.", strategy="prose"))
    session.append(user("and now?"))
    session.append(assistant("Now all is well. 漢字 ✓"))
