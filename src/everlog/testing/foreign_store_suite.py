"""The conformance suite for foreign stores; independent of any test framework.

class TestMine(ForeignStoreConformance):
    format = mine
    directory = {"a.jsonl": b"…"}
    session = "a"
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import ClassVar

from everlog.errors import ConflictError, InvalidIdError, NotFoundError, UnsupportedError
from everlog.interop.foreign.foreign_store import ForeignStore
from everlog.interop.formats.foreign_format import ForeignFormat
from everlog.interop.formats.format_types import InMemorySource
from everlog.model import Compaction, Message, ToolCall, assistant, tool_result, user
from everlog.ports import Route, Routing
from everlog.ports.access import ACTIONS, Action
from everlog.session import Session, Store
from everlog.stores.file.file_store import FileStore
from everlog.testing.stores.unknown_session import check_unknown_name, check_unknown_session

_UUID = "3f1c7f0e-5c1a-4d0b-9a52-0c8f6a3b1dff"
HOSTILE_IDS = ("", ".", "..", "../x", "/etc/passwd", "a/b", "a\0b", "x" * 300, "..\\x", "\n")


class ForeignStoreConformance:
    """Conformance tests of one format in one directory."""

    format: ClassVar[ForeignFormat]
    directory: ClassVar[Mapping[str, bytes]]  # its files, written by hand
    session: ClassVar[str]  # the id of one of them, whose transcript is the first file
    titles = True  # the format has a place for a title
    tombstones = False  # the format has a place for a deletion
    unknown_line: ClassVar[bytes] = b'{"type":"from-the-future","data":[1]}\n'  # of an unknown type

    # --- reading

    def test_a_session_is_listed_and_read_from_its_files(self) -> None:
        """The messages are those that an import returns."""
        with self._open_store() as (store, root):
            rows = store.list()
            assert self.session in [row.id for row in rows]
            messages = store.session(self.session).messages()
            assert _dialogue(messages) == self._import_dialogue(root) and messages
            row = next(row for row in rows if row.id == self.session)
            count = store.session(self.session).metadata.message_count
            assert row.metadata.message_count == count
            assert row.bytes == sum(map(len, self._transcripts(root)))

    def test_reading_writes_nothing_into_the_directory(self) -> None:
        """No index, no lock and no temporary file is created."""
        with self._open_store() as (store, root):
            session = store.session(self.session)
            session.messages(), session.context(), session.metadata, session.verify()
            with session.lease():
                pass
            assert _files(root) == dict(self.directory)

    def test_lines_added_by_the_program_are_read_at_once(self) -> None:
        """Lines are added one by one, as the program would."""
        name, data = next(iter(self.directory.items()))
        lines = data.splitlines(keepends=True)
        for count in range(1, len(lines) + 1):
            part = {**self.directory, name: b"".join(lines[: max(count - 1, 1)])}
            with self._open_store(part) as (store, root):
                _messages(store, self.session)
                with (root / name).open("ab") as file:
                    file.write(b"".join(lines[max(count - 1, 1) : count]))
                assert _dialogue(_messages(store, self.session)) == self._import_dialogue(root), count

    def test_a_rewritten_file_is_read_again(self) -> None:
        """Its current content is shown."""
        name, data = next(iter(self.directory.items()))
        lines = data.splitlines(keepends=True)
        with self._open_store() as (store, root):
            store.session(self.session).messages()
            (root / name).write_bytes(b"".join((*lines[:1], *lines[2:])))
            assert _dialogue(_messages(store, self.session)) == self._import_dialogue(root)

    # --- writing

    def test_appends_go_to_the_file_and_change_nothing_else(self) -> None:
        """They are durable on return, in the program's own format."""
        with self._open_store() as (store, root):
            session = store.session(self.session)
            before = self._transcripts(root)
            earlier = _dialogue(session.messages())
            session.append(user("one more: <&> \u2028 漢字"))
            session.append(assistant("I look.", model="m"))
            session.append(assistant([ToolCall("call_1", "bash", {"command": "ls"})]))
            session.append(tool_result("call_1", "a.py\nb.py"))
            messages = _dialogue(session.messages())
            assert messages[: len(earlier)] == earlier
            assert messages[len(earlier) :] == [
                ("user", "one more: <&> \u2028 漢字"),
                ("assistant", "I look."),
                ("assistant", ""),
                ("toolResult", "a.py\nb.py"),
            ]
            assert self._import_dialogue(root) == messages
            body = self._transcripts(root)[0]
            assert self._body(body).startswith(self._body(before[0]))
            assert set(_files(root)) == set(self.directory)

    def test_a_process_without_cached_state_reads_everything(self) -> None:
        """The files are the truth: everything else can be deleted."""
        with self._open_store() as (store, root):
            session = store.session(self.session)
            session.append(user("one more"))
            messages = _dialogue(session.messages())
            with self._open_store_at(root) as other:
                assert _dialogue(_messages(other, self.session)) == messages

    def test_two_stores_can_write_alternately(self) -> None:
        """Each reads what the other wrote, and nothing is written twice."""
        with self._open_store() as (store, root), self._open_store_at(root) as other:
            for number in range(6):
                writer = (store, other)[number % 2]
                writer.session(self.session).append(user(f"number {number}"))
            for writer in (store, other):
                texts = [m.text for m in _messages(writer, self.session)]
                assert texts[-6:] == [f"number {number}" for number in range(6)]
            assert self._import_dialogue(root) == _dialogue(_messages(store, self.session))

    def test_concurrent_processes_lose_nothing(self) -> None:
        """All of them append to the same session."""
        with self._open_store() as (store, root), tempfile.TemporaryDirectory() as home:
            count = len(store.session(self.session).messages())
            work = [(str(root), home, self.format, self.session, n) for n in range(3)]
            context = multiprocessing.get_context("spawn")
            with context.Pool(3) as pool:
                pool.map(_append_ten, work)
            texts = [m.text for m in _messages(store, self.session)]
            assert len(texts) == count + 30
            for n in range(3):
                process_texts = [text for text in texts if text.startswith(f"{n}:")]
                assert process_texts == [f"{n}:{number}" for number in range(10)]
            assert self._import_dialogue(root) == _dialogue(_messages(store, self.session))

    def test_a_torn_line_is_terminated_before_the_next_append(self) -> None:
        """The last line is truncated at every byte."""
        name, data = next(iter(self.directory.items()))
        last = len(data.rstrip(b"\n")) - data.rstrip(b"\n").rfind(b"\n") - 1
        start = len(data.rstrip(b"\n")) - last
        for cut in range(start, len(data), max(last // 40, 1)):
            torn = data[:cut]
            with self._open_store({**self.directory, name: torn}) as (store, root):
                store.session(self.session).append(user("after the crash"))
                assert self._import_dialogue(root)[-1] == ("user", "after the crash"), cut
                assert self._body((root / name).read_bytes()).startswith(self._body(torn))
                with self._open_store_at(root) as other:
                    assert _dialogue(_messages(other, self.session)) == self._import_dialogue(root), cut

    def test_unknown_lines_survive(self) -> None:
        """Lines of a newer version stay in place."""
        name, data = next(iter(self.directory.items()))
        with self._open_store({**self.directory, name: data + self.unknown_line}) as (store, root):
            session = store.session(self.session)
            earlier = _dialogue(session.messages())
            session.append(user("one more"))
            assert self.unknown_line in (root / name).read_bytes()
            assert _dialogue(session.messages()) == [*earlier, ("user", "one more")]

    def test_expected_seq_and_ids_are_checked_before_anything_is_written(self) -> None:
        """A refused append leaves the files unchanged."""
        with self._open_store() as (store, root):
            session = store.session(self.session)
            record = user("once", id="6f9619ff-8b86-4011-b42d-00c04fc964ff")
            head = session.append(record).seq
            before = _files(root)
            assert session.append(record).seq == head
            _raises(ConflictError, lambda: session.append(user("x"), expected_seq=head - 1))
            _raises(ConflictError, lambda: session.append(user("other", id=record.id)))
            assert _files(root) == before
            assert session.append(user("y"), expected_seq=head).seq == head + 1

    def test_a_summary_replaces_earlier_messages_in_the_context(self) -> None:
        """The view still has all messages, also in a process without cached state."""
        with self._open_store() as (store, root):
            session = store.session(self.session)
            session.append(user("a question"))
            first_kept = session.append(assistant("an answer"))
            earlier_texts = [text for _, text in _dialogue(session.messages())]
            session.append(Compaction(first_kept_seq=first_kept.seq, summary="They talked."))
            session.append(user("and now?"))
            self._check_summary(session, earlier_texts)
            with self._open_store_at(root) as other:
                self._check_summary(other.session(self.session), earlier_texts)

    def _check_summary(self, session: Session, earlier_texts: list[str]) -> None:
        context = [message.text for message in session.context().messages]
        assert "They talked." in context[0]
        assert context[-2:] == ["an answer", "and now?"]
        assert set(earlier_texts) <= {message.text for message in session.messages()}

    def test_a_title_is_stored_or_refused(self) -> None:
        """It is stored in the files if their format has a place for it."""
        with self._open_store() as (store, root):
            session = store.session(self.session)
            if not self.titles:
                before = _files(root)
                _raises(UnsupportedError, lambda: session.rename("A new title"))
                assert _files(root) == before
                return
            earlier = _dialogue(session.messages())
            assert session.rename("A new title").title == "A new title"
            session.append(user("one more"))
            assert _dialogue(session.messages()) == [*earlier, ("user", "one more")]
            with self._open_store_at(root) as other:
                assert other.session(self.session).metadata.title == "A new title"
                assert _dialogue(_messages(other, self.session)) == [*earlier, ("user", "one more")]

    def test_a_deletion_is_stored_or_refused(self) -> None:
        """It is stored in the files if their format has a place for it."""
        with self._open_store() as (store, root):
            session = store.session(self.session)
            deleted = session.append(user("forget this"))
            if not self.tombstones:
                before = _files(root)
                _raises(UnsupportedError, lambda: session.tombstone(deleted.seq))
                assert _files(root) == before
                return
            session.append(user("but not this"))
            session.tombstone(deleted.seq)
            assert "forget this" not in [m.text for m in _messages(store, self.session)]
            with self._open_store_at(root) as other:
                texts = [m.text for m in _messages(other, self.session)]
                assert "forget this" not in texts and "but not this" in texts

    def test_what_is_said_to_be_possible_is_possible_and_nothing_else(self) -> None:
        """`access` names the actions that a face may offer, before and after the session was read."""
        actions: dict[Action, Callable[[Session, Message], object]] = {
            "append": lambda session, _: session.append(user("one more")),
            "rename": lambda session, _: session.rename("A new title"),
            "compact": lambda session, last: session.append(
                Compaction(first_kept_seq=last.seq, summary="They talked.")
            ),
            "hide": lambda session, last: session.tombstone(last.seq),
            "rewind": lambda session, last: session.rewind(last.seq - 1),
            "fork": lambda session, _: session.fork(),
            "delete": lambda session, _: session.delete(),
        }
        assert set(actions) == ACTIONS
        for action, perform in actions.items():
            with self._open_store() as (store, _):
                session = store.session(self.session)
                session.append(user("the last but one"))
                last = session.append(user("the last one"))
                access = session.access
                assert (access.mode, access.program) == ("own", self.format.NAME)
                assert b"the last one" in Path(access.file).read_bytes(), "the file that appends go to"
                if action in access.actions:
                    perform(session, last)
                else:
                    _raises(UnsupportedError, partial(perform, session, last))

    def test_turn_metrics_are_not_written_to_the_file(self) -> None:
        """The program would not understand them; they are in the mirror."""
        with self._open_store() as (store, root):
            session = store.session(self.session)
            before = self._body(self._transcripts(root)[0])
            session.end_turn(duration_ms=1500, tool_calls=1)
            assert session.metadata.metrics.total_turns == 1
            assert self._body(self._transcripts(root)[0]) == before

    def test_a_session_is_created_once_under_an_id_of_the_caller(self) -> None:
        """Its id is the file's own, as far as the format allows; CrabTalk's are numbers."""
        with self._open_store() as (store, root):
            _raises(NotFoundError, lambda: store.session("support-42"))
            try:
                session = store.session("support-42", create=True)
            except UnsupportedError:
                assert _files(root) == dict(self.directory)
                return
            session.append(user("hello"))
            assert store.session("support-42") == session
            assert store.session("support-42", create=True) == session
            assert store.session("support-4", create=True) != session
            named_by_uuid = store.session(_UUID, create=True)
            assert store.session(_UUID) == named_by_uuid != session
            with self._open_store(_files(root)) as (copy, _):
                assert copy.session("support-42").id == session.id

    def test_an_unknown_session_is_the_error_of_every_store(self) -> None:
        """The type, the words and the facts are those of a native store."""
        with self._open_store() as (store, root):
            before = _files(root)
            for name in ("0" * 26, "support-42", "258c72", "agent:nobody:direct:7"):
                check_unknown_name(store.port, name)
                check_unknown_session(store.port, name)
            assert _files(root) == before

    def test_a_message_finds_its_session_again_and_no_other_ones(self) -> None:
        """By the rules of the format, after a restart too; what its sender is called elsewhere tells nothing."""

        def route(sender: str) -> Route:
            scope = {"version": 1, "agent_id": "main", "channel": "telegram", "account": "default"}
            key = f"sk_v1_{hashlib.sha256(sender.encode()).hexdigest()}"
            return Route(agent="main", sender=sender, key=key, scope=scope)

        def find(store: Store, *, new_chat: bool = False) -> list[str]:
            return [_routing(store).route_to_session(route(name), {}, new_chat=new_chat) for name in ("tg:7", "tg-7")]

        with self._open_store() as (store, root):
            assert [_routing(store).find_session(route(name)) for name in ("tg:7", "tg-7")] == [None, None]
            first = find(store)
            for name in first:
                store.session(name).append(user("hello"))
            assert len({*first, self.session}) == 3 and find(store) == first
            with self._open_store_at(root) as restarted:
                assert find(restarted) == first
            following = find(store, new_chat=True)
            assert not set(following) & set(first) and find(store) == following
            store.session(first[0]).resume()
            assert find(store) == [first[0], following[1]]

    def test_hostile_ids_change_nothing(self) -> None:
        """They are checked against the format's own pattern and never become a path."""
        with self._open_store() as (store, root):
            before = _files(root)
            for bad in HOSTILE_IDS:
                _raises((InvalidIdError, NotFoundError), partial(store.session, bad))
                _raises((InvalidIdError, NotFoundError), partial(store.port.delete, bad))
            assert _files(root) == before

    def test_deleting_a_session_removes_its_files(self) -> None:
        """Its transcript and the files that belong to it are deleted."""
        with self._open_store() as (store, root):
            store.session(self.session).delete()
            _raises(NotFoundError, lambda: store.session(self.session).messages())
            first = next(iter(self.directory))
            assert not (root / first).exists()

    # --- helpers

    @contextmanager
    def _open_store(self, files: Mapping[str, bytes] | None = None) -> Iterator[tuple[Store, Path]]:
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory)
            for name, data in (files or self.directory).items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_bytes(data)
            with self._open_store_at(root) as store:
                yield store, root

    @contextmanager
    def _open_store_at(self, root: Path) -> Iterator[Store]:
        with tempfile.TemporaryDirectory() as home, open_foreign_store(root, Path(home), self.format) as store:
            yield store

    def _transcripts(self, root: Path) -> list[bytes]:
        stem = next(iter(self.directory)).removesuffix(".jsonl").rpartition("/")[2]
        paths = sorted(root.rglob(f"{stem}*.jsonl"))
        return [path.read_bytes() for path in paths]

    def _body(self, data: bytes) -> bytes:
        """Return a transcript without the header that its program rewrites each time."""
        return data.partition(b"\n")[2] if self.format.METADATA_LOCATION == "head" else data

    def _import_dialogue(self, root: Path) -> list[tuple[str, str]]:
        """Return the roles and texts that an import of the files results in."""
        from everlog.interop.importer import import_session  # noqa: PLC0415
        from everlog.stores.in_memory import InMemoryStore  # noqa: PLC0415

        stem = next(iter(self.directory)).removesuffix(".jsonl").rpartition("/")[2]
        paths = sorted(root.rglob(f"{stem}*"), key=lambda path: (len(path.name), path.name))
        files = {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}
        files = {name: data for name, data in files.items() if not name.endswith(".json")} | files
        name = next(iter(files)).removesuffix(".jsonl").rpartition("/")[2]
        with Store(InMemoryStore()) as store:
            imported = import_session(store.port, self.format, self.format.read(InMemorySource(name, files)))
            return _dialogue(_messages(store, imported.id or ""))


def open_foreign_store(root: Path, home: Path, *formats: ForeignFormat) -> Store:
    """Open a store on a foreign directory, with its derived data and its companions in `home`."""
    companions = FileStore(home / "companion")
    return Store(
        ForeignStore(root, formats, FileStore(home), home, companion_store=companions, back_up=lambda paths: None)
    )


def _append_ten(work: tuple[str, str, ForeignFormat, str, int]) -> None:
    root, home, format, session, n = work
    with open_foreign_store(Path(root), Path(home), format) as store:
        for number in range(10):
            store.session(session).append(user(f"{n}:{number}"))


def _routing(store: Store) -> Routing:
    routing = store.port.capability(Routing)
    assert routing is not None
    return routing


def _messages(store: Store, session: str) -> list[Message]:
    return store.session(session).messages()


def _dialogue(messages: list[Message]) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in messages]


def _files(root: Path) -> dict[str, bytes]:
    return {
        Path(folder, name).relative_to(root).as_posix(): Path(folder, name).read_bytes()
        for folder, _, names in os.walk(root)
        for name in names
    }


def _raises(error: type[Exception] | tuple[type[Exception], ...], action: Callable[[], object]) -> None:
    try:
        action()
    except error:
        return
    raise AssertionError(f"not refused with {error}")
