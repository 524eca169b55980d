"""CrabTalk's files: names, lines, round trips, and the defects of its own reader."""

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
from everlog.interop.formats.crabtalk.names import file_name, parse_name, slug
from everlog.interop.formats.format_types import InMemorySource, Summary
from everlog.interop.formats.pi import FORMAT as pi
from everlog.interop.formats.picoclaw import FORMAT as picoclaw
from everlog.log.fold import apply_changes
from everlog.model import (
    Compaction,
    Event,
    Image,
    Message,
    Metadata,
    Rewind,
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

FULL = golden("crabtalk", "crab_tg-12345_2_fix-the-build")
PLAIN = golden("crabtalk", "researcher_user_hello-world")
META = b'{"agent":"crab","created_by":"user","created_at":"2026-04-02T08:15:30+00:00","title":"","uptime_secs":42}\n'
NUMBERED = InMemorySource(
    "crab_user_1",
    {"crab_user_1.jsonl": PLAIN.files["researcher_user_hello-world.jsonl"].replace(b"researcher", b"crab")},
)


def session(*lines: str, name: str = "crab_user_1") -> InMemorySource:
    return InMemorySource(name, {f"{name}.jsonl": META + "".join(f"{line}\n" for line in lines).encode()})


class TestConformance(FormatConformance):
    format: ClassVar[Any] = crabtalk
    sessions: ClassVar[Sequence[InMemorySource]] = (FULL, NUMBERED, PLAIN)
    exact = True


class TestDamage(Damage):
    dialect: ClassVar[Any] = crabtalk
    sessions: ClassVar[Sequence[InMemorySource]] = (FULL, NUMBERED)
    exact = True


# --- names


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("TG:user-123", "tg-user-123"),
        ("a::b", "a-b"),
        (":::", ""),
        ("", ""),
        ("--a--", "a"),
        ("Hello World!", "hello-world"),
        ("ÄÖ Ü", "ÄÖ-Ü"),  # only ASCII is lower-cased
        ("क\u093e", "क\u093e"),  # a combining vowel sign, which isalnum() refuses
        ("Ⓐb", "Ⓐb"),  # a circled letter
        ("x²½Ⅷ", "x²½Ⅷ"),  # categories No and Nl
        ("e\u0301", "e"),  # an accent by itself is not alphabetic
        ("a_b/c\\d.e", "a-b-c-d-e"),
    ],
)
def test_a_slug_is_what_rust_makes_of_it(text: str, made: str) -> None:
    assert slug(text) == made


@pytest.mark.parametrize(
    ("stem", "agent", "sender", "number", "title"),
    [
        ("crab_user_1", "crab", "user", 1, ""),
        ("crab_tg-1_12_hello-world", "crab", "tg-1", 12, "hello-world"),
        ("crab_user_2_7", "crab", "user", 2, "7"),
        ("researcher_user_hello-world", "researcher", "user", None, "hello-world"),
        ("crab", "crab", "", None, ""),
        ("crab_user_99999999999", "crab", "user", None, "99999999999"),
    ],
)
def test_a_name_is_taken_apart(stem: str, agent: str, sender: str, number: int | None, title: str) -> None:
    assert parse_name(stem) == (agent, sender, number, title)


def test_an_agent_with_an_underscore_is_known_from_the_meta_line() -> None:
    assert parse_name("crab_user_user_3", "crab_user", "user") == ("crab_user", "user", 3, "")
    data = META.replace(b'"crab"', b'"my_2_crab"')
    read = crabtalk.read(InMemorySource("my_2_crab_user_3_t", {"my_2_crab_user_3_t.jsonl": data}))
    assert read.metadata == {"agent": "my_2_crab", "sender": "user", "chat": 3}


def test_identities_that_share_a_slug_stay_apart_by_what_the_meta_line_says() -> None:
    senders = ["tg:1", "tg-1", "TG_1"]
    made = [META.replace(b'"user"', json.dumps(one).encode()) for one in senders]
    found = [crabtalk.read(InMemorySource("crab_tg-1_1", {"crab_tg-1_1.jsonl": one})) for one in made]
    assert [one.metadata["sender"] for one in found] == senders


def test_a_title_of_300_bytes_still_makes_a_name() -> None:
    for title in ("x" * 300, "漢" * 300, "a b " * 100):
        name = file_name("crab", "user", 1, title)
        assert len(name.encode()) <= 255
        assert name.startswith("crab_user_1_") and name.endswith(".jsonl")
    assert len(file_name("漢" * 200, "字" * 200, 4294967295, "t" * 99).encode()) <= 255
    assert file_name("a/b", "user", 1, "") == "a-b_user_1.jsonl"


def test_a_session_that_got_a_title_is_still_the_same_one() -> None:
    before, after = (
        session('{"role":"user","content":"x"}'),
        session('{"role":"user","content":"x"}', name="crab_user_1_a-title"),
    )
    one, other = crabtalk.read(before), crabtalk.read(after)
    assert one.session_id == other.session_id == "crab_user_1"
    assert [item.id for item in one.items] == [item.id for item in other.items]


# --- reading


def test_the_golden_session_is_read_in_full() -> None:
    read = crabtalk.read(FULL)
    assert (read.line_count, read.damage) == (14, ())
    assert read.session_id == "crab_tg-12345_2"
    assert read.metadata == {"agent": "crab", "sender": "tg:12345", "name": "Fix the build!", "chat": 2}
    assert read.created_ms == 1775117730123
    shown = view(read)
    assert [one.role for one in shown.messages] == [
        "user", "assistant", "toolResult", "toolResult", "assistant", "toolResult", "user", "assistant", "user",
    ]  # fmt: skip
    answer = shown.messages[1]
    assert answer.content[0] == Thinking("which file?")
    assert answer.tool_calls == (ToolCall("call_1", "read", {"path": "a.rs"}), ToolCall("call_2", "bash", {}))
    assert shown.messages[2].tool_name == "read" and shown.messages[3].tool_call_id == "call_2"
    assert shown.messages[4].tool_calls == (ToolCall("call_3", "bash", {"arguments": "{not json"}),)
    assert shown.compaction is not None
    assert (shown.compaction.summary, shown.compaction.strategy) == ("All is done.", "prose")
    kinds = [item.kind for item in read.items if isinstance(item, Event)]
    assert kinds == ["crabtalk.meta", "crabtalk.system", "crabtalk.record"]


def test_everything_before_a_marker_stays() -> None:
    read = crabtalk.read(session('{"role":"user","content":"a"}', '{"compact":"s"}', '{"role":"user","content":"b"}'))
    records = stored(read)
    marker = next(one for one in records if isinstance(one, Compaction))
    assert marker.first_kept_seq == marker.seq + 1
    assert [one.text for one in view(read).messages] == ["a", "b"]


def test_any_object_with_a_text_named_compact_is_a_marker() -> None:
    read = crabtalk.read(session('{"role":"user","compact":"s","content":"x"}', '{"compact":7}'))
    assert [type(item) for item in read.items] == [Event, Summary, Event]


def test_canonical_lines_need_nothing_kept_beside_them() -> None:
    for item in crabtalk.read(NUMBERED).items:
        if isinstance(item, Message | Event):
            assert b'crabtalk":' not in item.line


def test_a_file_without_a_readable_meta_line_is_read_by_its_name() -> None:
    for first in (b"", b"{torn", b'{"role":"user","content":"only"}'):
        data = first + b'\n{"role":"user","content":"hello"}\n'
        read = crabtalk.read(InMemorySource("crab_user_4_a-b", {"crab_user_4_a-b.jsonl": data}))
        assert read.metadata == {"agent": "crab", "sender": "user", "chat": 4, "name": "a-b"}
        assert view(read).messages[-1].text == "hello"


def test_a_torn_tail_with_the_next_line_glued_to_it_is_kept_and_named() -> None:
    whole = '{"role":"user","content":"first"}'
    for cut in range(1, len(whole)):
        source = session(whole[:cut] + '{"role":"user","content":"second"}', '{"role":"user","content":"third"}')
        read = crabtalk.read(source)
        assert view(read).messages[-1].text == "third"
        assert len(read.damage) == 1
        assert back(crabtalk, source).files == source.files


def test_a_line_of_more_than_64_mb_is_kept_and_named() -> None:
    long = '{"role":"user","content":"%s"}' % ("x" * 64_000_000)
    read = crabtalk.read(session('{"role":"user","content":"a"}', long, '{"role":"user","content":"b"}'))
    assert [one.problem for one in read.damage] == ["longer than 64000000 bytes"]
    assert [one.text for one in read.items if isinstance(one, Message)] == ["a", "b"]
    kept = [item for item in read.items if isinstance(item, Event) and item.kind == "crabtalk.damaged"]
    assert kept[0].data["text"] == long


def test_a_call_without_arguments_is_read_and_never_written() -> None:
    read = crabtalk.read(
        session('{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f"}}]}')
    )
    assert view(read).messages[0].tool_calls == (ToolCall("c", "f", {}),)
    made = crabtalk.write(Metadata(id=ID), numbered([assistant([ToolCall("c", "f", {})])]))
    assert b'"arguments":"{}"' in next(iter(made.files.values()))


def test_dialects_are_told_apart_by_content() -> None:
    data = FULL.files["crab_tg-12345_2_fix-the-build.jsonl"]
    assert crabtalk.recognises("x.jsonl", data[:200] + b"\n")
    for other in (cersei, pi, picoclaw):
        assert not other.recognises("crab_user_1.jsonl", data)
    assert not crabtalk.recognises("x.jsonl", b'{"type":"session","id":"x"}\n')
    assert not crabtalk.recognises("x.jsonl", b'{"role":"user","content":"x"}\n')


# --- writing


def test_a_title_and_uptime_change_the_meta_line_and_nothing_else() -> None:
    read = crabtalk.read(NUMBERED)
    facts = read.metadata | {"name": "New: Title"}
    metadata = apply_changes(Metadata(id=ID, uptime_secs=8), facts)
    made = crabtalk.write(metadata, stored(read))
    assert list(made.files) == ["crab_user_1_new-title.jsonl"]
    old, new = NUMBERED.files["crab_user_1.jsonl"], made.files["crab_user_1_new-title.jsonl"]
    meta = json.loads(new.split(b"\n")[0])
    assert (meta["title"], meta["uptime_secs"]) == ("New: Title", 8)
    assert meta["created_at"] == "2026-04-02T08:15:30+00:00"
    assert new.split(b"\n")[1:] == old.split(b"\n")[1:]


def test_a_meta_line_that_was_rewritten_is_another_event_in_the_same_place() -> None:
    grown = NUMBERED._replace(
        files={"crab_user_1.jsonl": NUMBERED.files["crab_user_1.jsonl"].replace(b'"uptime_secs":0', b'"uptime_secs":9')}
    )
    first, second = crabtalk.read(NUMBERED), crabtalk.read(grown)
    assert first.items[0].id != second.items[0].id
    assert [item.id for item in first.items[1:]] == [item.id for item in second.items[1:]]
    read = crabtalk.read(NUMBERED)
    both = stored(replace(read, items=(*first.items, second.items[0])))
    assert crabtalk.write(metadata_of(read), both).files == grown.files


def test_a_session_of_ours_is_written_as_crabtalk_would() -> None:
    records = numbered(
        [
            user("hi\u2028"),
            assistant([Thinking("hm"), ToolCall("c", "f", {"a": 1})]),
            tool_result("c", "ok", tool_name="f"),
            user([Image(data="AAAA")]),
            assistant("kept"),
            Compaction(first_kept_seq=5, summary="sum"),
            user("hidden"),
            Tombstone(deletes=(7,)),
            user("rewound"),
            Rewind(to_seq=8),
            Event(kind="turn_end"),
        ]
    )
    made = crabtalk.write(Metadata(id=ID, agent="crab", sender="a:b", created_at="2026-01-01T00:00:00.000Z"), records)
    assert made.files == {
        "crab_a-b_1.jsonl": (
            '{"agent":"crab","created_by":"a:b","created_at":"2026-01-01T00:00:00+00:00","title":"","uptime_secs":0}\n'
            '{"role":"user","content":"hi\u2028"}\n'
            '{"role":"assistant","reasoning_content":"hm","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\\"a\\":1}"}}]}\n'
            '{"role":"tool","content":"ok","name":"f","tool_call_id":"c"}\n'
            '{"role":"user"}\n'
            '{"compact":"sum"}\n'
            '{"role":"assistant","content":"kept"}\n'
        ).encode()
    }
    assert made.losses == (
        "event turn_end: 1",
        "image: 1",
        "message that is hidden or was rewound: 2",
        "strategy of a summary: 1",
        "time of a message: 5",
    )


def test_what_a_message_has_beside_its_text_is_named_as_lost_but_not_what_an_import_made_up() -> None:
    usage = Usage(input_tokens=1, output_tokens=2)
    answer = replace(assistant("x", model="m"), usage=usage, stop_reason="stop", cwd="/w")
    read = crabtalk.read(NUMBERED)
    metadata = replace(metadata_of(read), key="crabtalk:crab_user_1", extra={"cwd": "/w"}, system_prompt_override="s")
    assert crabtalk.write(replace(metadata, extra={}, system_prompt_override=None), stored(read)).losses == ()
    assert crabtalk.write(metadata, numbered([*stored(read), answer])).losses == (
        "model of a message: 1",
        "stop reason of a message: 1",
        "system prompt of the session: 1",
        "time of a message: 1",
        "usage of a message: 1",
        "working directory: 1",
        "working directory of a message: 1",
    )


# --- round trips

calls = objects(
    {"id": texts, "type": texts, "function": objects({"name": texts}, {"arguments": texts | st.just('{"a":1}')})},
    {"index": st.integers(0, 9)},
)
lines: st.SearchStrategy[Any] = st.one_of(
    objects(
        {"role": st.sampled_from(["user", "assistant", "tool", "system", "damaged", "meta"])},
        {
            "content": texts,
            "reasoning_content": texts,
            "name": texts,
            "tool_call_id": texts,
            "tool_calls": st.lists(calls, max_size=2),
        },
    ),
    objects({"compact": texts}, {"title": texts}),
    st.dictionaries(texts, anything, max_size=3),
)
metas = st.builds(
    lambda more: json.dumps({**json.loads(META), **more}, ensure_ascii=False).encode(),
    st.dictionaries(texts, anything, max_size=2),
)


@settings(deadline=None, max_examples=examples(300))
@given(metas, files(lines))
def test_any_file_comes_back_byte_for_byte(meta: bytes, rest: bytes) -> None:
    source = InMemorySource("crab_user_1", {"crab_user_1.jsonl": meta + b"\n" + rest})
    sound(crabtalk.read(source))
    assert back(crabtalk, source).files == source.files


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_no_bytes_are_too_strange_to_read(data: bytes) -> None:
    source = InMemorySource("x", {"x.jsonl": data})
    sound(crabtalk.read(source))
    assert next(iter(back(crabtalk, source).files.values())).endswith(data)
    crabtalk.recognises("x.jsonl", data)


@settings(deadline=None)
@given(turns)
def test_a_session_of_ours_says_the_same_when_it_is_read_again(given: list[Turn]) -> None:
    records = talk(given)
    lost = ("model of a message", "time of a message")
    assert there_and_back(crabtalk, records, *lost) == spoken(records)
