"""Codex's rollouts, read. The lines are written by hand from its published protocol."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from everlog.context.build import build
from everlog.errors import FormatError
from everlog.interop.formats import codex
from everlog.interop.formats.format_types import ForeignSession, HiddenMessages, InMemorySource, Summary, extra_field
from everlog.log import backward_read
from everlog.log.fold import fold
from everlog.model import Event, Image, Message, Metadata, Text, Thinking, ToolCall, Usage
from everlog.testing.format_suite import FormatConformance
from tests.formats.native import through_native

NAME = "rollout-2026-01-02T03-04-05-019a2d7a-41c4-78b1-b7cc-a45d62a89cd5"
AT = "2026-01-02T03:04:05.000Z"


def line(kind: str, **payload: Any) -> dict[str, Any]:
    return {"timestamp": AT, "type": kind, "payload": payload}


def item(kind: str, **payload: Any) -> dict[str, Any]:
    return line("response_item", type=kind, **payload)


def said(role: str, *texts: str) -> dict[str, Any]:
    part = "output_text" if role == "assistant" else "input_text"
    return item("message", role=role, content=[{"type": part, "text": one} for one in texts])


META = line("session_meta", id="019a", cwd="/work", cli_version="0.46.0", model_provider="openai")
CONTEXT = line("turn_context", cwd="/work", model="gpt-test", approval_policy="never")


def data(*lines: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in lines)


def read(*lines: dict[str, Any]) -> ForeignSession:
    return codex.read(InMemorySource(NAME, {f"{NAME}.jsonl": data(*lines)}))


def messages(made: ForeignSession) -> list[Message]:
    return [one for one in made.items if isinstance(one, Message)]


def test_a_rollout_becomes_a_conversation_with_its_tools() -> None:
    made = read(
        META,
        said("developer", "be careful"),
        said("user", "# AGENTS.md instructions for /work\n\n<INSTRUCTIONS>x</INSTRUCTIONS>"),
        said("user", "<environment_context><cwd>/work</cwd></environment_context>"),
        CONTEXT,
        said("user", "List   the files"),
        line("event_msg", type="user_message", message="List the files"),
        item(
            "reasoning", id="rs_1", summary=[{"type": "summary_text", "text": "A command"}], encrypted_content="sealed"
        ),
        item("function_call", name="shell", arguments='{"command":["ls"]}', call_id="c1"),
        item("function_call_output", call_id="c1", output='{"output":"a.txt","metadata":{"exit_code":1}}'),
        item("custom_tool_call", name="apply_patch", input="*** Begin", call_id="c2", status="completed"),
        item("custom_tool_call_output", call_id="c2", output="done"),
        item("local_shell_call", call_id="c3", action={"type": "exec", "command": ["pwd"]}),
        item("function_call_output", call_id="c3", output={"content": "/work", "success": True}),
        item("web_search_call", action={"type": "search", "query": "x"}),
        said("assistant", "One file."),
    )
    assert made.metadata == {"source": "codex", "cwd": "/work", "model": "gpt-test", "name": "List the files"}
    assert made.created_ms == 1767323045000
    assert made.damage == () and made.line_count == 16 == len(made.items)
    assert [(one.role, one.content) for one in messages(made)] == [
        ("user", (Text("List   the files"),)),
        ("assistant", (Thinking("A command", "sealed", "rs_1"),)),
        ("assistant", (ToolCall("c1", "shell", {"command": ["ls"]}),)),
        ("toolResult", (Text("a.txt"),)),
        ("assistant", (ToolCall("c2", "apply_patch", {"input": "*** Begin"}),)),
        ("toolResult", (Text("done"),)),
        ("assistant", (ToolCall("c3", "local_shell", {"type": "exec", "command": ["pwd"]}),)),
        ("toolResult", (Text("/work"),)),
        ("assistant", (Text("One file."),)),
    ]
    results = [one for one in messages(made) if one.role == "toolResult"]
    assert [one.is_error for one in results] == [True, None, False]
    assert [one.tool_name for one in results] == ["shell", "apply_patch", "local_shell"]
    assert extra_field(results[0], "codex")["output"].startswith('{"output"')
    kinds = [one.kind for one in made.items if isinstance(one, Event)]
    assert kinds == [
        "codex.session_meta",
        *["codex.response_item.message"] * 3,
        "codex.turn_context",
        "codex.event_msg.user_message",
        "codex.response_item.web_search_call",
    ]
    context = build(backward_read.read_live(reversed(through_native(made))))
    assert context.left_out == () and len(context.messages) == 9


def test_usage_is_given_to_the_last_answer_once() -> None:
    last = {
        "input_tokens": 100,
        "cached_input_tokens": 60,
        "output_tokens": 7,
        "reasoning_output_tokens": 3,
        "total_tokens": 107,
    }
    count = line("event_msg", type="token_count", info={"total_token_usage": last, "last_token_usage": last})
    made = read(META, said("user", "x"), said("assistant", "y"), count, count, said("assistant", "z"))
    first, second = messages(made)[1:]
    assert first.usage == Usage(input_tokens=40, output_tokens=7, total_tokens=107, cache_read_tokens=60)
    assert second.usage is None
    stored = [one for one in through_native(made) if isinstance(one, Message)]
    assert stored[1].usage == first.usage


def test_a_compaction_is_a_summary_for_all_before_it() -> None:
    made = read(META, said("user", "old"), line("compacted", message="what was done"), said("user", "new"))
    (summary,) = [one for one in made.items if isinstance(one, Summary)]
    assert (summary.text, summary.first_kept) == ("what was done", None)
    context = build(backward_read.read_live(reversed(through_native(made))))
    assert [one.text for one in context.messages] == ["what was done", "new"]
    assert [one.text for one in fold(through_native(made)).messages] == ["old", "new"]


def test_a_compaction_without_a_message_is_told_by_what_took_the_place_of_the_history() -> None:
    history = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "old"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "sum"}]},
        {"type": "compaction", "encrypted_content": "x"},
    ]
    made = read(META, line("compacted", message="", replacement_history=history))
    (summary,) = [one for one in made.items if isinstance(one, Summary)]
    assert summary.text == "old\n\nsum"
    assert not any(isinstance(one, Summary) for one in read(line("compacted", message="")).items)


def test_turns_that_were_rolled_back_are_hidden() -> None:
    made = read(
        META,
        said("user", "one"),
        said("assistant", "two"),
        said("user", "three"),
        said("assistant", "four"),
        line("event_msg", type="thread_rolled_back", num_turns=1),
        said("user", "five"),
    )
    (hidden,) = [one for one in made.items if isinstance(one, HiddenMessages)]
    assert len(hidden.ids) == 2 and hidden.extra["codex"]["payload"]["num_turns"] == 1
    assert [one.text for one in fold(through_native(made)).messages] == ["one", "two", "five"]


def test_an_old_file_of_bare_items_is_read() -> None:
    made = read(
        {"id": "019a", "timestamp": AT, "instructions": None, "git": {}},
        {"record_type": "state"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "function_call", "name": "shell", "arguments": "not json", "call_id": "c"},
        {"type": "function_call_output", "call_id": "c", "output": "plain"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ho"}]},
    )
    assert [one.text for one in messages(made)] == ["hi", "", "plain", "ho"]
    assert messages(made)[1].tool_calls[0].arguments == {"arguments": "not json"}
    assert made.created_ms == 1767323045000
    kinds = [one.kind for one in made.items if isinstance(one, Event)]
    assert kinds == ["codex.session_meta", "codex.state"]


def test_pictures_are_taken_over() -> None:
    parts = [
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
        {"type": "input_image", "image_url": "https://example.org/a.png"},
        {"type": "input_audio", "x": 1},
    ]
    made = read(item("message", role="user", content=parts))
    assert messages(made)[0].content[:2] == (Image("image/png", "AAAA"), Image(url="https://example.org/a.png"))


def test_rollouts_are_recognised() -> None:
    old: dict[str, Any] = {"id": "019a", "timestamp": AT, "instructions": None, "git": {}}
    assert codex.recognises("a.jsonl", data(META, CONTEXT))
    assert codex.recognises("a.jsonl", data(old))
    long = line("session_meta", id="x", instructions="a" * 70_000)
    head = json.dumps(long, separators=(",", ":")).encode()[: 64 * 1024]
    assert codex.recognises("a.jsonl", head)
    for other in (b"", b"[1]\n", b"\xff", b'{"type":"user"}\n', b'{"id":"x"}\n', b'{"type":{},"payload":{}}\n'):
        assert not codex.recognises("a.jsonl", other)
    assert not codex.recognises("a.json", data(META))


def test_a_file_cut_at_any_byte_gives_everything_before_the_cut() -> None:
    whole = data(META, said("user", "one"), said("assistant", "two"))
    for cut in range(len(whole)):
        made = codex.read(InMemorySource(NAME, {f"{NAME}.jsonl": whole[:cut]}))
        assert len(made.items) == whole[:cut].count(b"\n") + (whole[:cut][-1:] not in (b"", b"\n"))
        through_native(made)


@pytest.mark.parametrize(
    "payload",
    [
        {"type": "message", "role": "user", "content": None},
        {"type": "message", "role": [], "content": []},
        {"type": "message", "role": "user", "content": [1, None, "x"]},
        {"type": "reasoning", "summary": 5},
        {"type": "function_call", "name": None, "call_id": "x"},
        {"type": "function_call_output", "call_id": None},
        {"type": "function_call_output", "call_id": "x", "output": [1]},
        {"type": "function_call_output", "call_id": "x", "output": 5},
        {"type": "function_call", "name": "x", "call_id": "x", "arguments": '{"a":' * 180 + "1" + "}" * 180},
        {"type": {}},
        {},
    ],
)
def test_odd_items_are_kept_and_never_fail(payload: dict[str, Any]) -> None:
    made = read(META, {"timestamp": 5, "type": "response_item", "payload": payload})
    assert len(made.items) == 2 and made.damage == ()
    through_native(made)


def test_a_rollout_cannot_be_written() -> None:
    with pytest.raises(FormatError, match="cannot be written"):
        codex.write(Metadata(id="x"), [])


class TestConformance(FormatConformance):
    """What every dialect must do."""

    format: ClassVar[Any] = codex
    writable = False
    sessions: ClassVar[Sequence[InMemorySource]] = (
        InMemorySource(
            NAME,
            {
                f"{NAME}.jsonl": data(
                    META,
                    CONTEXT,
                    said("user", "one"),
                    item("function_call", name="sh", arguments="{}", call_id="c"),
                    item("function_call_output", call_id="c", output="x"),
                    line("compacted", message="sum"),
                    said("assistant", "two"),
                )
            },
        ),
    )
