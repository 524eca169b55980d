"""PicoClaw's two files: bytes, skipped lines, damage, and the defects of its own reader."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from everlog.errors import FormatError
from everlog.interop.formats.cersei import FORMAT as cersei
from everlog.interop.formats.crabtalk import FORMAT as crabtalk
from everlog.interop.formats.format_types import InMemorySource, Summary
from everlog.interop.formats.pi import FORMAT as pi
from everlog.interop.formats.picoclaw import FORMAT as picoclaw
from everlog.interop.formats.picoclaw.go_json import encode_go_json, format_go_time
from everlog.interop.formats.picoclaw.meta_file import file_stem
from everlog.model import (
    Compaction,
    Event,
    Message,
    Metadata,
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
    view,
)
from tests.formats.round_trips import said as spoken

FULL = golden("picoclaw", "agent_main_direct_42")
LINES, META = FULL.files["agent_main_direct_42.jsonl"], FULL.files["agent_main_direct_42.meta.json"]


def meta(**changes: Any) -> bytes:
    return encode_go_json({**json.loads(META), **changes}, 2)


def session(lines: bytes = LINES, about: bytes | None = META) -> InMemorySource:
    found = {"agent_main_direct_42.jsonl": lines}
    if about is not None:
        found["agent_main_direct_42.meta.json"] = about
    return FULL._replace(files=found)


class TestConformance(FormatConformance):
    format: ClassVar[Any] = picoclaw
    sessions: ClassVar[Sequence[InMemorySource]] = (FULL, session(about=meta(summary="")))
    exact = True


class TestDamage(Damage):
    dialect: ClassVar[Any] = picoclaw
    sessions: ClassVar[Sequence[InMemorySource]] = (FULL,)
    exact = True


# --- bytes


def test_json_is_escaped_as_go_does_it() -> None:
    text = '<>&\u2028\u2029\b\f\n\r\t\x01\x1f\x7f/\\"é漢🦞'
    assert encode_go_json(text).decode() == (
        '"\\u003c\\u003e\\u0026\\u2028\\u2029\\b\\f\\n\\r\\t\\u0001\\u001f\x7f/\\\\\\"é漢🦞"'
    )


def test_the_second_file_is_indented_and_has_no_newline_at_its_end() -> None:
    assert encode_go_json(json.loads(META), 2) == META
    assert not META.endswith(b"\n")


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("2026-06-13T08:00:00.123456789Z", "2026-06-13T08:00:00.123456789Z"),
        ("2026-06-13T08:00:00.120Z", "2026-06-13T08:00:00.12Z"),
        ("2026-06-13T08:00:00.000Z", "2026-06-13T08:00:00Z"),
        ("2026-06-13T08:00:00+00:00", "2026-06-13T08:00:00Z"),
        ("2026-06-13T08:00:00.500+02:00", "2026-06-13T08:00:00.5+02:00"),
        ("2026-06-13 08:00:00", "2026-06-13T08:00:00Z"),
        ("yesterday", ""),
    ],
)
def test_times_are_written_as_go_reads_them(text: str, made: str) -> None:
    assert format_go_time(text) == made


def test_a_stem_replaces_three_characters_and_no_other() -> None:
    assert file_stem("agent:main:a/b\\c|d=é 1") == "agent_main_a_b_c|d=é 1"
    assert file_stem("-1/42") == file_stem("-1_42")  # the key in the second file tells them apart


# --- reading


def test_the_golden_session_is_read_in_full() -> None:
    read = picoclaw.read(FULL)
    assert (read.line_count, read.damage, read.session_id) == (10, (), "agent_main_direct_42")
    assert read.metadata["key"] == "agent:main:direct:42"
    assert read.metadata["agent"] == "main"
    assert read.metadata["aliases"] == ("agent:main:main", "agent:main:telegram:direct:42")
    assert read.metadata["scope"]["channel"] == "telegram"
    assert read.created_ms == 1781337600123
    shown = view(read)
    assert [one.text for one in shown.messages] == [
        "first <b> & \u2028 漢字", "", "package a", "It is a.", "look", "signed", "ok", "names in any case",
    ]  # fmt: skip
    assert shown.messages[0].timestamp == "2026-06-13T08:00:00.123456789Z"
    assert shown.messages[1].content == (Thinking("which tool?"), ToolCall("c1", "read", {"path": "a.go"}))
    assert shown.messages[3].model == "gpt-5"
    kinds = [item.kind for item in read.items if isinstance(item, Event)]
    assert kinds == ["picoclaw.thought", "picoclaw.system", "picoclaw.meta"]


def test_a_summary_covers_the_skipped_lines() -> None:
    read = picoclaw.read(FULL)
    made = view(read).compaction
    assert made is not None and made.summary == "They read a.go & more."
    records = stored(read)
    kept = [one.text for one in records if isinstance(one, Message) and one.seq >= made.first_kept_seq]
    assert kept == ["It is a.", "look", "signed", "ok", "names in any case"]


def test_skipped_lines_without_a_summary_are_hidden() -> None:
    read = picoclaw.read(session(about=meta(summary="")))
    assert not [item for item in read.items if isinstance(item, Summary)]
    assert view(read).messages[0].text == "It is a."


def test_corrupt_lines_count_as_skipped_and_empty_ones_do_not() -> None:
    lines = (
        b'{"role":"user","content":"a"}\n\n\r\n{torn\n{"role":"user","content":"b"}\n{"role":"user","content":"c"}\n'
    )
    for skip, shown in ((0, "abc"), (1, "bc"), (2, "bc"), (3, "c"), (4, ""), (99, "")):
        source = session(lines, meta(summary="", skip=skip))
        read = picoclaw.read(source)
        assert "".join(one.text for one in view(read).messages) == shown
        assert back(picoclaw, source).files == source.files


def test_a_summary_with_nothing_visible_keeps_nothing() -> None:
    read = picoclaw.read(session(about=meta(skip=10)))
    assert next(item for item in read.items if isinstance(item, Summary)).first_kept is None


def test_a_missing_second_file_is_made_anew_and_reported() -> None:
    source = session(about=None)
    read = picoclaw.read(source)
    assert [one.path for one in read.damage] == ["agent_main_direct_42.meta.json"]
    assert read.metadata == {
        "key": "agent_main_direct_42", "name": "first <b> & \u2028 漢字", "model": "gpt-5",
    }  # fmt: skip
    assert len(view(read).messages) == 8
    made = back(picoclaw, source).files
    assert made["agent_main_direct_42.jsonl"] == LINES
    assert json.loads(made["agent_main_direct_42.meta.json"])["count"] == 10


@pytest.mark.parametrize(
    "about",
    [
        b"",
        b"{",
        b"[]",
        META[:100],
        b"\xff" + META,
        meta(skip="3"),
        meta(skip=True),
        meta(created_at="yesterday"),
        meta(updated_at="2026-06-13 08:00:00"),
        meta(aliases=[1]),
        meta(scope=[]),
        meta(key=7),
    ],
)
def test_a_garbled_second_file_empties_nothing(about: bytes) -> None:
    source = session(about=about)
    read = picoclaw.read(source)
    assert len(view(read).messages) == 8
    assert len(read.damage) == 1 and "rebuilt" in read.damage[0].problem
    events = [item for item in read.items if isinstance(item, Event)]
    assert events[-1].kind == "picoclaw.damaged"
    made = back(picoclaw, source).files
    assert made["agent_main_direct_42.jsonl"] == LINES
    again = picoclaw.read(InMemorySource("agent_main_direct_42", made))
    assert not again.damage


def test_a_second_file_in_another_writing_comes_back_as_it_was() -> None:
    odd = json.dumps({**json.loads(META), "new": [1.0, 2]}, indent=4).encode() + b"\n"
    source = session(about=odd)
    assert back(picoclaw, source).files == source.files


def test_lines_that_picoclaw_cannot_read_are_kept_and_not_shown() -> None:
    for line in (
        b'{"role":"user","content":"x","created_at":"2026-06-13T08:00:00"}',
        b'{"role":"user","content":"x","created_at":1781337600}',
        b'{"role":"user","content":["x"]}',
        b'{"role":"assistant","content":"","tool_calls":[{"id":"c","function":{"name":"f","arguments":{}}}]}',
        b'{"role":"user","content":"x","media":7}',
        b'{"role":"user","content":"x","tool_calls":[7]}',
    ):
        source = session(line + b"\n", meta(skip=0, summary=""))
        read = picoclaw.read(source)
        assert view(read).messages == () and read.line_count == 1
        assert back(picoclaw, source).files == source.files


def test_a_null_content_is_a_message() -> None:
    read = picoclaw.read(session(b'{"role":"user","content":null,"media":["m"]}\n', None))
    assert len(view(read).messages) == 1


def test_a_line_of_11_mib_is_readable_and_its_writing_is_reported() -> None:
    line = b'{"role":"user","content":"%b","created_at":"2026-06-13T08:00:00Z"}\n' % (b"x" * (11 << 20))
    source = session(line, meta(skip=0, summary="", count=1))
    read = picoclaw.read(source)
    assert not read.damage and len(view(read).messages[0].text) == 11 << 20
    made = back(picoclaw, source)
    assert made.files == source.files
    assert made.losses == ("line too long for PicoClaw to read back: 1",)


def test_a_torn_tail_swallows_no_other_message() -> None:
    whole = b'{"role":"user","content":"first","created_at":"2026-06-13T08:00:00Z"}'
    after = b'{"role":"user","content":"second","created_at":"2026-06-13T08:00:01Z"}\n'
    for cut in range(1, len(whole)):
        source = session(whole[:cut] + b"\n" + after, meta(skip=0, summary=""))
        read = picoclaw.read(source)
        assert [one.text for one in view(read).messages] == ["second"]
        assert len(read.damage) == 1


def test_lines_keep_their_ids_when_picoclaw_takes_skipped_ones_out() -> None:
    before = picoclaw.read(FULL)
    shorter = b"\n".join(LINES.split(b"\n")[3:])
    after = picoclaw.read(session(shorter, meta(skip=0, count=7)))
    kept = {item.id: item for item in after.items if not isinstance(item, Event)}
    assert set(kept) <= {item.id for item in before.items}


def test_equal_lines_are_different_messages() -> None:
    read = picoclaw.read(session(b'{"role":"user","content":"x"}\n' * 3, None))
    assert len({item.id for item in read.items}) == 3


def test_dialects_are_told_apart_by_content() -> None:
    assert picoclaw.recognises("x.jsonl", LINES)
    for other in (cersei, crabtalk, pi):
        assert not other.recognises("agent_main_direct_42.jsonl", LINES)
    bare = b'{"role":"user","content":"x"}\n'
    assert picoclaw.recognises("sk_v1_00.jsonl", bare)
    assert not picoclaw.recognises("x.jsonl", bare)
    assert not cersei.recognises("sk_v1_00.jsonl", bare)
    assert not picoclaw.recognises("x.meta.json", META)


# --- writing


def test_what_is_said_afterwards_is_counted_in_the_second_file() -> None:
    read = picoclaw.read(FULL)
    more = [*stored(read), user("new", timestamp="2026-07-01T00:00:00.500Z")]
    made = picoclaw.write(metadata_of(read), numbered(more)).files
    assert (
        made["agent_main_direct_42.jsonl"]
        == LINES + b'{"role":"user","content":"new","created_at":"2026-07-01T00:00:00.5Z"}\n'
    )
    assert made["agent_main_direct_42.meta.json"] == meta(count=11, updated_at="2026-07-01T00:00:00.5Z")


def test_a_compaction_of_ours_becomes_summary_and_skip() -> None:
    read = picoclaw.read(FULL)
    records = numbered([*stored(read), Compaction(first_kept_seq=10, summary="new <sum>")])
    made = picoclaw.write(metadata_of(read), records).files
    about = json.loads(made["agent_main_direct_42.meta.json"])
    assert (about["summary"], about["skip"], about["count"]) == ("new <sum>", 9, 10)
    assert made["agent_main_direct_42.jsonl"] == LINES


def test_a_message_that_we_hide_is_taken_out_and_skip_follows() -> None:
    read = picoclaw.read(FULL)
    records = numbered([*stored(read), Tombstone(deletes=(1, 10))])
    made = picoclaw.write(metadata_of(read), records)
    about = json.loads(made.files["agent_main_direct_42.meta.json"])
    assert (about["skip"], about["count"]) == (2, 8)
    assert made.losses == ("message that is hidden or was rewound: 2", "title: 1")  # it was the first message


def test_new_aliases_are_written_beside_the_old_ones() -> None:
    read = picoclaw.read(FULL)
    metadata = replace(metadata_of(read), aliases=("picoclaw:agent_main_direct_42", "agent:main:x"))
    made = picoclaw.write(metadata, stored(read)).files
    about = json.loads(made["agent_main_direct_42.meta.json"])
    assert about["aliases"] == ["agent:main:main", "agent:main:telegram:direct:42", "agent:main:x"]


def test_a_session_of_ours_is_written_as_picoclaw_would() -> None:
    records = numbered(
        [
            user("a & b"),
            assistant([Thinking("hm")]),
            assistant([Thinking("so"), ToolCall("c", "f", {"a": "<"})], model="m"),
            tool_result("c", "ok"),
            user("odd time", timestamp="a while ago"),
        ]
    )
    made = picoclaw.write(Metadata(id=ID, key="agent:main:x", created_at="2026-01-01T00:00:00.000Z"), records)
    assert made.losses == ("message with only thinking: 1",)
    assert made.files["agent_main_x.jsonl"].decode() == (
        '{"role":"user","content":"a \\u0026 b","created_at":"2026-01-01T00:00:01.12Z"}\n'
        '{"role":"assistant","content":"","model_name":"m","created_at":"2026-01-01T00:00:03.12Z","reasoning_content":"so","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\\"a\\":\\"\\u003c\\"}"}}]}\n'
        '{"role":"tool","content":"ok","created_at":"2026-01-01T00:00:04.12Z","tool_call_id":"c"}\n'
        '{"role":"user","content":"odd time"}\n'
    )
    assert made.files["agent_main_x.meta.json"].decode() == (
        '{\n  "key": "agent:main:x",\n  "summary": "",\n  "skip": 0,\n  "count": 4,\n'
        '  "created_at": "2026-01-01T00:00:00Z",\n  "updated_at": "2026-01-01T00:00:04.12Z"\n}'
    )


def test_what_the_files_cannot_hold_is_named_as_lost() -> None:
    usage = Usage(input_tokens=1, output_tokens=2)
    answer = replace(assistant("x", model="m"), usage=usage, stop_reason="stop", cwd="/w", sender="s")
    metadata = Metadata(id=ID, title="Mine", agent="a", sender="u", extra={"cwd": "/w"}, system_prompt_override="s")
    losses = picoclaw.write(metadata, numbered([user("hello"), answer])).losses
    assert losses == (
        "agent: 1",
        "sender: 1",
        "sender of a message: 1",
        "stop reason of a message: 1",
        "system prompt of the session: 1",
        "title: 1",
        "usage of a message: 1",
        "working directory: 1",
        "working directory of a message: 1",
    )
    read = picoclaw.read(FULL)
    assert picoclaw.write(metadata_of(read), stored(read)).losses == ()
    assert metadata_of(read).title == "first <b> & \u2028 漢字"


def test_a_key_that_no_file_can_be_named_by_is_refused() -> None:
    with pytest.raises(FormatError):
        picoclaw.write(Metadata(id=ID, key="k" * 250), [])


# --- round trips

calls = objects(
    {
        "id": texts,
        "type": st.just("function"),
        "function": objects({"name": texts, "arguments": texts | st.just('{"a":1}')}, {"thought_signature": texts}),
    },
    {"extra_content": anything},
)
lines: st.SearchStrategy[Any] = st.one_of(
    objects(
        {"role": st.sampled_from(["user", "assistant", "tool", "system", "damaged", "meta"]), "content": texts},
        {
            "model_name": texts,
            "created_at": st.sampled_from(["2026-06-13T08:00:00.123456789Z", "2026-06-13T08:00:00.10+02:00", "x"]),
            "media": st.lists(texts, max_size=2),
            "attachments": st.lists(
                objects({"type": texts}, {"ref": texts, "url": texts, "filename": texts}), max_size=2
            ),
            "reasoning_content": texts,
            "system_parts": anything,
            "tool_calls": st.lists(calls, max_size=2),
            "tool_call_id": texts,
        },
    ),
    st.dictionaries(texts, anything, max_size=3),
)
abouts = st.builds(
    lambda skip, summary, more: meta(skip=skip, summary=summary, **more),
    st.integers(0, 9),
    texts,
    st.dictionaries(texts.filter(lambda name: name not in json.loads(META)), anything, max_size=2),
)


@settings(deadline=None, max_examples=examples(300))
@given(files(lines), abouts)
def test_any_files_come_back_byte_for_byte(data: bytes, about: bytes) -> None:
    source = session(data, about)
    sound(picoclaw.read(source))
    assert back(picoclaw, source).files == source.files


@settings(deadline=None)
@given(st.binary(max_size=300), st.binary(max_size=300))
def test_no_bytes_are_too_strange_to_read(data: bytes, about: bytes) -> None:
    source = session(data, about)
    sound(picoclaw.read(source))
    assert next(iter(back(picoclaw, source).files.values())) == data
    picoclaw.recognises("x.jsonl", data)


@settings(deadline=None)
@given(turns)
def test_a_session_of_ours_says_the_same_when_it_is_read_again(given: list[Turn]) -> None:
    records = talk(given)
    assert there_and_back(picoclaw, records) == spoken(records)
