"""Importing: found by content, brought in whole, once, and written out again."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import everlog
from everlog.app import load_formats
from everlog.interop.formats.foreign_format import ForeignFormat
from everlog.interop.formats.format_types import (
    MAX_LINE_BYTES,
    ForeignSession,
    HiddenMessages,
    InMemorySource,
    Match,
    Summary,
    split_lines,
)
from everlog.interop.import_target import ImportTarget
from everlog.interop.importer import import_files, import_session
from everlog.interop.transcript_sources import FileSource, detect_format, find_files
from everlog.model import Event, Tombstone, assistant, user
from everlog.settings import SessionSettings, Settings

CRAB = (
    b'{"agent":"crab","created_by":"user","created_at":"2026-03-01T10:00:00+00:00","title":"",'
    b'"uptime_secs":3}\n'
    b'{"role":"user","content":"hello"}\n'
    b'{"role":"assistant","content":"hi"}\n'
)
CORPUS = Path(__file__).parents[3] / "shared" / "corpus"


class _IdFormat(ForeignFormat):
    """A format whose messages have ids that never change; nothing else of it is used here."""

    NAME = "test"
    KEYS = frozenset()

    def recognises(self, path: str, head: bytes) -> Match:
        return Match.NO

    def fingerprint(self, message: everlog.Message) -> str:
        return message.id


IdFormat = _IdFormat()


def _read(*items: everlog.Message | Event | Summary | HiddenMessages, name: str = "a") -> ForeignSession:
    return ForeignSession(session_id=name, items=items, line_count=len(items), created_ms=1_770_000_000_000)


# --- finding


def test_transcripts_are_found_and_what_belongs_to_them_is_not(tmp_path: Path) -> None:
    for name in (
        "a.jsonl",
        "a_part2.jsonl",
        "a_part3.jsonl",
        "lonely_part2.jsonl",
        "b.json",
        "b.meta.json",
        "notes.txt",
        "deep/er/c.jsonl",
        "a/subagents/agent-1.jsonl",
        "a/tool-results/x.txt",
    ):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"{}\n")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "a.jsonl")
    found = [one.relative_to(tmp_path).as_posix() for one in find_files([tmp_path])[0]]
    assert found == ["a.jsonl", "b.json", "lonely_part2.jsonl", "deep/er/c.jsonl"]
    assert FileSource(tmp_path / "a.jsonl").paths() == [
        "a.jsonl",
        "a_part2.jsonl",
        "a_part3.jsonl",
        "a/subagents/agent-1.jsonl",
        "a/tool-results/x.txt",
    ]


def test_a_name_with_wildcards_stands_for_itself(tmp_path: Path) -> None:
    for name in ("[x]*.jsonl", "[x]*_part2.jsonl", "xyz_part2.jsonl"):
        (tmp_path / name).write_bytes(b"{}\n")
    assert FileSource(tmp_path / "[x]*.jsonl").paths() == ["[x]*.jsonl", "[x]*_part2.jsonl"]


@pytest.mark.parametrize(
    "data", [b"", b"\n", b"a", b"a\nb", b"a\nb\n", b"\n\na\r\n", b"x" * 3_000_000 + b"\ny", b"\xe2\x80\xa8\n"]
)
def test_lines_on_the_disk_are_those_in_memory(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.jsonl").write_bytes(data)
    assert list(FileSource(tmp_path / "a.jsonl").lines("a.jsonl")) == list(split_lines(data))


@pytest.mark.slow
def test_of_a_line_that_is_far_too_long_only_the_beginning_is_held(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    with file.open("wb") as opened:
        opened.write(b"first\n")
        opened.truncate(MAX_LINE_BYTES * 2)
        opened.seek(0, os.SEEK_END)
        opened.write(b"\nlast\n")
    first, long, last = FileSource(file).lines("a.jsonl")
    assert first.data == b"first" and last.data == b"last" and last.start == MAX_LINE_BYTES * 2 + 1
    assert MAX_LINE_BYTES < len(long.data) < MAX_LINE_BYTES + 3_000_000


# --- bringing in


def test_a_summary_keeps_what_it_names_and_hides_nothing() -> None:
    with everlog.open_store("memory:") as store:
        read = _read(
            user("one", id="m1"),
            assistant("two", id="m2"),
            user("three", id="m3"),
            Summary(id="s1", text="so far", first_kept="m3"),
            assistant("four", id="m4"),
        )
        session = store.session(import_session(store.port, IdFormat, read).id or "")
        assert [one.text for one in session.messages()] == ["one", "two", "three", "four"]
        assert [one.text for one in session.context().messages] == ["so far", "three", "four"]


def test_a_summary_that_keeps_nothing_stands_for_all_before_it() -> None:
    with everlog.open_store("memory:") as store:
        read = _read(user("one", id="m1"), Summary(id="s1", text="so far"), user("two", id="m2"))
        session = store.session(import_session(store.port, IdFormat, read).id or "")
        assert [one.text for one in session.context().messages] == ["so far", "two"]


def test_a_branch_that_was_left_is_hidden_and_shown_when_it_is_taken_up_again() -> None:
    first, left, taken = user("a", id="m1"), assistant("b", id="m2"), assistant("c", id="m3")
    with everlog.open_store("memory:") as store:
        done = import_session(store.port, IdFormat, _read(first, left, taken, HiddenMessages(id="h1", ids=("m2",))))
        session = store.session(done.id or "")
        assert [one.text for one in session.messages()] == ["a", "c"]
        import_session(store.port, IdFormat, _read(first, left, taken, HiddenMessages(id="h2", ids=("m3",))))
        assert [one.text for one in session.messages()] == ["a", "b"]
        session.tombstone(1)  # by a person: no import brings it back
        import_session(store.port, IdFormat, _read(first, left, taken, HiddenMessages(id="h3", ids=("m2",))))
        assert [one.text for one in session.messages()] == ["c"]
        assert sum(isinstance(one, Tombstone) for one in session.records()) == 4


def test_a_branch_that_was_left_before_a_summary_does_not_make_it_stale() -> None:
    items = (
        user("a", id="m1"),
        assistant("left", id="m2"),
        assistant("taken", id="m3"),
        Summary(id="s1", text="so far"),
        user("b", id="m4"),
        assistant("left too", id="m5"),
        assistant("c", id="m6"),
    )
    with everlog.open_store("memory:") as store:
        read = _read(*items, HiddenMessages(id="h1", ids=("m2", "m5")))
        session = store.session(import_session(store.port, IdFormat, read).id or "")
        assert [one.text for one in session.messages()] == ["a", "taken", "b", "c"]
        context = session.context()
        assert [one.text for one in context.messages] == ["so far", "b", "c"]
        assert context.stale == ()
        assert import_session(store.port, IdFormat, read).stored == 0


def test_what_was_skipped_and_is_no_more_is_shown_again() -> None:
    first, second = user("a", id="m1"), user("b", id="m2")
    with everlog.open_store("memory:") as store:
        done = import_session(store.port, IdFormat, _read(first, second, HiddenMessages(id="h1", ids=("m1",))))
        session = store.session(done.id or "")
        assert [one.text for one in session.messages()] == ["b"]
        import_session(store.port, IdFormat, _read(first, second))
        assert [one.text for one in session.messages()] == ["a", "b"]
        assert import_session(store.port, IdFormat, _read(first, second)).stored == 0


def test_a_run_that_was_cut_short_is_taken_up(tmp_path: Path) -> None:
    items = [user(f"message {at}", id=f"m{at}") for at in range(1200)]
    with everlog.open_store(tmp_path) as store:
        append, calls = store.port.append, 0

        def failing(*arguments: object, **named: object) -> object:
            nonlocal calls
            calls += 1
            if calls == 2:
                raise everlog.StoreFailedError("power")
            return append(*arguments, **named)  # type: ignore[arg-type]

        store.port.append = failing  # type: ignore[method-assign, assignment]
        with pytest.raises(everlog.StoreFailedError):
            import_session(store.port, IdFormat, _read(*items))
        store.port.append = append  # type: ignore[method-assign]
        done = import_session(store.port, IdFormat, _read(*items))
        assert (done.stored, done.already_there) == (700, 500)
        texts = [one.text for one in store.session(done.id or "").messages()]
        assert texts == [f"message {at}" for at in range(1200)]


def test_a_record_that_is_too_long_for_us_is_named_and_the_others_are_there() -> None:
    settings = Settings(session=SessionSettings(line_bytes=2_000))
    with everlog.open_store("memory:", settings=settings) as store:
        read = _read(user("one", id="m1"), user("x" * 5_000, id="m2"), user("three", id="m3"))
        done = import_session(store.port, IdFormat, read)
        assert done.lost == 1 and "m2" in done.problems[0]
        assert [one.text for one in store.session(done.id or "").messages()] == ["one", "three"]
        assert import_session(store.port, IdFormat, read).stored == 0


def test_facts_become_metadata_and_agents_that_were_asked_sessions_of_their_own() -> None:
    child = ForeignSession(session_id="a/sub", items=(user("dig", id="c1"),), metadata={"parent": {"toolCallId": "t"}})
    read = ForeignSession(
        session_id="a",
        metadata={"name": "Title", "agent": "crab", "sender": "tg:1", "cwd": "/srv", "model": "m"},
        created_ms=1_770_000_000_000,
        items=(user("hello", id="m1"),),
        children=(child,),
    )
    with everlog.open_store("memory:") as store:
        done = import_session(store.port, IdFormat, read)
        known = store.session("test:a").metadata
        assert (known.title, known.agent, known.sender, known.source) == ("Title", "crab", "tg:1", "test")
        assert known.created_at.startswith("2026-02-02") and not known.model_chosen
        assert known.extra["cwd"] == "/srv"
        other = store.session("test:a/sub").metadata
        assert other.extra["parent"] == {"toolCallId": "t", "id": done.id}
        assert store.current("crab", "tg:1") is None, "nobody's current chat changes"


# --- files


def test_files_are_imported_by_their_content_and_others_are_named(tmp_path: Path) -> None:
    (tmp_path / "crab_user_1.jsonl").write_bytes(CRAB)
    (tmp_path / "what.jsonl").write_bytes(b"no session\n")
    (tmp_path / "gone.jsonl").write_bytes(CRAB)
    files, _ = find_files([tmp_path])
    (tmp_path / "gone.jsonl").unlink()
    with everlog.open_store("memory:") as store:
        told: list[tuple[int, int]] = []
        done = list(import_files(store.port, files, load_formats(), progress=lambda *one: told.append(one)))
        assert [(one.format, one.problem) for one in done] == [
            ("crabtalk", ""),
            ("", "No such file or directory"),
            ("", "not a session in a known format: no line of it is a JSON object"),
        ]
        assert told == [(1, 3), (2, 3), (3, 3)]
        session = store.session(done[0].id or "")
        assert [one.text for one in session.messages()] == ["hello", "hi"]
        assert session.metadata.created_at == "2026-03-01T10:00:00.000Z"


def test_every_real_session_comes_in_whole_and_goes_back_out_equal() -> None:
    if not CORPUS.is_dir():
        pytest.skip("no corpus")
    from everlog.interop.exporter import export

    files, _ = find_files([CORPUS / "claude-code", CORPUS / "pi"])
    with everlog.open_store("memory:") as store:
        for file in files:
            dialect = detect_format(file, load_formats())
            assert dialect is not None
            read = dialect.read(FileSource(file))
            done = import_session(store.port, dialect, read)
            assert (done.lost, done.stored, done.problems) == (0, done.records_in, ())
            written = export(store.session(done.id or ""), dialect)
            name = next(iter(written.files))
            ours = [json.loads(line) for line in written.files[name].split(b"\n") if line]
            theirs = [json.loads(line) for line in file.read_bytes().split(b"\n") if line]
            assert ours == theirs, file.name


def test_given_sources_are_what_they_say() -> None:
    source = InMemorySource("a", {"a.jsonl": b"1\n2"}, 5)
    assert source.paths() == ("a.jsonl",) and source.read("a.jsonl") == b"1\n2"
    assert [line.ended for line in source.lines("a.jsonl")] == [True, False]


def test_an_older_copy_of_a_session_does_not_change_which_branch_is_shown() -> None:
    first, left, taken = user("a", id="m1"), assistant("b", id="m2"), assistant("c", id="m3")
    with everlog.open_store("memory:") as store:
        done = import_session(store.port, IdFormat, _read(first, left, taken, HiddenMessages(id="h1", ids=("m2",))))
        session = store.session(done.id or "")
        again = import_session(store.port, IdFormat, _read(first, left))
        assert (again.id, again.stored) == (done.id, 0)
        assert [one.text for one in session.messages()] == ["a", "c"]


def test_a_line_that_was_damaged_or_replaced_since_it_was_written_is_not_counted_as_stored(tmp_path: Path) -> None:
    items = [user(f"text {number}", id=f"m{number}", timestamp="2026-03-01T10:00:00Z") for number in range(1, 6)]
    with everlog.open_store(tmp_path) as store:
        target = ImportTarget(store.port, store.create().id, format=IdFormat)
        for item in items:
            target.add(item)
        target.flush()
        assert target.count(items) == (5, 0)
        (log,) = tmp_path.rglob("*.jsonl")
        lines = log.read_bytes().splitlines(keepends=True)
        lines[2] = lines[2].replace(b"text 2", b"test 2")
        lines[4] = lines[3]
        log.write_bytes(b"".join(lines))
        assert target.count(items) == (3, 0)


def test_a_title_that_the_program_changed_is_taken_over_unless_somebody_gave_another_one_here() -> None:
    def read(title: str, *items: everlog.Message) -> ForeignSession:
        metadata = {"name": title} if title else {}
        return ForeignSession(session_id="a", items=items, line_count=len(items), metadata=metadata)

    first, second = user("a", id="m1"), assistant("b", id="m2")
    with everlog.open_store("memory:") as store:
        done = import_session(store.port, IdFormat, read("", first))
        session = store.session(done.id or "")
        for title in ("First title", "Second title"):
            import_session(store.port, IdFormat, read(title, first, second))
            assert session.metadata.title == title
        import_session(store.port, IdFormat, read("First title", first))  # an older copy
        assert session.metadata.title == "Second title"
        session.update(title="Mine")
        import_session(store.port, IdFormat, read("Third title", first, second))
        assert session.metadata.title == "Mine"


def test_files_that_a_program_keeps_beside_its_transcripts_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "session_index.jsonl").write_text('{"id":"x","thread_name":"y"}\n')
    files, skipped = find_files([tmp_path])
    assert files == []
    assert [(Path(file.path).name, file.reason) for file in skipped] == [
        ("session_index.jsonl", "the names of Codex's threads")
    ]
