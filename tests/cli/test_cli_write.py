"""`sessions new`, `append`, `rename`, `delete-message`, `rewind` and `fork`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from everlog.ids import is_ulid
from everlog.model import Compaction, ToolCall, assistant, tool_result, user
from everlog.session import Session, Store
from tests.cli.runner import Cli, run_on_terminal, run_process


def texts(session: Session) -> list[str]:
    return [message.text for message in session.messages()]


# --- new


def test_new_prints_the_id_alone(cli: Cli, store: Store) -> None:
    done = cli("sessions", "new")
    assert done.code == 0 and done.err == ""
    assert is_ulid(done.out.removesuffix("\n"))
    assert store.session(done.out.strip()).metadata.agent == "main"


def test_new_answers_metadata(cli: Cli, store: Store) -> None:
    given = ["--agent", "a", "--sender", "s", "--model", "m", "--title", "T", "--key", "agent:k"]
    given += ["--alias", "agent:x", "--alias", "agent:y", "--source", "cron", "--cron-job", "j"]
    made = cli("sessions", "new", *given, "--system-prompt", "Be kind.", "--json").json
    expected = {
        "agent": "a",
        "sender": "s",
        "model": "m",
        "name": "T",
        "key": "agent:k",
        "aliases": ["agent:x", "agent:y"],
        "source": "cron",
        "cronJobId": "j",
        "systemPromptOverride": "Be kind.",
    }
    assert {key: made[key] for key in expected} == expected
    assert is_ulid(made["id"]) and made["messageCount"] == 0
    assert store.session("agent:y").id == made["id"]


# --- append


def test_append_takes_text(cli: Cli, session: Session) -> None:
    done = cli("sessions", "append", session.id, "hello")
    assert (done.code, done.out, done.err) == (0, f"appended message 1 to {session.id}\n", "")
    assert cli("sessions", "append", session.id, "hi", "--role", "assistant").code == 0
    assert [(one.role, one.text) for one in session.messages()] == [("user", "hello"), ("assistant", "hi")]


def test_append_answers_seq_and_id(cli: Cli, session: Session) -> None:
    answer = cli("sessions", "append", session.id, "hello", "--json").json
    record = session.record(1)
    assert answer == {"records": [{"seq": 1, "id": record.id}]} and record.id


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (b"plain text\n", "plain text"),
        (b"two\nlines\n\n", "two\nlines"),
        ("\ufeffmarked".encode(), "marked"),
        ("naïve 会議".encode(), "naïve 会議"),
        (b"{ color: red }", "{ color: red }"),
        (b"{}{}", "{}{}"),
        (b'{"a": 1} is what I got', '{"a": 1} is what I got'),
        (b'[{"role":"user"}]', '[{"role":"user"}]'),
        (b"  indented", "  indented"),
    ],
)
def test_append_takes_text_from_stdin(cli: Cli, session: Session, given: bytes, stored: str) -> None:
    assert cli("sessions", "append", session.id, stdin=given).code == 0
    assert texts(session) == [stored]


def test_dash_means_stdin(cli: Cli, session: Session) -> None:
    assert cli("sessions", "append", session.id, "-", stdin=b"piped").code == 0
    assert texts(session) == ["piped"]


def test_text_option_stores_json_as_text(cli: Cli, session: Session) -> None:
    given = b'{"role":"user","content":"x"}'
    assert cli("sessions", "append", session.id, "--text", stdin=given).code == 0
    assert texts(session) == [given.decode()]


def test_append_takes_one_json_message_over_several_lines(cli: Cli, root: Path, session: Session) -> None:
    message = {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "hi"},
            {"type": "toolCall", "id": "t", "name": "n", "arguments": {"deep": [1, {"x": None}]}},
            {"type": "hologram", "rays": 7},
        ],
        "model": "m",
        "usage": {"inputTokens": 3},
        "mood": {"joy": 0.5},
    }
    given = json.dumps(message, indent=2).encode()
    assert cli("sessions", "append", session.id, stdin=given).code == 0
    session.store.close()
    last = (root / "sessions" / session.id / "session.jsonl").read_bytes().splitlines()[-1]
    line = json.loads(last)
    assert {key: line[key] for key in message} == message
    assert session.messages()[0].tool_calls[0].name == "n"


def test_append_takes_json_lines_in_one_go(cli: Cli, session: Session) -> None:
    rows = [
        {"role": "user", "content": "one"},
        {"recordType": "message", "role": "assistant", "content": [{"type": "text", "text": "two"}]},
        {"role": "toolResult", "toolCallId": "x", "content": "three", "isError": True},
    ]
    given = b"\n\n".join(json.dumps(row).encode() for row in rows) + b"\n"
    answer = cli("sessions", "append", session.id, "--json", stdin=given).json
    assert [one["seq"] for one in answer["records"]] == [1, 2, 3]
    assert texts(session) == ["one", "two", "three"]
    assert session.messages()[2].is_error is True


@pytest.mark.parametrize("key", ["autoInjected", "auto_injected"])
def test_an_injected_message_is_not_stored(cli: Cli, session: Session, key: str) -> None:
    lines = f'{{"role": "user", "content": "recalled", "{key}": true}}\n{{"role": "user", "content": "said"}}\n'
    assert cli("sessions", "append", session.id, stdin=lines.encode()).code == 0
    assert texts(session) == ["said"]


def test_lines_of_a_log_are_json_lines(cli: Cli, session: Session, store: Store) -> None:
    session.append(user("one"))
    session.append(assistant("two"))
    raw = b"".join(one.line + b"\n" for one in session.messages())
    other = store.create()
    assert cli("sessions", "append", other.id, stdin=raw).code == 0
    assert texts(other) == ["one", "two"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (b"", "empty"),
        (b" \n\n", "empty"),
        (b"\xff\xfe", "not valid UTF-8 at byte 0"),
        (b'{"role":"user","content":"\xed\xa0\x80"}', "not valid UTF-8"),
        (b'{"role":"user","content":"a","content":"b"}', "duplicate key 'content'"),
        (b'{"id":"x","role":"user","content":[{"type":"text","text":"a","text":"b"}]}', "duplicate"),
        (b'{"role":"user","content":"a","n":NaN}', "NaN is not JSON"),
        (b'{"role":"user","content":"a","n":-Infinity}', "-Infinity is not JSON"),
        (b'{"content":"a"}', "no role"),
        (b'{"text":"a"}', "no role"),
        (b'{"recordType":"message","content":"a"}', "no role"),
        (b'{"role":"user"}', "content"),
        (b'{"role":"user","content":7}', "content"),
        (b'{"role":"user","content":["a"]}', "not a block"),
        (b'{"role":"king","content":"a"}', "role"),
        (b'{"role":"user","content":"a","toolCallId":7}', "toolCallId"),
        (b'{"recordType":"rewind","toSeq":0}', "append takes messages, not 'rewind'"),
        (b'{"recordType":{},"role":"user","content":"a"}', "append takes messages"),
        (b'{"role":"user","content":"a","schemaVersion":2}', "schemaVersion 2 is newer"),
        (b'{"role":"user","content":"a"', "not a message"),
        (b'{"role":"user","content":"a"}\n{"role":"us', "line 2: not a message"),
        (b'{"role":"user","content":"a"}\n{"role":"user","content":"b","role":"x"}', "line 2: "),
        (b'{"role":"user","content":"a"}\nplain', "line 2: not a message"),
        (b'{"role":"user","content":"a"}\n{"content":"b"}', "line 2: the JSON object has no role"),
        (b'{"role":"user","content":"a","n":' + b"9" * 5000 + b"}", "not a message"),
        (b'{"role":"user","content":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested"),
    ],
    ids=lambda value: value[:40].decode("ascii", "replace") if isinstance(value, bytes) else None,
)
def test_bad_input_is_one_line_and_writes_nothing(
    cli: Cli, root: Path, session: Session, given: bytes, told: str
) -> None:
    done = cli("sessions", "append", session.id, stdin=given)
    assert done.code == 1 and done.out == ""
    assert told in done.err and done.err.startswith("everlog: ") and done.err.count("\n") == 1
    assert len(done.err) < 400
    assert (root / "sessions" / session.id / "session.jsonl").read_bytes() == b""


def test_empty_text_is_refused(cli: Cli, session: Session) -> None:
    assert cli("sessions", "append", session.id, "").code == 1
    assert session.records() == []


def test_lone_surrogates_become_replacement_characters(cli: Cli, session: Session) -> None:
    given = b'{"role":"user","content":"a\\ud800b"}'
    assert cli("sessions", "append", session.id, stdin=given).code == 0
    assert texts(session) == ["a\ufffdb"]


def test_bytes_in_an_argument_that_are_no_utf8_do_not_crash(root: Path, session: Session) -> None:
    done = run_process(root, "sessions", "append", session.id, "caf\udce9")
    assert done.code == 0
    assert texts(session) == ["caf\ufffd"]


def test_expect_is_compare_and_set(cli: Cli, session: Session) -> None:
    assert cli("sessions", "append", session.id, "one", "--expect", "0").code == 0
    done = cli("sessions", "append", session.id, "two", "--expect", "0")
    assert done.code == 1 and done.err.count("\n") == 1
    assert texts(session) == ["one"]


def test_id_makes_a_retry_write_once(cli: Cli, session: Session) -> None:
    given = ("sessions", "append", session.id, "one", "--json", "--id")
    key = "0f2d1f6e-6f0b-4b6a-9d3e-0a3c1f3b2a11"
    first = cli(*given, key).json
    assert first["records"] == [{"seq": 1, "id": key}]
    assert cli(*given, key).json == first
    done = cli("sessions", "append", session.id, "other", "--id", key)
    assert done.code == 1 and done.err.count("\n") == 1
    assert texts(session) == ["one"]


def test_id_goes_with_a_json_message_and_keeps_its_keys(cli: Cli, session: Session) -> None:
    given = b'{"role":"user","content":"x","mood":"calm"}'
    assert cli("sessions", "append", session.id, "--id", "abc-1", stdin=given).code == 0
    line = json.loads(session.record(1).line)
    assert line["id"] == "abc-1" and line["mood"] == "calm"
    assert cli("sessions", "append", session.id, "--id", "abc-1", stdin=given).code == 0
    assert len(session.records()) == 1


def test_id_of_several_messages_is_refused(cli: Cli, session: Session) -> None:
    given = b'{"role":"user","content":"x"}\n' * 2
    done = cli("sessions", "append", session.id, "--id", "abc", stdin=given)
    assert done.code == 1 and "--id takes exactly one message, and the input has 2" in done.err
    assert session.records() == []


def test_append_to_a_session_of_a_newer_version_is_refused(cli: Cli, root: Path, session: Session) -> None:
    session.append(user("one"))
    session.store.close()
    log = root / "sessions" / session.id / "session.jsonl"
    before = log.read_bytes()
    before += b'{"recordType":"message","schemaVersion":9,"seq":2,"said":"x"}\n'
    log.write_bytes(before)
    done = cli("sessions", "append", session.id, "two")
    assert done.code == 1 and done.err.count("\n") == 1
    assert log.read_bytes() == before


def test_typed_messages_end_with_ctrl_d(root: Path, session: Session) -> None:
    done = run_on_terminal(root, "sessions", "append", session.id, typed=b"hello\n\x04")
    assert done.code == 0 and "type the message, then Ctrl-D" in done.out
    assert texts(session) == ["hello"]


# --- names


def test_prefix_key_and_alias_serve_as_an_id(cli: Cli, store: Store) -> None:
    made = store.create(key="agent:k", aliases=["agent:other"])
    for name in (made.id, made.id[:20], "agent:k", "agent:other"):
        assert cli("sessions", "show", name, "--json").json["metadata"]["id"] == made.id


HOSTILE = ["../x", "x/y", "a" * 26, "01ARZ3NDEKTSV4RRFFQ69G5FAV\n", "a\0b", "", "..", "\udce9"]


@pytest.mark.parametrize(
    "command",
    [
        ("show", "{}"),
        ("append", "{}", "text"),
        ("rename", "{}", "title"),
        ("delete-message", "{}", "1"),
        ("rewind", "{}", "1"),
        ("fork", "{}"),
        ("rm", "{}", "--yes"),
        ("verify", "{}"),
        ("repair", "{}"),
        ("parts", "{}"),
    ],
    ids=lambda command: command[0],
)
@pytest.mark.parametrize("hostile", HOSTILE, ids=ascii)
def test_hostile_ids_are_refused_and_touch_nothing(
    cli: Cli, tmp_path: Path, session: Session, command: tuple[str, ...], hostile: str
) -> None:
    session.append(user("one"))
    session.store.close()
    (tmp_path / "x").mkdir()
    before = sorted(str(path) for path in tmp_path.rglob("*") if "index.db" not in path.name)
    done = cli("sessions", *(hostile if part == "{}" else part for part in command))
    assert done.code == 1 and done.out == ""
    assert done.err.startswith("everlog: ") and done.err.count("\n") == 1
    after = sorted(str(path) for path in tmp_path.rglob("*") if "index.db" not in path.name)
    assert after == before


@pytest.mark.parametrize("short", ["01ARZ3NDEKTSV4RRFFQ69G5FAV", "01ARZ3NDEK", "agent:nobody"])
def test_unknown_sessions_are_one_line(cli: Cli, session: Session, short: str) -> None:
    done = cli("sessions", "show", short)
    assert (done.code, done.out) == (1, "")
    assert done.err == f"everlog: there is no session {short}\n"


def test_linked_session_directory_is_refused(cli: Cli, root: Path, tmp_path: Path, session: Session) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / "sessions" / "01ARZ3NDEKTSV4RRFFQ69G5FAV").symlink_to(outside)
    done = cli("sessions", "append", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "x")
    assert done.code == 1 and done.err.count("\n") == 1
    assert list(outside.iterdir()) == []


# --- markers


def test_rename_answers_metadata(cli: Cli, session: Session) -> None:
    assert cli("sessions", "rename", session.id, "New name", "--json").json["name"] == "New name"
    done = cli("sessions", "rename", session.id, "Newer")
    assert done.out == f"renamed {session.id} to Newer\n"
    assert session.metadata.title == "Newer"


def test_delete_message_hides_and_undo_shows_again(cli: Cli, session: Session) -> None:
    for text in ("one", "two", "three"):
        session.append(user(text))
    done = cli("sessions", "delete-message", session.id, "1", "3", "--json")
    assert done.json == {"seq": 4, "deletes": [1, 3]}
    assert texts(session) == ["two"]
    done = cli("sessions", "delete-message", session.id, "1", "--undo", "--json")
    assert done.json == {"seq": 5, "restores": [1]}
    assert texts(session) == ["one", "two"]
    assert cli("sessions", "delete-message", session.id, "2").out.startswith("deleted message 2 (")
    assert cli("sessions", "delete-message", session.id, "2", "--undo").out == "restored message 2\n"


def test_delete_message_takes_the_whole_exchange(cli: Cli, session: Session) -> None:
    session.append(assistant([ToolCall("t", "n", {})]))
    session.append(tool_result("t", "found"))
    answer = cli("sessions", "delete-message", session.id, "2", "--json").json
    assert answer == {"seq": 3, "deletes": [1, 2]}


def test_delete_message_says_when_a_summary_still_tells_of_it(cli: Cli, session: Session) -> None:
    for text in ("one", "two"):
        session.append(user(text))
    session.append(Compaction(first_kept_seq=2, summary="They said one."))
    done = cli("sessions", "delete-message", session.id, "1", "--json")
    assert done.json == {"seq": 4, "deletes": [1], "stale": [1]}
    assert "the summary still covers message 1" in done.err


@pytest.mark.parametrize("command", ["delete-message", "rewind"])
@pytest.mark.parametrize("seq", ["2", "99", "999999999999999999999"])
def test_markers_need_a_message_that_is_there(cli: Cli, session: Session, command: str, seq: str) -> None:
    session.append(user("one"))
    session.rename("a record that is no message")
    done = cli("sessions", command, session.id, seq)
    assert done.code == 1 and done.out == "" and done.err.count("\n") == 1
    assert texts(session) == ["one"] and len(session.records()) == 2


def test_rewind_goes_back(cli: Cli, session: Session) -> None:
    for text in ("one", "two"):
        session.append(user(text))
    assert cli("sessions", "rewind", session.id, "1", "--json").json == {"seq": 3, "toSeq": 1}
    assert texts(session) == ["one"]
    assert cli("sessions", "rewind", session.id, "0").out == "rewound to the start\n"
    assert texts(session) == []


def test_rewind_of_a_busy_session_is_refused(cli: Cli, session: Session) -> None:
    session.append(user("one"))
    with session.lease():
        done = cli("sessions", "rewind", session.id, "0")
    assert done.code == 1 and done.err.count("\n") == 1
    assert texts(session) == ["one"]


def test_fork_copies_up_to_a_record(cli: Cli, session: Session, store: Store) -> None:
    for text in ("one", "two"):
        session.append(user(text))
    answer = cli("sessions", "fork", session.id, "--at", "1", "--json").json
    assert answer["forkedFrom"] == {"id": session.id, "seq": 1} and answer["id"] != session.id
    assert texts(store.session(answer["id"])) == ["one"]
    whole = cli("sessions", "fork", session.id).out.strip()
    assert texts(store.session(whole)) == ["one", "two"]


def test_fork_at_a_record_that_is_not_there_is_one_line(cli: Cli, session: Session) -> None:
    session.append(user("one"))
    done = cli("sessions", "fork", session.id, "--at", "9")
    assert "(list the records with everlog sessions show ID --all)" in done.err
    assert done.code == 1 and done.err.count("\n") == 1 and done.out == ""
