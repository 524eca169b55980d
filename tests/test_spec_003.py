"""One test per clause of the session specification (§7.7) that the log answers for."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

import everlog
from everlog.model import Compaction

DOCUMENT = (
    b'{"recordType":"message","schemaVersion":1,"seq":1,"role":"user","content":[{"type":"text",'
    b'"text":"Which disks are full?"}],"timestamp":"2025-02-11T10:00:00Z"}\n'
    b'{"recordType":"message","schemaVersion":1,"seq":2,"role":"assistant","content":[{"type":'
    b'"text","text":"I will look."},{"type":"toolCall","id":"tc_1","name":"bash","arguments":'
    b'{"command":"df -h"}}],"timestamp":"2025-02-11T10:00:01Z"}\n'
    b'{"recordType":"message","schemaVersion":1,"seq":3,"role":"toolResult","content":[{"type":'
    b'"text","text":"/dev/sda1 97%"}],"toolCallId":"tc_1","isError":false,'
    b'"timestamp":"2025-02-11T10:00:02Z"}\n'
    b'{"recordType":"compaction","schemaVersion":1,"seq":4,"firstKeptSeq":3,"summary":"## Goal",'
    b'"tokensBefore":12,"readFiles":[],"modifiedFiles":["a.py"],"timestamp":"2025-02-11T10:00:03Z"}\n'
    b'{"recordType":"message","schemaVersion":1,"seq":5,"role":"assistant","content":[{"type":'
    b'"text","text":"sda1 is nearly full."}],"timestamp":"2025-02-11T10:00:04Z"}\n'
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def store(root: Path) -> everlog.Store:
    return everlog.open_store(root, create=True)


def _folder(root: Path, session: everlog.Session) -> Path:
    return root / "sessions" / session.id


def test_s7_1_a_new_session_is_a_directory_with_an_empty_log_and_metadata(root: Path, store: everlog.Store) -> None:
    session = store.create(model="m")
    folder = _folder(root, session)
    assert sorted(os.listdir(folder)) == ["metadata.json", "session.jsonl"]
    assert (folder / "session.jsonl").read_bytes() == b""
    metadata = msgspec.json.decode((folder / "metadata.json").read_bytes())
    assert metadata["id"] == session.id
    assert metadata["model"] == "m"
    assert metadata["messageCount"] == 0
    assert metadata["source"] == "interactive"


def test_s7_2_messages_are_appended_and_the_file_is_never_rewritten(root: Path, store: everlog.Store) -> None:
    session = store.create()
    log = _folder(root, session) / "session.jsonl"
    seen = b""
    inode = log.stat().st_ino
    for number in range(10):
        session.append(everlog.user(f"message {number}"))
        now = log.read_bytes()
        assert now.startswith(seen)
        assert len(now) > len(seen)
        seen = now
    assert log.stat().st_ino == inode


def test_s7_3_loading_rebuilds_the_history_with_overlays(root: Path, store: everlog.Store) -> None:
    session = store.create()
    (_folder(root, session) / "session.jsonl").write_bytes(DOCUMENT)
    loaded = everlog.open_store(root, create=True).session(session.id)
    assert [message.seq for message in loaded.messages()] == [1, 2, 3, 5]
    context = loaded.context()
    assert [message.role for message in context.messages] == ["user", "assistant"]
    # This writer cut between a call and its result, which alone no provider would take.
    assert [(one.seq, one.why) for one in context.left_out] == [(3, "its call was summarised (tc_1)")]
    assert loaded.messages()[1].tool_calls[0].arguments == {"command": "df -h"}
    assert loaded.verify() == ()


def test_s7_4_metadata_moves_on_with_each_interaction(store: everlog.Store) -> None:
    session = store.create()
    first = session.append(everlog.user("a"))
    one = session.metadata
    second = session.append(everlog.assistant("b"))
    two = session.metadata
    assert (one.message_count, two.message_count) == (1, 2)
    assert (one.last_message_at, two.last_message_at) == (first.timestamp, second.timestamp)


def test_s7_5_listing_is_sorted_by_the_last_message(store: everlog.Store) -> None:
    sessions = [store.create() for _ in range(5)]
    order = [2, 0, 4, 1, 3]
    for minute, number in enumerate(order):
        sessions[number].append(everlog.user("x", timestamp=f"2026-01-01T00:{minute:02d}:00Z"))
    listed = [row.id for row in store.list()]
    assert listed == [sessions[number].id for number in reversed(order)]


def test_s7_6_compaction_appends_a_record(root: Path, store: everlog.Store) -> None:
    session = store.create()
    session.append_many([everlog.user("a"), everlog.assistant("b"), everlog.user("c")])
    log = _folder(root, session) / "session.jsonl"
    before = log.read_bytes()
    session.append(Compaction(first_kept_seq=3, summary="s"))
    assert log.read_bytes().startswith(before)
    assert [message.text for message in session.messages()] == ["a", "b", "c"]
    assert session.metadata.message_count == 3


def test_s7_7_cron_sessions_carry_their_job(store: everlog.Store) -> None:
    session = store.create(source="cron", cron_job_id="nightly")
    store.create()
    session.append(everlog.user("run"))
    assert session.metadata.source == "cron"
    assert session.metadata.cron_job_id == "nightly"
    assert [row.id for row in store.list(source="cron")] == [session.id]


@pytest.mark.parametrize("bad", ["", "x", "../etc", "a" * 26, "0" * 25, "0" * 27, "0" * 26 + "\n", "I" * 26, "０" * 26])
def test_s7_8_what_is_no_ulid_is_refused(store: everlog.Store, bad: str) -> None:
    with pytest.raises(everlog.InvalidIdError):
        store.port.append(bad, [everlog.user("x")])
    with pytest.raises(everlog.InvalidIdError):
        store.port.metadata(bad)


def test_s7_9_a_partial_last_line_is_ignored_on_reload(root: Path, store: everlog.Store) -> None:
    session = store.create()
    session.append_many([everlog.user("a"), everlog.user("b")])
    log = _folder(root, session) / "session.jsonl"
    whole = log.read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for cut in range(last + 1, len(whole)):
        log.write_bytes(whole[:cut])
        loaded = everlog.open_store(root, create=True).session(session.id)
        assert [message.text for message in loaded.messages()] == ["a"]


def test_s7_11_context_is_the_summary_and_the_messages_from_first_kept_seq(store: everlog.Store) -> None:
    session = store.create()
    session.append_many([everlog.user(str(number)) for number in range(1, 7)])
    session.append(Compaction(first_kept_seq=5, summary="one to four"))
    session.append(everlog.user("8"))
    texts = [message.text for message in session.context().messages]
    assert texts == [
        "The conversation history before this point was compacted into the following summary:\n"
        "<summary>\none to four\n</summary>",
        "5",
        "6",
        "8",
    ]


def test_s7_12_content_is_always_a_list_of_blocks(root: Path, store: everlog.Store) -> None:
    session = store.create()
    session.append(everlog.user("plain text"))
    session.append(everlog.tool_result("tc_1", "also plain"))
    for line in (_folder(root, session) / "session.jsonl").read_bytes().splitlines():
        record = msgspec.json.decode(line)
        if record["recordType"] == "message":
            assert isinstance(record["content"], list)
            assert all(isinstance(block, dict) for block in record["content"])


def test_a_directory_of_the_specification_is_taken_over_unchanged(root: Path) -> None:
    store = everlog.open_store(root, create=True)
    session = store.create()
    folder = _folder(root, session)
    (folder / "session.jsonl").write_bytes(DOCUMENT)
    foreign = {
        "id": session.id,
        "name": "Disks",
        "createdAt": "2025-02-11T10:00:00Z",
        "lastMessageAt": "2025-02-11T10:00:04Z",
        "model": "claude",
        "messageCount": 4,
        "source": "cron",
        "cronJobId": "disk-check",
        "nextSeq": 6,
    }
    (folder / "metadata.json").write_bytes(msgspec.json.encode(foreign))
    taken = everlog.open_store(root, create=True).session(session.id)
    metadata = taken.metadata
    assert (metadata.title, metadata.model, metadata.cron_job_id) == ("Disks", "claude", "disk-check")
    assert metadata.message_count == 4
    assert metadata.extra == {"nextSeq": 6}
    assert taken.append(everlog.user("and now?")).seq == 7, "6 adopts its metadata"
    assert (folder / "session.jsonl").read_bytes().startswith(DOCUMENT)
    taken.store.close()
    kept = msgspec.json.decode((folder / "metadata.json").read_bytes())
    assert kept["nextSeq"] == 6
    assert kept["name"] == "Disks"
    assert taken.verify() == ()


FOREIGN = {
    "name": "Disks",
    "createdAt": "2025-02-11T09:59:58Z",
    "lastMessageAt": "2025-02-11T10:00:04Z",
    "model": "claude",
    "messageCount": 4,
    "source": "cron",
    "cronJobId": "disk-check",
    "systemPromptOverride": "Be brief.",
    "metrics": {
        "sessionId": "x",
        "totalTurns": 2,
        "totalTokens": {"inputTokens": 900, "outputTokens": 100, "totalTokens": 1000},
        "totalToolCalls": 1,
        "totalDurationMs": 4200,
    },
}
ULID = "01JKT0Q2R0000000000000000A"


def put_by_hand(root: Path, log: bytes = DOCUMENT, **changes: object) -> Path:
    """Put a directory of the specification's program into a home."""
    folder = root / "sessions" / ULID
    folder.mkdir(parents=True)
    (folder / "session.jsonl").write_bytes(log)
    (folder / "metadata.json").write_bytes(msgspec.json.encode({"id": ULID, **FOREIGN, **changes}))
    return folder


def facts(session: everlog.Session) -> tuple[object, ...]:
    """What the program's metadata file said."""
    data = session.metadata
    tokens = data.metrics.total_tokens
    return (
        data.title,
        data.created_at,
        data.source,
        data.cron_job_id,
        data.system_prompt_override,
        (data.model, data.model_chosen),
        (data.metrics.total_turns, data.metrics.total_tool_calls, data.metrics.total_duration_ms),
        (tokens.input_tokens, tokens.output_tokens, tokens.total_tokens),
    )


ALL_FACTS = (
    "Disks",
    "2025-02-11T09:59:58Z",
    "cron",
    "disk-check",
    "Be brief.",
    ("claude", False),
    (2, 1, 4200),
    (900, 100, 1000),
)


@pytest.mark.parametrize("log", [DOCUMENT, b""])
def test_the_first_append_adopts_the_metadata_so_that_the_file_is_a_cache(root: Path, log: bytes) -> None:
    folder = put_by_hand(root, log)
    with everlog.open_store(root) as store:
        session = store.session(ULID)
        assert facts(session) == ALL_FACTS, "before anything is written"
        assert sorted(os.listdir(folder)) == ["metadata.json", "session.jsonl"], "a read leaves the directory alone"
        stored = session.append(everlog.user("and now?"))
        assert stored.seq == session.metadata.through.seq
        assert facts(session) == ALL_FACTS
        session.append(everlog.user("again"), expected_seq=stored.seq)
        session.end_turn(duration_ms=800, usage=everlog.Usage(input_tokens=10, output_tokens=5))
        assert session.metadata.metrics.total_turns == 3
        assert session.verify() == ()
    assert (folder / "session.jsonl").read_bytes().startswith(log)
    for derived in (folder / "metadata.json", root / "index.db"):
        derived.unlink()
    with everlog.open_store(root) as store:
        session = store.session(ULID)
        assert facts(session)[:6] == ALL_FACTS[:6]
        assert session.metadata.metrics.total_turns == 3
        assert session.metadata.metrics.total_tokens.total_tokens == 1015
        metas = [record for record in session.entries(after=-1) if isinstance(record, everlog.Meta)]
        assert len(metas) == 1, "it is adopted once"
        copy = session.fork().metadata
        assert copy.created_at != ALL_FACTS[1] and copy.title == "Disks"


def test_a_crash_before_the_cache_is_written_adopts_nothing_twice(root: Path) -> None:
    folder = put_by_hand(root)
    before = (folder / "metadata.json").read_bytes()
    for text in ("one", "two"):
        with everlog.open_store(root) as store:
            store.session(ULID).append(everlog.user(text))
        (folder / "metadata.json").write_bytes(before)
    with everlog.open_store(root) as store:
        session = store.session(ULID)
        assert facts(session) == ALL_FACTS
        assert [record.seq for record in session.records() if isinstance(record, everlog.Meta)] == [6]


def test_metrics_of_the_program_that_wrote_single_numbers_are_read(root: Path) -> None:
    put_by_hand(root, metrics={"totalTurns": 3, "totalTokens": 70, "totalToolCalls": 0, "totalDurationMs": 9})
    with everlog.open_store(root) as store:
        assert facts(store.session(ULID))[-2:] == ((3, 0, 9), (0, 0, 70))


def test_a_damaged_metadata_file_hides_no_message(root: Path) -> None:
    put_by_hand(root, createdAt=7, metrics="many", name=["x"])
    with everlog.open_store(root) as store:
        session = store.session(ULID)
        assert session.metadata.message_count == 4
        assert session.metadata.metrics.total_turns == 0
        session.append(everlog.user("go on"))
