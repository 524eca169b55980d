"""Cersei's transcripts: entries, parts, tombstones, and the defects of its own reader."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from everlog.interop.formats.cersei import FORMAT as cersei
from everlog.interop.formats.crabtalk import FORMAT as crabtalk
from everlog.interop.formats.format_types import HiddenMessages, InMemorySource, Summary
from everlog.interop.formats.pi import FORMAT as pi
from everlog.interop.formats.picoclaw import FORMAT as picoclaw
from everlog.model import (
    PROGRAM,
    Compaction,
    Event,
    File,
    Image,
    Message,
    Metadata,
    OtherBlock,
    Rewind,
    Text,
    Thinking,
    Tombstone,
    ToolCall,
    Usage,
    assistant,
    tool_result,
    user,
)
from everlog.testing.format_suite import FormatConformance
from tests.examples import examples
from tests.formats.round_trips import (
    ID,
    Damage,
    Turn,
    anything,
    back,
    exactly,
    files,
    golden,
    metadata_of,
    numbered,
    objects,
    sound,
    stored,
    talk,
    texts,
    there_and_back,
    turns,
    values,
    view,
)
from tests.formats.round_trips import said as spoken

NAME = "7d1f0a52-58c1-4e0e-9d67-2b1f6f0e9a01"
FULL = golden("cersei", NAME)
BARE = golden("cersei", "bare")
# The same in one file: that is how it goes back, for it is far from full.
WHOLE = InMemorySource(NAME, {f"{NAME}.jsonl": b"".join(FULL.files.values())}, FULL.modified_ms)


def entry(uuid: str, text: Any = "x", kind: str = "user", **more: Any) -> dict[str, Any]:
    return {
        "type": kind,
        "uuid": uuid,
        "timestamp": "2026-04-03T10:00:00+00:00",
        "session_id": "S",
        "cwd": "/p",
        "message": {"role": kind, "content": text},
        "is_sidechain": False,
        **more,
    }


def tombstone(uuid: str) -> dict[str, Any]:
    return {"type": "tombstone", "deleted_uuid": uuid, "timestamp": "2026-04-03T10:00:00+00:00"}


def lines_of(*entries: Any) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in entries)


def session(*parts: bytes) -> InMemorySource:
    names = ["S.jsonl", *(f"S_part{number}.jsonl" for number in range(2, len(parts) + 1))]
    return InMemorySource("S", dict(zip(names, parts, strict=True)))


def said(source: InMemorySource) -> list[str]:
    return [one.text for one in view(cersei.read(source)).messages]


class TestConformance(FormatConformance):
    format: ClassVar[Any] = cersei
    sessions: ClassVar[Sequence[InMemorySource]] = (WHOLE, BARE)


class TestDamage(Damage):
    dialect: ClassVar[Any] = cersei
    sessions: ClassVar[Sequence[InMemorySource]] = (FULL, BARE)


# --- reading


def test_the_golden_session_is_read_in_full() -> None:
    read = cersei.read(FULL)
    assert (read.line_count, read.damage, read.session_id) == (12, (), NAME)
    assert read.metadata == {"cwd": "/Users/foo/p", "model": "claude-sonnet-4-5", "name": "fix the tests"}
    assert read.created_ms == 1775210400123
    shown = view(read)
    assert [(one.role, one.text) for one in shown.messages] == [
        ("user", "fix the tests"),
        ("assistant", "I read."),
        ("toolResult", "x = 1"),
        ("toolResult", "1 failed"),
        ("user", "go on"),
        ("user", ""),
        ("assistant", "All is well."),
    ]
    answer = shown.messages[1]
    assert answer.id == "22222222-2222-4222-8222-222222222222"
    assert answer.content == (
        Thinking("hm", "sig"),
        OtherBlock({"type": "redacted_thinking", "data": "AAAA"}),
        Text("I read."),
        ToolCall("t1", "Read", {"path": "a.py"}),
        ToolCall("t2", "Bash", {"command": "pytest"}),
    )
    assert (answer.model, answer.stop_reason) == ("claude-sonnet-4-5", "tool_use")
    assert answer.usage == Usage(input_tokens=10, output_tokens=5, total_tokens=15, cost=0.25)
    assert [one.tool_call_id for one in shown.messages[2:4]] == ["t1", "t2"]
    assert [one.is_error for one in shown.messages[2:4]] == [None, True]
    assert shown.messages[5].content[0] == Image("image/png", "AAAA")
    assert [one.type for one in shown.messages[5].content[1:] if isinstance(one, OtherBlock)] == [
        "document",
        "hologram",
    ]
    kinds = [item.kind for item in read.items if isinstance(item, Event)]
    assert kinds == ["cersei.tombstone", "cersei.system", "cersei.hook"]


def test_a_summary_covers_what_is_before_it() -> None:
    read = cersei.read(FULL)
    made = view(read).compaction
    assert made is not None and made.first_kept_seq == made.seq + 1
    assert made.summary == "User asked to fix tests; a.py was read."


def test_bare_messages_of_jsonl_memory_are_read_and_written() -> None:
    read = cersei.read(BARE)
    assert [one.role for one in view(read).messages] == ["user", "assistant", "toolResult"]
    assert values(back(cersei, BARE).files[f"{ID}.jsonl"]) == values(BARE.files["bare.jsonl"])
    more = numbered([*stored(read), user("more")])
    made = cersei.write(metadata_of(read), more).files[f"{ID}.jsonl"]
    assert values(made)[-1] == {"role": "user", "content": "more"}


def test_camel_case_is_claude_code_and_never_cersei() -> None:
    camel = b'{"type":"user","uuid":"u","parentUuid":null,"sessionId":"s","timestamp":"t","message":{"role":"user","content":"x"}}\n'
    assert not cersei.recognises("s.jsonl", camel)
    assert cersei.recognises("s.jsonl", FULL.files[f"{NAME}.jsonl"])
    assert cersei.recognises("s.jsonl", BARE.files["bare.jsonl"])
    assert not cersei.recognises("s.jsonl", b'{"type":"summary","summary":"x","leafUuid":"y"}\n')
    assert not cersei.recognises("s.jsonl", b'{"type":"mode","sessionId":"s"}\n' + lines_of(entry("a")))
    assert cersei.recognises("s.jsonl", b'{"type":"hook"}\n{torn\n' + lines_of(entry("a")))
    for other in (crabtalk, pi, picoclaw):
        for source in (FULL, BARE):
            assert not other.recognises("s.jsonl", next(iter(source.files.values())))


def test_a_camel_case_line_in_a_transcript_survives() -> None:
    camel = {"type": "attachment", "uuid": "u", "sessionId": "s", "parentUuid": None}
    source = session(lines_of(entry("a"), camel))
    assert said(source) == ["x"]
    assert values(back(cersei, source).files["S.jsonl"]) == [entry("a"), camel]


def test_parts_are_one_session_in_the_order_of_their_numbers() -> None:
    parts = {f"S_part{number}.jsonl": lines_of(entry(f"u{number}", f"{number}")) for number in (10, 2, 9, 3)}
    files = {"S.jsonl": lines_of(entry("u1", "1")), **parts}
    for number in range(4, 9):
        files[f"S_part{number}.jsonl"] = b""
    read = cersei.read(InMemorySource("S", files))
    assert [one.text for one in view(read).messages] == ["1", "2", "3", "9", "10"]
    assert not read.damage


def test_a_gap_in_the_numbering_is_reported_and_hides_no_part() -> None:
    source = InMemorySource(
        "S",
        {
            "S.jsonl": lines_of(entry("a", "1")),
            "S_part3.jsonl": lines_of(entry("b", "3")),
            "S_part6.jsonl": lines_of(entry("c", "6")),
        },
    )
    assert said(source) == ["1", "3", "6"]
    problems = [(one.path, one.problem) for one in cersei.read(source).damage]
    assert problems == [
        ("S_part3.jsonl", "missing before it: _part2"),
        ("S_part6.jsonl", "missing before it: _part4 to _part5"),
    ]


@pytest.mark.parametrize("order", ["before", "after", "other part", "both"])
def test_a_tombstone_counts_wherever_it_stands(order: str) -> None:
    gone, kept = entry("a", "gone"), entry("b", "kept")
    source = {
        "before": session(lines_of(tombstone("a"), gone, kept)),
        "after": session(lines_of(gone, kept, tombstone("a"))),
        "other part": session(lines_of(kept), lines_of(tombstone("a")), lines_of(gone)),
        "both": session(lines_of(tombstone("a"), gone), lines_of(kept, tombstone("a"))),
    }[order]
    assert said(source) == ["kept"]
    joined = b"".join(source.files.values())
    assert values(back(cersei, source).files["S.jsonl"]) == values(joined)


def test_a_tombstone_of_an_entry_with_several_results_hides_them_all() -> None:
    results = [{"type": "tool_result", "tool_use_id": f"t{one}", "content": "r"} for one in range(3)]
    source = session(lines_of(entry("a", results), entry("b"), tombstone("a")))
    assert said(source) == ["x"]


def test_a_tombstone_without_a_target_and_one_of_a_summary_are_kept() -> None:
    summary = {
        "type": "summary",
        "uuid": "s",
        "timestamp": "t",
        "session_id": "S",
        "summary": "old",
        "messages_compacted": 1,
    }
    source = session(lines_of(entry("a"), summary, tombstone("s"), tombstone("nobody")))
    read = cersei.read(source)
    assert view(read).compaction is None
    assert not [item for item in read.items if isinstance(item, HiddenMessages | Summary)]
    assert values(back(cersei, source).files["S.jsonl"]) == values(source.files["S.jsonl"])


def test_a_uuid_that_comes_twice_hides_neither_entry() -> None:
    source = session(lines_of(entry("a", "one"), entry("a", "two"), entry("a", "three")))
    assert said(source) == ["one", "two", "three"]
    assert values(back(cersei, source).files["S.jsonl"]) == values(source.files["S.jsonl"])


def test_parents_that_are_missing_or_run_in_a_circle_do_not_matter() -> None:
    source = session(
        lines_of(
            entry("a", "1", parent_uuid="b"),
            entry("b", "2", "assistant", parent_uuid="a"),
            entry("c", "3", "assistant", parent_uuid="nobody"),
            entry("d", "4", parent_uuid="d"),
        )
    )
    assert said(source) == ["1", "2", "3", "4"]


def test_an_invalid_byte_costs_one_line() -> None:
    source = session(lines_of(entry("a", "1")) + b'{"type":"user","\xff\n' + lines_of(entry("b", "2")))
    read = cersei.read(source)
    assert said(source) == ["1", "2"]
    assert read.damage[0].problem.startswith("not valid UTF-8")


def test_a_torn_tail_of_a_part_does_not_glue_to_the_next_part() -> None:
    whole = json.dumps(entry("b", "torn")).encode()
    for cut in range(1, len(whole)):
        source = session(lines_of(entry("a", "1")) + whole[:cut], lines_of(entry("c", "2")))
        read = cersei.read(source)
        assert said(source) == ["1", "2"]
        assert len(read.damage) == 1
        joined = next(iter(back(cersei, source).files.values()))
        assert values(joined)[1] == whole[:cut]


def test_an_unknown_block_is_kept_whole() -> None:
    block = {"type": "hologram", "data": {"a": [1, None]}}
    source = session(lines_of(entry("a", [block])))
    assert view(cersei.read(source)).messages[0].content == (OtherBlock(block),)
    assert values(back(cersei, source).files["S.jsonl"]) == values(source.files["S.jsonl"])


def test_a_stored_text_equals_what_was_said() -> None:
    for text in ("write a summary of the index", " \n", "漢字\u2028", ""):
        assert said(session(lines_of(entry("a", text)))) == [text]


def test_the_three_rules_for_a_project_directory() -> None:
    assert cersei.project_directory("/Users/foo") == ("_Users_foo", "Users-foo", "-Users-foo")
    assert cersei.project_directory("C:\\é x_y-z.w")[:2] == ("C__é_x_y-z.w", "C--é x_y-z.w")
    assert cersei.project_directory("/my/project")[2] == "-my-project"


# --- writing


def test_a_session_of_ours_is_written_as_cersei_would() -> None:
    records = numbered(
        [
            user("hi"),
            assistant(
                [Text("a"), ToolCall("c", "f", {"x": 1})],
                model="m",
                usage=Usage(input_tokens=1, output_tokens=2, total_tokens=3),
                stop_reason="tool_use",
            ),
            tool_result("c", "ok", is_error=True),
            Compaction(first_kept_seq=3, summary="sum"),
            user([File("a.pdf", "application/pdf", "AAAA"), Image(url="https://x")]),
            Event(kind="turn_end"),
        ]
    )
    made = cersei.write(Metadata(id=ID, extra={"cwd": "/p"}), records)
    assert made.losses == ("event turn_end: 1", "strategy of a summary: 1")
    first, second, summary, third, last = values(made.files[f"{ID}.jsonl"])
    assert list(first) == ["type", "uuid", "timestamp", "session_id", "cwd", "message", "is_sidechain"]
    assert first["message"] == {"role": "user", "content": "hi"}
    assert (first["session_id"], first["cwd"]) == (ID, "/p")
    assert second["parent_uuid"] == first["uuid"] == records[0].id
    assert second["message"]["metadata"] == {
        "model": "m",
        "usage": {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
        "stop_reason": "tool_use",
    }
    assert (summary["type"], summary["summary"], summary["messages_compacted"]) == ("summary", "sum", 2)
    assert third["message"]["content"] == [
        {"type": "tool_result", "tool_use_id": "c", "content": "ok", "is_error": True}
    ]
    assert [one["type"] for one in last["message"]["content"]] == ["document", "image"]


def test_losses_are_named() -> None:
    usage = Usage(input_tokens=1, cache_read_tokens=5)
    answer = assistant("b", model="m", usage=usage, stop_reason="refusal")
    records = numbered([user("a", sender="bob"), answer, Compaction(first_kept_seq=3, summary="s", read_files=("f",))])
    metadata = Metadata(id=ID, title="A title", agent="crab", system_prompt_override="be brief")
    assert cersei.write(metadata, records).losses == (
        "agent: 1",
        "cached tokens of a message: 1",
        "list of the files of a summary: 1",
        "sender of a message: 1",
        "stop reason of a message: 1",
        "strategy of a summary: 1",
        "system prompt of the session: 1",
        "title: 1",
    )
    assert cersei.write(Metadata(id=ID, title="a"), numbered([user("a")])).losses == ()


def test_a_summary_that_cersei_repeats_as_a_message_is_not_what_the_user_said() -> None:
    text = "<context_summary>They fixed it.</context_summary>"
    read = cersei.read(session(lines_of(entry("a", text), entry("b", "go on"))))
    assert [one.sender for one in view(read).messages] == [PROGRAM, None]
    assert read.metadata["name"] == "go on"


def test_what_we_hide_or_rewind_gets_tombstones() -> None:
    records = numbered([user("a"), user("b"), Tombstone(deletes=(1,)), assistant("c"), Rewind(to_seq=2), user("d")])
    made = cersei.write(Metadata(id=ID), records)
    source = InMemorySource(ID, made.files)
    assert said(source) == ["b", "d"]
    kinds = [one["type"] for one in values(made.files[f"{ID}.jsonl"])]
    assert kinds == ["user", "user", "tombstone", "assistant", "tombstone", "user"]


def test_what_is_said_after_an_import_goes_on_in_the_same_session() -> None:
    read = cersei.read(FULL)
    made = cersei.write(metadata_of(read), numbered([*stored(read), user("new"), assistant("answer")]))
    new, answer = values(made.files[f"{NAME}.jsonl"])[-2:]
    assert (new["session_id"], new["cwd"]) == (NAME, "/Users/foo/p")
    assert answer["parent_uuid"] == new["uuid"]


@pytest.mark.slow
def test_a_part_is_closed_before_it_would_be_too_long() -> None:
    first, second = numbered([user("x" * 30_000_000), user("")])
    assert isinstance(second, Message)
    alone = cersei.write(Metadata(id=ID), [first, second]).files[f"{ID}.jsonl"]
    room = 50_000_000 - len(alone)
    for more, parts in ((room, 1), (room + 1, 2)):
        last = replace(second, content=(Text("y" * more),), line=b"")
        made = cersei.write(Metadata(id=ID), [first, last]).files
        assert list(made) == [f"{ID}.jsonl", f"{ID}_part2.jsonl"][:parts]
        assert all(len(data) <= 50_000_000 for data in made.values())
        assert len(cersei.read(InMemorySource(ID, made)).items) == 2


# --- round trips

blocks = st.one_of(
    objects({"type": st.just("text"), "text": texts}, {}),
    objects(
        {
            "type": st.just("tool_use"),
            "id": texts,
            "name": texts,
            "input": st.dictionaries(texts, anything, max_size=2),
        },
        {},
    ),
    objects({"type": st.just("thinking"), "thinking": texts, "signature": texts}, {}),
    objects(
        {
            "type": st.just("image"),
            "source": objects({"type": texts}, {"media_type": texts, "data": texts, "url": texts}),
        },
        {},
    ),
    objects(
        {"type": st.just("tool_result"), "tool_use_id": texts},
        {
            "content": texts | st.lists(objects({"type": st.just("text"), "text": texts}, {}), max_size=2),
            "is_error": st.booleans(),
        },
    ),
    objects(
        {"type": st.sampled_from(["toolCall", "file", "hologram"])}, {"id": texts, "name": texts, "arguments": anything}
    ),
)
said_objects = objects(
    {"role": st.sampled_from(["user", "assistant", "system"]), "content": texts | st.lists(blocks, max_size=3)},
    {
        "id": texts,
        "metadata": objects(
            {"model": texts},
            {
                "usage": objects({"input_tokens": st.integers(0, 9)}, {"cost_usd": st.floats(0, 1)}),
                "stop_reason": texts,
            },
        ),
    },
)
uuids = st.sampled_from(["a", "b", "c", "d", ""])
lines: st.SearchStrategy[Any] = st.one_of(
    objects(
        {
            "type": st.sampled_from(["user", "assistant", "system"]),
            "uuid": uuids,
            "timestamp": texts,
            "session_id": st.just("S"),
            "message": said_objects,
        },
        {"parent_uuid": uuids, "cwd": texts, "is_sidechain": st.booleans(), "extra": anything},
    ),
    objects(
        {"type": st.just("summary"), "uuid": uuids, "session_id": st.just("S"), "summary": texts},
        {"messages_compacted": st.integers(0, 9)},
    ),
    objects({"type": st.just("tombstone"), "deleted_uuid": uuids}, {"timestamp": texts}),
    objects({"type": st.sampled_from(["damaged", "blank", "hook"])}, {"uuid": uuids}),
    said_objects,
    st.dictionaries(texts, anything, max_size=3),
)


@settings(deadline=None, max_examples=examples(300))
@given(st.lists(files(lines), min_size=1, max_size=3))
def test_any_file_comes_back_record_for_record(parts: list[bytes]) -> None:
    source = session(*parts)
    sound(cersei.read(source))
    made = back(cersei, source).files
    assert len(made) == 1
    assert exactly(next(iter(made.values()))) == exactly(b"\n".join(parts))


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_no_bytes_are_too_strange_to_read(data: bytes) -> None:
    source = session(data)
    sound(cersei.read(source))
    assert exactly(next(iter(back(cersei, source).files.values()))) == exactly(data)
    cersei.recognises("x.jsonl", data)


@settings(deadline=None)
@given(turns)
def test_a_session_of_ours_says_the_same_when_it_is_read_again(given: list[Turn]) -> None:
    records = talk(given)
    assert there_and_back(cersei, records) == spoken(records)
