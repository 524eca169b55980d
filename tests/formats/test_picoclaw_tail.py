"""PicoClaw's two files used where they lie: followed, written to, truncated, reclaimed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from everlog.errors import ConflictError, FormatError, StoreFullError, UnsupportedError
from everlog.interop.formats.foreign_format import ForeignFormat
from everlog.interop.formats.format_types import HiddenMessages, Line, ListingScan, Summary, TranscriptInfo, split_lines
from everlog.interop.formats.picoclaw import FORMAT as picoclaw
from everlog.interop.formats.picoclaw.go_json import encode_go_json
from everlog.interop.formats.picoclaw.history_edits import encode_history, truncate
from everlog.interop.formats.picoclaw.lines import encode_message_line
from everlog.interop.formats.picoclaw.reader import NO_SUMMARY_TEXT
from everlog.model import (
    AnyRecord,
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
from tests.examples import examples
from tests.formats.expectations import Held, pieces, spoken
from tests.formats.round_trips import files, view
from tests.formats.test_picoclaw import LINES, META, abouts, meta
from tests.formats.test_picoclaw import lines as any_line

DIALECT: ForeignFormat = picoclaw
STEM = "agent_main_direct_42"
AT = "2026-07-01T00:00:00.500Z"
GO = "2026-07-01T00:00:00.5Z"
cuts = st.lists(st.integers(0, 9), max_size=4)
DEAD = b"{torn"
MUTE = b'{"role":"system","content":"s"}'
THOUGHT = b'{"role":"assistant","content":" ","created_at":"2026-06-13T08:00:00Z","reasoning_content":"hm"}'


def said(*texts: str) -> bytes:
    return b"".join(b'{"role":"user","content":"%b"}\n' % text.encode() for text in texts)


def held(data: bytes = LINES, about: bytes | None = META) -> Held:
    return Held(DIALECT, STEM, data, about)


def told(session: Held, **changes: Any) -> list[Any]:
    """What is followed when only the second file changes."""
    before = len(session.items)
    session.about = meta(**changes)
    session.level()
    return session.items[before:]


# --- following


@settings(deadline=None)
@given(files(any_line), abouts, cuts)
def test_the_conversation_is_the_same_however_the_lines_are_split(data: bytes, about: bytes, where: list[int]) -> None:
    at_once = held(data, about)
    lines = list(split_lines(data))
    parts = Held(DIALECT, STEM, b"", about)
    for piece in pieces(lines, where):
        parts.data += b"".join(line.data + b"\n" for line in piece)
        parts.level()
    assert parts.context == at_once.context
    ids = [item.id for item in parts.items]
    assert len(set(ids)) == len(ids)
    messages = [item for item in parts.items if isinstance(item, Message)]
    assert messages == [item for item in at_once.items if isinstance(item, Message)]
    for name in ("raw", "newest", "now"):
        assert parts.notes.get(name) == at_once.notes.get(name)


@settings(deadline=None)
@given(files(any_line), abouts)
def test_followed_files_say_what_they_say_as_a_whole(data: bytes, about: bytes) -> None:
    session = held(data, about)
    read = session.read()
    assert spoken(session.items) == spoken(read.items)
    assert all(item.line == b"" for item in session.items if isinstance(item, Message))
    whole = view(read)
    assert [one.text for one in session.view.messages] == [one.text for one in whole.messages]
    times = [item.timestamp for item in session.items if isinstance(item, Message)]
    assert times == [item.timestamp for item in read.items if isinstance(item, Message)]


def test_the_golden_session_is_followed_in_full() -> None:
    session = held()
    assert session.context == ("They read a.go & more.", ["It is a.", "look", "signed", "ok", "names in any case"])
    assert session.notes["raw"] == 10
    assert session.items[-1].timestamp == "2026-06-13T08:00:07.987654321+02:00"


def test_an_id_follows_from_what_a_line_says_and_not_from_where_it_is() -> None:
    session = held(b"\n" + said("a") + b"\r\n" + DEAD + b"\n" + said("b", "a"), None)
    first, second, third = (item.id for item in session.items)
    alone = held(said("b", "a"), None)
    assert [item.id for item in alone.items] == [second, first]
    assert third not in (first, second)
    written = b'{"new": 1, "content":"b", "role":"user"}\n'  # as PicoClaw would not write it
    assert [item.id for item in held(written, None).items] == [second]


def test_a_new_summary_names_the_first_message_behind_it() -> None:
    session = held(said("a", "b") + MUTE + b"\n" + DEAD + b"\n" + said("c"), meta(summary="", skip=0))
    (summary,) = told(session, summary="S", skip=2)
    assert isinstance(summary, Summary) and summary.first_kept == session.items[2].id
    assert session.context == ("S", ["c"])
    assert told(session, summary="S", skip=2, count=9) == []
    (other,) = told(session, summary="T", skip=2)
    assert session.context == ("T", ["c"])
    (third,) = told(session, summary="T", skip=5)
    assert third.first_kept is None and session.context == ("T", [])
    (again,) = told(session, summary="S", skip=2)
    assert session.context == ("S", ["c"])
    assert len({summary.id, other.id, third.id, again.id}) == 4


def test_skipped_lines_without_a_summary_are_hidden_and_may_be_shown_again() -> None:
    session = held(said("a", "b", "c", "d"), meta(summary="", skip=0))
    (hidden,) = told(session, summary="", skip=2)
    assert isinstance(hidden, HiddenMessages) and not hidden.extra
    assert session.context == (None, ["c", "d"])
    told(session, summary="", skip=3)
    assert session.context == (None, ["d"])
    # PicoClaw stopped between its two files: the lines are there again.
    told(session, summary="", skip=0)
    assert session.context == (None, ["a", "b", "c", "d"])


def test_a_summary_takes_the_place_of_hiding() -> None:
    session = held(said("a", "b", "c"), meta(summary="", skip=2))
    assert [one.text for one in session.view.messages] == ["c"]
    told(session, summary="S", skip=2)
    assert session.context == ("S", ["c"])
    assert [one.text for one in session.view.messages] == ["a", "b", "c"]


def test_a_summary_that_is_taken_back_says_so() -> None:
    session = held(said("a", "b", "c"), meta(summary="S", skip=2))
    (item,) = told(session, summary="", skip=2)
    assert isinstance(item, Summary) and session.context == (NO_SUMMARY_TEXT, ["c"])
    told(session, summary="", skip=0)
    assert session.context == (NO_SUMMARY_TEXT, ["a", "b", "c"])
    told(session, summary="T", skip=1)
    assert session.context == ("T", ["b", "c"])


def test_lines_that_are_still_to_come_may_be_skipped_as_well() -> None:
    for summary in ("", "S"):
        session = held(said("a"), meta(summary=summary, skip=3))
        session.data += said("b", "c", "d")
        session.level()
        assert session.context == (summary or None, ["d"])


def test_what_was_said_stands_while_the_second_file_cannot_be_read() -> None:
    session = held(said("a", "b", "c"), meta(summary="S", skip=2))
    for broken in (None, b"", b"{", b"[]", meta(skip="3"), meta(created_at="yesterday")):
        session.about = broken
        session.data += said("x")
        session.level()
        summary, texts = session.context
        assert (summary, set(texts)) == ("S", {"c", "x"})


def test_a_whole_session_always_says_what_is_hidden() -> None:
    for skip, count in ((0, 0), (2, 2)):
        items = picoclaw.read_all(
            split_lines(said("a", "b", "c")), TranscriptInfo(STEM, meta(summary="", skip=skip))
        ).items
        assert isinstance(items[-1], HiddenMessages) and len(items[-1].ids) == count


def test_what_is_about_earlier_lines_asks_for_the_whole_file_where_they_cannot_be_read() -> None:
    data = said("a") + (DEAD + b"\n") * 99 + said("b")
    session = held(data, meta(summary="", skip=0))
    where = TranscriptInfo(STEM, meta(summary="S", skip=1))
    assert picoclaw.read_tail(session.notes, [], where) is None
    summary = picoclaw.read_all(split_lines(data), where).items[-1]
    assert isinstance(summary, Summary) and summary.first_kept == session.items[-1].id
    found = picoclaw.read_tail(session.notes, [], where._replace(read_lines=lambda: split_lines(data)))
    assert found is not None and isinstance(found.items[-1], Summary)
    assert found.items[-1].first_kept == summary.first_kept
    later = [Line(len(data), said("c").rstrip())]  # without a time it may have been there before
    assert picoclaw.read_tail(session.notes, later, TranscriptInfo(STEM, meta(summary="", skip=0))) is None
    timed = [Line(len(data), b'{"role":"user","content":"a","created_at":"2026-06-13T08:00:00Z"}')]
    followed = picoclaw.read_tail(session.notes, timed, where._replace(meta_bytes=None))
    assert followed is not None and len(followed.items) == 1


def test_a_state_with_ids_of_line_numbers_asks_for_the_whole_file() -> None:
    assert picoclaw.read_tail({"raw": 2}, [], TranscriptInfo(STEM, META)) is None


def test_a_file_is_recognised_with_lines_of_the_future_in_it() -> None:
    future = b'{"type":"from-the-future","uuid":"u-1"}\n'
    assert picoclaw.recognises("x.jsonl", LINES + future)
    assert not picoclaw.recognises("x.jsonl", future + LINES)
    assert held(LINES + future).context == held().context


# --- adding


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (user("a <b> & \u2028"), '{"role":"user","content":"a \\u003cb\\u003e \\u0026 \\u2028","created_at":"%s"}'),
        (
            assistant([Thinking("so", "sig"), ToolCall("c", "f", {"a": "<"}, "sig")], model="m"),
            '{"role":"assistant","content":"","model_name":"m","created_at":"%s","reasoning_content":"so","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\\"a\\":\\"\\u003c\\"}"}}]}',
        ),
        (
            tool_result("c", "ok", tool_name="f", is_error=True),
            '{"role":"tool","content":"ok","created_at":"%s","tool_call_id":"c"}',
        ),
        (
            user([Text("look"), Image(url="media://1"), File(name="a.txt", mime_type="text/plain", url="u")]),
            '{"role":"user","content":"look","created_at":"%s","media":["media://1"],"attachments":[{"type":"file","url":"u","filename":"a.txt","content_type":"text/plain"}]}',
        ),
        (user("\ud800"), '{"role":"user","content":"\ufffd","created_at":"%s"}'),
    ],
)
def test_a_message_is_one_line_and_a_count(message: Message, line: str) -> None:
    session = held()
    added = session.append(replace(message, timestamp=AT))
    assert added.lines == ((line % GO).encode(),)
    assert added.files == {".meta.json": meta(count=11, updated_at=GO)}
    read = session.read()
    assert not read.damage
    shown = [item for item in read.items if isinstance(item, Message)][-1]
    assert (shown.role, shown.tool_call_id, shown.timestamp) == (message.role, message.tool_call_id, GO)
    assert session.records[-1].seq == len(session.records)
    assert spoken(session.items)[-1] == spoken([shown])[0]


def test_unknown_keys_of_the_second_file_stay_in_their_places() -> None:
    odd = {"first": {"z": 1.5, "a": []}, **json.loads(META), "last": None}
    session = held(about=encode_go_json(odd, 2))
    session.append(user("x", timestamp=AT))
    assert session.about == encode_go_json({**odd, "count": 11, "updated_at": GO}, 2)


def test_a_missing_second_file_is_made_from_what_is_known() -> None:
    session = held(said("a", "b"), None)
    session.metadata = replace(session.metadata, key="agent:main:direct:42", aliases=("agent:main:main",))
    session.append(user("c", timestamp=AT))
    assert (session.about or b"").decode() == (
        '{\n  "key": "agent:main:direct:42",\n  "summary": "",\n  "skip": 0,\n  "count": 3,\n'
        '  "created_at": "2026-01-01T00:00:00Z",\n  "updated_at": "2026-07-01T00:00:00.5Z",\n'
        '  "aliases": [\n    "agent:main:main"\n  ]\n}'
    )
    assert not session.read().damage


def test_a_damaged_second_file_costs_neither_summary_nor_skip() -> None:
    session = held(said("a", "b", "c"), meta(summary="S", skip=2))
    session.about = b"{"
    session.append(user("d", timestamp=AT))
    made = json.loads(session.about)
    assert (made["key"], made["summary"], made["skip"], made["count"]) == (STEM, "S", 2, 4)
    assert session.context == ("S", ["c", "d"])


def test_a_message_is_seen_even_if_more_lines_were_to_be_skipped() -> None:
    session = held(said("a"), meta(summary="", skip=9))
    session.append(user("b", timestamp=AT))
    assert session.context == (None, ["b"])
    assert [one.text for one in view(session.read()).messages] == ["b"]


def test_a_session_without_a_beginning_begins_with_its_first_message() -> None:
    session = held(b"", meta(summary="", skip=0, count=0, created_at="0001-01-01T00:00:00Z"))
    session.append(user("a", timestamp=AT))
    assert json.loads(session.about or b"")["created_at"] == GO


def test_a_compaction_is_summary_and_skip() -> None:
    session = held()
    fourth = next(one for one in session.records if isinstance(one, Message) and one.text == "look")
    added = session.append(Compaction(first_kept_seq=fourth.seq, summary="new <sum>", timestamp=AT))
    assert added.lines == ()
    assert added.files == {".meta.json": meta(summary="new <sum>", skip=5, updated_at=GO)}
    assert session.context == ("new <sum>", ["look", "signed", "ok", "names in any case"])
    assert view(session.read()).compaction is not None


def test_a_compaction_after_messages_of_ours_and_one_that_keeps_nothing() -> None:
    session = held(said("a"), meta(summary="", skip=0))
    session.append(user("b", id="ours-1", timestamp=AT))
    session.data += DEAD + b"\n"
    session.level()
    session.append(user("c", id="ours-2", timestamp=AT))
    session.append(Compaction(first_kept_seq=3, summary="S", timestamp=AT))
    assert json.loads(session.about or b"")["skip"] == 3
    assert session.context == ("S", ["c"])
    session.append(Compaction(first_kept_seq=99, summary="T", timestamp=AT))
    assert json.loads(session.about or b"")["skip"] == 4
    assert session.context == ("T", [])


def test_a_compaction_needs_no_id_of_the_file() -> None:
    class Renamed(Held):
        def foreign_id(self, record: AnyRecord) -> str:
            return "another"

    data = said("a") + DEAD + b"\n" + said("b") + MUTE + b"\n" + said("c")
    session = Renamed(DIALECT, STEM, data, meta(summary="", skip=0))
    session.append(Compaction(first_kept_seq=2, summary="S", timestamp=AT))
    assert session.context == ("S", ["b", "c"])


def test_what_was_hidden_stays_so_behind_a_summary() -> None:
    session = held(said("a", "b", "c"), meta(summary="", skip=2))
    session.append(Compaction(first_kept_seq=1, summary="S", timestamp=AT))
    assert session.context == ("S", ["c"])


def test_an_event_is_nothing_to_be_done() -> None:
    session = held()
    added = DIALECT.encode_record(session.notes, session, Event(kind="turn_end"))
    assert (added.lines, added.head, added.files, added.stem) == ((), None, {}, None)


@pytest.mark.parametrize(
    "record",
    [
        user([Image(data="AAAA")]),
        user([File(name="a", data="AAAA")]),
        user([OtherBlock({"type": "video"})]),
        assistant([Thinking("only")]),
        Compaction(first_kept_seq=1, summary=""),
        Tombstone(deletes=(1,)),
        Rewind(to_seq=0),
    ],
)
def test_what_has_no_place_is_refused_with_a_hint(record: AnyRecord) -> None:
    session = held()
    with pytest.raises(UnsupportedError) as caught:
        DIALECT.encode_record(session.notes, session, record)
    assert caught.value.hint


def test_a_line_that_picoclaw_could_not_read_is_refused() -> None:
    session = held(b"", meta(count=0, skip=0))
    frame = len(encode_message_line(user("", timestamp=AT)))
    most = picoclaw.LINE_BYTES - 1 - frame  # its newline counts
    session.append(user("x" * most, timestamp=AT))
    with pytest.raises(StoreFullError) as caught:
        session.append(user("x" * (most + 1), timestamp=AT))
    assert caught.value.hint


# --- metadata


def test_aliases_and_scope_are_written_where_picoclaw_looks_for_them() -> None:
    session = held(about=meta(later=1))
    scope = {"version": 1, "agent_id": "b", "channel": "x", "account": "y", "dimensions": None, "values": None}
    added = DIALECT.encode_metadata(session.notes, session, {"aliases": ("agent:b:x",), "scope": scope})
    assert added.files == {".meta.json": meta(later=1, aliases=["agent:b:x"], scope=scope)}
    bare = json.loads(meta(later=1))
    del bare["aliases"], bare["scope"]
    gone = DIALECT.encode_metadata(session.notes, session, {"aliases": [], "scope": None})
    assert gone.files == {".meta.json": encode_go_json(bare, 2)}
    session.about = gone.files[".meta.json"]
    back = DIALECT.encode_metadata(session.notes, session, {"aliases": ["a"]}).files[".meta.json"]
    assert list(json.loads(back))[-3:] == ["updated_at", "aliases", "later"]


def test_a_key_may_change_if_the_files_are_named_the_same() -> None:
    session = held()
    added = DIALECT.encode_metadata(session.notes, session, {"key": "agent:main/direct:42"})
    assert added.files == {".meta.json": meta(key="agent:main/direct:42")}
    for changes in ({"key": "other"}, {"name": "t"}, {"model": "m"}, {"aliases": [1]}, {"scope": 7}):
        with pytest.raises(UnsupportedError):
            DIALECT.encode_metadata(session.notes, session, changes)


def test_a_new_session_has_its_key_in_the_second_file() -> None:
    made = DIALECT.build_session(
        {"key": "agent:main:a/b", "aliases": ["x", "agent:main:a/b"], "agent": "main", "sender": "u", "cwd": None},
        "2026-07-01T00:00:00.000Z",
        lambda stem: stem != "agent_main_a_b",
    )
    assert (made.session_id, made.stem) == ("agent_main_a_b", "agent_main_a_b")
    assert made.edit.files[".meta.json"].decode() == (
        '{\n  "key": "agent:main:a/b",\n  "summary": "",\n  "skip": 0,\n  "count": 0,\n'
        '  "created_at": "2026-07-01T00:00:00Z",\n  "updated_at": "2026-07-01T00:00:00Z",\n'
        '  "aliases": [\n    "x"\n  ]\n}'
    )
    session = Held(DIALECT, made.stem, b"", made.edit.files[".meta.json"])
    assert session.items == []
    session.append(user("hello", timestamp=AT))
    assert [one.text for one in view(session.read()).messages] == ["hello"]


def test_a_session_that_cannot_be_is_not_made() -> None:
    def free(_: str) -> bool:
        return False

    for facts in ({}, {"key": ""}, {"key": "k", "name": "t"}):
        with pytest.raises(UnsupportedError):
            DIALECT.build_session(facts, AT, free)
    for key in ("k" * 250, ".hidden", "a\0b"):
        with pytest.raises(FormatError):
            DIALECT.build_session({"key": key}, AT, free)
    with pytest.raises(ConflictError):
        DIALECT.build_session({"key": "k"}, AT, lambda _: True)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("sk_v1_00", True),
        ("agent_main_x|y=z é", True),
        ("", False),
        ("a/b", False),
        ("a\\b", False),
        ("a:b", False),
        ("a\0", False),
        (".a", False),
        ("..", False),
        ("x" * 245, True),
        ("x" * 246, False),
        ("\udcff", False),
    ],
)
def test_an_id_is_the_name_of_its_files(text: str, is_one: bool) -> None:
    assert DIALECT.is_id(text) is is_one
    assert DIALECT.session_id_of(text, None) == text


# --- the history as a whole


def visible(lines: Sequence[bytes], skip: int) -> list[int]:
    """The numbers of the lines that PicoClaw shows, by its own rule."""
    raw = [line for line in lines if line]
    return [number for number, line in enumerate(raw, 1) if number > skip and line not in (DEAD, THOUGHT)]


def truncated(lines: Sequence[bytes], skip: int, keep: int) -> int:
    """`skip` after TruncateHistory, by the words of the reference."""
    count = sum(map(bool, lines))
    skip = min(skip, count)
    shown = visible(lines, skip)
    if keep <= 0 or not shown:
        return count
    return shown[len(shown) - keep - 1] if keep < len(shown) else skip


few = st.lists(st.sampled_from([said("a").rstrip(), said("b").rstrip(), DEAD, MUTE, THOUGHT, b""]), max_size=9)


@settings(max_examples=examples(400))
@given(few, st.integers(0, 4) | st.just(12), st.integers(-1, 4), st.sampled_from(["", "S"]))
@example([said("a").rstrip(), MUTE, said("b").rstrip()], 0, 1, "")
@example([said("a").rstrip(), DEAD, THOUGHT, said("b").rstrip()], 0, 1, "")
def test_a_history_is_cut_as_picoclaw_cuts_it(lines: list[bytes], skip: int, keep: int, summary: str) -> None:
    session = held(b"".join(line + b"\n" for line in lines), meta(summary=summary, skip=skip))
    added = truncate(session.notes, session, keep, AT)
    wanted, count = truncated(lines, skip, keep), sum(map(bool, lines))
    assert added.lines == ()
    assert added.files == {".meta.json": meta(summary=summary, skip=wanted, count=count, updated_at=GO)}
    session.put(added)
    session.level()
    ours = [line for line in lines if line]
    left = [json.loads(ours[one - 1])["content"] for one in visible(lines, wanted) if ours[one - 1] != MUTE]
    assert session.context[1] == left


@given(few, st.integers(0, 12))
def test_reclaiming_takes_out_what_is_not_shown_and_nothing_else(lines: list[bytes], skip: int) -> None:
    data, about = b"".join(line + b"\n" for line in lines), meta(skip=skip)
    after, second, gone = picoclaw.reclaim_lines(data, about, AT)
    if not skip:
        assert (after, second, gone) == (data, about, b"")
        return
    raw = [line for line in lines if line]
    shown = visible(lines, skip)
    assert after == b"".join(raw[one - 1] + b"\n" for one in shown)
    assert gone == b"".join(line + b"\n" for one, line in enumerate(raw, 1) if one not in shown)
    assert second == meta(skip=0, count=len(shown), updated_at=GO)
    assert held(after, second).context == held(data, about).context
    assert picoclaw.reclaim_lines(after, second, AT) == (after, second, b"")


def test_reclaiming_keeps_lines_as_they_are() -> None:
    after, _, gone = picoclaw.reclaim_lines(LINES, META)
    raw = LINES.split(b"\n")
    assert after == b"\n".join((raw[3], *raw[5:]))
    assert gone == b"\n".join((*raw[:3], raw[4], b""))
    for beside in (None, b"{", meta(skip=0)):
        assert picoclaw.reclaim_lines(LINES, beside) == (LINES, beside or b"", b"")
    torn = said("a", "b")[:-1]
    assert picoclaw.reclaim_lines(torn, meta(skip=1))[0] == said("b")


def test_another_history_keeps_the_summary_and_the_keys() -> None:
    messages = [user("a", timestamp="2026-01-01T00:00:00.120Z"), assistant([Thinking("x")]), assistant("b")]
    transcript, second = encode_history(messages, META, AT)
    assert transcript.decode() == (
        '{"role":"user","content":"a","created_at":"2026-01-01T00:00:00.12Z"}\n'
        '{"role":"assistant","content":"b","created_at":"2026-07-01T00:00:00.5Z"}\n'
    )
    assert second == meta(skip=0, count=2, updated_at=GO)
    assert encode_history([], META, AT) == (b"", meta(skip=0, count=0, updated_at=GO))
    _, made = encode_history([], None, AT, "k")
    assert json.loads(made) == {
        "key": "k", "summary": "", "skip": 0, "count": 0, "created_at": GO, "updated_at": GO,
    }  # fmt: skip
    with pytest.raises(UnsupportedError):
        encode_history([user([Image(data="AAAA")])], META, AT)


# --- listing


@settings(deadline=None)
@given(files(any_line), abouts, cuts)
def test_a_listing_counts_what_would_be_followed(data: bytes, about: bytes, where: list[int]) -> None:
    lines = list(split_lines(data))
    at_once = picoclaw.scan_listing(ListingScan(), lines, TranscriptInfo("", about))
    seen = ListingScan()
    for piece in pieces(lines, where):
        seen = picoclaw.scan_listing(seen, piece, TranscriptInfo("", about))
    assert seen == at_once
    items = [item for item in held(data, about).items if isinstance(item, Message)]
    assert at_once.messages == len(items)
    models = [item.model for item in items if item.model]
    assert at_once.model == (models[-1] if models else "")


def test_a_listing_shows_what_picoclaw_shows() -> None:
    seen = picoclaw.scan_listing(ListingScan(), split_lines(LINES), TranscriptInfo("", META))
    assert seen == ListingScan(
        messages=8,
        title="first <b> & \u2028 漢字",
        created="2026-06-13T08:00:00.123456789Z",
        last="2026-06-13T08:00:07.987654321+02:00",
        agent="main",
        model="gpt-5",
        key="agent:main:direct:42",
        aliases=("agent:main:main", "agent:main:telegram:direct:42"),
        scope=json.loads(META)["scope"],
    )
    bare = picoclaw.scan_listing(ListingScan(), split_lines(LINES), TranscriptInfo(""))
    assert (bare.messages, bare.key, bare.created) == (8, "", "")


@pytest.mark.parametrize(
    ("line", "title"),
    [
        (b'{"role":"user","content":"  %b  ","created_at":"2026-06-13T08:00:00Z"}' % (b"x" * 60), "x" * 60),
        (b'{"role":"user","content":"%b"}' % ("漢" * 61).encode(), "漢" * 60 + "..."),
        (b'{"role":"user","content":" ","media":["m"]}', "[image]"),
        (b'{"role":"assistant","content":"not this"}', ""),
        (THOUGHT, ""),
    ],
)
def test_the_title_is_the_first_thing_the_user_said(line: bytes, title: str) -> None:
    blank = Line(0, b'{"role":"user","content":""}')
    seen = picoclaw.scan_listing(ListingScan(), [blank, Line(0, line)], TranscriptInfo(""))
    assert (seen.title, seen.messages) == (title, 1 + (line != THOUGHT))
    assert picoclaw.scan_listing(seen, [Line(0, said("later"))], TranscriptInfo("")).title == (title or "later")
