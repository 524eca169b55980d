"""The real Claude Code resumes what we appended and compacted; we read what it writes.

`make test-real` installs it; without that these tests skip.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pytest

import everlog
from everlog.app import load_formats
from everlog.interop.import_result import ImportResult
from everlog.interop.importer import import_files
from everlog.model import Compaction, Text, ToolCall, assistant, tool_result, user
from tests.real.claude_cli import NEEDS_CLAUDE, ClaudeCli
from tests.real.claude_conversation import SUMMARY, answer, conversation, in_context
from tests.real.fake_models import FakeModels

pytestmark = NEEDS_CLAUDE


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
    with everlog.open_store(f"claude:{cli.projects}", home=tmp_path / "everlog") as store:
        yield Desk(cli, store, session_id)


def imported(transcript: Path, home: Path) -> tuple[ImportResult, everlog.Session]:
    """Import a transcript into a new native store, and read the session back."""
    store = everlog.open_store(home, create=True)
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
    assert sent[2] == "user: And which is smoky?" and sent[-1] == "user: And a green one?"
    # The real API refuses a call without its result.
    assert any("call toolu_open" in part for part in sent) == any("result toolu_open" in part for part in sent)


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
    with everlog.open_store(f"claude:{cli.projects}", home=tmp_path / "everlog") as store:
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
    store = everlog.open_store(tmp_path / "native", create=True)
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


def test_a_session_that_we_created_is_resumed(cli: ClaudeCli, tmp_path: Path) -> None:
    cli.start(str(uuid4()), "Which tea is malty?")  # so that there is a project
    with everlog.open_store(f"claude:{cli.projects}", home=tmp_path / "everlog") as store:
        session = store.session(str(uuid4()), create=True)
        session.append(user("And which is smoky?"))
        session.append(assistant("Lapsang."))
        session_id = session.id
    (request,) = cli.resume(session_id, "And a green one?")
    assert conversation(request) == ["user: And which is smoky?", "assistant: Lapsang.", "user: And a green one?"]
