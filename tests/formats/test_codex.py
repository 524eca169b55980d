"""Codex's rollouts, read. The lines are written by hand from its published protocol."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from everlog.app import open_store
from everlog.context.build import build
from everlog.errors import FormatError, UnsupportedError
from everlog.interop.formats.codex import FORMAT as codex
from everlog.interop.formats.format_types import (
    ForeignSession,
    HiddenMessages,
    InMemorySource,
    ListingScan,
    Match,
    Summary,
    TranscriptInfo,
    extra_field,
    split_lines,
)
from everlog.log import backward_read
from everlog.log.fold import fold
from everlog.model import PROGRAM, Event, Image, Message, Metadata, Text, Thinking, ToolCall, Usage, user
from everlog.testing.format_suite import FormatConformance
from tests.formats.native import through_native
from tests.formats.samples import check_sample, needs_corpus

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
    assert made.metadata == {"cwd": "/work", "model": "gpt-test", "name": "List the files"}
    assert made.created_ms == 1767323045000
    assert made.damage == () and made.line_count == 16 == len(made.items)
    assert [(one.sender, one.text.split()[0]) for one in messages(made)[:4]] == [
        (PROGRAM, "be"),
        (PROGRAM, "#"),
        (PROGRAM, "<environment_context><cwd>/work</cwd></environment_context>"),
        ("user", "List"),
    ]
    assert [(one.role, one.content) for one in messages(made)[3:]] == [
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
        "codex.turn_context",
        "codex.event_msg.user_message",
        "codex.response_item.web_search_call",
    ]
    context = build(backward_read.read_live(reversed(through_native(made))))
    assert context.left_out == () and len(context.messages) == 12


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


# --- today's rollouts ---------------------------------------------------------------------------

REQUEST = "## My request for Codex:"
THREAD = "019a2d7a-41c4-78b1-b7cc-a45d62a89cd5"
FORK = "019a2d7b-0000-7000-8000-000000000001"
COUNTS = {"input_tokens": 100, "cached_input_tokens": 60, "output_tokens": 7, "total_tokens": 107}


def paginated(*lines: dict[str, Any], start: int = 0) -> list[dict[str, Any]]:
    return [{**one, "ordinal": number} for number, one in enumerate(lines, start)]


def typed(text: str) -> list[dict[str, Any]]:
    """A prompt as today's versions write it: as an item of the model, and as one of the display."""
    kinds = {"turn_id": "t", "content_item_kinds": ["user.text"]}
    shown = {"type": "UserMessage", "content": [{"type": "text", "text": text}]}
    prompt = said("user", text)
    prompt["payload"]["internal_chat_message_metadata_passthrough"] = kinds
    return [prompt, line("event_msg", type="item_completed", thread_id=THREAD, item=shown)]


def answered(text: str) -> list[dict[str, Any]]:
    shown = {"type": "AgentMessage", "id": "msg", "content": [{"type": "Text", "text": text}]}
    return [
        line("event_msg", type="item_completed", thread_id=THREAD, item=shown),
        said("assistant", text),
        line("token_usage_record", thread_id=THREAD, usage=COUNTS),
        line("event_msg", type="token_count", info={"total_token_usage": COUNTS, "last_token_usage": COUNTS}),
    ]


PAGINATED = paginated(
    line("session_meta", id=THREAD, session_id=THREAD, cwd="/work", history_mode="paginated"),
    CONTEXT,
    *typed("Which teas?"),
    *answered("Assam."),
    *typed("Undo this."),
    *answered("Undone."),
)
KEPT_LINES = 8  # of these, without the second turn


def base_reference(rollout: str) -> dict[str, Any]:
    end = len(data(*PAGINATED[:KEPT_LINES]))
    return {"thread_id": rollout, "end_ordinal_exclusive": KEPT_LINES, "end_byte_offset": end}


def fork(base: Sequence[dict[str, Any]]) -> InMemorySource:
    meta = line("session_meta", id=FORK, cwd="/fork", forked_from_id=THREAD, history_base=base_reference(THREAD))
    name = f"rollout-2026-01-03T03-04-05-{FORK}"
    total = line("event_msg", type="token_count", info={"total_token_usage": COUNTS, "last_token_usage": COUNTS})
    own = paginated(meta, total, *typed("And coffee?"), *answered("Java."), start=KEPT_LINES)
    return InMemorySource(name, {f"{name}.jsonl": data(*own), f"../{NAME}.jsonl": data(*base)})


def revert(base: Sequence[dict[str, Any]]) -> InMemorySource:
    meta = line("session_meta", id=THREAD, cwd="/work", timestamp=AT, history_base=base_reference(THREAD))
    name = f"rollout-2026-01-03T03-04-05-{THREAD}_{FORK}"
    own = paginated(meta, *typed("Another."), *answered("Yes."), start=KEPT_LINES)
    return InMemorySource(name, {f"{name}.jsonl": data(*own), f"../{NAME}.jsonl": data(*base)})


def shown(read_session: ForeignSession) -> list[str]:
    return [one.text for one in fold(through_native(read_session)).messages]


def test_texts_and_usage_that_a_file_has_twice_are_counted_once() -> None:
    read_session = read(*PAGINATED)
    assert [(one.role, one.text) for one in messages(read_session)] == [
        ("user", "Which teas?"),
        ("assistant", "Assam."),
        ("user", "Undo this."),
        ("assistant", "Undone."),
    ]
    usage = Usage(input_tokens=40, output_tokens=7, total_tokens=107, cache_read_tokens=60)
    assert [one.usage for one in messages(read_session)] == [None, usage, None, usage]
    assert read_session.session_id == THREAD
    assert len(read_session.items) == read_session.line_count == len(PAGINATED)


def test_words_and_injected_text_are_told_apart_by_their_kinds() -> None:
    prompt = said("user", "<anything>files</anything>", "<environment_context> is what I ask about")
    kinds = {"content_item_kinds": ["mentions.files", "user.text"]}
    prompt["payload"]["internal_chat_message_metadata_passthrough"] = kinds
    injected, words = messages(read(META, prompt))
    assert (injected.sender, injected.text) == (PROGRAM, "<anything>files</anything>")
    assert (words.sender, words.text) == ("user", "<environment_context> is what I ask about")


def test_the_request_behind_the_context_of_an_editor_is_what_the_user_said() -> None:
    text = f"# Context from my IDE setup:\n\n## Active file: a.py\n\n{REQUEST}\nFix it.\n"
    read_session = read(META, said("user", text), said("assistant", "Done."))
    context, words, _ = messages(read_session)
    assert (context.sender, context.text) == (PROGRAM, text.removesuffix("\nFix it.\n"))
    assert (words.sender, words.text) == ("user", "Fix it.")
    assert read_session.metadata["name"] == "Fix it."
    assert len(build(backward_read.read_live(reversed(through_native(read_session)))).messages) == 3


def test_a_rolled_back_request_takes_the_context_of_its_editor_with_it() -> None:
    request = said("user", f"# Context\n{REQUEST}\nx")
    read_session = read(META, said("user", "one"), request, line("event_msg", type="thread_rolled_back", num_turns=1))
    assert shown(read_session) == ["one"]


def test_tags_around_a_picture_are_not_words() -> None:
    picture = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    texts = [{"type": "input_text", "text": text} for text in ("<image name=[a]>", "</image>", "What is it?")]
    prompt = item("message", role="user", content=[texts[0], picture, *texts[1:]])
    read_session = read(META, prompt)
    (message,) = messages(read_session)
    assert message.content == (Image("image/png", "AAAA"), Text("What is it?"))
    assert extra_field(message, "codex")["content"] == prompt["payload"]["content"]
    assert read_session.metadata["name"] == "What is it?"


def test_the_summary_of_a_compaction_is_not_an_answer() -> None:
    output = said("assistant", "They asked about teas.") | {"metadata": {"compaction_output": True}}
    read_session = read(META, said("user", "x"), output, line("compacted", message="Summary: They asked about teas."))
    assert [one.text for one in messages(read_session)] == ["x"]
    assert [one.text for one in read_session.items if isinstance(one, Summary)] == ["Summary: They asked about teas."]
    assert len(read_session.items) == 4


def test_the_title_is_the_last_name_in_the_index_of_threads() -> None:
    index = data(
        {"id": THREAD, "thread_name": "Old"},
        {"id": FORK, "thread_name": "Another"},
        {"id": THREAD, "thread_name": "Tea sales", "note": FORK},
        {"id": FORK, "thread_name": f"Not {THREAD}"},
    )
    files = {f"{NAME}.jsonl": data(*PAGINATED), "../session_index.jsonl": index + b"{torn"}
    assert codex.read(InMemorySource(NAME, files)).metadata["name"] == "Tea sales"


def test_a_fork_begins_with_the_messages_of_its_base() -> None:
    read_session = codex.read(fork(PAGINATED))
    assert shown(read_session) == ["Which teas?", "Assam.", "And coffee?", "Java."]
    base_ids = [one.id for one in messages(read(*PAGINATED))]
    inherited = messages(read_session)[:2]
    assert [one.id for one in inherited] == base_ids[:2]
    assert [extra_field(one, "codex") for one in inherited] == [{"inherited": THREAD}] * 2
    assert [one.usage is None for one in messages(read_session)] == [True, True, True, False]
    assert (read_session.session_id, read_session.metadata["cwd"]) == (FORK, "/fork")
    assert read_session.metadata["name"] == "Which teas?"
    assert read_session.damage == ()


def test_a_fork_of_a_fork_begins_with_the_messages_of_both() -> None:
    first = fork(PAGINATED)
    other = FORK.replace("1", "2")
    path = next(iter(first.files))
    end = {"thread_id": FORK, "end_byte_offset": len(first.files[path])}
    meta = line("session_meta", id=other, history_base=end)
    name = f"rollout-2026-01-04T03-04-05-{other}"
    files = {f"{name}.jsonl": data(meta, said("user", "More.")), f"../{path}": first.files[path]}
    source = InMemorySource(name, {**files, f"../{NAME}.jsonl": data(*PAGINATED)})
    assert shown(codex.read(source)) == ["Which teas?", "Assam.", "And coffee?", "Java.", "More."]


def test_a_reverted_thread_shows_its_new_way_and_hides_the_old_one() -> None:
    read_session = codex.read(revert(PAGINATED))
    assert shown(read_session) == ["Which teas?", "Assam.", "Another.", "Yes."]
    assert read_session.session_id == THREAD
    base = messages(read(*PAGINATED))
    assert [one.id for one in messages(read_session)][: len(base)] == [one.id for one in base]
    assert len({one.id for one in read_session.items}) == len(read_session.items)


def test_a_fork_without_its_base_is_read_and_says_what_is_missing() -> None:
    source = fork(PAGINATED)
    path = next(iter(source.files))
    read_session = codex.read(InMemorySource(source.name, {path: source.files[path]}))
    assert shown(read_session) == ["And coffee?", "Java."]
    assert [THREAD in one.problem for one in read_session.damage] == [True]


def test_a_rollout_that_refers_to_itself_is_read_once() -> None:
    meta = line("session_meta", id=THREAD, history_base={"thread_id": THREAD, "end_byte_offset": 10_000})
    content = data(meta, said("user", "x"))
    files = {f"{NAME}.jsonl": content, f"../{NAME}.jsonl": content}
    assert shown(codex.read(InMemorySource(NAME, files))) == ["x"]


def test_the_parent_of_a_subagent_is_listed() -> None:
    meta = line("session_meta", id=FORK, session_id=THREAD, parent_thread_id=THREAD, cwd="/work")
    facts = codex.scan_listing(ListingScan(), split_lines(data(meta, said("user", "Count."))), TranscriptInfo(FORK))
    assert (facts.parent, facts.program_id, facts.title, facts.messages) == (THREAD, FORK, "Count.", 1)


def test_a_rollback_of_messages_read_before_needs_the_whole_file() -> None:
    lines = list(split_lines(data(META, said("user", "one"), said("user", "two"))))
    rolled_back = list(split_lines(data(line("event_msg", type="thread_rolled_back", num_turns=1))))
    result = codex.read_tail({}, lines, TranscriptInfo("x"))
    assert result is not None
    assert codex.read_tail(result.state, rolled_back, TranscriptInfo("x")) is None


def test_a_failed_command_is_seen_by_its_exit_code() -> None:
    output = "Chunk ID: 80de15\nWall time: 0.0 seconds\nProcess exited with code 2\nOutput:\nno such file\n"
    call = item("function_call", name="exec_command", arguments="{}", call_id="c")
    results = [
        messages(read(META, call, item("function_call_output", call_id="c", output=text)))[-1].is_error
        for text in (output, output.replace("code 2", "code 0"), "Process exited")
    ]
    assert results == [True, False, None]


def test_ids_do_not_depend_on_the_name_or_folder_of_a_file() -> None:
    moved = codex.read(InMemorySource("copy", {"copy.jsonl": data(*PAGINATED)}))
    assert [one.id for one in moved.items] == [one.id for one in read(*PAGINATED).items]
    assert moved.session_id == THREAD


def test_rollouts_with_a_damaged_first_line_are_possible_by_name_or_lines() -> None:
    lines = data(*PAGINATED[1:])
    for first in (b"", b"\n", b"\0" * 50 + b"\n", b'{"timestamp":"2026\n', b'{"content":["x"]}\n'):
        assert codex.recognises("x.jsonl", first + lines), first
        assert codex.recognises(f"sub/{NAME}.jsonl", first + lines), first
    assert codex.recognises(f"{NAME}.jsonl", b"\0" * 100) is Match.POSSIBLE
    assert codex.recognises("x.jsonl", data(*PAGINATED)) is Match.SURE
    bare = data({"type": "message", "role": "user", "content": []})
    assert codex.recognises(f"{NAME}.jsonl", bare) is Match.POSSIBLE
    assert codex.recognises("x.jsonl", bare) is Match.NO


@pytest.mark.parametrize(
    "other",
    [
        {"type": "user", "uuid": "u", "parentUuid": None, "sessionId": "s", "message": {"content": "x"}},
        {"sessionId": "s", "projectHash": "f", "startTime": AT},
        {"type": "session", "version": 3, "id": "i", "timestamp": AT, "cwd": "/"},
        {"type": "session.start", "data": {}, "id": "i", "timestamp": AT, "parentId": None},
        {"role": "user", "message": {"content": [{"type": "text", "text": "x"}]}},
    ],
)
def test_lines_of_other_programs_are_no_rollout(other: dict[str, Any]) -> None:
    assert codex.recognises("x.jsonl", data(other, other)) is Match.NO
    assert codex.recognises(f"{NAME}.jsonl", data(other, other)) is Match.NO


def test_a_rollout_is_continued_by_its_own_program_and_not_written() -> None:
    facts = ListingScan(program_id=THREAD)
    assert codex.resume_command(facts, f"2026/01/02/{NAME}.jsonl") == ("codex", "resume", THREAD)
    assert codex.resume_command(ListingScan(), f"a/{NAME}.jsonl") == ("codex", "resume", THREAD)
    assert codex.session_id_of(NAME, None) == THREAD and codex.is_id(THREAD) and not codex.is_id(NAME)
    log: Any = None
    for refused in (
        lambda: codex.build_session({}, "", lambda _: False),
        lambda: codex.name_fields("x"),
        lambda: codex.encode_metadata({}, log, {}),
        lambda: codex.encode_record({}, log, user("x")),
    ):
        with pytest.raises(UnsupportedError) as raised:
            refused()
        assert "everlog import" in str(raised.value.hint)


def test_a_directory_of_rollouts_is_opened_as_a_store(tmp_path: Path) -> None:
    folder = tmp_path / "sessions" / "2026" / "01" / "02"
    folder.mkdir(parents=True)
    (folder / f"{NAME}.jsonl").write_bytes(data(*PAGINATED))
    with open_store(tmp_path / "sessions", home=tmp_path / "home") as store:
        (listed,) = store.list()
        session = store.session(listed.id)
        assert (session.id, listed.metadata.title, session.metadata.title) == (THREAD, "Which teas?", "Which teas?")
        assert [one.text for one in session.messages()] == ["Which teas?", "Assam.", "Undo this.", "Undone."]
        with pytest.raises(UnsupportedError):
            session.append("more")


# --- real rollouts ------------------------------------------------------------------------------

ROLLOUTS = Path(__file__).parents[3] / "shared" / "corpus" / "codex"
EXPECTED = {  # prompts, answers with text, tool calls, title
    "01a1ed90-0c37-7432-af64-ed507cbb6d1d": (2, 2, 0, "Which teas sell best?"),
    "01a1ed94-c1e9-7933-9833-269499be5063": (5, 5, 0, "Tea sales by season"),
    "01a1edb3-d84a-79b3-baeb-8c41ce7b547a": (2, 3, 3, "Rounding prices"),
    "01a1ed94-c377-79c1-8ec4-661255f51069": (1, 2, 2, "Ask a helper to count lines."),
    "01a1ed94-c3a6-7fc0-902a-b5fd4ff72a8a": (1, 0, 1, "Count the lines of README.md please."),
}


@needs_corpus(ROLLOUTS)
@pytest.mark.parametrize("thread", EXPECTED)
def test_real_rollouts_have_their_counts_and_titles(thread: str) -> None:
    (path,) = ROLLOUTS.rglob(f"*{thread}.jsonl")
    check_sample(codex, path, thread, EXPECTED[thread])


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
        InMemorySource(
            NAME,
            {
                f"{NAME}.jsonl": data(
                    META,
                    CONTEXT,
                    said("user", f"# Context\n\n{REQUEST}\nthree"),
                    said("assistant", "four"),
                    said("user", "five"),
                    line("event_msg", type="thread_rolled_back", num_turns=1),
                    said("user", "six"),
                ),
                "../session_index.jsonl": data({"id": THREAD, "thread_name": "Counting"}),
            },
        ),
        fork(PAGINATED),
        revert(PAGINATED),
    )
