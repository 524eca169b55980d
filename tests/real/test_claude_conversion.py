"""The real Claude Code resumes sessions of other programs, and its own, that we exported."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

import everlog
from everlog.app import load_formats
from everlog.interop.exporter import export
from everlog.interop.formats.claude.projects import project_directory
from everlog.interop.importer import import_files
from everlog.model import Compaction, Text, ToolCall, assistant, tool_result, user
from tests.real.claude_cli import NEEDS_CLAUDE, ClaudeCli
from tests.real.claude_conversation import SUMMARY, answer, conversation
from tests.real.fake_models import FakeModels, Json

pytestmark = NEEDS_CLAUDE


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[ClaudeCli]:
    with FakeModels(answer) as models:
        yield ClaudeCli(tmp_path / "user", models)


def imported(transcript: Path, home: Path) -> everlog.Session:
    """Import a transcript into a new native store, and read the session back."""
    store = everlog.open_store(home, create=True)
    (result,) = import_files(store.port, [transcript], load_formats())
    assert result.id is not None and (result.problem, result.lost) == ("", 0)
    return store.session(result.id)


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
    with everlog.open_store(tmp_path / "everlog", create=True) as store:
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
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name)


def test_a_compacted_native_session_that_was_exported_is_resumed(cli: ClaudeCli, tmp_path: Path) -> None:
    with everlog.open_store(tmp_path / "everlog", create=True) as store:
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


@pytest.mark.parametrize(
    ("program", "name", "lines"), [("pi", "2026-01-01_x", pi_lines()), ("crabtalk", "crab_user_1", crabtalk_lines())]
)
def test_a_session_of_another_program_that_was_converted_is_resumed(
    cli: ClaudeCli, tmp_path: Path, program: str, name: str, lines: list[Json]
) -> None:
    path = tmp_path / f"{name}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    session = imported(path, tmp_path / "everlog")
    assert session.metadata.source == program
    (request,) = cli.resume(place(cli, session), "And a green one?")
    assert conversation(request) == [
        "user: Which tea is malty?",
        'assistant: call c1 read {"path": "teas"}',
        "user: result c1 Assam: malty",
        "assistant: Assam.",
        "user: And a green one?",
    ]


def test_what_was_imported_and_exported_again_is_resumed(cli: ClaudeCli, tmp_path: Path) -> None:
    session_id = str(uuid4())
    cli.start(session_id, "Which tea is malty?")
    cli.resume(session_id, "/compact")
    (before,) = cli.resume(session_id, "And a green one?")
    transcript = cli.transcript(session_id)
    session = imported(transcript, tmp_path / "native")
    transcript.unlink()
    assert place(cli, session) == session_id
    (request,) = cli.resume(session_id, "How hot?")
    assert conversation(request) == [*conversation(before), "assistant: Assam.", "user: How hot?"]


def test_messages_that_were_deleted_after_an_import_are_not_sent(cli: ClaudeCli, tmp_path: Path) -> None:
    session_id = str(uuid4())
    cli.start(session_id, "Which tea is malty?")
    cli.resume(session_id, "And which is smoky?")
    cli.resume(session_id, "And a green one?")
    transcript = cli.transcript(session_id)
    session = imported(transcript, tmp_path / "native")
    transcript.unlink()
    _, _, asked, told, *_ = session.messages()
    session.tombstone(asked.seq, told.seq)
    place(cli, session)
    (request,) = cli.resume(session_id, "How hot?")
    expected = ["user: Which tea is malty?", "assistant: Assam.", "user: And a green one?", "assistant: Assam."]
    assert conversation(request) == [*expected, "user: How hot?"]
