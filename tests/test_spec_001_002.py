"""One test per statement of the two other designs about compaction: prose, and by rounds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import everlog
from everlog.agent.agent import Agent
from everlog.context.compaction.plan import trigger_tokens
from everlog.context.tokens import choose_window
from everlog.errors import ProviderError
from everlog.model import Compaction, Message, ToolCall, Usage, assistant, tool_result, user
from everlog.ports import Request
from everlog.settings import CompactionSettings, parse
from everlog.testing import ScriptedModel
from everlog.wire.events import CompactEnd, CompactStart, RunEvent

STORY = "a story of many words " * 60


@pytest.fixture
def session(tmp_path: Path) -> everlog.Session:
    return everlog.open_store(tmp_path, create=True).create()


def _run(session: everlog.Session, model: ScriptedModel, events: list[RunEvent], **settings: Any) -> Message:
    chosen = CompactionSettings(**settings)
    agent = Agent(session.store, model, settings=chosen, emit=events.append)
    return asyncio.run(agent.run("go on", session=session))


def _used(session: everlog.Session, tokens: int, rounds: int = 12) -> None:
    """A session whose last answer was counted."""
    for number in range(rounds):
        session.append_many([user(f"question {number}"), assistant(f"answer {number} {STORY}")])
    session.append(assistant("counted", usage=Usage(total_tokens=tokens)))


def _summaries(model: ScriptedModel) -> list[Request]:
    return [request for request in model.requests if request.system.startswith("You condense")]


def _compactions(session: everlog.Session) -> list[Compaction]:
    return [record for record in session.records() if isinstance(record, Compaction)]


# --- 002: auto-compact


def test_002_it_is_on_by_default_and_triggers_at_0_9_of_the_window(tmp_path: Path) -> None:
    assert CompactionSettings().enabled
    assert trigger_tokens(CompactionSettings(strategy="rounds"), 100_000) == 90_000
    for tokens, compacts in ((89_000, False), (91_000, True)):
        session = everlog.open_store(tmp_path / str(tokens), create=True).create()
        _used(session, tokens)
        model = ScriptedModel(*(["summary", "answer"] if compacts else ["answer"]))
        _run(session, model, [], strategy="rounds", window=100_000)
        assert bool(_compactions(session)) is compacts


def test_002_it_can_be_turned_off(session: everlog.Session) -> None:
    _used(session, 99_000)
    model = ScriptedModel("answer")
    _run(session, model, [], strategy="rounds", window=120_000, enabled=False)
    assert _compactions(session) == []


def test_002_tool_results_are_truncated_above_the_budget(session: everlog.Session) -> None:
    assert CompactionSettings().tool_result_budget == 50_000
    for number in range(9):
        name = f"c{number}"
        session.append(assistant([ToolCall(name, "cat", {})]))
        session.append(tool_result(name, "x" * 9_000))
    model = ScriptedModel("answer")
    _run(session, model, [], window=42_000, reserve_tokens=1_024)
    results = [m for m in model.requests[0].messages if m.role == "toolResult"]
    assert sum(len(m.text) for m in results) <= 50_000
    assert len(results[0].text) < 500 and len(results[-1].text) == 9_000
    assert all(len(m.text) == 9_000 for m in session.messages() if m.role == "toolResult")


def test_002_tokens_are_counted_before_each_turn(session: everlog.Session) -> None:
    _used(session, 95_000)
    model = ScriptedModel("summary", "answer")
    _run(session, model, [], strategy="rounds", window=100_000)
    assert model.requests.index(_summaries(model)[0]) == 0


def test_002_old_messages_are_grouped_between_rounds(session: everlog.Session) -> None:
    for number in range(30):
        session.append_many(
            [
                user(f"question {number}"),
                assistant([ToolCall(f"c{number}", "bash", {})]),
                tool_result(f"c{number}", STORY[:1500]),
                assistant(f"answer {number} {STORY}"),
            ]
        )
    session.append(assistant("counted", usage=Usage(total_tokens=39_000)))
    seen: list[str] = []

    def answer(request: Request) -> str:
        if not request.system:
            return "answer"
        seen.append(request.messages[0].text)
        return f"group {len(seen)}"

    _run(session, ScriptedModel(*[answer] * 20), [], strategy="rounds", window=40_000)
    assert len(seen) > 1
    for text in seen:
        said = text.split("</conversation>")[0]
        assert said.count("[Assistant tool calls]") == said.count("[Tool result]")
    blocks = session.context().messages[0].text
    assert blocks.startswith("<context_summary>\ngroup 1\n</context_summary>\n<context_summary>")


def test_002_the_originals_are_replaced_by_the_summary_and_ten_messages_stay(session: everlog.Session) -> None:
    _used(session, 95_000)
    model = ScriptedModel("the summary", "answer")
    _run(session, model, [], strategy="rounds", window=100_000)
    sent = model.requests[-1].messages
    assert sent[0].text == "<context_summary>\nthe summary\n</context_summary>"
    assert [m.seq for m in sent[1:]] == [m.seq for m in session.messages()][-11:-1]
    assert len(session.messages()) == 27


def test_002_start_and_end_are_told_with_the_tokens_freed(session: everlog.Session) -> None:
    _used(session, 95_000)
    events: list[RunEvent] = []
    _run(session, ScriptedModel("short", "answer"), events, strategy="rounds", window=100_000)
    start, end = [event for event in events if isinstance(event, CompactStart | CompactEnd)]
    assert isinstance(start, CompactStart) and isinstance(end, CompactEnd)
    assert end.tokens_freed > 1_000


def test_002_three_failures_in_a_row_turn_it_off_for_the_session(session: everlog.Session) -> None:
    down = ProviderError("down")
    asked = []
    for _ in range(5):
        _used(session, 95_000)
        model = ScriptedModel(*[lambda request: "answer" if not request.system else _raise(down)] * 3)
        _run(session, model, [], strategy="rounds", window=100_000, fallback=False)
        asked.append(len(_summaries(model)))
    assert asked == [1, 1, 1, 0, 0]


def _raise(error: Exception) -> str:
    raise error


@pytest.mark.parametrize(
    ("model", "window"),
    [
        ("claude-opus-4", 200_000),
        ("claude-3-5-haiku-latest", 200_000),
        ("gpt-4o", 128_000),
        ("gpt-4-turbo", 128_000),
        ("gemini-2.0-flash", 1_000_000),
        ("somebody's own", 200_000),
    ],
)
def test_002_each_model_has_its_window(model: str, window: int) -> None:
    assert choose_window(model) == window


# --- 001: auto-compaction


def test_001_it_compacts_above_100_000_tokens(tmp_path: Path) -> None:
    assert trigger_tokens(CompactionSettings(strategy="prose"), 200_000) == 100_000
    for tokens, compacts in ((99_000, False), (101_000, True)):
        session = everlog.open_store(tmp_path / str(tokens), create=True).create()
        _used(session, tokens)
        model = ScriptedModel(*(["prose", "answer"] if compacts else ["answer"]))
        _run(session, model, [], strategy="prose")
        assert bool(_compactions(session)) is compacts


def test_001_the_summary_is_asked_to_keep_identity_profile_decisions_tasks_and_facts(session: everlog.Session) -> None:
    _used(session, 150_000)
    model = ScriptedModel("dense prose", "answer")
    _run(session, model, [], strategy="prose")
    asked = _summaries(model)[0].messages[0].text
    for kept in ("who the agent is", "known of the user", "decisions", "tasks", "facts"):
        assert kept in asked


def test_001_only_the_summary_and_what_follows_is_loaded_and_nothing_is_deleted(session: everlog.Session) -> None:
    _used(session, 150_000)
    model = ScriptedModel("dense prose", "answer")
    _run(session, model, [], strategy="prose")
    texts = [message.text for message in session.context().messages]
    assert texts == ["dense prose", "go on", "answer"]
    assert len(session.messages()) == 27


def test_001_the_threshold_is_set_per_agent() -> None:
    settings = parse('[compaction]\nstrategy = "prose"\n[agents.crab.compaction]\ncompact_threshold = 5000\n', {})
    assert settings.compaction_of("crab").compact_threshold == 5_000
    assert settings.compaction_of("crab").strategy == "prose"
    assert trigger_tokens(settings.compaction_of("crab"), 200_000) == 5_000
    assert trigger_tokens(settings.compaction_of("other"), 200_000) == 100_000
