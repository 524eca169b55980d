"""The conformance suite for formats; independent of any test framework.

    class TestMine(FormatConformance):
        format = mine
        sessions = (InMemorySource("a", {"a.jsonl": b"…"}),)

Sessions that the format reads are imported into a native store and exported again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Any, ClassVar

import msgspec

from everlog.errors import FormatError
from everlog.interop.exporter import export
from everlog.interop.formats.foreign_format import ForeignFormat
from everlog.interop.formats.format_types import (
    ExportedFiles,
    ForeignSession,
    HiddenMessages,
    InMemorySource,
    Item,
    Line,
    ListingScan,
    Summary,
    TailState,
    TranscriptInfo,
)
from everlog.interop.formats.session_reader import metadata_of
from everlog.interop.importer import import_session
from everlog.model import Compaction, Message, ToolCall, assistant, tool_result, user
from everlog.session import Session, Store
from everlog.stores.in_memory import InMemoryStore

MAX_CUTS = 200  # positions at which a file is truncated
MAX_ODD_LINES = 2  # lines of a file whose values are replaced
ODD_VALUES: tuple[Any, ...] = (None, True, 1.5, 10**30, "x", ["x"], {"x": 1})


class FormatConformance:
    """Conformance tests of one format."""

    format: ClassVar[ForeignFormat]
    sessions: ClassVar[Sequence[InMemorySource]]  # valid ones, written by hand
    exact = False  # exported byte for byte; else as the same objects in the same order
    writable = True
    # A line of an unknown type; None if the format has no place for one.
    unknown: ClassVar[bytes | None] = b'{"type":"from-the-future","uuid":"u-1","data":{"a":[1]}}'

    # --- reading

    def test_it_recognises_its_own_files(self) -> None:
        """The first 64 KiB are enough."""
        for source in self.sessions:
            path = source.paths()[0]
            assert self.format.recognises(path, source.files[path][:65536]), path

    def test_it_recognises_nothing_else(self) -> None:
        """Neither other formats nor arbitrary bytes."""
        for head in (b"", b"\0" * 100, b"[]\n", b"{}\n", b'{"a":1}\n', b"# text\n", b'"x"\n', b"\xff\xfe"):
            assert not self.format.recognises("x.jsonl", head), head

    def test_a_valid_file_has_no_damage(self) -> None:
        """It has items and a line count."""
        for source in self.sessions:
            read = self.format.read(source)
            assert not read.damage, read.damage
            assert read.items and read.line_count

    def test_ids_are_unique_and_stable(self) -> None:
        """Otherwise a second import would add duplicates."""
        for source in self.sessions:
            first, second = self.format.read(source), self.format.read(source)
            ids = [item.id for item in first.items]
            assert all(ids) and len(set(ids)) == len(ids)
            assert ids == [item.id for item in second.items]

    def test_a_file_truncated_at_any_byte_is_read(self) -> None:
        """All complete lines before the cut are read."""
        for source in self.sessions:
            whole = {item.id: item for item in self.format.read(source).items}
            path, data = next(iter(source.files.items()))
            for cut in range(0, len(data), max(len(data) // MAX_CUTS, 1)):
                read = self.format.read(_replace_file(source, path, data[:cut]))
                lines = data[:cut].count(b"\n")
                assert read.line_count >= sum(map(bool, data.split(b"\n")[:lines]))
                messages = [item for item in read.items if isinstance(item, Message)]
                assert all(item.id not in whole or item.role for item in messages)

    def test_a_damaged_line_is_reported_and_hides_no_other(self) -> None:
        """Each line in turn is overwritten."""
        for source in self.sessions:
            path, data = next(iter(source.files.items()))
            lines = data.split(b"\n")
            valid_texts = self._texts(self.format.read(source))
            for number, line in enumerate(lines):
                if not line:
                    continue
                for junk in (b"\0" * len(line), line[: len(line) // 2], b"\xff" + line[1:]):
                    broken = b"\n".join((*lines[:number], junk, *lines[number + 1 :]))
                    read = self.format.read(_replace_file(source, path, broken))
                    assert read.damage, (number, junk[:20])
                    missing = set(valid_texts) - set(self._texts(read))
                    assert len(missing) <= self._count_texts(source, path, lines, number)

    def test_a_value_of_any_type_never_raises(self) -> None:
        """Each value of each line in turn is another one: recognition, import, live view and listing go on."""
        for source in self.sessions:
            path, data = next(iter(source.files.items()))
            lines = data.split(b"\n")
            for number in Random(len(lines)).sample(range(len(lines)), min(len(lines), MAX_ODD_LINES)):
                for odd_line in _with_odd_values(lines[number]):
                    odd = b"\n".join([*lines[:number], odd_line, *lines[number + 1 :]])
                    grown = _replace_file(source, path, odd)
                    self.format.recognises(path, odd_line + b"\n" + odd)
                    read = self.format.read(grown)
                    transcript, parts = self.format.open_source(grown)
                    new = [line for _, part in parts for line in part]
                    _ItemView().follow(self.format, new, new, transcript)
                    self.format.scan_listing(ListingScan(), new, transcript)
                    with _new_store() as store:  # refuses what a later reader could not read
                        assert import_session(store.port, self.format, read).lost == 0, odd_line

    def test_records_of_unknown_types_survive(self) -> None:
        """They are stored, not shown, and exported again."""
        if self.unknown is None:
            return
        for source in self.sessions:
            path, data = next(iter(source.files.items()))
            grown = _replace_file(source, path, data + self.unknown + b"\n")
            assert self._texts(self.format.read(grown)) == self._texts(self.format.read(source))
            if self.writable:
                with _new_store() as store:
                    written = self._round_trip(store, grown)
                assert msgspec.json.decode(self.unknown) in _objects(written.files[path])

    # --- one reader

    def test_import_live_view_and_listing_agree_at_every_line(self) -> None:
        """The file grows from a cut to its end; long files are cut at random."""
        for source in self.sessions:
            transcript, parts = self.format.open_source(source)
            transcript = transcript._replace(read_lines=None)  # so that a format asks for the whole file
            lines = [line for _, part in parts for line in part]
            imported = _ItemView(self.format.read(source).items)
            for cut in _cuts(len(lines)):
                followed, scan = _ItemView(), ListingScan()
                for start, end in ((0, cut), (cut, len(lines))):
                    followed.follow(self.format, lines[start:end], lines[:end], transcript)
                    scan = self.format.scan_listing(scan, lines[start:end], transcript)
                assert followed.dialogue == imported.dialogue, cut
                assert followed.summary == imported.summary, cut
                self._check_facts(source, scan, followed, cut)

    def _check_facts(self, source: InMemorySource, scan: ListingScan, followed: _ItemView, cut: int) -> None:
        read = self.format.read(source)
        expected = metadata_of(scan)
        for key in ("name", "cwd", "model", "agent", "sender", "key"):
            assert read.metadata.get(key) == expected.get(key), (key, cut)
        assert scan.messages == len(followed.messages), cut

    # --- in a store

    def test_an_imported_session_is_exported_unchanged(self) -> None:
        """The session is imported into a store and exported from its records."""
        if not self.writable:
            return
        for source in self.sessions:
            with _new_store() as store:
                written = self._round_trip(store, source)
            for path, data in written.files.items():
                if self.exact:
                    assert data == source.files[path], path
                elif path.endswith(".jsonl"):
                    assert _objects(data) == _objects(source.files[path]), path

    def test_importing_again_adds_nothing(self) -> None:
        """No records and no sessions."""
        for source in self.sessions:
            read = self.format.read(source)
            with _new_store() as store:
                first = import_session(store.port, self.format, read)
                before = self._session(store, first.id).records()
                again = import_session(store.port, self.format, read)
                assert (again.id, again.stored) == (first.id, 0)
                assert self._session(store, first.id).records() == before

    def test_importing_a_grown_file_adds_only_new_records(self) -> None:
        """The messages are the same as after a single import."""
        for source in self.sessions:
            path, data = next(iter(source.files.items()))
            lines = data.split(b"\n")
            with _new_store() as store, _new_store() as other:
                for count in (2, len(lines) // 2, len(lines)):
                    data = b"\n".join(lines[:count]).rstrip(b"\n") + b"\n"
                    read = self.format.read(_replace_file(source, path, data))
                    imported = import_session(store.port, self.format, read)
                at_once = import_session(other.port, self.format, self.format.read(source))
                grown = self._session(store, imported.id).messages()
                assert [message.text for message in grown] == [
                    message.text for message in self._session(other, at_once.id).messages()
                ]

    def test_a_native_session_can_be_exported_and_read_back(self) -> None:
        """Tool calls, results and the summary are preserved."""
        if not self.writable:
            return
        with _new_store() as store:
            session = store.create(title="A title", model="m")
            _append_conversation(session)
            written = export(session, self.format)
            path = next(iter(written.files))
            assert self.format.recognises(path, written.files[path][:65536])
            name = path.rpartition("/")[2].rpartition(".")[0]
            read = self.format.read(InMemorySource(name, written.files))
            assert not read.damage
            back = self._session(store, import_session(store.port, self.format, read).id)
            assert [(message.role, message.text) for message in back.messages()] == [
                (message.role, message.text) for message in session.messages()
            ]
            calls = [call.name for message in back.messages() for call in message.tool_calls]
            assert calls == ["read_file", "bash"]
            native, foreign = session.context(), back.context()
            assert [message.text for message in foreign.messages][1:] == [message.text for message in native.messages][
                1:
            ]

    def test_exporting_to_a_read_only_format_raises(self) -> None:
        """The error is `FormatError`."""
        if self.writable:
            return
        with _new_store() as store:
            try:
                export(store.create(), self.format)
            except FormatError:
                return
        raise AssertionError

    # --- helpers

    def _round_trip(self, store: Store, source: InMemorySource) -> ExportedFiles:
        imported = import_session(store.port, self.format, self.format.read(source))
        return export(self._session(store, imported.id), self.format)

    @staticmethod
    def _session(store: Store, name: str | None) -> Session:
        assert name is not None
        return store.session(name)

    @staticmethod
    def _texts(read: ForeignSession) -> list[str]:
        return [item.text for item in read.items if isinstance(item, Message) and item.text]

    def _count_texts(self, source: InMemorySource, path: str, lines: list[bytes], number: int) -> int:
        """Return how many texts are lost if a line is missing."""
        without = b"\n".join((*lines[:number], *lines[number + 1 :]))
        read = self.format.read(_replace_file(source, path, without))
        return len(set(self._texts(self.format.read(source))) - set(self._texts(read)))


class _ItemView:
    """The conversation in some items, as a store would show it."""

    def __init__(self, items: Iterable[Item] = ()) -> None:
        self.messages: dict[str, Message] = {}
        self._summary: tuple[str, int] | None = None  # text and number of messages before the kept ones
        self._hidden: set[str] = set()
        self._abandoned: set[str] = set()  # hidden by branches, as last reported
        self._state: TailState = {}
        self._add(items)

    def follow(
        self, format: ForeignFormat, new: Sequence[Line], lines: Sequence[Line], transcript: TranscriptInfo
    ) -> None:
        """Read new lines, or all lines if the format asks for them."""
        result = format.read_tail(self._state, new, transcript)
        if result is None:
            result = format.read_all(lines, transcript)
        self._state = result.state
        self._add(result.items)

    def _add(self, items: Iterable[Item]) -> None:
        for item in items:
            if isinstance(item, Message):
                self.messages.setdefault(item.id, item)
            elif isinstance(item, Summary):
                kept = item.first_kept
                before = len(self.messages) if kept is None else list(self.messages).index(kept)
                self._summary = item.text, before
            elif isinstance(item, HiddenMessages):
                if item.extra:
                    self._hidden |= set(item.ids)
                else:
                    self._abandoned = set(item.ids)

    @property
    def summary(self) -> tuple[str, list[str]] | None:
        """The text of the summary, and the ids of the messages that it keeps."""
        return None if self._summary is None else (self._summary[0], list(self.messages)[self._summary[1] :])

    @property
    def dialogue(self) -> list[tuple[Any, ...]]:
        """What the messages that are shown say, with their ids."""
        hidden = self._hidden | self._abandoned
        return [
            (message.id, message.role, message.content, message.tool_call_id, message.model)
            for message in self.messages.values()
            if message.id not in hidden
        ]


def _with_odd_values(line: bytes) -> Iterator[bytes]:
    """Yield a line with each of its values, to a depth of three, replaced by values of other types."""
    try:
        value = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return
    containers = [value]
    for _ in range(3):
        for container in [item for item in containers if isinstance(item, dict | list)]:
            keys = list(container) if isinstance(container, dict) else range(len(container))
            for key in keys:
                before = container[key]
                for odd in ODD_VALUES:
                    container[key] = odd
                    yield msgspec.json.encode(value)
                container[key] = before
        containers = [
            inner
            for item in containers
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]


def _cuts(count: int) -> Sequence[int]:
    """Return all line boundaries of a short file, random ones of a long file."""
    if count <= MAX_CUTS:
        return range(count + 1)
    return sorted(Random(count).sample(range(count + 1), MAX_CUTS))


def _new_store() -> Store:
    return Store(InMemoryStore())


def _replace_file(source: InMemorySource, path: str, data: bytes) -> InMemorySource:
    return source._replace(files={**source.files, path: data})


def _objects(data: bytes) -> list[Any]:
    return [msgspec.json.decode(line) for line in _lines(data)]


def _lines(data: bytes) -> Iterator[bytes]:
    return (line for line in data.split(b"\n") if line.strip())


def _append_conversation(session: Session) -> None:
    session.append(user("please fix the tests"))
    calls = [ToolCall("call_1", "read_file", {"path": "a.py"}), ToolCall("call_2", "bash", {"command": "pytest"})]
    session.append(assistant("I look at it.\nTwice.", model="m"))
    session.append(assistant(calls))
    session.append(tool_result("call_1", "x = 1 <&> \u2028"))
    session.append(tool_result("call_2", "1 failed", is_error=True))
    session.append(assistant("It is x."))
    session.append(Compaction(first_kept_seq=8, summary="They fixed x.", strategy="prose"))
    session.append(user("and now?"))
    session.append(assistant("Now all is well. 漢字 ✓"))
