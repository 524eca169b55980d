"""pi's sessions: versions, branches, compactions, and the defects of its own reader."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.interop.formats.cersei import FORMAT as cersei
from everlog.interop.formats.crabtalk import FORMAT as crabtalk
from everlog.interop.formats.format_types import HiddenMessages, InMemorySource, Summary
from everlog.interop.formats.pi import FORMAT as pi
from everlog.interop.formats.picoclaw import FORMAT as picoclaw
from everlog.model import (
    Compaction,
    Event,
    File,
    Message,
    Metadata,
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

FULL = golden("pi", "2026-01-05T09-00-00-000Z_0198f3c2-7b6e-7d10-8a55-1f2e3d4c5b6a")
OLD = golden("pi", "2025-11-20T09-00-00-000Z_v1")
CORPUS = Path(__file__).parents[3] / "shared" / "corpus" / "pi" / "large-session.jsonl"
HEADER = {"type": "session", "version": 3, "id": "s", "timestamp": "2026-01-01T00:00:00.000Z", "cwd": "/w"}


def message(name: str, parent: str | None, text: str, role: str = "user") -> dict[str, Any]:
    return {
        "type": "message",
        "id": name,
        "parentId": parent,
        "timestamp": "2026-01-01T00:00:01.000Z",
        "message": {"role": role, "content": [{"type": "text", "text": text}], "timestamp": 1},
    }


PROMPT = {**message("0", "1", ""), "message": {"role": "system", "content": "", "sections": {}}}


def session(*entries: Any, header: Any = HEADER) -> InMemorySource:
    lines = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in (header, *entries)]
    return InMemorySource("s", {"s.jsonl": b"".join(line + b"\n" for line in lines)})


def said(source: InMemorySource) -> list[str]:
    return [one.text for one in view(pi.read(source)).messages]


def context(source: InMemorySource) -> list[str]:
    """The summary and what it keeps."""
    shown = view(pi.read(source))
    if shown.compaction is None:
        return [one.text for one in shown.messages]
    kept = [one.text for one in shown.messages if one.seq >= shown.compaction.first_kept_seq]
    return [shown.compaction.summary, *kept]


class TestConformance(FormatConformance):
    format: ClassVar[Any] = pi
    sessions: ClassVar[Sequence[InMemorySource]] = (FULL, OLD)


class TestDamage(Damage):
    dialect: ClassVar[Any] = pi
    sessions: ClassVar[Sequence[InMemorySource]] = (FULL, OLD)


# --- reading


def test_the_golden_session_is_read_in_full() -> None:
    read = pi.read(FULL)
    assert (read.line_count, read.damage) == (20, ())
    assert read.metadata == {"cwd": "/home/me/p", "model": "claude-opus-4", "name": "Reading a.py"}
    shown = view(read)
    assert [(one.role, one.text) for one in shown.messages] == [
        ("user", "read a.py"),
        ("assistant", "I read."),
        ("toolResult", "x = 1"),
        ("user", "Ran `ls`\n```\na.py\n```\n\nCommand exited with code 2"),
        (
            "user",
            "The following is a summary of a branch that this conversation came back from:\n\n<summary>\na way was tried</summary>",
        ),
        ("user", "remember this"),
        ("user", "kept by the summary"),
        ("assistant", ""),
    ]
    answer = shown.messages[1]
    assert answer.id == "00000003"
    assert answer.content == (Thinking("hm", "sig"), Text("I read."), ToolCall("c1", "read", {"path": "a.py"}, "g"))
    assert (answer.model, answer.stop_reason) == ("claude-sonnet-4-5", "toolUse")
    assert answer.usage == Usage(
        input_tokens=10, output_tokens=5, total_tokens=18, cache_read_tokens=1, cache_write_tokens=2, cost=0.3
    )
    result = shown.messages[2]
    assert (result.tool_call_id, result.tool_name, result.is_error) == ("c1", "read", False)
    assert shown.messages[-1].tool_calls  # a call without an answer stays
    kinds = [item.kind for item in read.items if isinstance(item, Event)]
    assert kinds == [
        "pi.session", "pi.model_change", "pi.record", "pi.custom", "pi.label", "pi.session_info",
        "pi.thinking_level_change", "pi.usage",
    ]  # fmt: skip


def test_a_compaction_keeps_from_the_entry_that_it_names() -> None:
    made = next(item for item in pi.read(FULL).items if isinstance(item, Summary))
    assert (made.first_kept, made.tokens_before) == ("0000000d", 1234)  # 0000000c is no message
    assert (made.read_files, made.modified_files) == (("a.py",), ())


def test_version_1_counts_entries_where_later_ones_name_them() -> None:
    read = pi.read(OLD)
    assert context(OLD) == ["one was said", "two", "from a hook"]
    assert len({item.id for item in read.items}) == 6
    assert read.metadata == {"cwd": "/w", "model": "m", "name": "one"}


def test_other_branches_are_hidden_and_reachable() -> None:
    source = session(
        message("1", None, "root"), message("2", "1", "left"), message("3", "2", "left on"), message("4", "1", "right")
    )
    assert said(source) == ["root", "right"]
    hidden = [item for item in pi.read(source).items if isinstance(item, HiddenMessages)]
    assert [one.ids for one in hidden] == [("2", "3")]
    back_left = session(*(values(source.files["s.jsonl"])[1:]), message("5", "3", "left again"))
    assert said(back_left) == ["root", "left", "left on", "left again"]


def test_a_new_root_starts_the_conversation_anew() -> None:
    assert said(session(message("1", None, "old"), message("2", None, "new"))) == ["new"]


def test_a_compaction_on_another_branch_does_not_count() -> None:
    compaction = {
        "type": "compaction",
        "id": "c",
        "parentId": "2",
        "timestamp": "t",
        "summary": "s",
        "firstKeptEntryId": "2",
        "tokensBefore": 1,
    }
    source = session(message("1", None, "root"), message("2", "1", "left"), compaction, message("3", "1", "right"))
    assert context(source) == ["root", "right"]


@pytest.mark.parametrize("kept", ["nobody", "c", "", None])
def test_a_compaction_that_names_no_entry_before_it_keeps_nothing(kept: str | None) -> None:
    compaction = {
        "type": "compaction",
        "id": "c",
        "parentId": "1",
        "timestamp": "t",
        "summary": "s",
        "firstKeptEntryId": kept,
        "tokensBefore": 1,
    }
    assert context(session(message("1", None, "old"), compaction, message("2", "c", "new"))) == ["s", "new"]


def test_what_compaction_one_keeps_is_not_lost_by_compaction_two() -> None:
    def compaction(name: str, parent: str, first: str) -> dict[str, Any]:
        return {
            "type": "compaction",
            "id": name,
            "parentId": parent,
            "timestamp": "t",
            "summary": name,
            "firstKeptEntryId": first,
            "tokensBefore": 1,
        }

    source = session(
        message("1", None, "a"), message("2", "1", "b"), compaction("c1", "2", "2"),
        message("3", "c1", "c"), compaction("c2", "3", "2"), message("4", "c2", "d"),
    )  # fmt: skip
    assert context(source) == ["c2", "b", "c", "d"]


def test_a_damaged_line_in_the_middle_drops_nothing_before_it() -> None:
    source = session(
        message("1", None, "a"), message("2", "1", "b"), b'{"type":"message","id":"3","par', message("4", "3", "d")
    )
    assert said(source) == ["a", "b", "d"]
    assert len(pi.read(source).damage) == 1
    assert exactly(next(iter(back(pi, source).files.values()))) == exactly(source.files["s.jsonl"])


@pytest.mark.parametrize(
    "links",
    [
        [("1", "2"), ("2", "1"), ("3", "2")],  # a circle
        [("1", "1"), ("2", "2"), ("3", "3")],
        [("1", "3"), ("2", "1"), ("3", "2")],
        [("1", None), ("1", "1"), ("1", "1")],  # one id three times
        [("1", "nobody"), ("2", "nobody"), ("3", "nobody")],
        [("", None), ("", ""), ("", "1")],
    ],
)
def test_circles_and_missing_parents_neither_hang_nor_hide(links: list[tuple[str, str | None]]) -> None:
    source = session(*(message(name, parent, f"{at}") for at, (name, parent) in enumerate(links)))
    assert said(source) == ["0", "1", "2"]
    sound(pi.read(source))
    assert exactly(next(iter(back(pi, source).files.values()))) == exactly(source.files["s.jsonl"])


def test_a_file_without_its_header_is_read_all_the_same() -> None:
    source = session(message("1", None, "a"), message("2", "1", "b"), header=b"{torn")
    assert said(source) == ["a", "b"]


def test_an_edit_counts_only_if_it_is_the_last_on_its_entry() -> None:
    def edit(name: str, parent: str, replacement: Any) -> dict[str, Any]:
        return {
            "type": "context_edit",
            "id": name,
            "parentId": parent,
            "timestamp": "t",
            "targetId": "1",
            "replacement": replacement,
        }

    assert said(session(message("1", None, "a"), edit("2", "1", None))) == []
    twice = session(message("1", None, "a"), edit("2", "1", None), edit("3", "2", {"content": "b"}))
    assert said(twice) == ["b"]
    for source in (twice, session(message("1", None, "a"), edit("2", "1", None))):
        assert exactly(next(iter(back(pi, source).files.values()))) == exactly(source.files["s.jsonl"])


def test_a_lone_surrogate_is_read_and_goes_back_as_it_was() -> None:
    line = json.dumps(message("1", None, "x")).encode().replace(b'"x"', b'"cut \\ud83d"')
    source = session(line)
    assert said(source) == ["cut \ufffd"]
    assert line in next(iter(back(pi, source).files.values()))


def test_missing_content_is_empty_content() -> None:
    source = session(
        {"type": "message", "id": "1", "parentId": None, "timestamp": "t", "message": {"role": "assistant"}}
    )
    assert view(pi.read(source)).messages[0].content == ()
    assert exactly(next(iter(back(pi, source).files.values()))) == exactly(source.files["s.jsonl"])


def test_dialects_are_told_apart_by_content() -> None:
    for source in (FULL, OLD):
        data = next(iter(source.files.values()))
        assert pi.recognises("x.jsonl", data)
        for other in (cersei, crabtalk, picoclaw):
            assert not other.recognises("x.jsonl", data)
    assert not pi.recognises("x.json", FULL.files[FULL.paths()[0]])


@pytest.mark.skipif(not CORPUS.exists(), reason="the corpus is not here")
def test_a_real_session_is_read_without_loss_and_comes_back_equal() -> None:
    data = CORPUS.read_bytes()
    source = InMemorySource("large-session", {"large-session.jsonl": data})
    assert pi.recognises("large-session.jsonl", data[:65536])
    read = pi.read(source)
    assert (read.line_count, read.damage) == (len(values(data)), ())
    written = back(pi, source)
    assert not written.losses
    assert exactly(next(iter(written.files.values()))) == exactly(data)


# --- writing


def test_a_session_of_ours_becomes_a_chain_of_version_3() -> None:
    records = numbered(
        [
            user("hi"),
            assistant(
                [Thinking("hm", "sig"), ToolCall("c", "f", {"x": 1})],
                model="p:m",
                usage=Usage(input_tokens=1, output_tokens=2, cost=0.5),
            ),
            tool_result("c", "ok", tool_name="f", is_error=True),
            Compaction(first_kept_seq=3, summary="sum", tokens_before=9, read_files=("a",)),
            user([Text("x"), File("a.pdf")]),
            Event(kind="turn_end"),
        ]
    )
    metadata = Metadata(id=ID, title="A title", created_at="2026-01-01T00:00:00.000Z", extra={"cwd": "/w"})
    made = pi.write(metadata, records)
    assert list(made.files) == [f"2026-01-01T00-00-00-000Z_{ID}.jsonl"]
    assert made.losses == ("event turn_end: 1", "file: 1")
    header, *entries = values(next(iter(made.files.values())))
    assert header == {"type": "session", "version": 3, "id": ID, "timestamp": "2026-01-01T00:00:00.000Z", "cwd": "/w"}
    assert [one["type"] for one in entries] == [
        "message",
        "message",
        "message",
        "compaction",
        "message",
        "session_info",
    ]
    assert [one["parentId"] for one in entries] == [None, *(one["id"] for one in entries[:-1])]
    assert len({one["id"] for one in entries}) == len(entries)
    answer, result, compaction = entries[1]["message"], entries[2]["message"], entries[3]
    assert (answer["provider"], answer["model"], answer["stopReason"]) == ("p", "m", "toolUse")
    assert answer["usage"]["totalTokens"] == 3 and answer["usage"]["cost"]["total"] == 0.5
    assert answer["content"][0] == {"type": "thinking", "thinking": "hm", "thinkingSignature": "sig"}
    assert (result["toolCallId"], result["toolName"], result["isError"]) == ("c", "f", True)
    assert compaction["firstKeptEntryId"] == entries[2]["id"]
    kept = entries[2]["id"]
    assert compaction["details"] == {"readFiles": ["a"], "modifiedFiles": [], "firstKeptMessageId": kept}


def test_what_we_rewind_becomes_a_branch_and_what_we_delete_is_not_written() -> None:
    records = numbered(
        [user("a"), user("b"), user("c"), Rewind(to_seq=2), user("d"), Tombstone(deletes=(2,)), user("e")]
    )
    made = pi.write(Metadata(id=ID), records)
    source = InMemorySource("s", {"s.jsonl": next(iter(made.files.values()))})
    assert said(source) == ["a", "d", "e"]
    assert made.losses == ("message that is hidden or was rewound: 1",)
    assert [one.text for one in pi.read(source).items if isinstance(one, Message)] == ["a", "c", "d", "e"]


def test_an_entry_of_pis_that_we_delete_is_left_out_by_an_edit_which_an_older_pi_ignores() -> None:
    for prompt, losses in ([], ("deletion that pi before 0.87 ignores: 1",)), ([PROMPT], ()):
        read = pi.read(session(message("1", None, "a"), *prompt, message("2", "1", "b")))
        first = next(one.seq for one in numbered(stored(read)) if isinstance(one, Message))
        made = pi.write(metadata_of(read), numbered([*stored(read), Tombstone(deletes=(first,))]))
        assert said(InMemorySource("s", {"s.jsonl": next(iter(made.files.values()))})) == ["b"]
        assert made.losses == losses


def test_a_compaction_that_outlives_a_rewind_is_on_the_new_branch_too() -> None:
    records = numbered(
        [
            user("a"),
            user("b"),
            user("c"),
            Compaction(first_kept_seq=2, summary="s"),
            user("d"),
            Rewind(to_seq=2),
            user("e"),
        ]
    )
    made = pi.write(Metadata(id=ID), records)
    assert context(InMemorySource("s", {"s.jsonl": next(iter(made.files.values()))})) == ["s", "b", "e"]


def test_what_is_said_after_an_import_is_chained_to_the_leaf() -> None:
    read = pi.read(FULL)
    made = pi.write(metadata_of(read), numbered([*stored(read), user("new")]))
    old, new = values(FULL.files[FULL.paths()[0]]), values(made.files[FULL.paths()[0]])
    assert new[: len(old)] == old
    assert [one["parentId"] for one in new[len(old) :]] == ["00000013"]
    grown = InMemorySource("s", {"s.jsonl": made.files[FULL.paths()[0]]})
    assert said(grown) == [*said(FULL), "new"]


def test_a_file_of_version_1_is_brought_to_version_3_before_it_grows() -> None:
    read = pi.read(OLD)
    made = pi.write(metadata_of(read), numbered([*stored(read), user("new")]))
    header, *entries = values(made.files[OLD.paths()[0]])
    assert header["version"] == 3
    assert [one["parentId"] for one in entries] == [None, *(one["id"] for one in entries[:-1])]
    assert entries[3]["firstKeptEntryId"] == entries[2]["id"] and "firstKeptEntryIndex" not in entries[3]
    assert entries[4]["message"]["role"] == "custom"
    grown = InMemorySource("s", {"s.jsonl": made.files[OLD.paths()[0]]})
    assert context(grown) == [*context(OLD), "new"]


# --- round trips

blocks = st.one_of(
    objects({"type": st.just("text"), "text": texts}, {"textSignature": texts}),
    objects({"type": st.just("thinking"), "thinking": texts}, {"thinkingSignature": texts, "signature": texts}),
    objects(
        {
            "type": st.just("toolCall"),
            "id": texts,
            "name": texts,
            "arguments": st.dictionaries(texts, anything, max_size=2),
        },
        {"thoughtSignature": texts},
    ),
    objects({"type": st.just("image"), "data": texts, "mimeType": texts}, {}),
    objects({"type": st.just("hologram")}, {"depth": anything}),
)
contents = texts | st.lists(blocks, max_size=3)
messages = objects(
    {"role": st.sampled_from(["user", "assistant", "toolResult", "bashExecution", "custom", "hookMessage", "system"])},
    {
        "content": contents, "model": texts, "usage": objects({"input": st.integers(0, 9)}, {"cost": anything}), "stopReason": texts,
        "toolCallId": texts, "toolName": texts, "isError": st.booleans(), "command": texts, "output": texts, "excludeFromContext": st.booleans(),
    },
)  # fmt: skip
names = st.sampled_from(["a", "b", "c", "d", "e"])
linked = {"id": names, "parentId": st.none() | names, "timestamp": texts}
lines: st.SearchStrategy[Any] = st.one_of(
    objects({"type": st.just("message"), "message": messages}, linked),
    objects(
        {"type": st.just("compaction"), "summary": texts},
        {
            **linked,
            "firstKeptEntryId": names,
            "firstKeptEntryIndex": st.integers(-1, 9),
            "tokensBefore": st.integers(-1, 9),
            "details": objects({"readFiles": st.lists(texts)}, {}),
        },
    ),
    objects({"type": st.just("branch_summary"), "summary": texts}, linked),
    objects({"type": st.just("custom_message"), "content": contents}, linked),
    objects({"type": st.just("context_edit"), "targetId": names}, {**linked, "replacement": anything}),
    objects(
        {"type": st.sampled_from(["label", "session_info", "model_change", "session", "damaged", "blank"])},
        {**linked, "name": texts, "modelId": texts},
    ),
    st.dictionaries(texts, anything, max_size=3),
)


@settings(deadline=None, max_examples=examples(300))
@given(st.sampled_from([1, 2, 3]), files(lines))
def test_any_file_comes_back_record_for_record(version: int, rest: bytes) -> None:
    header = {**HEADER, "version": version}
    source = InMemorySource("s", {"s.jsonl": json.dumps(header).encode() + b"\n" + rest})
    sound(pi.read(source))
    made = back(pi, source).files
    assert exactly(next(iter(made.values()))) == exactly(source.files["s.jsonl"])


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_no_bytes_are_too_strange_to_read(data: bytes) -> None:
    source = InMemorySource("s", {"s.jsonl": data})
    sound(pi.read(source))
    assert exactly(next(iter(back(pi, source).files.values())))[1:] == exactly(data)
    pi.recognises("x.jsonl", data)


@settings(deadline=None)
@given(turns)
def test_a_session_of_ours_says_the_same_when_it_is_read_again(given: list[Turn]) -> None:
    records = talk(given)
    assert there_and_back(pi, records) == spoken(records)
