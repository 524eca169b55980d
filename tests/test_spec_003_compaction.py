"""One test per clause of the session specification (§7.7) that compaction answers for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import everlog
from everlog.agent.agent import Agent
from everlog.agent.compactor import Outcome
from everlog.context.compaction.prompts import HEADINGS
from everlog.model import Compaction, ToolCall, assistant, tool_result, user
from everlog.settings import CompactionSettings
from everlog.testing import ScriptedModel
from tests.agent.test_turn import SUMMARY
from tests.histories import check_order

SETTINGS = CompactionSettings(window=40_000, keep_recent_tokens=1_024)
STORY = "a story of many words " * 60


@pytest.fixture
def session(tmp_path: Path) -> everlog.Session:
    return everlog.open_store(tmp_path, create=True).create()


def _work(session: everlog.Session, *files: tuple[str, str]) -> None:
    for number, (tool, path) in enumerate(files):
        name = f"c{session.metadata.through.seq}.{number}"
        session.append_many(
            [
                user(f"now {tool} {path}"),
                assistant([ToolCall(name, tool, {"path": path})]),
                tool_result(name, STORY),
                assistant(f"{path}: {STORY}"),
            ]
        )


def _compact(session: everlog.Session, model: ScriptedModel) -> Outcome:
    agent = Agent(session.store, model, settings=SETTINGS)
    outcome = asyncio.run(agent.compact(session))
    assert outcome.compacted, outcome.reason
    return outcome


def _last(session: everlog.Session) -> Compaction:
    return next(one for one in reversed(session.records()) if isinstance(one, Compaction))


def test_s7_3_the_whole_history_can_still_be_loaded_and_the_context_has_the_overlay(
    tmp_path: Path, session: everlog.Session
) -> None:
    _work(session, *[("read", f"{n}.py") for n in range(6)])
    before = [message.seq for message in session.messages()]
    _compact(session, ScriptedModel(SUMMARY))
    again = everlog.open_store(tmp_path, create=True).session(session.id)
    assert [message.seq for message in again.messages()] == before
    assert again.context().messages[0].text.endswith(f"{_last(again).summary}\n</summary>")


def test_s7_6_compaction_appends_a_record_and_rewrites_nothing(tmp_path: Path, session: everlog.Session) -> None:
    _work(session, *[("read", f"{n}.py") for n in range(6)])
    log = tmp_path / "sessions" / session.id / "session.jsonl"
    before = log.read_bytes()
    _compact(session, ScriptedModel(SUMMARY))
    after = log.read_bytes()
    assert after.startswith(before)
    added = after[len(before) :].split(b"\n")
    assert added[0].startswith(b'{"recordType":"compaction","schemaVersion":1,"seq":25,')


def test_s7_11_the_context_is_the_summary_and_the_messages_from_first_kept_on(session: everlog.Session) -> None:
    _work(session, *[("read", f"{n}.py") for n in range(6)])
    _compact(session, ScriptedModel(SUMMARY))
    session.append(user("and now?"))
    first = _last(session).first_kept_seq
    summary, *kept = session.context().messages
    assert summary.role == "user"
    assert [m.seq for m in kept] == [m.seq for m in session.messages() if m.seq >= first]


def test_s7_13_a_cut_never_separates_a_call_from_its_results(session: everlog.Session) -> None:
    for number in range(12):
        names = [f"c{number}.{call}" for call in range(3)]
        session.append(assistant([ToolCall(name, "bash", {}) for name in names]))
        session.append_many([tool_result(name, STORY[: 300 + 200 * number]) for name in names])
        if number % 4 == 3:
            _compact(session, ScriptedModel(SUMMARY))
            check_order(session.context().messages)
            kept = session.record(_last(session).first_kept_seq)
            assert isinstance(kept, everlog.Message) and kept.tool_calls


@pytest.mark.parametrize("model", [ScriptedModel(SUMMARY), ScriptedModel("no", "no")])
def test_s7_14_a_summary_has_the_fixed_sections(session: everlog.Session, model: ScriptedModel) -> None:
    _work(session, *[("read", f"{n}.py") for n in range(6)])
    _compact(session, model)
    lines = _last(session).summary.split("\n")
    assert [line for line in lines if line in HEADINGS] == list(HEADINGS)
    for heading in HEADINGS:
        assert heading in model.requests[0].messages[0].text


def test_s7_15_the_second_compaction_still_has_the_files_of_the_first(session: everlog.Session) -> None:
    _work(session, ("read", "a.py"), ("write", "b.py"), *[("bash", "")] * 5)
    _compact(session, ScriptedModel(SUMMARY))
    _work(session, ("read_file", "c.py"), ("Edit", "d.py"), *[("bash", "")] * 5)
    _compact(session, ScriptedModel(SUMMARY))
    record = _last(session)
    assert record.read_files == ("a.py", "c.py")
    assert record.modified_files == ("b.py", "d.py")
    for path in ("a.py", "b.py", "c.py", "d.py"):
        assert f"\n{path}\n" in record.summary


def test_s7_16_a_file_that_was_modified_is_not_listed_as_read(session: everlog.Session) -> None:
    _work(session, ("read", "a.py"), ("read", "b.py"), ("write", "a.py"), *[("bash", "")] * 5)
    _compact(session, ScriptedModel(SUMMARY))
    assert (_last(session).read_files, _last(session).modified_files) == (("b.py",), ("a.py",))
    _work(session, ("edit", "b.py"), *[("bash", "")] * 5)
    _compact(session, ScriptedModel(SUMMARY))
    assert (_last(session).read_files, _last(session).modified_files) == ((), ("a.py", "b.py"))


def test_s7_17_the_update_prompt_is_used_when_there_is_a_summary(session: everlog.Session) -> None:
    _work(session, *[("read", f"{n}.py") for n in range(6)])
    first, second = ScriptedModel(SUMMARY), ScriptedModel(SUMMARY)
    _compact(session, first)
    _work(session, *[("read", f"{n}.py") for n in range(6)])
    _compact(session, second)
    assert "<previous-summary>" not in first.requests[0].messages[0].text
    asked = second.requests[0].messages[0].text
    assert f"<previous-summary>\n{SUMMARY}\n</previous-summary>" in asked
    assert "KEEP everything that the previous summary says" in asked


def test_s7_18_messages_are_handed_over_as_flat_text(session: everlog.Session) -> None:
    _work(session, *[("read", f"{n}.py") for n in range(6)])
    model = ScriptedModel(SUMMARY)
    _compact(session, model)
    asked = model.requests[0].messages
    assert len(asked) == 1
    text = asked[0].text
    assert "[User]: now read 0.py\n" in text
    assert '[Assistant tool calls]: read(path="0.py")\n' in text
    assert "[Tool result]: a story of many words" in text
    assert "[Assistant]: 0.py: a story" in text
    assert '"recordType"' not in text and '{"type"' not in text
