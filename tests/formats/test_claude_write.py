"""What Claude Code is given to resume: reference/formats/claude-code.md, section 4."""

from __future__ import annotations

import json
import re
from typing import Any

from everlog.interop.formats.claude import FORMAT as claude
from everlog.interop.formats.format_types import ExportedFiles, InMemorySource, Summary
from everlog.log.line_codec import build_line, decode, encode
from everlog.model import (
    AnyRecord,
    Compaction,
    Event,
    File,
    Image,
    Message,
    Meta,
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
from tests.formats.claude_session import ID, Session, hidden, read, shown, uuid
from tests.formats.native import through_native

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
META = Metadata(id="01JN0000000000000000000000", created_at="2026-01-01T00:00:00.000Z")


def stored(*records: AnyRecord, after: int = 0) -> list[AnyRecord]:
    """Records as a store gives them back."""
    made: list[AnyRecord] = []
    for seq, record in enumerate(records, after + 1):
        record, body = encode(record)
        one = decode(build_line(body, record.record_type, seq)).record
        assert one is not None
        made.append(one)
    return made


def objects(written: ExportedFiles) -> list[dict[str, Any]]:
    (data,) = [data for path, data in written.files.items() if path.endswith(".jsonl")]
    assert data.endswith(b"\n") or not data
    return [json.loads(line) for line in data.splitlines()]


def check_chain(made: list[dict[str, Any]]) -> None:
    """Every record hangs from one before it, and has what Claude Code writes into all."""
    seen: set[str] = set()
    for one in made:
        if "uuid" not in one:
            continue
        assert UUID.fullmatch(one["uuid"]) and one["uuid"] not in seen
        assert STAMP.fullmatch(one["timestamp"])
        assert one["parentUuid"] is None or one["parentUuid"] in seen
        assert one["userType"] == "external" and one["isSidechain"] is False
        assert {"cwd", "version", "gitBranch", "sessionId"} <= one.keys()
        seen.add(one["uuid"])


def test_a_native_session_becomes_a_transcript_that_can_be_resumed() -> None:
    records = stored(
        user("Read it", cwd="/work", id=uuid(1), timestamp="2026-01-01T00:00:01.5+01:00"),
        assistant(
            [Thinking("hm", "sig"), Text("Reading."), ToolCall("call.1", "read", {"path": "a"})],
            model="anthropic:claude-x",
            usage=Usage(input_tokens=5, output_tokens=7, cache_read_tokens=3, cache_write_tokens=2),
            stop_reason="toolUse",
        ),
        tool_result("call.1", "text of a", tool_name="read"),
        assistant("Done.", stop_reason="stop"),
    )
    written = claude.write(META, records)
    (path,) = written.files
    session = path.removesuffix(".jsonl")
    made = objects(written)
    check_chain(made)
    assert written.losses == ()
    assert {one["sessionId"] for one in made} == {session}
    assert [one["parentUuid"] for one in made] == [None, *(one["uuid"] for one in made[:-1])]
    assert made[0]["uuid"] == uuid(1)
    assert made[0]["timestamp"] == "2025-12-31T23:00:01.500Z"
    assert made[0]["message"] == {"role": "user", "content": "Read it"}
    answer = made[1]["message"]
    assert [one["type"] for one in answer["content"]] == ["thinking", "text", "tool_use"]
    assert answer["stop_reason"] == "tool_use" and made[3]["message"]["stop_reason"] == "end_turn"
    assert answer["usage"] == {
        "input_tokens": 5,
        "output_tokens": 7,
        "cache_read_input_tokens": 3,
        "cache_creation_input_tokens": 2,
    }
    (result,) = made[2]["message"]["content"]
    assert result["tool_use_id"] == answer["content"][2]["id"]
    assert re.fullmatch(r"[A-Za-z0-9_-]+", result["tool_use_id"])
    assert made[2]["sourceToolAssistantUUID"] == made[1]["uuid"]
    again = claude.read(InMemorySource(session, written.files))
    assert shown(again) == ["Read it", "Reading.", "text of a", "Done."]
    assert claude.write(META, records) == written


def test_what_the_api_would_refuse_is_left_out_and_told() -> None:
    written = claude.write(
        META,
        stored(
            user([Text(""), Text("see"), Image("image/png", "AA"), File("a.zip", "application/zip")]),
            assistant([Thinking("unsigned"), Text("ok"), Image("image/png", "AA")]),
            assistant([Thinking("only this")]),
            assistant([OtherBlock({"type": "redacted_thinking", "data": "x"}), Text("more")]),
            user([OtherBlock({"type": "hologram"})]),
            tool_result("nobody", "stray"),
            Event(kind="turn_end"),
            Event(kind="turn_end"),
        ),
    )
    assert [one["message"]["content"] for one in objects(written)] == [
        [
            {"type": "text", "text": "see"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}},
        ],
        [{"type": "text", "text": "ok"}],
        [{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "more"}],
    ]
    assert written.losses == (
        "event turn_end: 2",
        "file: 1",
        "image: 1",
        "message without any writable content: 2",
        "result of a call that is not in the log: 1",
        "thinking without a signature: 1",
    )


def test_turns_that_were_added_hang_from_the_end_of_the_conversation() -> None:
    session = Session()
    session.user("one")
    fork = session.answer("two")
    session.user("left")
    end = session.user("three", parent=fork, cwd="/elsewhere")
    session.meta("mode", mode="plan")
    records = through_native(session.read())
    records += stored(assistant("four"), user("five"), after=len(records))
    made = objects(claude.write(META, records))
    assert made[: len(session.objects)] == session.objects
    four, five = made[len(session.objects) :]
    assert (four["parentUuid"], five["parentUuid"]) == (end, four["uuid"])
    assert four["cwd"] == "/elsewhere" and four["sessionId"] == ID
    again = read(claude.write(META, records).files[f"{ID}.jsonl"])
    assert shown(again) == ["one", "two", "three", "four", "five"]
    assert len(hidden(again)) == 1


def test_results_stand_behind_their_call_whatever_the_order_of_the_log() -> None:
    records = stored(
        user("go"),
        assistant([ToolCall("a", "x", {}), ToolCall("b", "x", {})]),
        tool_result("b", "of b"),
        user("meanwhile"),
        tool_result("a", "of a"),
        assistant([ToolCall("c", "x", {})]),
    )
    made = objects(claude.write(META, records))
    check_chain(made)
    kinds = [one["message"]["content"] for one in made]
    assert [one[0].get("content") for one in kinds[2:4]] == ["of b", "of a"]
    assert kinds[4] == "meanwhile"
    assert kinds[6][0]["tool_use_id"] == "c" and kinds[6][0]["is_error"] is True


def test_a_compaction_becomes_a_boundary_and_a_summary() -> None:
    records = stored(
        user("one"),
        assistant("two"),
        user("three"),
        Compaction(first_kept_seq=3, summary="one and two", tokens_before=77),
        assistant("four"),
    )
    written = claude.write(META, records)
    made = objects(written)
    check_chain(made)
    boundary, summary = made[3:5]
    assert boundary["type"] == "system" and boundary["subtype"] == "compact_boundary"
    assert boundary["parentUuid"] is None
    assert boundary["logicalParentUuid"] == made[2]["uuid"]
    assert summary["parentUuid"] == boundary["uuid"] and summary["isCompactSummary"] is True
    assert summary["message"]["content"] == "one and two"
    kept = boundary["compactMetadata"]["preservedSegment"]
    assert kept == {"headUuid": made[2]["uuid"], "anchorUuid": summary["uuid"], "tailUuid": made[2]["uuid"]}
    assert boundary["compactMetadata"]["preTokens"] == 77
    again = read(b"".join(written.files.values()))
    (found,) = [item for item in again.items if isinstance(item, Summary)]
    assert (found.text, found.first_kept, found.tokens_before) == ("one and two", made[2]["uuid"], 77)
    assert shown(again) == ["one", "two", "three", "four"]


def test_a_compaction_that_was_taken_back_leaves_no_boundary() -> None:
    session = Session()
    session.user("one")
    session.answer("two")
    session.compact("both")
    session.user("three")
    records = through_native(session.read())
    records += stored(Rewind(to_seq=1), user("other"), after=len(records))
    made = objects(claude.write(META, records))
    check_chain(made)
    assert [one["message"]["content"] for one in made] == ["one", "other"]
    assert made[1]["parentUuid"] == made[0]["uuid"]


def test_messages_that_were_taken_out_are_left_out_and_links_drawn_together() -> None:
    session = Session()
    session.user("one")
    session.answer("two")
    session.add("progress", data={})
    session.user("three")
    session.answer("four")
    records = through_native(session.read())
    records += stored(Tombstone(deletes=(2, 4)), user("five"), after=len(records))
    made = objects(claude.write(META, records))
    check_chain(made)
    assert [one["uuid"] for one in made[:3]] == [uuid(1), uuid(3), uuid(5)]
    assert [one["parentUuid"] for one in made] == [None, uuid(1), uuid(3), uuid(5)]


def test_one_of_several_results_that_was_taken_out_is_left_out_alone() -> None:
    session = Session()
    session.answer(*({"type": "tool_use", "id": one, "name": "x", "input": {}} for one in "ab"))
    session.user([{"type": "tool_result", "tool_use_id": one, "content": one} for one in "ab"])
    records = through_native(session.read())
    records += stored(Tombstone(deletes=(2,)), after=len(records))
    made = objects(claude.write(META, records))
    assert [one["tool_use_id"] for one in made[1]["message"]["content"]] == ["b"]


def test_a_branch_that_we_show_again_is_told() -> None:
    session = Session()
    session.user("one")
    session.user("left")
    session.user("right", parent=uuid(1))
    records = through_native(session.read())
    records += stored(Tombstone(restores=(2,)), after=len(records))
    written = claude.write(META, records)
    assert objects(written) == session.objects
    assert written.losses == ("live message that the file hides: 1",)


def test_a_name_that_we_gave_is_written_as_a_title_and_theirs_is_not_repeated() -> None:
    session = Session()
    session.user("hello")
    session.meta("ai-title", aiTitle="Greeting")
    records = through_native(session.read())
    records += stored(Meta(set={"name": "Greeting"}), after=len(records))
    same = Metadata(id="x", title="Greeting")
    assert objects(claude.write(same, records)) == session.objects
    new = Metadata(id="x", title=" Mine ")
    data = claude.write(new, records).files[f"{ID}.jsonl"]
    assert data.splitlines()[-1] == (b'{"type":"custom-title","customTitle":"Mine","sessionId":"%b"}' % ID.encode())


def test_the_session_keeps_the_name_it_was_imported_by() -> None:
    other = "aaaaaaaa-0000-4000-8000-000000000000"
    session = Session()
    session.user("hello")
    records = through_native(session.read())
    assert list(claude.write(Metadata(id="x", key=f"claude:{other}"), records).files) == [f"{other}.jsonl"]
    assert list(claude.write(Metadata(id="x"), records).files) == [f"{ID}.jsonl"]


def test_turns_of_an_agent_stay_in_its_side_chain() -> None:
    session = Session()
    session.user("look", isSidechain=True, agentId="a7")
    records = through_native(session.read())
    records += stored(assistant("found"), after=len(records))
    written = claude.write(META, records)
    assert list(written.files) == [f"{ID}/subagents/agent-a7.jsonl"]
    last = objects(written)[-1]
    assert last["isSidechain"] is True and last["agentId"] == "a7"


def test_a_session_of_nothing_is_an_empty_file() -> None:
    written = claude.write(META, [])
    assert list(written.files.values()) == [b""]


def test_messages_of_other_dialects_are_new_here() -> None:
    record = Message(role="user", content=(Text("from pi"),), id="abcd")
    made = objects(claude.write(META, stored(record)))
    assert UUID.fullmatch(made[0]["uuid"])
