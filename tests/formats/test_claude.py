"""Claude Code's transcripts, read: reference/formats/claude-code.md, sections 1 to 3."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from everlog.context.build import build
from everlog.interop.formats.claude import FORMAT as claude
from everlog.interop.formats.format_types import ForeignSession, HiddenMessages, InMemorySource, Summary, extra_field
from everlog.log import backward_read
from everlog.model import Event, File, Image, Message, Metadata, OtherBlock, Text, Thinking, ToolCall, Usage
from everlog.testing.format_suite import FormatConformance
from tests.formats.claude_session import ID, Session, encode, hidden, read, shown, uuid
from tests.formats.native import through_native

GOLDEN = Path(__file__).parent / "golden" / "claude"
NAME = "3f1c7f0e-5c1a-4d0b-9a52-0c8f6a3b1d01"


def golden() -> InMemorySource:
    files = sorted(one for one in GOLDEN.rglob("*") if one.is_file())
    named = {one.relative_to(GOLDEN).as_posix(): one.read_bytes() for one in files}
    main = f"{NAME}.jsonl"
    return InMemorySource(NAME, {main: named.pop(main), **named})


# --- the file written by hand ---------------------------------------------------------------


def test_the_golden_file_reads_as_it_was_written_down() -> None:
    made = claude.read(golden())
    assert made.damage == ()
    assert render(made) == (GOLDEN / "expected.txt").read_text()


def test_the_golden_file_goes_back_out_equal_with_its_large_result() -> None:
    source = golden()
    made = claude.read(source)
    written = claude.write(Metadata(id="x", title="Birds of the garden"), through_native(made))
    main = f"{NAME}.jsonl"
    assert objects(written.files[main]) == objects(source.files[main])
    saved = f"{NAME}/tool-results/b1rd5.txt"
    assert written.files[saved] == source.files[saved]
    assert written.losses == ()
    agent = f"{NAME}/subagents/agent-a1.jsonl"
    again = claude.write(Metadata(id="y"), through_native(made.children[0]))
    assert objects(again.files[agent]) == objects(source.files[agent])


def test_the_context_of_the_golden_file_begins_with_what_the_summary_keeps() -> None:
    records = through_native(claude.read(golden()))
    context = build(backward_read.read_live(reversed(records)))
    assert [message.text for message in context.messages][-5:] == [
        "Name them",
        "Heron, wren, owl.",
        "<system-reminder>be brief</system-reminder>",
        "Which one is this?",
        "The wren.",
    ]
    assert "Count the birds" not in str(context.messages)


def render(made: ForeignSession) -> str:
    away = hidden(made)
    messages = [item for item in made.items if isinstance(item, Message)]
    by_id = {message.id: message for message in messages}
    lines = ["facts"]
    lines += [f"  {key}: {made.metadata[key]}" for key in ("name", "cwd", "model")]
    lines += [f"  created: {made.created_ms}", "shown"]
    lines += [f"  {told(one)}" for one in messages if one.id not in away]
    lines += ["hidden", *(f"  {told(one)}" for one in messages if one.id in away)]
    for item in made.items:
        if isinstance(item, Summary):
            lines += ["summary", f"  {item.text} ({item.tokens_before} tokens before)"]
            lines += [f"  kept from: {by_id[item.first_kept or ''].text}"]
    lines += ["events", *(f"  {item.kind}" for item in made.items if isinstance(item, Event))]
    for child in made.children:
        parent = child.metadata["parent"]
        lines += [f"agent {child.session_id.rpartition('agent-')[2]}"]
        lines += [f"  parent: {parent['toolCallId']}, {parent['agentType']}"]
        lines += [f"  {told(one)}" for one in child.items if isinstance(one, Message)]
    return "\n".join(lines) + "\n"


def told(message: Message) -> str:
    who = [message.role, message.tool_call_id or "", message.tool_name or ""]
    parts = [" ".join(one for one in who if one) + ":"]
    for block in message.content:
        if isinstance(block, Text):
            parts.append(block.text.replace("\n", "|"))
        elif isinstance(block, Thinking):
            parts.append(f"({block.thinking})")
        elif isinstance(block, ToolCall):
            parts.append(f"{block.name} {json.dumps(block.arguments, separators=(',', ':'))}")
        elif isinstance(block, Image):
            parts.append(f"<{block.mime_type}>")
        elif isinstance(block, OtherBlock):
            parts.append(f"<{block.type}>")
    if message.usage:
        one = message.usage
        parts.append(
            f"[input {one.input_tokens}, output {one.output_tokens},"
            f" read {one.cache_read_tokens}, written {one.cache_write_tokens}]"
        )
    return " ".join(parts)


def objects(data: bytes) -> list[Any]:
    return [json.loads(line) for line in data.split(b"\n") if line.strip()]


# --- recognising ----------------------------------------------------------------------------


def test_a_transcript_is_recognised_by_its_first_record() -> None:
    session = Session()
    session.meta("queue-operation", operation="enqueue")
    session.user("hello")
    assert claude.recognises("x.jsonl", session.data())
    assert claude.recognises("x.jsonl", session.data()[:70] + b"\n" + session.data())
    assert not claude.recognises("x.json", session.data())


def test_a_first_line_longer_than_what_is_looked_at_is_recognised() -> None:
    session = Session()
    session.user("a" * 100_000)
    assert claude.recognises("x.jsonl", session.data()[: 64 * 1024])


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\xff\xfe",
        b"[1]\n",
        b'{"role":"user","content":"x"}\n',
        b'{"type":"user","uuid":"1","session_id":"2","message":{}}\n',
        b'{"type":"session","version":3,"id":"1"}\n',
        b'{"timestamp":"","type":"session_meta","payload":{"id":"1"}}\n',
        b'{"type":[],"uuid":{}}\n',
        b'{"type":"\xff","sessionId":"',
    ],
)
def test_other_files_are_not_recognised(head: bytes) -> None:
    assert not claude.recognises("x.jsonl", head)


# --- records and blocks ---------------------------------------------------------------------


def test_a_record_of_several_results_and_text_becomes_a_message_each() -> None:
    session = Session()
    session.user("go")
    session.answer(*({"type": "tool_use", "id": f"t{n}", "name": "Bash", "input": {}} for n in (1, 2)))
    name = session.user(
        [
            {"type": "tool_result", "tool_use_id": "t1", "content": "one", "is_error": True},
            {"type": "tool_result", "tool_use_id": "t2", "content": "two"},
            {"type": "text", "text": "and stop"},
        ]
    )
    made = [one for one in session.read().items if isinstance(one, Message)][2:]
    assert [one.id for one in made] == [name, f"{name}:1", f"{name}:2"]
    assert [one.role for one in made] == ["toolResult", "toolResult", "user"]
    assert [one.tool_call_id for one in made] == ["t1", "t2", None]
    assert [one.tool_name for one in made] == ["Bash", "Bash", None]
    assert [one.is_error for one in made] == [True, None, None]
    assert [extra_field(one, "claude") for one in made][1:] == [{"of": name}, {"of": name}]


@pytest.mark.parametrize(
    ("block", "ours"),
    [
        ({"type": "text", "text": "a"}, Text("a")),
        ({"type": "thinking", "thinking": "a", "signature": "s"}, Thinking("a", "s")),
        ({"type": "thinking", "thinking": "a"}, Thinking("a")),
        (
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}},
            Image("image/png", "AA"),
        ),
        ({"type": "image", "source": {"type": "url", "url": "http://x/y"}}, Image(url="http://x/y")),
        (
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": "AA"},
                "title": "a.pdf",
            },
            File("a.pdf", "application/pdf", "AA"),
        ),
        (
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "hi"}},
            File("", "text/plain", "aGk="),
        ),
        ({"type": "redacted_thinking", "data": "x"}, OtherBlock({"type": "redacted_thinking", "data": "x"})),
        ({"type": "new_kind", "a": [1]}, OtherBlock({"type": "new_kind", "a": [1]})),
        ({"type": "tool_use", "id": "t", "name": "n", "input": {"a": 1}}, ToolCall("t", "n", {"a": 1})),
    ],
)
def test_a_block_has_one_of_ours_and_comes_back_without_being_kept_twice(block: dict[str, Any], ours: Any) -> None:
    session = Session()
    session.answer(block)
    made = session.read()
    message = made.items[0]
    assert isinstance(message, Message) and message.content == (ours,)
    assert extra_field(message, "claude")["message"]["content"] is None
    written = claude.write(Metadata(id="x"), through_native(made))
    assert objects(written.files[f"{ID}.jsonl"]) == session.objects


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "text", "text": "a", "citations": []}],
        [{"type": "text", "text": 5}],
        [{"type": "thinking", "thinking": "a", "signature": None}],
        [{"type": "tool_use", "id": "t", "name": "n", "input": "text"}],
        [{"type": "tool_use", "id": 7, "name": "n", "input": {}}],
        [{"type": "toolCall", "id": "t", "name": "n", "arguments": {}, "more": 1}],
        [{"type": "file", "name": "x", "more": 1}],
        [{"type": ["text"]}],
        ["a string", None, 3],
        [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "a"}]}],
        [{"type": "tool_result", "tool_use_id": "t"}],
        [{"type": "tool_result", "tool_use_id": None, "content": None, "is_error": "no"}],
        [{"type": "text", "text": "first"}, {"type": "tool_result", "tool_use_id": "t", "content": ""}],
        [],
        "",
    ],
)
def test_an_odd_content_is_shown_as_far_as_it_can_be_and_comes_back_equal(content: Any) -> None:
    session = Session()
    session.user(content)
    made = session.read()
    assert isinstance(made.items[0], Message)
    written = claude.write(Metadata(id="x"), through_native(made))
    assert objects(written.files[f"{ID}.jsonl"]) == session.objects


@pytest.mark.parametrize("message", [None, "text", {"role": "user"}, {"content": 5}, []])
def test_a_user_record_without_a_content_is_an_event(message: Any) -> None:
    session = Session()
    session.add("user", message=message)
    (item,) = session.read().items
    assert isinstance(item, Event) and item.kind == "claude.user"
    written = claude.write(Metadata(id="x"), through_native(session.read()))
    assert objects(written.files[f"{ID}.jsonl"]) == session.objects


def test_side_chains_and_team_records_are_events() -> None:
    session = Session()
    session.user("hello")
    session.user("team", teamName="red")
    session.user("side", isSidechain=True)
    session.answer("hi")
    made = session.read()
    assert shown(made) == ["hello", "hi"]
    assert hidden(made) == set()
    assert [item.kind for item in made.items if isinstance(item, Event)] == ["claude.user"] * 2


def test_ids_follow_from_the_file_alone_and_stay_when_it_grows() -> None:
    session = Session()
    session.meta("mode", mode="plan")
    session.user("hello")
    before = [item.id for item in session.read().items]
    session.answer("hi")
    session.meta("mode", mode="default")
    after = [item.id for item in session.read().items]
    assert after[: len(before)] == before
    assert len(set(after)) == len(after)


# --- conversation ---------------------------------------------------------------------------


def test_a_branch_that_was_left_is_hidden_and_kept() -> None:
    session = Session()
    session.user("one")
    fork = session.answer("two")
    left = session.user("left")
    session.user("right", parent=fork)
    made = session.read()
    assert shown(made) == ["one", "two", "right"]
    assert hidden(made) == {left}
    assert isinstance(made.items[-1], HiddenMessages) and made.items[-1].extra == {}


def test_the_newest_end_wins_even_if_records_beside_it_follow() -> None:
    session = Session()
    session.user("one")
    end = session.answer("two")
    session.add("system", subtype="turn_duration")
    session.add("attachment", parent=end, attachment={"type": "date"})
    assert shown(session.read()) == ["one", "two"]


def test_an_end_that_is_meta_or_aside_is_not_preferred() -> None:
    session = Session()
    first = session.user("one")
    session.answer("two")
    session.user("side", parent=None, isSidechain=True)
    session.user("note", parent=first, isMeta=True)
    made = session.read()
    assert shown(made) == ["one", "two"]
    assert hidden(made) == {session.leaf}


def test_a_call_that_two_responses_claim_places_nothing() -> None:
    session = Session()
    start = session.user("go")
    session.call("t1", response="a", parent=start)
    stray = session.result("t1", "stray", parent=start)
    session.call("t1", response="b", parent=start)
    session.answer("done")
    assert stray in hidden(session.read())


def test_a_result_of_another_agent_is_not_taken() -> None:
    session = Session()
    start = session.user("go")
    session.call("t1")
    session.answer("done")
    foreign = session.result("t1", "stray", parent=start, agentId="b")
    session.user("on", parent=uuid(3))
    assert foreign in hidden(session.read())


def test_a_summary_on_a_branch_that_was_left_stands_for_nothing() -> None:
    session = Session()
    session.user("one")
    fork = session.answer("two")
    session.compact("gone")
    session.user("left")
    session.user("right", parent=fork)
    made = session.read()
    assert not any(isinstance(item, Summary) for item in made.items)
    assert "right" in shown(made) and "left" not in shown(made)


def test_a_summary_is_found_when_the_chain_goes_on_from_what_it_preserved() -> None:
    session = Session()
    session.user("one")
    tail = session.answer("two")
    segment = {"headUuid": tail, "anchorUuid": uuid(4), "tailUuid": tail}
    session.compact("both", preservedSegment=segment)
    session.user("three", parent=tail)
    made = session.read()
    (summary,) = [item for item in made.items if isinstance(item, Summary)]
    assert (summary.text, summary.first_kept) == ("both", tail)
    assert shown(made) == ["one", "two", "three"]


# --- facts ----------------------------------------------------------------------------------


def test_titles_are_taken_in_their_order() -> None:
    session = Session()
    session.user("the first prompt")
    assert session.read().metadata["name"] == "the first prompt"
    session.meta("summary", summary="the summary")
    assert session.read().metadata["name"] == "the summary"
    session.meta("last-prompt", lastPrompt="the last prompt")
    assert session.read().metadata["name"] == "the last prompt"
    session.meta("ai-title", aiTitle="the model's")
    assert session.read().metadata["name"] == "the model's"
    session.meta("custom-title", customTitle="mine")
    session.meta("custom-title", customTitle="mine, later")
    session.meta("custom-title", customTitle="  ")
    assert session.read().metadata["name"] == "mine, later"


@pytest.mark.parametrize(
    "junk",
    [
        "<local-command-stdout>x</local-command-stdout>",
        "<session-start-hook>x",
        "<tick>1</tick>",
        "<goal>x</goal>",
        "[Request interrupted by user for tool use]",
        "<ide_opened_file>a.py</ide_opened_file>",
        [{"type": "text", "text": "<ide_selection>a\nb</ide_selection>"}],
        [{"type": "tool_result", "tool_use_id": "t", "content": "x"}],
        "  ",
    ],
)
def test_the_first_prompt_is_one_that_somebody_typed(junk: Any) -> None:
    session = Session()
    session.user("meta", isMeta=True)
    session.user("<command-name>/clear</command-name>")
    session.user(junk)
    assert session.read().metadata["name"] == "/clear"
    session.user("a " * 300)
    assert session.read().metadata["name"] == ("a " * 100).rstrip() + "…"


def test_facts_come_from_the_first_and_the_last_record_that_have_them() -> None:
    session = Session()
    session.meta("mode", mode="x")
    session.user("hello", cwd="/first")
    session.answer("hi")
    session.answer("failed", cwd="/second")
    session.objects[-1]["message"]["model"] = "<synthetic>"
    made = session.read()
    assert made.metadata["cwd"] == "/first"
    assert made.metadata["model"] == "claude-test"
    assert made.metadata["source"] == "claude"
    assert made.created_ms == 1767225601000
    assert made.line_count == 4


def test_an_agent_without_a_file_about_it_is_tied_to_its_call_by_the_result() -> None:
    session = Session()
    session.user("go")
    session.call("t1")
    session.result("t1", "done", toolUseResult={"agentId": "a7"})
    agent = Session()
    agent.user("look", isSidechain=True, agentId="a7")
    agent.answer("found", isSidechain=True, agentId="a7")
    path = f"{ID}/subagents/workflows/r1/agent-a7.jsonl"
    made = claude.read(InMemorySource(ID, {f"{ID}.jsonl": session.data(), path: agent.data()}))
    (child,) = made.children
    assert child.session_id == f"{ID}/subagents/workflows/r1/agent-a7"
    assert child.metadata["parent"] == {"session": ID, "toolCallId": "t1"}
    assert shown(child) == ["look", "found"]


def test_usage_is_a_message_s_own_when_the_response_has_no_id() -> None:
    session = Session()
    for _ in range(2):
        session.answer("x", usage={"input_tokens": 3, "output_tokens": 4})
        session.objects[-1]["message"].pop("id")
    usages = [one.usage for one in session.read().items if isinstance(one, Message)]
    assert usages == [Usage(input_tokens=3, output_tokens=4, total_tokens=7)] * 2


def test_a_large_result_without_its_file_shows_the_preview() -> None:
    text = "<persisted-output>\nsaved to: /x/tool-results/a.txt\npreview</persisted-output>"
    session = Session()
    session.call("t1")
    session.result("t1", text)
    assert shown(session.read())[-1] == text
    found = read(session.data(), **{f"{ID}/tool-results/a.txt": b"all \xff of it"})
    assert shown(found)[-1] == "all \N{REPLACEMENT CHARACTER} of it"


def test_records_of_unknown_types_are_one_event_each_and_no_loss() -> None:
    data = encode([{"type": f"kind-{n % 3}", "n": n} for n in range(30)])
    made = read(data)
    assert len(made.items) == 30 and made.damage == ()
    assert {item.kind for item in made.items if isinstance(item, Event)} == {
        "claude.kind-0",
        "claude.kind-1",
        "claude.kind-2",
    }


class TestConformance(FormatConformance):
    """What every dialect must do."""

    format: ClassVar[Any] = claude
    sessions: ClassVar[Sequence[InMemorySource]] = (golden(),)
