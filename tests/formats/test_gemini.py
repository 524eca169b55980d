"""Gemini CLI's chats, read. The documents are written by hand from its published types."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from everlog.app import open_store
from everlog.context.build import build
from everlog.errors import FormatError, UnsupportedError
from everlog.interop.formats.format_types import (
    ForeignSession,
    InMemorySource,
    ListingScan,
    Match,
    TranscriptInfo,
    extra_field,
    split_lines,
)
from everlog.interop.formats.gemini import FORMAT as gemini
from everlog.interop.importer import import_files
from everlog.interop.transcript_sources import FileSource
from everlog.log import backward_read
from everlog.log.fold import fold
from everlog.model import PROGRAM, Event, File, Image, Message, Metadata, Text, Thinking, ToolCall, Usage
from everlog.testing.format_suite import FormatConformance
from tests.formats.native import through_native
from tests.formats.samples import check_sample, needs_corpus

NAME = "session-2026-01-02T03-04-0a1b2c3d"
AT = "2026-01-02T03:04:05.000Z"
HEAD = {"sessionId": "0a1b", "projectHash": "f00", "startTime": AT, "lastUpdated": AT}
ANSWER: dict[str, Any] = {
    "id": "m2",
    "timestamp": AT,
    "type": "gemini",
    "content": "Looking.",
    "thoughts": [{"subject": "Plan", "description": "Read it", "timestamp": AT}],
    "toolCalls": [
        {
            "id": "c1",
            "name": "read_file",
            "args": {"path": "a"},
            "result": [{"functionResponse": {"id": "c1", "name": "read_file", "response": {"output": "text"}}}],
            "status": "success",
            "timestamp": AT,
            "resultDisplay": "1 line",
        },
        {"id": "c2", "name": "shell", "args": {}, "status": "cancelled", "resultDisplay": "no"},
        {"id": "c3", "name": "shell", "args": {}, "status": "executing"},
    ],
    "tokens": {"input": 100, "output": 7, "cached": 60, "thoughts": 3, "tool": 0, "total": 110},
    "model": "gemini-test",
}


def asked(name: str, text: Any) -> dict[str, Any]:
    return {"id": name, "timestamp": AT, "type": "user", "content": text}


def document(*messages: Any, **keys: Any) -> bytes:
    return json.dumps({**HEAD, "messages": messages, **keys}, indent=2).encode()


def read(data: bytes, ending: str = "json") -> ForeignSession:
    return gemini.read(InMemorySource(NAME, {f"{NAME}.{ending}": data}))


def lines(*records: Any) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in records)


def messages(made: ForeignSession) -> list[Message]:
    return [one for one in made.items if isinstance(one, Message)]


def test_a_chat_becomes_a_conversation_with_its_tools() -> None:
    made = read(
        document(
            asked("m1", [{"text": "Read"}, {"text": "it"}]),
            ANSWER,
            {"id": "m3", "timestamp": AT, "type": "info", "content": "saved"},
            {"id": "m4", "timestamp": AT, "type": "error", "content": "oops"},
        )
    )
    assert made.metadata == {"name": "Read it", "model": "gemini-test"}
    assert made.created_ms == 1767323045000
    assert made.line_count == 4 and made.damage == ()
    first, answer, calls, result, cancelled = messages(made)
    assert first.content == (Text("Read"), Text("it"))
    assert answer.content == (Thinking("Plan\nRead it"), Text("Looking."))
    assert calls.content == (
        ToolCall("c1", "read_file", {"path": "a"}),
        ToolCall("c2", "shell", {}),
        ToolCall("c3", "shell", {}),
    )
    assert answer.usage == Usage(input_tokens=40, output_tokens=10, total_tokens=110, cache_read_tokens=60)
    assert (result.id, result.text, result.is_error) == ("m2:1", "text", False)
    assert (cancelled.text, cancelled.is_error) == ("no", True)
    assert extra_field(answer, "gemini")["toolCalls"] == ANSWER["toolCalls"]
    kinds = [one.kind for one in made.items if isinstance(one, Event)]
    assert kinds == ["gemini.session", "gemini.info", "gemini.error"]
    assert build(backward_read.read_live(reversed(through_native(made)))).left_out == ()


def test_the_summary_of_a_chat_is_its_name() -> None:
    assert read(document(asked("m1", "x"), summary="About x")).metadata["name"] == "About x"


def test_a_chat_of_lines_is_read_with_its_updates_and_rewinds() -> None:
    data = lines(
        HEAD,
        asked("m1", "one"),
        {"id": "m2", "timestamp": AT, "type": "gemini", "content": ""},
        ANSWER,
        {"$set": {"summary": "About it"}},
        asked("m3", "two"),
        {"id": "m4", "timestamp": AT, "type": "gemini", "content": "wrong"},
        {"$rewindTo": "m3"},
        asked("m5", "three"),
    )
    made = read(data, "jsonl")
    view = fold(through_native(made)).messages
    assert [one.text for one in view] == ["one", "Looking.", "", "text", "no", "three"]
    assert made.metadata["name"] == "About it"
    assert made.created_ms == 1767323045000
    assert len({one.id for one in made.items}) == len(made.items)


def test_a_rewind_to_a_record_that_is_not_there_takes_everything_back() -> None:
    made = read(lines(HEAD, asked("m1", "one"), {"$rewindTo": "x"}, asked("m2", "two")), "jsonl")
    assert [one.text for one in fold(through_native(made)).messages] == ["two"]


def test_a_checkpoint_is_read_and_its_calls_are_paired_by_their_order() -> None:
    made = read(
        json.dumps(
            [
                {
                    "role": "user",
                    "parts": [{"text": "This is the Gemini CLI. We are setting up the context for our chat."}],
                },
                {"role": "user", "parts": [{"text": "go"}]},
                {
                    "role": "model",
                    "parts": [
                        {"text": "I think", "thought": True},
                        {"text": "Running."},
                        {"functionCall": {"name": "shell", "args": {"n": 1}}},
                        {"functionCall": {"name": "shell", "args": {"n": 2}}},
                        {"functionCall": {"id": "own", "name": "read", "args": {}}},
                    ],
                },
                {
                    "role": "user",
                    "parts": [
                        {"functionResponse": {"name": "shell", "response": {"output": "first"}}},
                        {"functionResponse": {"name": "shell", "response": {"error": "second"}}},
                        {"functionResponse": {"id": "own", "name": "read", "response": {"a": 1}}},
                    ],
                },
                {"role": "model", "parts": [{"text": "Done."}]},
            ]
        ).encode()
    )
    assert [one.role for one in messages(made)] == [
        "user",
        "user",
        "assistant",
        "toolResult",
        "toolResult",
        "toolResult",
        "assistant",
    ]
    calls = {call.id: call.arguments for call in messages(made)[2].tool_calls}
    results = {one.tool_call_id: one.text for one in messages(made)[3:6]}
    assert calls.keys() == results.keys()
    assert [results[name] for name in calls] == ["first", "second", '{"a":1}']
    assert made.metadata["name"] == "go"
    assert [one.sender for one in messages(made)[:2]] == [PROGRAM, "user"]
    context = build(backward_read.read_live(reversed(through_native(made))))
    assert context.left_out == ()


def test_pictures_and_files_are_taken_over() -> None:
    parts = [
        {"inlineData": {"mimeType": "image/png", "data": "AAAA"}},
        {"inlineData": {"mimeType": "application/pdf", "data": "BBBB", "displayName": "b"}},
        {"fileData": {"mimeType": "text/plain", "fileUri": "https://example.org/c"}},
    ]
    made = read(document(asked("m1", parts)))
    assert messages(made)[0].content == (
        Image("image/png", "AAAA"),
        File("b", "application/pdf", "BBBB"),
        File("", "text/plain", url="https://example.org/c"),
    )


def test_chats_are_recognised() -> None:
    assert gemini.recognises("a.json", document(asked("m1", "x")))
    assert gemini.recognises("a.jsonl", lines(HEAD))
    assert gemini.recognises("a.json", b'[{"role":"user","parts":[{"text":"x"}]}]')
    for other in (b"", b"[]", b'{"key":"x","messages":[]}', b"\xff\xff", b'{"messages":[]}'):
        assert not gemini.recognises("a.json", other)
        assert not gemini.recognises("a.jsonl", other)


@pytest.mark.parametrize(
    "data", [b"", b"not json", b"{}", b"5", b'{"messages": 5}', b"[" * 4000, b"[" * 180 + b"]" * 180, b"\xff\xfe"]
)
def test_a_document_that_is_no_chat_is_kept_whole_and_named(data: bytes) -> None:
    made = read(data)
    (item,) = made.items
    assert isinstance(item, Event) and item.kind == "gemini.damaged"
    assert len(made.damage) == 1
    through_native(made)


@pytest.mark.parametrize(
    "message",
    [
        None,
        5,
        {},
        {"type": []},
        {"type": "user"},
        {"type": "user", "content": [None, 5, {"odd": 1}]},
        {"type": "gemini", "content": None, "thoughts": 5, "toolCalls": [1, {"status": []}]},
        {"type": "gemini", "tokens": {"input": "x"}, "model": 5},
    ],
)
def test_odd_records_are_kept_and_never_fail(message: Any) -> None:
    made = read(document(message, message))
    assert len(made.items) >= 3 and made.damage == ()
    through_native(made)


def test_a_lone_surrogate_does_not_cost_the_chat() -> None:
    made = read(document(asked("m1", "cut @")).replace(b"@", b"\\ud83d"))
    assert messages(made)[0].text == "cut \N{REPLACEMENT CHARACTER}"


def test_a_document_cut_at_any_byte_gives_the_records_that_are_whole() -> None:
    whole = document(asked("m1", "one"), asked("m2", "two"))
    ends = [whole.index(b'"one"'), whole.index(b'"two"')]
    ends = [whole.index(b"}", end) for end in ends]
    for cut in range(1, len(whole) - 1):
        made = read(whole[:cut])
        assert [one.id for one in messages(made)] == ["m1", "m2"][: sum(end < cut for end in ends)]
        assert len(made.damage) == 1


def test_a_chat_cannot_be_written() -> None:
    with pytest.raises(FormatError, match="cannot be written"):
        gemini.write(Metadata(id="x"), [])


# --- today's edit log ---------------------------------------------------------------------------

SESSION = "4e0fd206-0000-4000-8000-000000000001"
START = {**HEAD, "sessionId": SESSION, "kind": "main"}
CONTEXT_TEXT = "<session_context>\n/work\n</session_context>"


def answered(name: str, text: str, **keys: Any) -> dict[str, Any]:
    return {"id": name, "timestamp": AT, "type": "gemini", "content": text, "model": "gemini-test", **keys}


CONTEXT = asked("ctx", [{"text": CONTEXT_TEXT}])
RENEWED = asked("ctx", [{"text": CONTEXT_TEXT.replace("work", "work/new")}])
UPDATED = {"$set": {"lastUpdated": AT}}
RESUMED_ANSWER = {**ANSWER, "content": [{"text": "**Plan** Read it", "thought": True}, {"text": "Looking."}]}
RESPONSES = asked("m3", [ANSWER["toolCalls"][0]["result"][0]])
BEFORE_CALLS = {key: value for key, value in ANSWER.items() if key != "toolCalls"}
LOG = (
    START,
    {"$set": {"messages": [CONTEXT], "lastUpdated": AT}},
    asked("m1", [{"text": "Which teas?"}]),
    UPDATED,
    BEFORE_CALLS,
    UPDATED,
    ANSWER,
    RESPONSES,
    answered("m4", "Assam."),
    {"$set": {"messages": [RENEWED, asked("m1", [{"text": "Which teas?"}]), RESUMED_ANSWER, answered("m4", "Assam.")]}},
    asked("m5", "And in summer?"),
    answered("m6", "Oolong."),
)


SNAPSHOT = "<state_snapshot>They counted.</state_snapshot>"
COMPRESSED = (
    START,
    asked("m1", "one"),
    answered("m2", "two"),
    asked("m3", "three"),
    {"$set": {"messages": [asked("s", SNAPSHOT), answered("ack", "Got it."), asked("m3", "three")]}},
    answered("m4", "four"),
    {
        "$set": {
            "messages": [asked("s", SNAPSHOT), answered("ack", "Got it."), asked("m3", "three"), answered("m4", "four")]
        }
    },
    asked("m5", "five"),
)


def shown(read_session: ForeignSession) -> list[str]:
    return [one.text for one in fold(through_native(read_session)).messages]


def test_a_chat_that_was_resumed_shows_each_message_once() -> None:
    read_session = read(lines(*LOG), "jsonl")
    live = fold(through_native(read_session)).messages
    assert [(one.role, one.text) for one in live if one.sender != PROGRAM] == [
        ("user", "Which teas?"),
        ("assistant", "Looking."),
        ("assistant", ""),
        ("toolResult", "text"),
        ("toolResult", "no"),
        ("assistant", "Assam."),
        ("user", "And in summer?"),
        ("assistant", "Oolong."),
    ]
    assert [one.text for one in live if one.sender == PROGRAM] == [RENEWED["content"][0]["text"]]
    assert [one.usage is not None for one in live if one.role == "assistant"] == [True, False, False, False]
    assert (read_session.session_id, read_session.metadata["name"]) == (SESSION, "Which teas?")
    assert read_session.damage == () and len(read_session.items) >= read_session.line_count == len(LOG)


def test_a_record_that_is_written_again_replaces_the_first_one_in_its_place() -> None:
    log = (START, asked("m1", "one"), answered("m2", "two"), asked("m1", "changed"), asked("m3", "three"))
    read_session = read(lines(*log), "jsonl")
    assert shown(read_session) == ["changed", "two", "three"]
    assert read_session.metadata["name"] == "changed"
    assert len({one.id for one in read_session.items}) == len(read_session.items)


def test_the_usage_of_an_answer_that_is_read_again_is_counted_once() -> None:
    log = (START, asked("m1", "one"), {**ANSWER, "tokens": None}, ANSWER, asked("m1", "changed"))
    read_session = read(lines(*log), "jsonl")
    assert [one.id for one in messages(read_session) if one.usage] == ["m2~1"]


def test_a_list_of_messages_clears_and_replaces_all_before() -> None:
    log = (START, asked("m1", "one"), answered("m2", "two"), {"$set": {"messages": [asked("m3", "three")]}})
    read_session = read(lines(*log, answered("m4", "four")), "jsonl")
    assert shown(read_session) == ["three", "four"]
    assert read_session.metadata["name"] == "three"


def test_a_compressed_chat_shows_all_messages_and_sends_the_summary() -> None:
    read_session = read(lines(*COMPRESSED), "jsonl")
    assert shown(read_session) == ["one", "two", "Got it.", "three", "four", "five"]
    context = build(backward_read.read_live(reversed(through_native(read_session))))
    assert [one.text for one in context.messages] == [SNAPSHOT, "Got it.", "three", "four", "five"]
    assert read_session.metadata["name"] == "one"


def test_a_resume_in_the_same_minute_loses_nothing() -> None:
    everything = {"$set": {"messages": [RENEWED, asked("m1", "one"), answered("m2", "two")]}}
    log = (START, {"$set": {"messages": [CONTEXT]}}, asked("m1", "one"), answered("m2", "two"))
    stub = ({**START, "startTime": "2026-02-01T00:00:00.000Z"}, {"$set": {"messages": [RENEWED]}})
    read_session = read(lines(*log, *stub, everything), "jsonl")
    assert [text for text in shown(read_session) if "context" not in text] == ["one", "two"]
    assert len([one for one in messages(read_session) if one.text == "one"]) == 1
    assert read_session.created_ms == 1767323045000


def test_what_was_typed_is_told_from_what_the_program_added() -> None:
    sent = [{"text": "Look at @a.py"}, {"text": "--- Content of a.py ---"}]
    prompt = {**asked("m1", sent), "displayContent": [{"text": "Look at @a.py"}]}
    command = {**asked("m2", "A long prompt"), "displayContent": "/plan it"}
    read_session = read(lines(START, command, prompt), "jsonl")
    assert [(one.sender, one.text) for one in messages(read_session)] == [
        ("user", "/plan it"),
        (PROGRAM, "A long prompt"),
        ("user", "Look at @a.py"),
        (PROGRAM, "--- Content of a.py ---"),
    ]
    assert read_session.metadata["name"] == "Look at @a.py"


def test_the_title_is_the_summary_or_the_first_prompt_that_is_no_command() -> None:
    hook = asked("h", "<hook_context>x</hook_context>")
    log = (START, CONTEXT, hook, asked("m1", "/help"), asked("m2", "?"), asked("m3", "Fix  it."))
    assert read(lines(*log), "jsonl").metadata["name"] == "Fix it."
    assert read(lines(*log, {"$set": {"summary": "Repairs"}}), "jsonl").metadata["name"] == "Repairs"
    assert "name" not in read(lines(*log, {"$rewindTo": "m3"}), "jsonl").metadata


def test_the_directory_is_that_of_the_project() -> None:
    files = {f"{NAME}.jsonl": lines(*LOG), "../.project_root": b"/work\n"}
    read_session = gemini.read(InMemorySource(NAME, files))
    assert read_session.metadata["cwd"] == "/work"
    assert {one.cwd for one in messages(read_session)} == {"/work"}


def scan(*records: Any) -> ListingScan:
    return gemini.scan_listing(ListingScan(), split_lines(lines(*records)), TranscriptInfo(NAME))


def test_a_file_with_only_the_context_is_not_listed() -> None:
    stub = (START, {"$set": {"messages": [RENEWED]}})
    assert scan(*stub).skip and scan(*stub, {"id": "i", "type": "info", "content": "x"}).skip
    assert not scan(*LOG).skip
    assert scan(*LOG).program_id == SESSION


def test_the_file_that_a_resume_makes_is_no_session_of_its_own() -> None:
    stub = read(lines({**START, "startTime": "x"}, {"$set": {"messages": [RENEWED]}}), "jsonl")
    chat = read(lines(*LOG), "jsonl")
    assert stub.session_id == chat.session_id
    prints = [[gemini.fingerprint(one) for one in messages(session)] for session in (stub, chat)]
    assert prints[0] == prints[1][:1]


def test_ids_do_not_depend_on_the_name_of_a_file() -> None:
    moved = gemini.read(InMemorySource("copy", {"copy.jsonl": lines(*LOG)}))
    assert [one.id for one in moved.items] == [one.id for one in read(lines(*LOG), "jsonl").items]


def test_a_live_view_reads_the_whole_file_only_after_an_edit() -> None:
    cut = len(lines(*LOG[:9]))
    follow = gemini.read_tail({}, split_lines(lines(*LOG[:3])), TranscriptInfo(NAME))
    assert follow is not None
    grown = gemini.read_tail(follow.state, list(split_lines(lines(*LOG)[:cut]))[3:], TranscriptInfo(NAME))
    assert grown is not None and [one.id for one in grown.items] == ["m2", "m2:calls", "m2:1", "m2:2", "m4"]
    assert gemini.read_tail(grown.state, split_lines(lines(LOG[9])), TranscriptInfo(NAME)) is None
    assert gemini.read_tail(grown.state, split_lines(lines({"$rewindTo": "m1"})), TranscriptInfo(NAME)) is None
    assert gemini.read_tail(grown.state, split_lines(lines(asked("m1", "new"))), TranscriptInfo(NAME)) is None


def test_chats_with_a_damaged_first_line_are_possible_by_name_or_lines() -> None:
    rest = lines(*LOG[1:])
    for first in (b"", b"\n", b"\0" * 50 + b"\n", b'{"sessionId":"4e\n', b'{"content":["x"]}\n'):
        assert gemini.recognises("x.jsonl", first + rest) is Match.POSSIBLE, first
    assert gemini.recognises(f"chats/{NAME}.jsonl", b"\0" * 100) is Match.POSSIBLE
    assert gemini.recognises("x.jsonl", b'{"content":["x"]}\n' + lines(*LOG)) is Match.SURE


CHATGPT = {"title": "x", "mapping": {"a": {"message": {"author": {"role": "user"}, "content": {"parts": ["x"]}}}}}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("conversations.json", [CHATGPT | {"current_node": "a"}]),
        ("conversations.json", [{"uuid": "u", "name": "x", "chat_messages": [{"sender": "human", "text": "x"}]}]),
        ("MyActivity.json", [{"header": "Gemini Apps", "title": "Prompted x", "role": "user", "parts": []}]),
        ("studio.json", {"runSettings": {}, "chunkedPrompt": {"chunks": [{"role": "user", "parts": [{"text": "x"}]}]}}),
        ("history.json", [{"role": "user", "content": "x"}]),
        ("a.jsonl", {"uuid": "u", "parentUuid": None, "sessionId": "s", "type": "user", "message": {"parts": []}}),
        ("a.jsonl", {"type": "session_meta", "payload": {"id": "x"}}),
        (f"{NAME}.jsonl", {"uuid": "u", "sessionId": "s", "type": "assistant", "message": {"role": "model"}}),
    ],
)
def test_files_of_other_programs_are_no_chat(name: str, content: Any) -> None:
    assert gemini.recognises(name, json.dumps(content).encode()) is Match.NO
    if name.endswith(".json"):
        assert gemini.recognises(name, json.dumps(content, indent=2).encode()) is Match.NO


def test_a_chat_is_continued_by_its_own_program_and_not_written() -> None:
    facts = ListingScan(program_id=SESSION)
    assert gemini.resume_command(facts, f"chats/{NAME}.jsonl") == ("gemini", "--resume", SESSION)
    assert gemini.resume_command(ListingScan(), f"chats/{NAME}.jsonl") == ()
    assert gemini.session_id_of(NAME, None) == NAME and gemini.is_id(NAME) and gemini.is_id(SESSION)
    with pytest.raises(UnsupportedError) as raised:
        gemini.build_session({}, AT, lambda stem: False)
    assert "everlog import" in str(raised.value.hint)


def test_a_directory_of_chats_is_opened_as_a_store(tmp_path: Path) -> None:
    folder = tmp_path / "proj" / "chats"
    folder.mkdir(parents=True)
    (folder / f"{NAME}.jsonl").write_bytes(lines(*LOG[:5]))
    with open_store(tmp_path, home=tmp_path.with_name("home")) as store:
        (listed,) = store.list()
        session = store.session(listed.id)
        assert [one.text for one in session.messages()] == [CONTEXT_TEXT, "Which teas?", "Looking."]
        with (folder / f"{NAME}.jsonl").open("ab") as file:
            file.write(lines(*LOG[5:]))
        texts = [one.text for one in session.messages() if one.sender != PROGRAM]
        assert texts == ["Which teas?", "Looking.", "", "text", "no", "Assam.", "And in summer?", "Oolong."]
        assert session.metadata.title == "Which teas?"


# --- real chats ---------------------------------------------------------------------------------

CHATS = Path(__file__).parents[3] / "shared" / "corpus" / "gemini"


@needs_corpus(CHATS)
@pytest.mark.parametrize(
    ("name", "session", "expected"),
    [
        ("07-35-4e0fd206", "4e0fd206-c2c0-4e3b-ad9b-7d41ec64002f", (2, 2, 0, "Which teas sell best?")),
        ("71be1616", "71be1616-6e4a-4e20-9c9b-9bd52a102336", (1, 2, 3, "Let me read it.")),
    ],
)
def test_real_chats_have_their_counts_and_titles(name: str, session: str, expected: tuple[int, int, int, str]) -> None:
    (path,) = CHATS.rglob(f"*{name}.jsonl")
    check_sample(gemini, path, session, expected)
    assert gemini.read(FileSource(path)).metadata["cwd"] == "/tmp/u/proj"


@needs_corpus(CHATS)
def test_a_real_stub_adds_no_session() -> None:
    with open_store("memory:") as store:
        results = list(import_files(store.port, sorted(CHATS.rglob("*4e0fd206.jsonl")), [gemini]))
        assert len({result.id for result in results}) == 1 and len(store.list()) == 1
        assert len([one for one in store.session(results[0].id or "").messages() if one.sender == "user"]) == 2


class TestConformance(FormatConformance):
    """What every dialect must do."""

    format: ClassVar[Any] = gemini
    writable = False
    sessions: ClassVar[Sequence[InMemorySource]] = (
        InMemorySource(
            NAME,
            {
                f"{NAME}.jsonl": lines(
                    HEAD, asked("m1", "one"), ANSWER, asked("m5", "x"), {"$rewindTo": "m5"}, asked("m6", "y")
                )
            },
        ),
        InMemorySource(NAME, {f"{NAME}.jsonl": lines(*LOG), "../.project_root": b"/work"}),
        InMemorySource(NAME, {f"{NAME}.jsonl": lines(*COMPRESSED)}),
        InMemorySource(
            NAME,
            {
                f"{NAME}.jsonl": lines(
                    START,
                    asked("m1", "one"),
                    answered("m2", "two"),
                    asked("m1", "changed"),
                    {"$rewindTo": "m2"},
                    {"$set": {"messages": [asked("m1", "one"), answered("m2", "two")]}},
                    asked("m2", "/three"),
                    {"$rewindTo": "unknown"},
                    asked("m2", "four"),
                )
            },
        ),
    )


class TestDocuments(FormatConformance):
    """Documents are only imported."""

    format: ClassVar[Any] = gemini
    writable = False
    unknown: ClassVar[bytes | None] = None
    sessions: ClassVar[Sequence[InMemorySource]] = (
        InMemorySource(NAME, {f"{NAME}.json": json.dumps({**HEAD, "messages": [asked("m1", "one"), ANSWER]}).encode()}),
    )
