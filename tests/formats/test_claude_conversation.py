"""What belongs to a Claude Code conversation, and who said it: reference/formats/claude-code.md, sections 2 and 3."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from everlog.context.build import build
from everlog.errors import UnsupportedError
from everlog.interop.formats.claude import FORMAT as claude
from everlog.interop.formats.format_types import (
    ForeignSession,
    InMemorySource,
    ListingScan,
    Match,
    TranscriptInfo,
    split_lines,
)
from everlog.interop.formats.recognition import detect
from everlog.log import backward_read
from everlog.model import PROGRAM, Event, Message, Metadata, ToolCall, assistant, tool_result, user
from everlog.testing.format_suite import FormatConformance
from tests.formats.claude_session import ID, Session, hidden, read, shown, uuid
from tests.formats.native import through_native
from tests.formats.test_claude_tail import Mirror
from tests.formats.test_claude_write import META, objects, stored

CORPUS = Path(__file__).parents[3] / "shared" / "corpus"


def listing(data: bytes, branch: str = "") -> ListingScan:
    return claude.scan_listing(ListingScan(), split_lines(data), TranscriptInfo(ID, stem=ID, branch=branch))


def messages(made: ForeignSession) -> list[Message]:
    away = hidden(made)
    return [item for item in made.items if isinstance(item, Message) and item.id not in away]


def context(made: ForeignSession) -> list[str]:
    return [message.text for message in build(backward_read.read_live(reversed(through_native(made)))).messages]


def check_uses_agree(session: Session) -> ForeignSession:
    """An import, a live view in two steps, and a listing of any part of the file."""
    made = session.read()
    source = InMemorySource(ID, {f"{ID}.jsonl": session.data()})
    suite = type("Suite", (FormatConformance,), {"format": claude, "sessions": (source,)})
    suite().test_import_live_view_and_listing_agree_at_every_line()
    return made


# --- who said it ----------------------------------------------------------------------------


def test_the_body_of_a_command_is_in_the_context_and_in_the_name_of_the_program() -> None:
    session = Session()
    session.user("<command-name>/init</command-name><command-message>init</command-message>")
    session.user([{"type": "text", "text": "Look at the code and describe it."}], isMeta=True)
    session.answer("Described.")
    session.user("Thanks")
    made = check_uses_agree(session)
    assert context(made)[1:] == ["Look at the code and describe it.", "Described.", "Thanks"]
    assert [one.sender for one in messages(made)] == [PROGRAM, PROGRAM, None, "user"]
    assert made.metadata["name"] == "Thanks"
    assert listing(session.data()).messages == 4
    written = claude.write(Metadata(id="x"), through_native(made))
    assert [json.loads(line) for line in written.files[f"{ID}.jsonl"].splitlines()] == session.objects


def test_a_note_beside_the_last_message_is_not_its_continuation() -> None:
    session = Session()
    session.user("go")
    call = session.call("t1")
    session.result("t1", "done")
    note = session.user("context of a hook", parent=call, isMeta=True)
    made = check_uses_agree(session)
    assert hidden(made) == {note}
    assert Mirror(session.data(), step=1).away == {note}


INSERTED = (
    "<command-name>/clear</command-name>\n  <command-message>clear</command-message><command-args></command-args>",
    "<task-notification>\n<task-id>b1</task-id>\n</task-notification>",
    "<local-command-stdout>Kept model</local-command-stdout>",
    "<ide_opened_file>The user opened a.py</ide_opened_file>",
    "<ide_selection>1: x = 1</ide_selection>\n<system-reminder>be brief</system-reminder>\n",
    "[Request interrupted by user for tool use]",
)


@pytest.mark.parametrize("text", INSERTED)
def test_inserted_blocks_are_not_the_words_of_the_user(text: str) -> None:
    session = Session()
    session.user(text)
    session.user([{"type": "text", "text": text}, {"type": "text", "text": "fix it"}])
    session.user(f"{text} and more")
    made = check_uses_agree(session)
    assert [one.sender for one in messages(made)] == [PROGRAM, "user", "user"]
    assert made.metadata["name"].endswith("fix it") or "/clear" in made.metadata["name"]


def test_many_inserted_blocks_before_other_text_take_linear_time() -> None:
    session = Session()
    session.user("<tick>1</tick>" * 50_000 + "x")
    assert messages(session.read())[0].sender == "user"


def test_what_a_program_wrote_is_marked_in_the_transcript() -> None:
    (made,) = objects(claude.write(META, stored(user("environment", sender=PROGRAM))))
    assert made["isMeta"] is True
    mirror = Mirror()
    (item,) = mirror.append(user("environment", sender=PROGRAM, id=uuid(1)))
    assert isinstance(item, Message) and item.sender == PROGRAM


# --- errors of the API ----------------------------------------------------------------------


def error(session: Session, text: str, *, is_marked: bool = True) -> None:
    keys: dict[str, Any] = {"isApiErrorMessage": True} if is_marked else {}
    session.answer(text, **keys)
    session.objects[-1]["message"]["model"] = "<synthetic>"


def test_errors_of_the_api_are_kept_outside_the_conversation() -> None:
    session = Session()
    session.user("one")
    error(session, "You've hit your limit · resets 3pm")
    session.user("two")
    error(session, 'API Error: 529 {"type":"error"}', is_marked=False)
    session.user("three")
    session.answer("four")
    error(session, "No response requested.", is_marked=False)
    made = check_uses_agree(session)
    assert shown(made) == ["one", "two", "three", "four", "No response requested."]
    assert hidden(made) == set()
    assert [item.id for item in made.items if isinstance(item, Event)] == [uuid(2), uuid(4)]
    assert made.metadata["model"] == "claude-test"
    mirror = Mirror(session.data(), step=1)
    assert mirror.wholes == 0 and len(mirror.items) == 5
    assert listing(session.data()).messages == 5


def test_a_message_continues_a_conversation_that_ended_with_an_error() -> None:
    session = Session()
    session.user("one")
    error(session, "API Error: timeout")
    mirror = Mirror(session.data())
    mirror.append(user("again", id=uuid(9)))
    made = read(mirror.data)
    assert shown(made) == ["one", "again"] and made.damage == ()


# --- side chains ----------------------------------------------------------------------------


def task(name: str, prompt: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": name, "name": "Task", "input": {"prompt": prompt}}


def with_side_chains(**keys: Any) -> Session:
    """Two subagents at the same time, as older versions wrote them."""
    session = Session()
    session.user("go")
    first = session.answer(task("t1", "count birds"), response="r")
    second = session.answer(task("t2", "count fish"), response="r")
    birds, fish = keys.get("birds", {}), keys.get("fish", {})
    birds_leaf = session.user("count birds", parent=None, isSidechain=True, **birds)
    fish_leaf = session.user("count fish", parent=None, isSidechain=True, **fish)
    birds_leaf = session.answer("3 birds", parent=birds_leaf, isSidechain=True, usage={"output_tokens": 30}, **birds)
    session.answer("5 fish", parent=fish_leaf, isSidechain=True, usage={"output_tokens": 50}, **fish)
    session.user("sure?", parent=birds_leaf, isSidechain=True, **birds)
    session.result("t1", "3 birds", parent=first)
    session.result("t2", "5 fish", parent=second)
    session.answer("8 animals", usage={"output_tokens": 8})
    return session


@pytest.mark.parametrize(
    ("keys", "branches"),
    [
        ({}, ["agent-00000000", "agent-10000000"]),
        ({"birds": {"agentId": "b1"}, "fish": {"agentId": "f1"}}, ["agent-b1", "agent-f1"]),
    ],
)
def test_each_side_chain_is_a_session_of_its_own_with_its_usage(keys: dict[str, Any], branches: list[str]) -> None:
    session = with_side_chains(**keys)
    if not keys:
        session = renamed(session, uuid(5), f"1{uuid(5)[1:]}")
    made = check_uses_agree(session)
    assert shown(made) == ["go", "", "", "3 birds", "5 fish", "8 animals"]
    assert [child.session_id for child in made.children] == [f"{ID}/{branch}" for branch in branches]
    assert [shown(child) for child in made.children] == [["count birds", "3 birds", "sure?"], ["count fish", "5 fish"]]
    assert [child.metadata["parent"] for child in made.children] == [
        {"session": ID, "toolCallId": "t1"},
        {"session": ID, "toolCallId": "t2"},
    ]
    assert [child.metadata["name"] for child in made.children] == ["count birds", "count fish"]
    tokens = [sum(one.usage.output_tokens for one in messages(each) if one.usage) for each in (made, *made.children)]
    assert tokens == [2 + 8, 30, 50]
    assert all(child.damage == () for child in made.children)


def renamed(session: Session, old: str, new: str) -> Session:
    session.objects = json.loads(json.dumps(session.objects).replace(old, new))
    return session


def test_a_live_view_and_a_listing_of_a_side_chain_read_only_that_one() -> None:
    session = with_side_chains(birds={"agentId": "b1"}, fish={"agentId": "f1"})
    data = session.data()
    facts = listing(data)
    assert facts.branches == ("agent-b1", "agent-f1") and (facts.messages, facts.title) == (6, "go")
    for child, branch in zip(session.read().children, facts.branches, strict=True):
        of_branch = listing(data, branch)
        assert (of_branch.messages, of_branch.title) == (len(messages(child)), child.metadata["name"])
        assert (of_branch.skip, of_branch.parent, of_branch.branches) == (False, ID, ())
        where = TranscriptInfo(f"{ID}:{branch}", stem=ID, branch=branch)
        lines = list(split_lines(data))
        whole = claude.read_all(lines, where)
        for cut in range(len(lines)):
            first = claude.read_tail({}, lines[:cut], where)
            assert first is not None
            second = claude.read_tail(json.loads(json.dumps(first.state)), lines[cut:], where)
            assert second is not None
            assert [*first.items, *second.items] == whole.items
        assert [(one.id, one.content, one.usage) for one in whole.items if isinstance(one, Message)] == [
            (one.id, one.content, one.usage) for one in messages(child)
        ]


def test_nothing_is_added_to_a_side_chain_in_the_transcript_of_its_parent() -> None:
    mirror = Mirror(with_side_chains(birds={"agentId": "b1"}).data())
    mirror.transcript = TranscriptInfo(f"{ID}:agent-b1", stem=ID, branch="agent-b1")
    with pytest.raises(UnsupportedError):
        mirror.append(user("go on"))


def test_a_side_chain_before_the_first_prompt_is_not_the_conversation() -> None:
    session = Session()
    session.user("Warmup", isSidechain=True, agentId="w1")
    session.answer("Ready", isSidechain=True, agentId="w1")
    session.user("hello", parent=None)
    session.answer("hi")
    made = session.read()
    assert shown(made) == ["hello", "hi"] and made.metadata["name"] == "hello"
    assert [shown(child) for child in made.children] == [["Warmup", "Ready"]]
    facts = listing(session.data())
    assert (facts.messages, facts.title, facts.branches, facts.skip) == (2, "hello", ("agent-w1",), False)
    assert [item.id for item in claude.read_all(split_lines(session.data()), TranscriptInfo(ID)).items] == [
        uuid(3),
        uuid(4),
    ]


def test_a_side_chain_with_a_lost_record_stays_one_session() -> None:
    session = Session()
    session.user("go")
    session.user("count birds", parent=None, isSidechain=True)
    session.answer("one", isSidechain=True)
    session.answer("two", isSidechain=True)
    del session.objects[2]
    (child,) = session.read().children
    assert shown(child) == ["count birds", "two"]
    assert [one.problem for one in child.damage] == [f"parent {uuid(3)} is missing"]


def test_many_side_chains_leave_a_small_state() -> None:
    session = Session()
    session.user("go")
    for number in range(200):
        session.user(f"task {number}", parent=None, isSidechain=True, agentId=f"a{number}")
        for _ in range(50):
            session.answer("on it", isSidechain=True, agentId=f"a{number}")
    facts = listing(session.data())
    assert len(facts.branches) == 200
    assert len(json.dumps(facts.state)) < 16_000


def test_the_transcript_of_a_subagent_alone_is_named_after_its_parent() -> None:
    session = Session()
    session.user("look", isSidechain=True, agentId="a7")
    made = claude.read(InMemorySource("agent-a7", {"agent-a7.jsonl": session.data()}))
    assert (made.session_id, made.children) == (f"{ID}/agent-a7", ())
    facts = claude.scan_listing(ListingScan(), split_lines(session.data()), TranscriptInfo("agent-a7"))
    assert (facts.skip, facts.parent, facts.program_id) == (True, ID, "")


# --- histories with a new root --------------------------------------------------------------


def rooted_again(session: Session, first: int) -> Session:
    """The chain so far once more, under a new root, with new uuids and the same messages."""
    copies = json.loads(json.dumps(session.objects))
    for number in range(1, len(copies) + 1):
        copies = json.loads(json.dumps(copies).replace(uuid(number), uuid(first + number)))
    session.objects += copies
    session.leaf = copies[-1]["uuid"]
    session.count = first + len(copies)
    return session


def conversation() -> Session:
    session = Session()
    session.user("go")
    for number in (1, 2):
        session.call(f"t{number}", response="r")
    session.result("t1", "rejected", parent=uuid(2))
    session.objects.append({**session.objects[-1], "uuid": uuid(5), "parentUuid": uuid(3)})
    session.objects[-1]["message"] = {"content": [{"type": "tool_result", "tool_use_id": "t2", "content": "rejected"}]}
    session.leaf, session.count = uuid(5), 5
    session.answer("done")
    return session


def test_of_a_history_under_a_new_root_each_message_is_shown_once() -> None:
    session = rooted_again(conversation(), 100)
    session.user("and now?")
    made = check_uses_agree(session)
    assert shown(made) == ["go", "", "", "rejected", "rejected", "done", "and now?"]
    assert hidden(made) == {uuid(number) for number in range(1, 7)}
    assert context(made).count("go") == context(made).count("done") == 1
    mirror = Mirror(session.data(), step=1)
    assert mirror.away == hidden(made)


def test_a_conversation_that_goes_on_from_the_old_copy_hides_the_new_one() -> None:
    session = rooted_again(conversation(), 100)
    session.user("and now?", parent=uuid(6))
    made = check_uses_agree(session)
    assert shown(made) == ["go", "", "", "rejected", "rejected", "done", "and now?"]
    assert hidden(made) == {uuid(number) for number in range(101, 107)}


# --- names ----------------------------------------------------------------------------------


def test_tool_names_that_the_api_refuses_are_rewritten_like_ids() -> None:
    calls = [
        ToolCall("c1", "files.read text", {}),
        ToolCall("c2", "x" * 128, {}),
        ToolCall("c3", "files.read text", {}),
    ]
    records = stored(user("go"), assistant(calls), *(tool_result(f"c{number}", "ok") for number in (1, 2, 3)))
    written = claude.write(META, records)
    blocks = objects(written)[1]["message"]["content"]
    assert blocks[0]["name"] == blocks[2]["name"] != "files.read text"
    assert blocks[0]["name"].startswith("files_read_text_") and blocks[1]["name"] == "x" * 128
    assert written.losses == ("name of a tool: 2",)
    mirror = Mirror()
    mirror.append(user("go", id=uuid(1)))
    mirror.append(assistant(calls, id=uuid(2)))
    mirror.append(tool_result("c1", "ok", id=uuid(3)))
    made = read(mirror.data)
    assert messages(made)[2].tool_name == messages(made)[1].tool_calls[0].name == blocks[0]["name"]


def test_a_session_has_the_id_that_claude_code_gave_it() -> None:
    session = Session()
    session.meta("mode", mode="plan")
    session.user("hello")
    made = claude.read(InMemorySource("copy", {"copy.jsonl": session.data()}))
    assert made.session_id == ID
    assert [item.id for item in made.items] == [item.id for item in session.read().items]
    facts = claude.scan_listing(ListingScan(), split_lines(session.data()), TranscriptInfo("copy", stem="copy"))
    assert facts.program_id == ID
    assert claude.resume_command(facts, "/x/copy.jsonl") == ("claude", "--resume", ID)


def test_a_subagent_is_continued_with_its_parent() -> None:
    command = ("claude", "--resume", ID)
    assert claude.resume_command(ListingScan(parent=ID), "/x/y.jsonl") == command
    assert claude.resume_command(ListingScan(), f"/x/{ID}/subagents/workflows/r1/agent-a1.jsonl") == command
    assert claude.resume_command(ListingScan(), f"/x/{ID}.jsonl") == command
    assert claude.resume_command(ListingScan(), "/x/y.jsonl") == ()


# --- losses ---------------------------------------------------------------------------------


def test_an_export_names_what_the_transcript_cannot_hold() -> None:
    metadata = Metadata(
        id="x",
        agent="ops",
        sender="ada",
        key="ticket-1",
        scope={"channel": "web"},
        extra={"cwd": "/w", "colour": "red"},
    )
    record = assistant("hi", model="m", stop_reason="content_filter", timestamp="2026-01-01T00:00:00.000500Z")
    written = claude.write(metadata, stored(user("hello", sender="ada"), record))
    assert written.losses == (
        "agent: 1",
        "exact time of a message: 1",
        "key: 1",
        "metadata colour: 1",
        "scope: 1",
        "sender: 1",
        "stop reason of a message: 1",
    )


# --- recognising ----------------------------------------------------------------------------


def first_lines() -> list[bytes]:
    session = Session()
    session.user("x" * 5_000_000)
    return [b"{", b"\0" * 300, b"\n", b'{"type":"user","message":{"content":["x"]}}', session.data()[:-1], b"\xff" * 70]


@pytest.mark.parametrize("line", first_lines(), ids=lambda line: f"{len(line)} bytes")
def test_a_transcript_is_recognised_whatever_its_first_line(line: bytes) -> None:
    session = Session()
    session.user("hello")
    data = line + b"\n" + session.data()
    assert claude.recognises("x.jsonl", data)
    assert shown(read(data))[-1] == "hello"


def test_a_torn_transcript_is_possible_and_a_whole_one_is_sure() -> None:
    session = Session()
    session.user("hello")
    data = session.data()
    assert claude.recognises(f"{ID}.jsonl", data) is Match.SURE
    assert claude.recognises(f"{ID}.jsonl", data[: len(data) // 2]) is Match.POSSIBLE
    assert claude.recognises(f"{ID}.jsonl", b"\0" * 100) is Match.POSSIBLE
    assert claude.recognises("x.jsonl", b"\0" * 100) is Match.NO


FOREIGN = (
    b'{"type":"user","uuid":"1","timestamp":"","session_id":"s","cwd":"","message":{"role":"user","content":"x"}}',
    b'{"uuid":"1","parentUuid":null,"sessionId":"s","type":"user","message":{"role":"user","parts":[{"text":"x"}]}}',
    b'{"uuid":"1","parentUuid":null,"sessionId":"s","type":"system","subtype":"ui_telemetry","systemPayload":{}}',
    b'{"sessionId":"s","projectHash":"h","startTime":"","kind":"main"}',
    b'{"type":"session","version":3,"id":"1","timestamp":"","cwd":"/"}',
    b'{"role":"user","message":{"content":[{"type":"text","text":"x"}]}}',
    b'{"timestamp":"","type":"session_meta","payload":{"id":"1"}}',
    b'{"type":"message","id":"1","parentId":null,"message":{"role":"user","content":"x"}}',
)


@pytest.mark.parametrize("line", FOREIGN)
def test_the_lines_of_other_programs_are_not_recognised(line: bytes) -> None:
    for head in (line, line + b"\n", (line + b"\n") * 3, line[: len(line) * 2 // 3]):
        assert claude.recognises(f"{ID}.jsonl", head) is Match.NO, head


# --- real files -----------------------------------------------------------------------------


def corpus(*parts: str) -> Sequence[Path]:
    folder = CORPUS.joinpath(*parts)
    return sorted(folder.rglob("*.jsonl")) if folder.is_dir() else ()


@pytest.mark.parametrize("path", corpus("claude-code"), ids=lambda path: path.stem)
def test_the_uses_of_a_real_transcript_agree(path: Path) -> None:
    data = path.read_bytes()
    made = claude.read(InMemorySource(path.stem, {path.name: data}))
    assert made.line_count == data.count(b"\n") and not [one for one in made.damage if "missing" not in one.problem]
    facts = claude.scan_listing(ListingScan(), split_lines(data), TranscriptInfo(path.stem, stem=path.stem))
    live = claude.read_all(split_lines(data), TranscriptInfo(made.session_id, stem=path.stem)).items
    read_ids = [item.id for item in made.items if isinstance(item, Message)]
    assert read_ids == [item.id for item in live if isinstance(item, Message)]
    assert facts.messages == len(read_ids)
    assert (facts.title, facts.cwd, facts.model) == tuple(
        made.metadata.get(key, "") for key in ("name", "cwd", "model")
    )
    own = {json.loads(line)["uuid"] for line in data.splitlines() if b'"isMeta":true' in line and b'"user"' in line}
    assert own <= {item.id for item in made.items if isinstance(item, Message) and item.sender == PROGRAM}


@pytest.mark.parametrize("path", [one for one in corpus() if "claude-code" not in one.parts], ids=lambda one: one.stem)
def test_real_files_of_other_programs_are_not_recognised(path: Path) -> None:
    assert claude.recognises(path.name, path.read_bytes()[:65536]) is Match.NO
    assert detect(path.name, path.read_bytes()[:65536], [claude]) is None
