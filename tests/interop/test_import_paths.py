"""Whatever is imported: our own layout from anywhere, exports, legacy JSON, an archive."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from everlog.app import load_formats, open_store
from everlog.interop.archive import backup
from everlog.interop.exporter import export_document, export_json, export_native, export_ulid
from everlog.interop.formats.format_types import ExportedFiles
from everlog.interop.import_paths import ImportReport, import_paths
from everlog.interop.import_result import ImportResult
from everlog.log.fold import fold
from everlog.model import Compaction, Usage, assistant, tool_result, user
from everlog.session import Session, Store
from tests.examples import examples
from tests.histories import Step, append, steps
from tests.test_spec_003 import ALL_FACTS, DOCUMENT, FOREIGN, ULID, facts


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "home", create=True)


def import_all(store: Store, *paths: Path) -> ImportReport:
    return import_paths(store.port, paths, load_formats())


def import_one(store: Store, path: Path) -> ImportResult:
    (result,) = import_all(store, path).files
    assert result.problem == ""
    return result


def agent_home(folder: Path, *, log: bytes = DOCUMENT, **changes: object) -> Path:
    """The directory of a program with our layout."""
    sessions = folder / ".agent" / "sessions"
    (sessions / ULID).mkdir(parents=True)
    (sessions / ULID / "session.jsonl").write_bytes(log)
    (sessions / ULID / "metadata.json").write_bytes(msgspec.json.encode({"id": ULID, **FOREIGN, **changes}))
    return sessions


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def write(files: ExportedFiles, folder: Path) -> Path:
    for name, data in files.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def texts(session: Session) -> list[str]:
    return [message.text for message in session.messages()]


# --- directories of the ULID format


def test_a_directory_of_another_program_comes_in_whole_with_its_metadata(store: Store, tmp_path: Path) -> None:
    sessions = agent_home(tmp_path)
    before = tree(tmp_path / ".agent")
    result = import_one(store, sessions)
    assert (result.id, result.format, result.messages, result.new_messages) == (ULID, "ulid", 4, 4)
    assert (result.records_in, result.stored, result.already_there, result.lost) == (5, 5, 0, 0)
    session = store.session(ULID)
    assert facts(session) == ALL_FACTS
    assert session.verify() == () and session.append(user("and now?")).seq == 6
    assert tree(tmp_path / ".agent") == before
    store.close()
    for derived in (tmp_path / "home" / "sessions" / ULID / "metadata.json", tmp_path / "home" / "index.db"):
        derived.unlink()
    assert facts(open_store(tmp_path / "home").session(ULID)) == ALL_FACTS, "the log holds it all"


@pytest.mark.parametrize("below", [".agent", ".agent/sessions", f".agent/sessions/{ULID}"])
def test_any_folder_above_a_session_will_do(store: Store, tmp_path: Path, below: str) -> None:
    agent_home(tmp_path)
    report = import_all(store, tmp_path / below)
    assert [result.id for result in report.files] == [ULID]
    assert report.skipped == ()


def test_an_empty_session_keeps_its_metadata(store: Store, tmp_path: Path) -> None:
    result = import_one(store, agent_home(tmp_path, log=b""))
    assert (result.messages, result.records_in) == (0, 0)
    assert facts(store.session(ULID)) == ALL_FACTS


def test_what_was_added_since_is_added_and_what_is_there_is_not(store: Store, tmp_path: Path) -> None:
    sessions = agent_home(tmp_path)
    import_one(store, sessions)
    again = import_one(store, sessions)
    assert (again.id, again.stored, again.already_there, again.new_messages) == (ULID, 0, 5, 0)
    more = DOCUMENT.splitlines(keepends=True)[0].replace(b'"seq":1', b'"seq":6').replace(b"Which", b"What")
    (sessions / ULID / "session.jsonl").write_bytes(DOCUMENT + more + b'{"recordType":"mess')
    grown = import_one(store, sessions)
    assert (grown.id, grown.stored, grown.messages, grown.new_messages) == (ULID, 1, 5, 1)
    assert texts(store.session(ULID))[-1] == "What disks are full?"


def test_two_histories_under_one_id_are_two_sessions(store: Store, tmp_path: Path) -> None:
    sessions = agent_home(tmp_path)
    import_one(store, sessions)
    store.session(ULID).append(user("said here"))
    more = DOCUMENT.splitlines(keepends=True)[0].replace(b'"seq":1', b'"seq":6').replace(b"Which", b"What")
    (sessions / ULID / "session.jsonl").write_bytes(DOCUMENT + more)
    other = import_one(store, sessions)
    assert other.id not in (None, ULID) and other.differs_from == ULID and other.stored == 6
    assert texts(store.session(ULID))[-1] == "said here"
    assert texts(store.session(str(other.id)))[-1] == "What disks are full?"
    again = import_one(store, sessions)
    assert (again.id, again.stored, again.already_there) == (other.id, 0, 6)
    assert store.list().total == 2


def test_damage_comes_along_and_is_named(store: Store, tmp_path: Path) -> None:
    lines = DOCUMENT.splitlines(keepends=True)
    result = import_one(store, agent_home(tmp_path, log=b"".join((*lines[:2], b"garbled\n", *lines[3:]))))
    assert result.lost == 0 and result.messages == 3
    (problem,) = result.problems
    assert problem.startswith("session.jsonl, bytes ")
    assert len(store.session(ULID).verify()) == 1


def test_settings_of_the_program_are_named_with_their_equivalents(store: Store, tmp_path: Path) -> None:
    sessions = agent_home(tmp_path)
    (tmp_path / ".agent" / "config.yaml").write_text(
        "model: {provider: x}\ncompaction:\n  enabled: false  # for now\n\n  reserve_tokens: 9000\n"
        "  keep_recent_tokens: ~\n  later: [1]\nserver:\n  enabled: true\n"
    )
    found = import_all(store, sessions).settings
    assert [(one.key, one.value, one.setting) for one in found] == [
        ("compaction.enabled", "false", "enabled = false"),
        ("compaction.reserve_tokens", "9000", "reserve_tokens = 9000"),
        ("compaction.keep_recent_tokens", "~", ""),
        ("compaction.later", "[1]", ""),
    ]
    (tmp_path / ".agent" / "config.yaml").write_text("compaction: {enabled: false}\n")
    assert [(one.key, one.setting) for one in import_all(store, sessions).settings] == [("compaction", "")]


# --- exported as that format, and back


def test_an_export_is_the_document_that_was_imported(store: Store, tmp_path: Path) -> None:
    import_one(store, agent_home(tmp_path))
    written = export_ulid(store.session(ULID))
    assert written.files[f"{ULID}/session.jsonl"] == DOCUMENT
    metadata = msgspec.json.decode(written.files[f"{ULID}/metadata.json"])
    assert metadata == {"id": ULID, **FOREIGN, "metrics": {**FOREIGN["metrics"], "sessionId": ULID}}  # type: ignore[dict-item]
    assert written.losses == ()


def test_an_export_names_what_the_format_has_no_place_for(store: Store, tmp_path: Path) -> None:
    session = store.create(agent="coder", sender="ada", title="T", aliases=["login"])
    session.append_many([user("one"), user("two", sender="bob"), assistant("three", usage=Usage(input_tokens=3))])
    session.append(tool_result("tc", "late", tool_name="read"))
    session.append(Compaction(first_kept_seq=2, summary="s", strategy="rounds"))
    session.tombstone(1)
    session.end_turn(duration_ms=5, cost=0.5)
    written = export_ulid(session)
    lines = [msgspec.json.decode(line) for line in written.files[f"{session.id}/session.jsonl"].splitlines()]
    assert [line["seq"] for line in lines] == [1, 2, 3, 4]
    assert lines[3]["firstKeptSeq"] == 1, "the first message that is kept, as it is numbered here"
    keys = {"recordType", "schemaVersion", "seq", "role", "content", "timestamp"}
    assert set(lines[0]) == keys and set(lines[2]) == keys | {"toolCallId", "isError"}
    lost = {text.partition(":")[0] for text in written.losses}
    assert lost >= {"agent", "sender", "key", "sender of a message", "usage of a message", "event turn_end"}
    assert lost >= {"message that is hidden or was rewound", "strategy of a summary", "cost of the turns"}
    back = open_store(tmp_path / "other", create=True)
    assert import_one(back, write(written, tmp_path / "out")).messages == 3
    assert texts(back.session(session.id)) == ["two", "three", "late"]
    assert back.session(session.id).metadata.title == "T"


def context_of(session: Session) -> tuple[str, list[tuple[Any, ...]]]:
    """The summary that stands, and the live messages after it."""
    view = fold(session.records())
    summary, first = (view.compaction.summary, view.compaction.first_kept_seq) if view.compaction else ("", 0)
    kept = [message for message in view.messages if message.seq >= first]
    return summary, [(message.role, message.text, message.tool_calls, message.tool_call_id) for message in kept]


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps)
def test_any_history_reads_back_as_the_context_that_it_was(tmp_path: Path, history: list[Step]) -> None:
    session = open_store("memory:", home=tmp_path).create()
    for step in history:
        append(session, step)
    written = export_ulid(session)
    lines = [msgspec.json.decode(line) for line in written.files[f"{session.id}/session.jsonl"].splitlines()]
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        write(written, Path(folder) / "sessions")
        back = open_store(folder)
        assert context_of(back.session(session.id)) == context_of(session)
        assert back.session(session.id).verify() == ()
        back.close()


# --- sessions and exports of our own


def full_session(store: Store) -> Session:
    session = store.create(title="Zones", agent="main", sender="user")
    session.append_many([user("one"), assistant("two"), user("three")])
    session.tombstone(3)
    session.end_turn(duration_ms=1500)
    return session


def test_a_home_is_imported_byte_for_byte(store: Store, tmp_path: Path) -> None:
    other = open_store(tmp_path / "other", create=True)
    session = full_session(other)
    deleted = other.create()
    (tmp_path / "other" / "trash").mkdir(exist_ok=True)
    other.close()
    shutil.move(tmp_path / "other" / "sessions" / deleted.id, tmp_path / "other" / "trash" / deleted.id)
    report = import_all(store, tmp_path / "other")
    assert [(result.id, result.format, result.lost) for result in report.files] == [(session.id, "native", 0)]
    assert report.skipped == ()
    assert list(store.session(session.id).entries(after=-1)) == list(session.entries(after=-1))
    assert store.session(session.id).metadata == session.metadata
    again = import_all(store, tmp_path / "other" / "trash")
    assert again.files == () and [file.reason for file in again.skipped] == ["a session that was deleted"]


def test_names_stay_with_the_sessions_that_hold_them(store: Store, tmp_path: Path) -> None:
    other = open_store(tmp_path / "other", create=True)
    for _ in range(3):
        other.create(key="agent:main:direct:7", aliases=["login"])
    theirs = other.create(aliases=["login", "only-theirs"])
    theirs.append(user("of another machine"))
    keyed = other.create(key="agent:main:direct:7")
    keyed.append(user("of another machine too"))
    other.close()
    ours = store.create(key="agent:main:direct:7", aliases=["login"])
    current = store.create()
    import_all(store, tmp_path / "other")
    assert store.session("agent:main:direct:7") == store.session("login") == ours
    assert store.current() == current
    assert store.session("only-theirs").id == theirs.id
    assert texts(store.session(keyed.id)) == ["of another machine too"]


def test_an_export_of_ours_comes_back(store: Store, tmp_path: Path) -> None:
    session = full_session(store)
    native = write(export_native(session), tmp_path / "native")
    as_json = write(export_json(session), tmp_path / "json")
    for path in (native, as_json):
        there = import_one(store, path)
        assert (there.id, there.stored, there.new_messages) == (session.id, 0, 0)
    for path, count in ((native, 3), (as_json, 2)):
        with open_store(tmp_path / f"{path.name}-home", create=True) as other:
            result = import_one(other, path)
            assert (result.id, result.lost, result.messages) == (session.id, 0, count)
            assert texts(other.session(session.id)) == ["one", "two"]
            assert other.session(session.id).metadata.title == "Zones"
            assert other.session(session.id).metadata.metrics.total_turns == 1
            assert other.session(session.id).verify() == ()
            assert import_one(other, path).stored == 0


def test_a_log_under_any_name_is_a_session(store: Store, tmp_path: Path) -> None:
    session = full_session(store)
    (log,) = export_native(session).files.values()
    (tmp_path / "backup.jsonl").write_bytes(log)
    with open_store(tmp_path / "other", create=True) as other:
        result = import_one(other, tmp_path / "backup.jsonl")
        assert texts(other.session(str(result.id))) == ["one", "two"]
        assert import_one(other, tmp_path / "backup.jsonl").stored == 0


def test_pages_are_no_sessions_and_are_named(store: Store, tmp_path: Path) -> None:
    session = full_session(store)
    for kind in ("md", "html"):
        write(export_document(session, kind)[0], tmp_path / "pages")
    report = import_all(store, tmp_path / "pages")
    assert report.files == () and len(report.skipped) == 2
    assert all("a page to read" in file.reason for file in report.skipped)


# --- legacy JSON, and an archive


def legacy_file(folder: Path, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    document = {"key": "agent:main:direct:42", "messages": messages, "created": "2025-03-04T05:06:07Z", **changes}
    file = folder / "agent_main_direct_42.json"
    file.write_bytes(msgspec.json.encode(document))
    return file


def test_a_legacy_file_is_a_session_with_its_key(store: Store, tmp_path: Path) -> None:
    file = legacy_file(tmp_path / "old", summary="They met.")
    before = file.read_bytes()
    result = import_one(store, tmp_path / "old")
    assert (result.format, result.messages, result.lost) == ("picoclaw", 2, 0)
    session = store.session("agent:main:direct:42")
    assert texts(session) == ["hello", "hi"] and "They met." in session.context().messages[0].text
    assert (session.metadata.sender, session.metadata.created_at[:10]) == ("42", "2025-03-04")
    assert file.read_bytes() == before and list(file.parent.iterdir()) == [file], "the source stays"
    assert import_one(store, tmp_path / "old").stored == 0
    legacy_file(tmp_path / "old", summary="They met.", messages=[{"role": "user", "content": "hello"}])
    assert import_one(store, tmp_path / "old").id == session.id


def test_what_is_no_regular_file_is_refused_at_once(store: Store, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    os.mkfifo(tmp_path / "pipe.json")
    report = import_all(store, tmp_path / "pipe.jsonl", tmp_path / "pipe.json", tmp_path)
    assert [result.problem for result in report.files] == ["not a regular file"] * 2
    assert len(report.skipped) == 2


def test_names_that_no_session_can_have_are_no_obstacle(store: Store, tmp_path: Path) -> None:
    import_one(store, agent_home(tmp_path, aliases=["a\nb", "x" * 600], key="\x1b[31m"))
    assert texts(store.session(ULID))


def test_other_json_is_no_session(store: Store, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"messages": []}')
    (result,) = import_all(store, tmp_path / "x.json").files
    assert "not a session" in result.problem and store.list().total == 0


def test_an_archive_is_imported_from_what_it_holds(store: Store, tmp_path: Path) -> None:
    sessions = agent_home(tmp_path)
    legacy_file(sessions.parent / "old")
    backup.copy(tmp_path / "archiving", [sessions.parent])
    shutil.rmtree(sessions.parent)
    report = import_all(store, tmp_path / "archiving" / "archive")
    assert sorted((result.format, result.problem) for result in report.files) == [("picoclaw", ""), ("ulid", "")]
    assert {result.path for result in report.files} == {
        str(sessions / ULID / "session.jsonl"),
        str(sessions.parent / "old" / "agent_main_direct_42.json"),
    }
    assert facts(store.session(ULID)) == ALL_FACTS
