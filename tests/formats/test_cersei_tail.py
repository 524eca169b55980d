"""Cersei's transcripts where they lie: followed line by line, added to, never written anew."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from everlog.errors import ConflictError, UnsupportedError
from everlog.interop.formats.cersei import FORMAT as cersei
from everlog.interop.formats.foreign_format import ForeignFormat
from everlog.interop.formats.format_types import HiddenMessages, InMemorySource, ListingScan, Summary
from everlog.model import (
    AnyBlock,
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
    Unknown,
    Usage,
    assistant,
    tool_result,
    user,
)
from tests.examples import examples
from tests.formats.mirror_checks import Mirror, context, cut, glanced, placed, plain
from tests.formats.round_trips import golden, texts, values, view

LIVE: ForeignFormat = cersei
NAME = "7d1f0a52-58c1-4e0e-9d67-2b1f6f0e9a01"
FULL, BARE = golden("cersei", NAME), golden("cersei", "bare", modified=0)
NOW = "2026-04-03T10:00:00+00:00"
UUIDS = [f"{number:08d}-0000-4000-8000-000000000000" for number in range(10)]


def lines_of(source: InMemorySource) -> list[bytes]:
    return [line for data in source.files.values() for line in data.split(b"\n")[:-1]]


def entry(uuid: str, content: Any = "x", kind: str = "user", **more: Any) -> dict[str, Any]:
    return {
        "type": kind,
        "uuid": uuid,
        "timestamp": NOW,
        "session_id": "S",
        "cwd": "/p",
        "message": {"role": kind, "content": content},
        "is_sidechain": False,
        **more,
    }


def tombstone(uuid: str) -> dict[str, Any]:
    return {"type": "tombstone", "deleted_uuid": uuid, "timestamp": NOW}


def summary(uuid: str, text: str = "so far") -> dict[str, Any]:
    head = {"type": "summary", "uuid": uuid, "timestamp": NOW, "session_id": "S"}
    return {**head, "summary": text, "messages_compacted": 1}


def results(count: int, text: str = "") -> list[dict[str, Any]]:
    made = [{"type": "tool_result", "tool_use_id": f"t{one}", "content": f"r{one}"} for one in range(count)]
    return [*made, {"type": "text", "text": text}] if text else made


def followed(*entries: Any) -> Mirror:
    mirror = Mirror(LIVE, "S")
    mirror.grow([json.dumps(one).encode() for one in entries])
    return mirror


def loaded(lines: Sequence[bytes]) -> list[Any]:
    """What Cersei loads: no tombstoned uuid, in the order of the file, without summaries."""
    entries = [one for one in values(b"\n".join(lines)) if isinstance(one, dict)]
    gone = {one["deleted_uuid"] for one in entries if one.get("type") == "tombstone"}
    return [
        one["message"]["content"]
        for one in entries
        if one.get("type") in ("user", "assistant", "system") and one["uuid"] not in gone
    ]


# --- following


def test_the_golden_session_is_followed_as_it_is_read() -> None:
    read = cersei.read(FULL)
    mirror = Mirror(LIVE, NAME)
    mirror.grow(lines_of(FULL))
    assert plain(mirror.records) == plain(read.items)
    assert plain(mirror.view.messages) == plain(view(read).messages)
    assert mirror.context == context(view(read))


def test_bare_messages_are_followed_under_the_ids_that_reading_gives() -> None:
    read = cersei.read(BARE)
    mirror = Mirror(LIVE, "bare")
    mirror.grow(lines_of(BARE))
    assert [(one.id, one.role, one.text) for one in mirror.view.messages] == [
        (one.id, one.role, one.text) for one in view(read).messages
    ]
    assert {one.timestamp for one in mirror.view.messages} == {""}  # the lines say none


def test_lines_in_any_pieces_say_the_same() -> None:
    for source in (FULL, BARE):
        lines = lines_of(source)
        at_once = Mirror(LIVE, source.name)
        at_once.grow(lines)
        for place in range(len(lines) + 1):
            mirror = Mirror(LIVE, source.name)
            for piece in cut(lines, [place]):
                mirror.grow(piece)
            assert plain(mirror.view.messages) == plain(at_once.view.messages)
            assert mirror.context == at_once.context


def test_parts_are_followed_as_one_stream() -> None:
    first, second = (data.split(b"\n")[:-1] for data in FULL.files.values())
    noted = cersei.read_tail({}, placed(first), Mirror(LIVE, NAME).transcript)
    assert noted is not None
    more = cersei.read_tail(noted.state, placed(second), Mirror(LIVE, NAME).transcript)
    whole = cersei.read_all([*placed(first), *placed(second)], Mirror(LIVE, NAME).transcript)
    assert more is not None
    said = [one.id for one in more.items if isinstance(one, Message)]
    assert said == [one.id for one in whole.items if isinstance(one, Message)][-len(said) :]


def test_a_tombstone_hides_its_entry_with_all_its_messages() -> None:
    mirror = followed(entry("a", results(3, "go on")), entry("b", "kept"))
    mirror.grow([json.dumps(tombstone("a")).encode()])
    assert mirror.texts == ["kept"]
    hidden = [one for one in mirror.records if isinstance(one, Tombstone)]
    assert [one.deletes for one in hidden] == [(1, 2, 3, 4)]


def test_a_tombstone_before_its_entry_hides_it_when_it_comes() -> None:
    lines = [
        json.dumps(one).encode()
        for one in (tombstone("a"), tombstone("s"), entry("b"), entry("a", results(2)), summary("s"))
    ]
    for place in range(len(lines) + 1):
        mirror = Mirror(LIVE, "S")
        for piece in cut(lines, [place]):
            mirror.grow(piece)
        assert mirror.context == ["x"]
    backwards = cersei.read_tail({}, placed(lines[::-1]), mirror.transcript)
    assert backwards is not None and "gone" not in backwards.state


def test_what_is_noted_stays_small() -> None:
    mirror = followed(*(tombstone(f"{number:036d}") for number in range(1000)))
    mirror.grow([json.dumps(entry("u" * 5000, cwd="/" + "d" * 5000, session_id="s" * 5000)).encode()])
    assert len(json.dumps(mirror.notes)) < 2000
    mirror.grow([json.dumps(entry(f"{999:036d}", "late")).encode()])
    assert mirror.texts == ["x"]


def test_a_summary_that_was_deleted_is_no_summary_to_who_comes_later() -> None:
    mirror = followed(entry("a"), summary("s"), tombstone("s"))
    assert mirror.context == ["x"]


def test_damage_and_records_of_the_future_say_nothing_and_stop_nothing() -> None:
    odd = [b"", b"  ", b"\0\0", b"{torn", b"[1]", b'{"type":"hook","uuid":"h"}', b"\xff"]
    odd += [b'{"type":"user","uuid":"q","message":{"role":"user","content":5}}']
    for place in range(3):
        lines = [json.dumps(one).encode() for one in (entry("a", "1"), entry("b", "2"))]
        lines[place:place] = odd
        mirror = Mirror(LIVE, "S")
        mirror.grow(lines)
        assert mirror.texts == ["1", "2"]


def test_text_that_is_no_unicode_is_read_as_elsewhere() -> None:
    line = json.dumps(entry("a", "cut X")).encode().replace(b"X", b"\\ud83d")
    mirror = Mirror(LIVE, "S")
    mirror.grow([line])
    assert mirror.texts == ["cut \ufffd"]


contents = texts | st.lists(
    st.one_of(
        st.builds(lambda text: {"type": "text", "text": text}, texts),
        st.builds(lambda one: results(1)[0] | {"content": one}, texts),
        st.builds(lambda one: {"type": "hologram", "data": one}, texts),
        st.just({"type": "tool_use", "id": "t", "name": "n", "input": {}}),
    ),
    max_size=4,
)
steps = st.one_of(
    st.builds(lambda one: ("user", one), contents),
    st.builds(lambda one: ("assistant", one), contents),
    st.builds(lambda one: ("bare", one), contents),
    st.builds(lambda one: ("system", one), contents),
    st.builds(lambda one: ("summary", one), texts),
    st.builds(lambda one: ("tombstone", one), st.integers(0, 12)),
    st.builds(lambda one: ("noise", one), st.sampled_from([b"", b"{", b'{"type":"x"}', b"\xff"])),
)


def file_of(given: list[tuple[str, Any]]) -> list[bytes]:
    """Lines whose uuids are their numbers; no summary is deleted."""
    lines: list[bytes] = []
    for number, (kind, one) in enumerate(given):
        value: Any
        if kind == "noise":
            lines.append(one)
            continue
        if kind == "tombstone":
            is_summary = one < len(given) and given[one][0] == "summary"
            value = tombstone("nobody" if is_summary else f"u{one}")
        elif kind == "summary":
            value = summary(f"u{number}", one)
        elif kind == "bare":
            value = {"role": "user", "content": one}
        else:
            value = entry(f"u{number}", one, kind)
        lines.append(json.dumps(value).encode())
    return lines


@settings(deadline=None, max_examples=examples(200))
@given(st.lists(steps, max_size=12), st.lists(st.integers(0, 12), max_size=3))
def test_any_file_in_any_pieces_shows_what_reading_it_shows(given: list[tuple[str, Any]], places: list[int]) -> None:
    lines = file_of(given)
    mirror = Mirror(LIVE, "S")
    for piece in cut(lines, places):
        mirror.grow(piece)
    assert mirror.wholes == 0
    read = view(cersei.read(mirror.source))
    assert [(one.id, one.role, one.content) for one in mirror.view.messages] == [
        (one.id, one.role, one.content) for one in read.messages
    ]
    assert mirror.context == context(read)
    assert glanced(LIVE, cut(lines, places)) == glanced(LIVE, [lines])
    assert glanced(LIVE, [lines]).messages == len(plain(mirror.records))


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_no_bytes_are_too_strange_to_follow(data: bytes) -> None:
    mirror = Mirror(LIVE, "S")
    mirror.grow(data.split(b"\n"))
    glanced(LIVE, [data.split(b"\n")])


# --- adding


def test_an_appended_message_is_an_entry_as_cersei_writes_it() -> None:
    mirror = followed(entry(UUIDS[0], "hi", session_id="other"))
    mirror.append(
        assistant(
            [Thinking("hm", "sig"), Text("a"), ToolCall("c", "f", {"x": 1}, "dropped")],
            id=UUIDS[1],
            timestamp=NOW,
            model="m",
            usage=Usage(input_tokens=1, output_tokens=2, total_tokens=3),
            stop_reason="tool_use",
        )
    )
    mirror.append(replace(tool_result("c", "ok", id="no uuid", timestamp=NOW, is_error=True), cwd="/q"))
    answer, result = values(b"\n".join(mirror.lines))[1:]
    assert list(answer) == ["type", "uuid", "parent_uuid", "timestamp", "session_id", "cwd", "message", "is_sidechain"]
    assert (answer["uuid"], answer["parent_uuid"]) == (UUIDS[1], UUIDS[0])
    assert (answer["session_id"], answer["cwd"], answer["is_sidechain"]) == ("other", "/p", False)
    assert answer["message"]["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": "sig"},
        {"type": "text", "text": "a"},
        {"type": "tool_use", "id": "c", "name": "f", "input": {"x": 1}},
    ]
    assert answer["message"]["metadata"]["model"] == "m"
    assert UUID(result["uuid"]).version == 4 and "parent_uuid" not in result
    assert (result["type"], result["cwd"]) == ("user", "/q")


def test_what_is_appended_is_said_again_by_the_file() -> None:
    mirror = Mirror(LIVE, NAME)
    mirror.grow(lines_of(FULL))
    before = len(mirror.lines)
    for record in (
        user("new", id=UUIDS[1], timestamp=NOW),
        assistant("answer", id=UUIDS[2], timestamp=NOW, model="m"),
        user([Image("image/png", "AAAA"), Text("look")], id=UUIDS[3], timestamp=NOW),
    ):
        (item,) = mirror.append(record)
        assert isinstance(item, Message)
        assert (item.id, item.role, item.content) == (record.id, record.role, record.content)
        assert item.cwd == "/Users/foo/p"
    assert mirror.lines[:before] == lines_of(FULL)
    read = cersei.read(mirror.source)
    assert not read.damage
    assert plain(view(read).messages)[-3:] == plain(mirror.view.messages)[-3:]
    assert loaded(mirror.lines)[-3:-1] == ["new", "answer"]


def test_the_same_record_makes_the_same_line_when_it_is_tried_again() -> None:
    mirror = followed(entry("a"))
    for record in (user("x", id="retry"), user("x"), Compaction(first_kept_seq=1, summary="s", id="c")):
        assert cersei.encode_record(mirror.notes, mirror, record) == cersei.encode_record(mirror.notes, mirror, record)


def test_a_compaction_that_keeps_nothing_is_one_line() -> None:
    mirror = followed(entry("a", "1"), entry("b", "2", "assistant"))
    (item,) = mirror.append(Compaction(first_kept_seq=3, summary="sum", id=UUIDS[4], timestamp=NOW))
    assert isinstance(item, Summary) and (item.id, item.text) == (UUIDS[4], "sum")
    line = values(mirror.lines[-1])[0]
    assert line == summary(UUIDS[4], "sum") | {"messages_compacted": 2}
    assert list(line) == list(summary("", ""))
    assert mirror.context == ["sum"]


def test_what_a_compaction_keeps_is_said_again_behind_it_and_nowhere_twice() -> None:
    mirror = followed(entry("a", "1"), entry("b", "2", "assistant"), entry("c", "3"))
    mirror.append(Tombstone(deletes=(1,), timestamp=NOW))
    items = mirror.append(Compaction(first_kept_seq=2, summary="sum", id=UUIDS[4], timestamp=NOW))
    assert [type(one) for one in items] == [HiddenMessages, HiddenMessages, Summary, Message, Message]
    assert mirror.context == ["sum", "2", "3"]
    assert mirror.texts == ["2", "3"]
    assert loaded(mirror.lines) == ["2", "3"]
    read = view(cersei.read(mirror.source))
    assert context(read) == ["sum", "2", "3"]
    again = values(b"\n".join(mirror.lines[-2:]))
    assert all(UUID(one["uuid"]).version == 4 for one in again)
    mirror.append(Compaction(first_kept_seq=8, summary="more", id=UUIDS[5], timestamp=NOW))
    assert mirror.context == ["more", "2", "3"]
    assert loaded(mirror.lines) == ["2", "3"]


def test_a_compaction_in_the_middle_of_an_entry_loses_nothing_of_it() -> None:
    mirror = followed(entry("a", results(2, "go on")), entry("b", "well", "assistant"))
    mirror.append(Compaction(first_kept_seq=3, summary="sum", id=UUIDS[4], timestamp=NOW))
    assert mirror.context == ["sum", "go on", "well"]
    assert sorted(mirror.texts) == ["go on", "r0", "r1", "well"]
    assert context(view(cersei.read(mirror.source))) == ["sum", "go on", "well"]


def test_an_entry_of_which_nothing_is_kept_stays_where_it_is() -> None:
    mirror = followed(entry("a", results(1, "go on")), entry("b", "well", "assistant"))
    mirror.records.append(Tombstone(seq=4, deletes=(2,)))  # as another store may have left it
    mirror.append(Compaction(first_kept_seq=2, summary="sum", id=UUIDS[4], timestamp=NOW))
    assert mirror.texts == ["r0", "well"]
    assert mirror.context == ["sum", "well"]


def test_what_we_delete_gets_a_tombstone_per_entry() -> None:
    mirror = followed(entry("a", results(2)), entry("b", "kept"), entry("c", "gone"))
    mirror.append(Tombstone(deletes=(1, 2, 4), timestamp=NOW))
    assert values(b"\n".join(mirror.lines[-2:])) == [tombstone("a"), tombstone("c")]
    assert mirror.texts == ["kept"] == loaded(mirror.lines)
    assert [one.text for one in view(cersei.read(mirror.source)).messages] == ["kept"]


def test_what_we_rewind_gets_tombstones_with_the_summaries_behind_it() -> None:
    mirror = followed(entry("a", "1"), entry("b", "2"), entry("d", "x"), summary("s"), entry("c", "3"))
    mirror.append(Tombstone(deletes=(3,), timestamp=NOW))
    mirror.append(Rewind(to_seq=1, timestamp=NOW))
    assert values(b"\n".join(mirror.lines[-3:])) == [tombstone("b"), tombstone("c"), tombstone("s")]
    assert loaded(mirror.lines) == ["1"]
    assert context(view(cersei.read(mirror.source))) == ["1"]
    afresh = Mirror(LIVE, "S")
    afresh.grow(mirror.lines)
    assert afresh.context == ["1"]


def test_a_bare_file_goes_on_bare() -> None:
    mirror = Mirror(LIVE, "bare")
    mirror.grow(lines_of(BARE))
    mirror.append(user("more", id=UUIDS[1], timestamp=NOW))
    assert values(mirror.lines[-1]) == [{"role": "user", "content": "more"}]
    assert [one.id for one in mirror.view.messages] == [one.id for one in view(cersei.read(mirror.source)).messages]


def test_an_event_needs_no_line() -> None:
    for mirror in (followed(entry("a")), followed({"role": "user", "content": "x"})):
        assert mirror.append(Event(kind="turn_end")) == []
        assert len(mirror.lines) == 1


@pytest.mark.parametrize(
    "record",
    [
        user([OtherBlock({"type": "hologram"})]),
        Tombstone(restores=(1,)),
        Tombstone(deletes=(1,)),  # of two in one entry
        Rewind(to_seq=1),
        Compaction(first_kept_seq=1, summary=""),
        Meta(set={"name": "A title"}),
        Unknown(record_type="future"),
    ],
)
def test_what_a_transcript_cannot_hold_is_refused_with_a_hint(record: AnyRecord) -> None:
    mirror = followed(entry("a", results(2)))
    with pytest.raises(UnsupportedError) as refused:
        mirror.append(record)
    assert "import" in refused.value.hint
    assert len(mirror.lines) == 1


@pytest.mark.parametrize(
    "record", [Tombstone(deletes=(1,)), Rewind(to_seq=0), Compaction(first_kept_seq=2, summary="s")]
)
def test_a_bare_file_holds_messages_only(record: AnyRecord) -> None:
    with pytest.raises(UnsupportedError):
        followed({"role": "user", "content": "x"}).append(record)


def test_blocks_of_cerseis_own_kinds_and_files_have_a_place() -> None:
    mirror = followed()
    blocks: list[AnyBlock] = [
        OtherBlock({"type": "redacted_thinking", "data": "AAAA"}),
        File("a.pdf", "application/pdf", "AAAA"),
    ]
    mirror.append(user(blocks, id=UUIDS[1]))
    kinds = [one["type"] for one in values(mirror.lines[0])[0]["message"]["content"]]
    assert kinds == ["redacted_thinking", "document"]


# --- names, beginning, listing


@pytest.mark.parametrize("name", ["S", NAME, "a b", "x" * 243, "part2", "漢字", "S_part", "_partx"])
def test_names_of_files_are_ids(name: str) -> None:
    assert cersei.is_id(name)
    assert cersei.session_id_of(name, None) == name


@pytest.mark.parametrize("name", ["", ".", "..", ".x", "a/b", "a\\b", "a\0", "x" * 244, "S_part2"])
def test_what_could_be_another_file_is_no_id(name: str) -> None:
    assert not cersei.is_id(name)


def nobody(stem: str) -> bool:
    return False


def test_a_session_begins_with_an_empty_file_called_like_its_key() -> None:
    made = cersei.build_session({"key": "mine", "agent": "main", "sender": "user", "model": "m"}, NOW, nobody)
    assert (made.session_id, made.stem, made.edit.lines) == ("mine", "mine", ())
    other = cersei.build_session({"key": "a/b"}, NOW, nobody)
    assert UUID(other.session_id).version == 4 and other.stem == other.session_id
    with pytest.raises(ConflictError):
        cersei.build_session({"key": "mine"}, NOW, lambda stem: True)


@pytest.mark.parametrize("facts", [{"agent": "other"}, {"sender": "bob"}, {"name": "A title"}])
def test_a_session_with_facts_that_have_no_place_is_not_begun(facts: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError):
        cersei.build_session(facts, NOW, nobody)
    with pytest.raises(UnsupportedError):
        cersei.encode_metadata({}, Mirror(LIVE, "S"), facts)


def test_a_session_that_begins_here_goes_on_here() -> None:
    mirror = Mirror(LIVE, "mine")
    mirror.append(user("hello", id=UUIDS[1], timestamp=NOW))
    mirror.append(assistant("hi", id=UUIDS[2], timestamp=NOW))
    assert cersei.recognises("mine.jsonl", mirror.lines[0] + b"\n")
    assert {one["session_id"] for one in values(b"\n".join(mirror.lines))} == {"mine"}
    assert [one.text for one in view(cersei.read(mirror.source)).messages] == ["hello", "hi"]


def test_a_listing_shows_what_reading_finds() -> None:
    lines = lines_of(FULL)
    read = cersei.read(FULL)
    seen = glanced(LIVE, [lines])
    assert seen == ListingScan(
        messages=sum(isinstance(one, Message) for one in read.items),
        title="fix the tests",
        created="2026-04-03T10:00:00.123456+00:00",
        last="2026-04-03T10:00:06+00:00",
        model=read.metadata["model"],
        cwd=read.metadata["cwd"],
        program_id=NAME,
    )
    for place in range(len(lines)):
        assert glanced(LIVE, cut(lines, [place])) == seen
    assert glanced(LIVE, [lines_of(BARE)]).messages == 3


@pytest.mark.parametrize(
    ("content", "title"),
    [
        ("\n first\nsecond", "first"),
        ("x" * 200, "x" * 80),
        (results(2, "asked"), "asked"),
        ([{"type": "image", "source": {}}], "next"),
    ],
)
def test_a_listing_is_entitled_by_what_the_user_said_first(content: Any, title: str) -> None:
    entries = [entry("0", "no", "assistant"), entry("a", content), entry("b", "next")]
    assert glanced(LIVE, [[json.dumps(one).encode() for one in entries]]).title == title


def test_damage_counts_in_no_listing() -> None:
    lines = lines_of(FULL)
    for spoil in (lambda one: one[:-1], lambda one: b"\0" * len(one), lambda one: b"\xff" + one):
        spoiled: Callable[[bytes], bytes] = spoil
        broken = [spoiled(one) if at % 2 else one for at, one in enumerate(lines)]
        mirror = Mirror(LIVE, NAME)
        mirror.grow(broken)
        assert glanced(LIVE, [broken]).messages == len(plain(mirror.records))
