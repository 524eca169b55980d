"""CrabTalk's files used where they lie: followed line by line, and written to."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.errors import FormatError, UnsupportedError
from everlog.interop.formats.crabtalk import FORMAT as crabtalk
from everlog.interop.formats.foreign_format import ForeignFormat
from everlog.interop.formats.format_types import (
    InMemorySource,
    Line,
    ListingScan,
    Summary,
    TailResult,
    TailState,
    TranscriptInfo,
    split_lines,
)
from everlog.model import (
    Compaction,
    Event,
    File,
    Image,
    Message,
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
from tests.formats.expectations import Held, pieces, spoken
from tests.formats.round_trips import files
from tests.formats.test_crabtalk import FULL, META
from tests.formats.test_crabtalk import lines as any_line

DIALECT: ForeignFormat = crabtalk
HEAD = META.rstrip(b"\n")
STEM = "crab_user_1"
WHERE = TranscriptInfo(STEM, HEAD)
cuts = st.lists(st.integers(0, 9), max_size=4)


def held(*lines: str, stem: str = STEM, head: bytes = HEAD) -> Held:
    return Held(DIALECT, stem, head + b"\n" + "".join(f"{line}\n" for line in lines).encode())


def follow(notes: TailState, lines: Iterable[Line], where: TranscriptInfo) -> TailResult:
    followed = crabtalk.read_tail(notes, lines, where)
    assert followed is not None
    return followed


def behind_head(source: InMemorySource) -> list[Line]:
    return list(split_lines(next(iter(source.files.values()))))[1:]


def head(**changes: Any) -> bytes:
    return json.dumps({**json.loads(HEAD), **changes}, separators=(",", ":")).encode()


# --- following


@settings(deadline=None)
@given(files(any_line), cuts)
def test_lines_say_the_same_however_they_are_split(data: bytes, where: list[int]) -> None:
    lines = list(split_lines(data))
    at_once = follow({}, lines, WHERE)
    notes: dict[str, Any] = {}
    items: list[Any] = []
    for piece in pieces(lines, where):
        followed = follow(notes, piece, WHERE)
        items += followed.items
        notes = json.loads(json.dumps(followed.state))
    assert (items, notes) == (at_once.items, at_once.state)
    assert crabtalk.read_all(lines, WHERE) == at_once


@settings(deadline=None)
@given(files(any_line))
def test_followed_lines_say_what_the_whole_file_says(data: bytes) -> None:
    whole = crabtalk.read(InMemorySource(STEM, {f"{STEM}.jsonl": META + data}))
    items = follow({}, split_lines(data), WHERE).items
    assert spoken(items) == spoken(whole.items)
    assert len({item.id for item in items}) == len(items)


def test_the_golden_session_is_followed_in_full() -> None:
    lines = behind_head(FULL)
    beside = next(iter(FULL.files.values())).partition(b"\n")[0]
    items = follow({}, lines, TranscriptInfo("crab_tg-12345_2", beside)).items
    assert spoken(items) == spoken(crabtalk.read(FULL).items)
    assert {item.timestamp for item in items} == {"2026-04-02T08:15:30.123Z"}
    assert all(item.line == b"" for item in items if isinstance(item, Message))


def test_a_summary_keeps_nothing_before_it() -> None:
    session = held('{"role":"user","content":"a"}', '{"compact":"s"}', '{"role":"user","content":"b"}')
    assert isinstance(session.items[1], Summary) and session.items[1].first_kept is None
    assert session.context == ("s", ["b"])


def test_a_damaged_line_costs_nothing_beside_it_and_no_id_changes() -> None:
    rows = [b'{"role":"user","content":"%d"}' % number for number in range(4)]
    sound = follow({}, [Line(0, row) for row in rows], WHERE).items
    for at in range(4):
        for junk in (b"", b"\0\0\0", rows[at][:9], b"\xff", b"[1]", b'{"role":7}', b'{"role":"user","content":7}'):
            broken = [*rows[:at], junk, *rows[at + 1 :]]
            items = follow({}, [Line(0, row) for row in broken], WHERE).items
            assert items == [*sound[:at], *sound[at + 1 :]]


def test_without_a_readable_head_there_are_messages_without_a_time() -> None:
    for beside in (None, b"", b"{torn", b'{"agent":"crab"}'):
        items = follow({}, [Line(0, b'{"role":"user","content":"a"}')], TranscriptInfo(STEM, beside)).items
        assert [item.timestamp for item in items] == [""]


# --- names


def test_the_id_is_the_name_without_its_title() -> None:
    assert crabtalk.session_id_of("crab_user_1", HEAD) == "crab_user_1"
    assert crabtalk.session_id_of("crab_user_1_a-title", HEAD) == "crab_user_1"
    assert crabtalk.session_id_of("crab_user_1_a-title", None) == "crab_user_1"
    assert crabtalk.session_id_of("my_2_crab_user_3_t", head(agent="my_2_crab")) == "my_2_crab_user_3"
    assert crabtalk.session_id_of("researcher_user_hello-world", HEAD) == "researcher_user_hello-world"


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("crab_user_1", True),
        ("crab__1", True),
        ("crab", False),
        ("", False),
        ("a/b_c_1", False),
        ("a\0_b_1", False),
        ("._a_1", False),
        ("..", False),
        ("a_" + "x" * 247, True),
        ("a_" + "x" * 248, False),
        ("a_" + "漢" * 83, False),
        ("a_\udcff", False),
    ],
)
def test_an_id_can_be_the_name_of_a_file(text: str, is_one: bool) -> None:
    assert crabtalk.is_id(text) is is_one


# --- adding


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (user('hi "é" \u2028\t'), '{"role":"user","content":"hi \\"é\\" \u2028\\t"}'),
        (user([Text("a"), Text("b")], cwd="/x", sender="s"), '{"role":"user","content":"a\\nb"}'),
        (
            assistant([Thinking("hm", "sig"), Text("I look."), ToolCall("c", "f", {"a": [1, "é"]}, "sig")], model="m"),
            '{"role":"assistant","content":"I look.","reasoning_content":"hm","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\\"a\\":[1,\\"é\\"]}"}}]}',
        ),
        (
            assistant([ToolCall("c", "f", {})]),
            '{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]}',
        ),
        (
            tool_result("c", "no", tool_name="f", is_error=True),
            '{"role":"tool","content":"no","name":"f","tool_call_id":"c"}',
        ),
        (user("\ud800"), '{"role":"user","content":"\ufffd"}'),
        (user([]), '{"role":"user"}'),
    ],
)
def test_a_message_is_one_line_as_crabtalk_writes_it(message: Message, line: str) -> None:
    session = held()
    assert session.append(message).lines == (line.encode(),)
    read = session.read()
    assert not read.damage
    shown = [item for item in read.items if isinstance(item, Message)]
    assert [(one.role, one.tool_call_id) for one in shown] == [(message.role, message.tool_call_id)]
    assert spoken(session.items) == spoken(shown)
    assert session.notes == {"lines": 1}


def test_a_compaction_says_again_what_it_keeps() -> None:
    session = held()
    for text in "abcd":
        session.append(user(text))
    added = session.append(Compaction(first_kept_seq=3, summary="sum"))
    assert added.lines == (b'{"compact":"sum"}', b'{"role":"user","content":"c"}', b'{"role":"user","content":"d"}')
    assert session.context == ("sum", ["c", "d"])
    session.append(user("e"))
    added = session.append(Compaction(first_kept_seq=len(session.records), summary="again"))
    assert added.lines == (b'{"compact":"again"}', b'{"role":"user","content":"e"}')
    assert session.context == ("again", ["e"])
    assert not session.read().damage


def test_a_compaction_never_says_again_what_an_older_marker_covers() -> None:
    session = held('{"role":"user","content":"a"}', '{"compact":"s"}', '{"role":"user","content":"b"}')
    added = session.append(Compaction(first_kept_seq=1, summary="t"))
    assert added.lines == (b'{"compact":"t"}', b'{"role":"user","content":"b"}')


def test_a_compaction_that_keeps_nothing_is_one_line() -> None:
    session = held('{"role":"user","content":"a"}')
    assert session.append(Compaction(first_kept_seq=2, summary="s\ud800")).lines == ('{"compact":"s\ufffd"}'.encode(),)


def test_an_event_is_nothing_to_be_done() -> None:
    session = held()
    added = DIALECT.encode_record(session.notes, session, Event(kind="turn_end", data={"durationMs": 5}))
    assert (added.lines, added.head, added.files, added.stem) == ((), None, {}, None)


@pytest.mark.parametrize(
    "record",
    [
        user([Text("look"), Image(data="AAAA")]),
        user([Image(url="https://example.org/a.png")]),
        user([File(name="a.txt", data="AAAA")]),
        user([OtherBlock({"type": "video"})]),
        Tombstone(deletes=(1,)),
        Rewind(to_seq=0),
    ],
)
def test_what_has_no_place_is_refused_with_a_hint(record: Any) -> None:
    session = held('{"role":"user","content":"a"}')
    with pytest.raises(UnsupportedError) as caught:
        DIALECT.encode_record(session.notes, session, record)
    assert "everlog import" in caught.value.hint


# --- the line about the session


def test_a_title_changes_the_first_line_and_the_name() -> None:
    session = held('{"role":"user","content":"a"}', head=head(later={"key": [1]}))
    before = session.transcript.session_id
    added = DIALECT.encode_metadata(session.notes, session, {"name": "Fix: the Build!"})
    assert added.head == (
        b'{"agent":"crab","created_by":"user","created_at":"2026-04-02T08:15:30+00:00",'
        b'"title":"Fix: the Build!","uptime_secs":42,"later":{"key":[1]}}'
    )
    assert added.stem == "crab_user_1_fix-the-build"
    session.put(added)
    assert session.transcript.session_id == before
    assert session.read().metadata["name"] == "Fix: the Build!"
    again = DIALECT.encode_metadata(session.notes, session, {"name": "Other"})
    assert again.stem == "crab_user_1_other"


def test_a_title_without_a_letter_renames_nothing() -> None:
    session = held()
    for title in (":::", "", None):
        added = DIALECT.encode_metadata(session.notes, session, {"name": title})
        assert added.stem is None and added.head == head(title=title or "")


def test_a_long_title_still_makes_a_name() -> None:
    session = held()
    for title in ("x" * 300, "漢" * 300, "a b " * 100):
        stem = DIALECT.encode_metadata(session.notes, session, {"name": title}).stem
        assert stem is not None and len(f"{stem}.jsonl".encode()) <= 255
        assert DIALECT.session_id_of(stem, session.transcript.meta_bytes) == STEM


def test_a_file_without_a_number_keeps_its_name() -> None:
    session = held(stem="crab_user_hello-world")
    added = DIALECT.encode_metadata(session.notes, session, {"name": "Other"})
    assert added.stem is None and added.head == head(title="Other")


def test_the_time_of_turns_is_written_when_it_is_asked_for() -> None:
    session = held(head=b'{"agent":"crab","created_by":"user","created_at":"2026-04-02T08:15:30+00:00"}')
    added = DIALECT.encode_metadata(session.notes, session, {"uptimeSecs": 90})
    assert added.head == head(uptime_secs=90) and added.stem is None


def test_other_metadata_has_no_place() -> None:
    session = held()
    for changes in ({"model": "m"}, {"key": "k"}, {"uptimeSecs": -1}, {"uptimeSecs": True}, {"name": 7}):
        with pytest.raises(UnsupportedError):
            DIALECT.encode_metadata(session.notes, session, changes)
    lost = held(head=b"{torn")
    with pytest.raises(FormatError):
        DIALECT.encode_metadata(lost.notes, lost, {"name": "t"})


# --- making


def begin(taken: Collection[str] = (), **facts: Any) -> Any:
    return DIALECT.build_session(
        facts, "2026-04-02T08:15:30.000Z", lambda stem: any(one == stem or one.startswith(f"{stem}_") for one in taken)
    )


def test_a_new_session_is_what_crabtalk_would_make() -> None:
    made = begin(agent="crab", sender="TG:user-123", source="interactive", model="m", cwd=None)
    assert (made.session_id, made.stem) == ("crab_tg-user-123_1", "crab_tg-user-123_1")
    assert made.edit.head == (
        b'{"agent":"crab","created_by":"TG:user-123","created_at":"2026-04-02T08:15:30+00:00",'
        b'"title":"","uptime_secs":0}'
    )
    session = Held(DIALECT, made.stem, made.edit.head + b"\n")
    session.append(user("hello"))
    assert DIALECT.recognises(f"{made.stem}.jsonl", session.data)
    assert session.read().metadata == {"agent": "crab", "sender": "TG:user-123", "chat": 1}


def test_the_next_number_is_taken_and_no_title_hides_one() -> None:
    taken = {"crab_user_1", "crab_user_2_a-title", "crab_user_4", "crab_user_12"}
    assert begin(taken, agent="crab").session_id == "crab_user_3"
    assert begin(taken, agent="crab", chat=4).session_id == "crab_user_5"
    assert begin(taken, agent="crab", chat=13).session_id == "crab_user_13"


def test_a_new_session_may_have_a_title() -> None:
    made = begin(agent="my_2_crab", sender=":::", name="A Title")
    assert (made.session_id, made.stem) == ("my_2_crab__1", "my_2_crab__1_a-title")
    assert DIALECT.session_id_of(made.stem, made.edit.head) == made.session_id
    assert json.loads(made.edit.head)["title"] == "A Title"


def test_a_time_has_no_zeros_and_keeps_its_milliseconds() -> None:
    made = DIALECT.build_session({}, "2026-04-02T08:15:30.120Z", lambda _: False)
    assert json.loads(made.edit.head or b"")["created_at"] == "2026-04-02T08:15:30.120+00:00"


@pytest.mark.parametrize(
    "facts", [{"key": "k"}, {"aliases": ["a"]}, {"scope": {"v": 1}}, {"agent": "a/b"}, {"agent": "x" * 250}]
)
def test_facts_without_a_place_are_refused(facts: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError):
        begin(**facts)


# --- listing


@settings(deadline=None)
@given(files(any_line), cuts)
def test_a_listing_counts_what_would_be_followed(data: bytes, where: list[int]) -> None:
    lines = list(split_lines(data))
    at_once = crabtalk.scan_listing(ListingScan(), lines, TranscriptInfo("", HEAD))
    seen = ListingScan()
    for piece in pieces(lines, where):
        seen = crabtalk.scan_listing(seen, piece, TranscriptInfo("", HEAD))
    assert seen == at_once
    items = follow({}, lines, WHERE).items
    assert at_once.messages == sum(isinstance(item, Message) for item in items)


def test_a_listing_shows_what_the_first_line_says() -> None:
    beside = next(iter(FULL.files.values())).partition(b"\n")[0]
    seen = crabtalk.scan_listing(ListingScan(), behind_head(FULL), TranscriptInfo("", beside))
    assert seen == ListingScan(
        messages=9, title="Fix the build!", created="2026-04-02T08:15:30.123Z", agent="crab", sender="tg:12345"
    )
    assert crabtalk.scan_listing(seen, [], TranscriptInfo("", head(title="New"))).title == "New"
    assert crabtalk.scan_listing(ListingScan(), behind_head(FULL), TranscriptInfo("")) == ListingScan(messages=9)
