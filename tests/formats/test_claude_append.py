"""Records of ours in Claude Code's transcripts, where they lie."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.errors import UnsupportedError
from everlog.interop.formats.claude import FORMAT as claude
from everlog.interop.formats.format_types import Summary
from everlog.log.fold import fold
from everlog.model import (
    AnyRecord,
    Compaction,
    Event,
    File,
    Image,
    Message,
    Meta,
    OtherBlock,
    Rewind,
    Text,
    Thinking,
    Tombstone,
    ToolCall,
    assistant,
    tool_result,
    user,
)
from tests.examples import examples
from tests.formats.claude_session import Session, encode, hidden, read, shown, uuid
from tests.formats.test_claude_round_trip import transcripts
from tests.formats.test_claude_tail import Mirror, bare, conversation, objects


def check_chain(data: bytes) -> None:
    """Every record hangs from one before it."""
    known: set[str] = set()
    for one in objects(data):
        if "uuid" in one:
            assert {one["parentUuid"] or one.get("logicalParentUuid")} <= known | {None}
            known.add(one["uuid"])


def test_what_is_appended_is_the_end_of_the_conversation_and_keeps_its_id() -> None:
    mirror = Mirror(conversation().data())
    thought = Thinking("why", "signed")
    given_records = [
        user("five", id=uuid(101)),
        assistant(
            [thought, Text("six"), ToolCall("c1", "Read", {"a": 1}), ToolCall("c2", "Read", {})],
            id=uuid(102),
            model="m",
        ),
        tool_result("c2", "of c2", id=uuid(103)),
        tool_result("c1", "of c1", id=uuid(104), is_error=True),
        assistant("seven", id="no uuid"),
        user([Text("look"), Image("image/png", "AA==")], id=uuid(105)),
    ]
    for record in given_records:
        (item,) = mirror.append(record)
        assert isinstance(item, Message)
        assert record.id in (item.id, "no uuid")
        assert (item.role, item.content) == (record.role, record.content)
        assert item.tool_call_id == record.tool_call_id
    assert mirror.wholes == 0
    check_chain(mirror.data)
    made = read(mirror.data)
    assert made.damage == () and hidden(made) == set()
    assert shown(made)[-6:] == ["five", "six", "of c2", "of c1", "seven", "look"]
    assert bare(list(mirror.items.values())) == bare(made.items)
    assert [one.tool_name for one in made.items if isinstance(one, Message)][-4:-2] == ["Read"] * 2
    five, _, second, first, *_ = objects(mirror.data)[-6:]
    for key in ("cwd", "version", "gitBranch", "sessionId", "isSidechain", "userType"):
        assert five[key] == conversation().objects[-1][key]
    assert {second["sourceToolAssistantUUID"], first["sourceToolAssistantUUID"]} == {uuid(102)}


@settings(max_examples=examples(100), deadline=None)
@given(transcripts, st.integers(1, 4))
def test_what_is_appended_to_any_transcript_is_the_end_of_its_conversation(
    found: list[dict[str, Any]], step: int
) -> None:
    mirror = Mirror(encode(found), step=step)
    mirror.append(user("added", id=uuid(99)))
    assert shown(read(mirror.data))[-1] == "added"


def test_a_record_whose_id_is_no_uuid_gets_the_same_one_each_time() -> None:
    first, second = Mirror(conversation().data()), Mirror(conversation().data())
    second.append(user("between", id=uuid(60)))
    (one,), (other,) = (mirror.append(user("x", id="01J")) for mirror in (first, second))
    assert one.id == other.id
    unnamed = [first.append(user("y"))[0].id for _ in range(3)]
    assert len({one.id, *unnamed}) == 4


def test_new_records_hang_from_what_belongs_to_the_last_message() -> None:
    session = Session()
    session.user("one")
    session.add("attachment", attachment={"type": "date"})
    last = session.add("attachment", attachment={"type": "environment"})
    session.add("progress", data={})
    for mirror in (Mirror(session.data()), Mirror(session.data(), step=1)):
        mirror.append(assistant("two", id=uuid(9)))
        assert objects(mirror.data)[-1]["parentUuid"] == last
        assert shown(read(mirror.data)) == ["one", "two"]


def test_calls_that_nobody_answered_are_answered_before_the_session_goes_on() -> None:
    session = Session()
    session.user("go")
    session.call("t1", response="r")
    session.call("t2", response="r")
    session.result("t1", "one", parent=uuid(2))
    for record in (user("next", id=uuid(9)), assistant("next", id=uuid(9))):
        mirror = Mirror(session.data())
        closed, said = mirror.append(record)
        assert isinstance(closed, Message) and isinstance(said, Message)
        assert (closed.tool_call_id, closed.is_error, closed.tool_name) == ("t2", True, "Bash")
        assert said.id == uuid(9)
        assert objects(mirror.data)[4]["sourceToolAssistantUUID"] == uuid(3)
        check_chain(mirror.data)
        assert hidden(read(mirror.data)) == set()
        assert len(mirror.append(user("and", id=uuid(10)))) == 1


def test_after_a_branch_new_records_hang_from_the_end_that_is_shown() -> None:
    session = Session()
    session.user("one")
    fork = session.answer("two")
    session.user("left")
    end = session.answer("other", parent=fork)
    mirror = Mirror(session.data())
    mirror.append(user("next", id=uuid(9)))
    assert objects(mirror.data)[-1]["parentUuid"] == end
    assert shown(read(mirror.data)) == ["one", "two", "other", "next"]


def test_a_compaction_becomes_a_boundary_and_a_summary_with_the_records_id() -> None:
    session = conversation()
    mirror = Mirror(session.data())
    first = next(one for one in mirror.records() if one.id == uuid(12))
    record = Compaction(id=uuid(50), first_kept_seq=first.seq, summary="all", tokens_before=5)
    (summary,) = mirror.append(record)
    assert summary == Summary(
        id=uuid(50), text="all", first_kept=uuid(12), tokens_before=5, timestamp=session.objects[-1]["timestamp"]
    )
    assert mirror.wholes == 0
    boundary = objects(mirror.data)[-2]
    assert boundary["compactMetadata"]["preservedMessages"]["uuids"] == [uuid(12), uuid(13)]
    mirror.append(user("next", id=uuid(51)))
    assert mirror.wholes == 0
    made = read(mirror.data)
    assert bare(made.items) == bare(list(mirror.items.values()))
    assert hidden(made) == set() and made.damage == ()


def test_a_compaction_that_keeps_nothing_and_one_behind_open_calls() -> None:
    session = Session()
    session.user("go")
    session.call("t1")
    mirror = Mirror(session.data())
    closed, summary = mirror.append(Compaction(id=uuid(50), first_kept_seq=9, summary="all"))
    assert isinstance(closed, Message) and closed.tool_call_id == "t1"
    assert isinstance(summary, Summary) and summary.first_kept is None
    mirror = Mirror(session.data())
    mirror.append(Compaction(id=uuid(50), first_kept_seq=2, summary="all"))
    kept = objects(mirror.data)[-2]["compactMetadata"]["preservedMessages"]["uuids"]
    assert kept == [uuid(2), objects(mirror.data)[2]["uuid"]]
    assert fold(mirror.records()).compaction is not None


def test_a_thought_without_a_signature_is_left_out_and_an_event_is_no_line() -> None:
    mirror = Mirror(conversation().data())
    (item,) = mirror.append(assistant([Thinking("why"), Text("so")], id=uuid(60)))
    assert isinstance(item, Message) and item.content == (Text("so"),)
    assert mirror.append(Event(id=uuid(61), kind="turn_end")) == []


@pytest.mark.parametrize(
    "record",
    [
        user("", id=uuid(60)),
        user([], id=uuid(60)),
        user([OtherBlock({"type": "new"})], id=uuid(60)),
        user([Text("a"), File("a.bin", "application/octet-stream", "AA==")], id=uuid(60)),
        assistant([Image("image/png", "AA==")], id=uuid(60)),
        assistant([Thinking("only")], id=uuid(60)),
        tool_result("unknown", "x", id=uuid(60)),
        tool_result("t1", "again", id=uuid(60)),
        Compaction(id=uuid(60), first_kept_seq=1, summary=" "),
        Tombstone(id=uuid(60), deletes=(1,)),
        Rewind(id=uuid(60), to_seq=1),
        Meta(id=uuid(60), set={"name": "x"}),
    ],
)
def test_what_the_format_cannot_hold_is_refused_with_a_hint(record: AnyRecord) -> None:
    mirror = Mirror(conversation().data())
    with pytest.raises(UnsupportedError) as caught:
        mirror.append(record)
    assert caught.value.hint
    assert mirror.data == conversation().data()


# --- metadata -------------------------------------------------------------------------------


def test_a_title_is_a_line_that_goes_through_to_the_listing() -> None:
    mirror = Mirror(conversation().data())
    (line,) = claude.encode_metadata(mirror.notes, mirror, {"name": "  Birds \ud800"}).lines
    assert line.startswith(b'{"type":"custom-title",')
    mirror.grow(line + b"\n")
    assert read(mirror.data).metadata["name"] == "Birds \N{REPLACEMENT CHARACTER}"
    assert claude.encode_metadata(mirror.notes, mirror, {}).lines == ()
    for changes in ({"name": " "}, {"name": None}, {"model": "x"}, {"name": "x", "agent": "y"}):
        with pytest.raises(UnsupportedError) as caught:
            claude.encode_metadata(mirror.notes, mirror, changes)
        assert caught.value.hint


def test_a_new_session_is_an_empty_file_and_its_first_record_is_a_root() -> None:
    asked: list[str] = []

    def taken(stem: str) -> bool:
        asked.append(stem)
        return len(asked) == 1

    facts = {"agent": "main", "sender": "user", "model": "m", "key": None, "cwd": "/x"}
    begun = claude.build_session(facts, "2026-01-01T00:00:00.000Z", taken)
    assert begun.session_id == begun.stem == asked[1] and claude.is_id(begun.session_id)
    assert begun.edit.lines == ()
    mirror = Mirror(name=begun.session_id)
    mirror.append(user("hello", id=uuid(1), cwd="/x", timestamp="2026-01-02T00:00:00.000Z"))
    (made,) = objects(mirror.data)
    assert (made["parentUuid"], made["sessionId"], made["cwd"]) == (None, begun.session_id, "/x")
    assert claude.recognises("x.jsonl", mirror.data)
    mirror.append(assistant("hi", id=uuid(2)))
    assert shown(read(mirror.data)) == ["hello", "hi"]


def test_a_new_session_may_have_a_title_and_nothing_that_has_no_place() -> None:
    begun = claude.build_session({"name": " Birds "}, "", lambda _: False)
    (line,) = map(json.loads, begun.edit.lines)
    assert line == {"type": "custom-title", "customTitle": "Birds", "sessionId": begun.session_id}
    for facts in ({"agent": "x"}, {"sender": "bob"}, {"key": "k"}, {"name": " "}):
        with pytest.raises(UnsupportedError) as caught:
            claude.build_session(facts, "", lambda _: False)
        assert caught.value.hint
