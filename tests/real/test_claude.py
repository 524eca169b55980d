"""The real Claude Code resumes what we appended, compacted and converted; we read what it writes.

`make test-real` installs it; without that these tests skip.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pytest

import everlog
from everlog.app import load_formats
from everlog.interop.exporter import export
from everlog.interop.formats.claude.projects import project_directory
from everlog.interop.importer import ImportResult, import_files
from everlog.model import Compaction, Message, Text, ToolCall, assistant, tool_result, user
from tests.real.claude_cli import PROGRAM, ClaudeCli, conversation, spoken
from tests.real.fake_models import FakeModels, Json, call, text

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif("EVERLOG_TEST_REAL" not in os.environ, reason="runs a foreign program: make test-real"),
    pytest.mark.skipif(not PROGRAM.is_file(), reason="Claude Code is not installed: make test-real"),
]

SUMMARY = "They compared teas and chose a malty one."


def answer(request: Json) -> list[Json]:
    """Answer by what was said last."""
    last = conversation(request)[-1]
    if "user: result" in last or "task-notification" in last:
        return [text("That is done.")]
    if "detailed summary of the conversation" in last:
        return [text(f"<analysis>Tea.</analysis><summary>{SUMMARY}</summary>")]
    if last.endswith("Run a command."):
        return [text("I run it."), call("toolu_shell", "Bash", command="echo from the shell", description="say")]
    if last.endswith("Run two commands."):
        commands = [call(f"toolu_{name}", "Bash", command=f"echo {name}", description="say") for name in ("one", "two")]
        return [text("I run both."), *commands]
    if last.endswith("Run a loud command."):
        return [call("toolu_loud", "Bash", command="seq 1 20000", description="count")]
    if last.endswith("Ask another agent."):
        task = {"description": "taste", "prompt": "Taste the second tea.", "subagent_type": "general-purpose"}
        return [text("I ask it."), call("toolu_agent", "Agent", **task)]
    if last.endswith("Taste the second tea."):
        return [text("It is smoky.")]
    return [text("Assam.")]


class Desk(NamedTuple):
    """The program, and our store on its files."""

    cli: ClaudeCli
    store: everlog.Store
    session_id: str

    @property
    def session(self) -> everlog.Session:
        return self.store.session(self.session_id)


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[ClaudeCli]:
    with FakeModels(answer) as models:
        yield ClaudeCli(tmp_path / "user", models)


@pytest.fixture
def desk(cli: ClaudeCli, tmp_path: Path) -> Iterator[Desk]:
    """A session that the program began, and our store on its directory."""
    session_id = str(uuid4())
    cli.start(session_id, "Which tea is malty?")
    with everlog.open_store(cli.projects, dialect="claude", home=tmp_path / "everlog") as store:
        yield Desk(cli, store, session_id)


def in_context(session: everlog.Session) -> list[str]:
    """Return what we would send a model next, as `conversation` does of what the program sends."""
    parts = []
    for message in session.context().messages:
        role = "assistant" if message.role == "assistant" else "user"
        if message.role == "toolResult":
            parts.append(f"{role}: result {message.tool_call_id} {message.text}")
            continue
        for block in message.content:
            if isinstance(block, Text) and (words := spoken(block.text)):
                parts.append(f"{role}: {words}")
            elif isinstance(block, ToolCall):
                arguments = json.dumps(block.arguments, sort_keys=True)
                parts.append(f"{role}: call {block.id} {block.name} {arguments}")
    return parts


def imported(transcript: Path, home: Path) -> tuple[ImportResult, everlog.Session]:
    """Import a transcript into a new native store, and read the session back."""
    store = everlog.open_store(home, dialect="native")
    (result,) = import_files(store.port, [transcript], load_formats())
    assert result.problem == "" and result.id is not None
    return result, store.session(result.id)


def flatten(result: ImportResult) -> list[ImportResult]:
    return [result, *(row for child in result.children for row in flatten(child))]


def test_what_the_program_wrote_is_listed_and_shown(desk: Desk) -> None:
    (row,) = desk.store.list()
    assert (row.id, row.metadata.title) == (desk.session_id, "Which tea is malty?")
    assert [message.text for message in desk.session.messages()] == ["Which tea is malty?", "Assam."]
    assert desk.session.verify() == ()


def test_the_command_that_a_listing_names_resumes_it(desk: Desk) -> None:
    (row,) = desk.store.list()
    (request,) = desk.cli.shell(row.metadata.resume_command, "And a green one?")
    assert conversation(request) == ["user: Which tea is malty?", "assistant: Assam.", "user: And a green one?"]
    assert [message.text for message in desk.session.messages()][2:] == ["And a green one?", "Assam."]


def test_it_resumes_what_we_appended(desk: Desk) -> None:
    desk.session.append(user("And which is smoky?"))
    desk.session.append(assistant([Text("I look."), ToolCall("toolu_ours", "Read", {"file_path": "teas.txt"})]))
    desk.session.append(tool_result("toolu_ours", "Lapsang: smoky"))
    desk.session.append(assistant("Lapsang."))
    (request,) = desk.cli.resume(desk.session_id, "And a green one?")
    assert conversation(request) == [
        "user: Which tea is malty?",
        "assistant: Assam.",
        "user: And which is smoky?",
        "assistant: I look.",
        'assistant: call toolu_ours Read {"file_path": "teas.txt"}',
        "user: result toolu_ours Lapsang: smoky",
        "assistant: Lapsang.",
        "user: And a green one?",
    ]
    assert in_context(desk.session) == [*conversation(request), "assistant: Assam."]


def test_it_resumes_a_session_whose_last_call_was_never_answered(desk: Desk) -> None:
    desk.session.append(user("And which is smoky?"))
    desk.session.append(assistant([ToolCall("toolu_open", "Read", {"file_path": "teas.txt"})]))
    (request,) = desk.cli.resume(desk.session_id, "And a green one?")
    sent = conversation(request)
    assert sent[-1] == "user: And a green one?"
    assert desk.session.verify() == ()


def test_we_go_on_with_what_it_resumed_again_and_again(desk: Desk) -> None:
    expected = in_context(desk.session)
    for number in range(3):
        desk.session.append(user(f"Question {number}?"))
        desk.session.append(assistant(f"Answer {number}."))
        (request,) = desk.cli.resume(desk.session_id, f"Prompt {number}?")
        expected += [f"user: Question {number}?", f"assistant: Answer {number}.", f"user: Prompt {number}?"]
        assert conversation(request) == expected
        expected.append("assistant: Assam.")
        assert in_context(desk.session) == expected


def test_after_our_compaction_it_sends_the_summary_and_what_was_kept(desk: Desk) -> None:
    desk.session.append(user("And which is smoky?"))
    desk.session.append(assistant("Lapsang."))
    kept = desk.session.append(user("And a green one?"))
    desk.session.append(assistant("Sencha."))
    desk.session.append(Compaction(first_kept_seq=kept.seq, summary=SUMMARY))
    desk.session.append(user("How long?"))
    desk.session.append(assistant("Two minutes."))
    (request,) = desk.cli.resume(desk.session_id, "How hot?")
    summary, *rest = conversation(request)
    assert SUMMARY in summary
    assert rest == [
        "user: And a green one?",
        "assistant: Sencha.",
        "user: How long?",
        "assistant: Two minutes.",
        "user: How hot?",
    ]
    everything = json.dumps(request["messages"])
    assert "malty?" not in everything and "Lapsang" not in everything
    assert SUMMARY in in_context(desk.session)[0]
    assert in_context(desk.session)[1:] == [*rest, "assistant: Assam."]
    assert desk.session.messages()[0].text == "Which tea is malty?"  # only the context lost it


# --- sessions of other programs -------------------------------------------------------------


def place(cli: ClaudeCli, session: everlog.Session) -> str:
    """Export a session where the program looks for those of its project; return its id."""
    (claude,) = load_formats("claude")
    (content,) = export(session, claude).files.items()
    name = Path(content[0]).name
    folder = cli.projects / project_directory(str(cli.work))[0]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content[1])
    return name.removesuffix(".jsonl")


def test_a_native_session_that_was_exported_is_resumed(cli: ClaudeCli, tmp_path: Path) -> None:
    with everlog.open_store(tmp_path / "everlog") as store:
        session = store.create(title="Teas")
        session.append(user("Which tea is malty?"))
        session.append(assistant([Text("I look."), ToolCall("call|1", "tea lookup!", {"kind": "malty"})]))
        session.append(tool_result("call|1", "Assam: malty"))
        session.append(assistant("Assam."))
        name = place(cli, session)
    (request,) = cli.resume(name, "And a green one?")
    asked, look, called, result, *rest = conversation(request)
    assert (asked, look) == ("user: Which tea is malty?", "assistant: I look.")
    assert called.endswith('{"kind": "malty"}') and result.endswith(" Assam: malty")
    assert rest == ["assistant: Assam.", "user: And a green one?"]
    blocks = [block for message in request["messages"] for block in message["content"] if isinstance(block, dict)]
    (use,) = [block for block in blocks if block["type"] == "tool_use"]
    (answered,) = [block for block in blocks if block["type"] == "tool_result"]
    assert answered["tool_use_id"] == use["id"]
    for name in (use["id"], use["name"]):  # the real API refuses any other
        assert name.replace("_", "a").replace("-", "a").isalnum()


def test_a_compacted_native_session_that_was_exported_is_resumed(cli: ClaudeCli, tmp_path: Path) -> None:
    with everlog.open_store(tmp_path / "everlog") as store:
        session = store.create()
        for words in ("Which tea is malty?", "And which is smoky?"):
            session.append(user(words))
            session.append(assistant(f"An answer to: {words}"))
        session.append(Compaction(first_kept_seq=3, summary=SUMMARY))
        session.append(user("And a green one?"))
        session.append(assistant("Sencha."))
        name = place(cli, session)
    (request,) = cli.resume(name, "How hot?")
    summary, *rest = conversation(request)
    assert SUMMARY in summary
    assert rest == [
        "user: And which is smoky?",
        "assistant: An answer to: And which is smoky?",
        "user: And a green one?",
        "assistant: Sencha.",
        "user: How hot?",
    ]


def pi_lines() -> list[Json]:
    usage = {"input": 1, "output": 1, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 2}
    told = {"api": "x", "provider": "p", "model": "m", "usage": usage, "timestamp": 1767225600000}
    time = "2026-01-01T00:00:00.000Z"
    messages: list[Json] = [
        {"role": "user", "content": [{"type": "text", "text": "Which tea is malty?"}], "timestamp": 1767225600000},
        {
            "role": "assistant",
            "content": [{"type": "toolCall", "id": "c1", "name": "read", "arguments": {"path": "teas"}}],
            "stopReason": "toolUse",
            **told,
        },
        {
            "role": "toolResult",
            "toolCallId": "c1",
            "toolName": "read",
            "content": [{"type": "text", "text": "Assam: malty"}],
            "isError": False,
            "timestamp": 1767225600000,
        },
        {"role": "assistant", "content": [{"type": "text", "text": "Assam."}], "stopReason": "stop", **told},
    ]
    lines: list[Json] = [{"type": "session", "version": 3, "id": str(uuid4()), "timestamp": time, "cwd": "/work"}]
    for number, message in enumerate(messages):
        parent = f"0000000{number - 1}" if number else None
        entry = {"type": "message", "id": f"0000000{number}", "parentId": parent, "timestamp": time}
        lines.append({**entry, "message": message})
    return lines


def crabtalk_lines() -> list[Json]:
    function = {"name": "read", "arguments": '{"path":"teas"}'}
    return [
        {
            "agent": "crab",
            "created_by": "user",
            "created_at": "2026-01-01T00:00:00+00:00",
            "title": "",
            "uptime_secs": 1,
        },
        {"role": "user", "content": "Which tea is malty?"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "type": "function", "function": function}]},
        {"role": "tool", "content": "Assam: malty", "tool_call_id": "c1"},
        {"role": "assistant", "content": "Assam."},
    ]


@pytest.mark.parametrize(("name", "lines"), [("2026-01-01_x", pi_lines()), ("crab_user_1", crabtalk_lines())])
def test_a_session_of_another_program_that_was_converted_is_resumed(
    cli: ClaudeCli, tmp_path: Path, name: str, lines: list[Json]
) -> None:
    path = tmp_path / f"{name}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result, session = imported(path, tmp_path / "everlog")
    assert result.format in ("pi", "crabtalk")
    assert result.lost == 0
    (request,) = cli.resume(place(cli, session), "And a green one?")
    assert conversation(request) == [
        "user: Which tea is malty?",
        'assistant: call c1 read {"path": "teas"}',
        "user: result c1 Assam: malty",
        "assistant: Assam.",
        "user: And a green one?",
    ]


# --- what only the program can do -----------------------------------------------------------


def test_what_it_compacted_is_our_context_too(desk: Desk) -> None:
    desk.cli.resume(desk.session_id, "And a green one?")
    desk.cli.resume(desk.session_id, "/compact")
    (request,) = desk.cli.resume(desk.session_id, "How hot?")
    summary, *rest = conversation(request)
    assert SUMMARY in summary and "green" not in json.dumps(request["messages"])
    ours = in_context(desk.session)
    assert SUMMARY in ours[0]
    assert ours[1:] == [*rest, "assistant: Assam."]
    everything = [message.text for message in desk.session.messages()]
    assert everything[:4] == ["Which tea is malty?", "Assam.", "And a green one?", "Assam."]
    desk.session.append(user("How long?"))
    desk.session.append(assistant("Two minutes."))
    (request,) = desk.cli.resume(desk.session_id, "And then?")
    added = ["user: How long?", "assistant: Two minutes.", "user: And then?"]
    assert conversation(request)[1:] == [*rest, "assistant: Assam.", *added]


def test_a_command_that_it_ran_is_read_as_it_sends_it(desk: Desk) -> None:
    *_, request = desk.cli.run("Run a command.", "--resume", desk.session_id, "--allowed-tools", "Bash")
    ours = in_context(desk.session)
    assert ours == [*conversation(request), "assistant: That is done."]
    assert "user: result toolu_shell from the shell" in ours


def test_calls_at_once_are_read_with_both_results(desk: Desk) -> None:
    *_, request = desk.cli.run("Run two commands.", "--resume", desk.session_id, "--allowed-tools", "Bash")
    # A record holds one call, so with us each call is followed by its result; it sends the calls first.
    assert sorted(in_context(desk.session)) == sorted([*conversation(request), "assistant: That is done."])
    for name in ("one", "two"):
        at = in_context(desk.session).index(f"user: result toolu_{name} {name}")
        assert in_context(desk.session)[at - 1].startswith(f"assistant: call toolu_{name}")
    (request,) = desk.cli.resume(desk.session_id, "And a green one?")
    assert sorted(in_context(desk.session)) == sorted([*conversation(request), "assistant: Assam."])


def test_a_result_of_which_it_sends_a_part_is_whole_with_us(desk: Desk) -> None:
    *_, request = desk.cli.run("Run a loud command.", "--resume", desk.session_id, "--allowed-tools", "Bash")
    *before, sent = conversation(request)
    *ours, result, _ = in_context(desk.session)
    assert ours == before
    assert "<persisted-output>" in sent and "19999" not in sent
    assert result.split() == ["user:", "result", "toolu_loud", *map(str, range(1, 20_001))]


def test_the_text_behind_a_command_is_part_of_the_context_and_no_title(cli: ClaudeCli, tmp_path: Path) -> None:
    command = cli.work / ".claude" / "commands" / "brew.md"
    command.parent.mkdir(parents=True)
    command.write_text("Explain how to brew $ARGUMENTS slowly.\n")
    session_id = str(uuid4())
    (request,) = cli.start(session_id, "/brew oolong")
    assert any("Explain how to brew oolong slowly." in part for part in conversation(request))
    with everlog.open_store(cli.projects, dialect="claude", home=tmp_path / "everlog") as store:
        assert in_context(store.session(session_id)) == [*conversation(request), "assistant: Assam."]
        (row,) = store.list()
        assert row.metadata.title == "/brew oolong"
        assert [hit.session for hit in store.search("slowly").results] == [session_id]


def test_an_error_of_the_model_is_not_in_the_context(desk: Desk) -> None:
    desk.cli.models.error = 400
    with pytest.raises(AssertionError, match="is_error"):
        desk.cli.resume(desk.session_id, "And which is smoky?")
    desk.cli.models.error = 0
    (request,) = desk.cli.resume(desk.session_id, "And a green one?")
    sent = conversation(request)
    assert in_context(desk.session) == [*sent, "assistant: Assam."]
    assert sent[-2:] == ["user: And which is smoky?", "user: And a green one?"]


def test_a_session_whose_program_was_killed_goes_on(desk: Desk) -> None:
    desk.cli.kill_while_it_waits(desk.session_id, "And which is smoky?")
    desk.session.append(assistant("Lapsang."))
    (request,) = desk.cli.resume(desk.session_id, "And a green one?")
    sent = conversation(request)
    assert sent[2:] == ["user: And which is smoky?", "assistant: Lapsang.", "user: And a green one?"]
    assert in_context(desk.session) == [*sent, "assistant: Assam."]


def test_a_fork_that_it_made_is_a_session_of_its_own(desk: Desk, tmp_path: Path) -> None:
    (request,) = desk.cli.run("And a green one?", "--resume", desk.session_id, "--fork-session")
    desk.cli.resume(desk.session_id, "And which is smoky?")
    (fork,) = {row.id for row in desk.store.list()} - {desk.session_id}
    assert in_context(desk.store.session(fork)) == [*conversation(request), "assistant: Assam."]
    store = everlog.open_store(tmp_path / "native", dialect="native")
    files = [desk.cli.transcript(name) for name in (desk.session_id, fork)]
    results = list(import_files(store.port, files, load_formats()))
    assert len({result.id for result in results}) == 2
    assert [(result.lost, result.differs_from) for result in results] == [(0, None)] * 2
    for result, name in zip(results, (desk.session_id, fork), strict=True):
        assert result.id is not None
        assert in_context(store.session(result.id)) == in_context(desk.store.session(name))


def test_an_agent_that_it_started_is_a_session_of_its_own(desk: Desk) -> None:
    desk.cli.resume(desk.session_id, "Ask another agent.")
    request = desk.cli.resume(desk.session_id, "And a green one?")[-1]
    assert in_context(desk.session) == [*conversation(request), "assistant: Assam."]
    (row,) = desk.store.list()
    (agent,) = row.metadata.extra["agents"]
    texts = [message.text for message in desk.store.session(agent).messages()]
    assert texts[-1] == "It is smoky." and "Taste the second tea." in texts[0]
    assert "Taste the second tea." not in [message.text for message in desk.session.messages()]
    assert desk.store.session(agent).metadata.extra["parent"]["id"] == desk.session_id
    assert agent in [hit.session for hit in desk.store.search("smoky").results]


def test_everything_that_it_wrote_is_imported(desk: Desk, tmp_path: Path) -> None:
    desk.cli.run("Run a command.", "--resume", desk.session_id, "--allowed-tools", "Bash")
    desk.cli.resume(desk.session_id, "Ask another agent.")
    desk.cli.resume(desk.session_id, "/compact")
    desk.cli.resume(desk.session_id, "And a green one?")
    transcript = desk.cli.transcript(desk.session_id)
    result, session = imported(transcript, tmp_path / "native")
    assert len(result.children) == 1
    for row in flatten(result):
        assert (row.lost, row.problems) == (0, ())
        assert row.stored == row.records_in > 0
    assert in_context(session) == in_context(desk.session)
    assert session.metadata.title == desk.session.metadata.title
    again, _ = imported(transcript, tmp_path / "native")
    assert [(row.stored, row.lost, row.id) for row in flatten(again)] == [(0, 0, row.id) for row in flatten(result)]


def test_what_was_imported_and_exported_again_is_resumed(desk: Desk, tmp_path: Path) -> None:
    desk.cli.resume(desk.session_id, "/compact")
    (before,) = desk.cli.resume(desk.session_id, "And a green one?")
    transcript = desk.cli.transcript(desk.session_id)
    _, session = imported(transcript, tmp_path / "native")
    transcript.unlink()
    assert place(desk.cli, session) == desk.session_id
    (request,) = desk.cli.resume(desk.session_id, "How hot?")
    assert conversation(request) == [*conversation(before), "assistant: Assam.", "user: How hot?"]


def test_messages_that_were_deleted_after_an_import_are_not_sent(desk: Desk, tmp_path: Path) -> None:
    desk.cli.resume(desk.session_id, "And which is smoky?")
    desk.cli.resume(desk.session_id, "And a green one?")
    transcript = desk.cli.transcript(desk.session_id)
    _, session = imported(transcript, tmp_path / "native")
    transcript.unlink()
    _, _, asked, told, *_ = session.messages()
    session.tombstone(asked.seq, told.seq)
    place(desk.cli, session)
    (request,) = desk.cli.resume(desk.session_id, "How hot?")
    expected = ["user: Which tea is malty?", "assistant: Assam.", "user: And a green one?", "assistant: Assam."]
    assert conversation(request) == [*expected, "user: How hot?"]


def test_a_session_that_we_created_is_resumed(cli: ClaudeCli, tmp_path: Path) -> None:
    cli.start(str(uuid4()), "Which tea is malty?")  # so that there is a project
    with everlog.open_store(cli.projects, dialect="claude", home=tmp_path / "everlog") as store:
        session = store.session(str(uuid4()), create=True)
        session.append(user("And which is smoky?"))
        session.append(assistant("Lapsang."))
        messages: list[Message] = session.messages()
        assert len(messages) == 2
        session_id = session.id
    (request,) = cli.resume(session_id, "And a green one?")
    assert conversation(request) == ["user: And which is smoky?", "assistant: Lapsang.", "user: And a green one?"]
