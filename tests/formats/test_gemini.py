"""Gemini CLI's chats, read. The documents are written by hand from its published types."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from everlog.context.build import build
from everlog.errors import FormatError
from everlog.interop.formats import gemini
from everlog.interop.formats.format_types import ForeignSession, InMemorySource, extra_field
from everlog.log import backward_read
from everlog.log.fold import fold
from everlog.model import Event, File, Image, Message, Metadata, Text, Thinking, ToolCall, Usage
from everlog.testing.format_suite import FormatConformance
from tests.formats.native import through_native

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
    assert made.metadata == {"source": "gemini", "name": "Read it", "model": "gemini-test"}
    assert made.created_ms == 1767323045000
    assert made.line_count == 4 and made.damage == ()
    first, answer, result, cancelled = messages(made)
    assert first.content == (Text("Read"), Text("it"))
    assert answer.content == (
        Thinking("Plan\nRead it"),
        Text("Looking."),
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
    assert [one.text for one in view] == ["one", "Looking.", "text", "no", "three"]
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
        "assistant",
        "toolResult",
        "toolResult",
        "toolResult",
        "assistant",
    ]
    calls = {call.id: call.arguments for call in messages(made)[1].tool_calls}
    results = {one.tool_call_id: one.text for one in messages(made)[2:5]}
    assert calls.keys() == results.keys()
    assert [results[name] for name in calls] == ["first", "second", '{"a":1}']
    assert made.metadata["name"] == "go"
    assert isinstance(made.items[0], Event) and made.items[0].kind == "gemini.setup"
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


class TestConformance(FormatConformance):
    """What every dialect must do."""

    format: ClassVar[Any] = gemini
    writable = False
    unknown: ClassVar[bytes | None] = None  # a record without an id changes the head
    sessions: ClassVar[Sequence[InMemorySource]] = (
        InMemorySource(
            NAME,
            {
                f"{NAME}.jsonl": lines(
                    HEAD, asked("m1", "one"), ANSWER, asked("m5", "x"), {"$rewindTo": "m5"}, asked("m6", "y")
                )
            },
        ),
        InMemorySource(NAME, {f"{NAME}.json": json.dumps({**HEAD, "messages": [asked("m1", "one"), ANSWER]}).encode()}),
    )
