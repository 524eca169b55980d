"""A turn on a real store with a scripted model: checks, compacts, calls, keeps."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

import everlog
from everlog.agent.agent import Agent
from everlog.errors import ContextOverflowError, ProviderError
from everlog.model import Compaction, Event, Message, ToolCall, Usage, assistant, tool_result, user
from everlog.ports import DeltaCallback, Request, ignore_delta
from everlog.settings import CompactionSettings
from everlog.testing import ScriptedModel
from everlog.wire.events import CompactEnd, CompactFailed, CompactStart, HookFailed, RunEvent, TokenWarning

SUMMARY = (
    "## Goal\nfinish\n\n## Constraints & Preferences\n- none\n\n## Progress\n### Done\n- [x] some\n"
    "### In Progress\n- [ ] rest\n### Blocked\n- none\n\n## Key Decisions\n- **x**: y\n\n"
    "## Next Steps\n1. go on\n\n## Critical Context\n- none"
)
# A context is too large above 24,000 tokens, and a summary call takes it whole.
SMALL = CompactionSettings(window=48_000, reserve_tokens=24_000, keep_recent_tokens=1_024)
LONG = "many words of a long story " * 400  # about 2,700 tokens


@pytest.fixture
def session(tmp_path: Path) -> everlog.Session:
    return everlog.open_store(tmp_path, create=True).create()


def _run(agent: Agent, session: everlog.Session, prompt: str = "go", **more: Any) -> Message:
    return asyncio.run(agent.run(prompt, session=session, **more))


def _is_summary(request: Request) -> bool:
    return request.system.startswith("You summarise")


def _texts(messages: Sequence[Message]) -> list[str]:
    return [message.text for message in messages]


def _fill(session: everlog.Session, rounds: int = 9) -> None:
    for number in range(rounds):
        session.append(user(f"question {number}"))
        session.append(assistant(LONG))


def test_each_step_is_appended_as_it_happens(session: everlog.Session) -> None:
    seen: list[list[str]] = []

    def look(n: int) -> str:
        seen.append([message.role for message in session.messages()])
        return f"found {n}"

    model = ScriptedModel(assistant([ToolCall("c1", "look", {"n": 7})]), "it is 7")
    agent = Agent(session.store, model, system="be brief", tools={"look": look})
    assert _run(agent, session).text == "it is 7"
    assert seen == [["user", "assistant"]]
    assert [message.role for message in session.messages()] == ["user", "assistant", "toolResult", "assistant"]
    assert model.requests[0].system == "be brief"
    assert [tool.name for tool in model.requests[0].tools] == ["look"]
    assert "be brief" not in "".join(str(record.line) for record in session.records())
    assert session.metadata.metrics.total_turns == 1
    assert session.metadata.metrics.total_tool_calls == 1


def test_a_tool_that_fails_or_is_unknown_is_told_to_the_model(session: everlog.Session) -> None:
    def broken() -> str:
        raise ValueError("no luck")

    calls = [ToolCall("a", "broken", {}), ToolCall("b", "nothing", {})]
    model = ScriptedModel(assistant(calls), "done")
    _run(Agent(session.store, model, tools={"broken": broken}), session)
    # Calls of one message run side by side: the log has their results as they came.
    messages = {message.tool_call_id: message for message in session.messages()}
    results = [messages["a"], messages["b"]]
    assert [result.is_error for result in results] == [True, True]
    assert "ValueError: no luck" in results[0].text


def test_only_one_turn_runs_at_a_time(session: everlog.Session) -> None:
    with session.lease(), pytest.raises(everlog.SessionBusyError):
        _run(Agent(session.store, ScriptedModel("x")), session)
    assert session.messages() == []


def test_the_lease_is_given_back_when_a_model_fails(session: everlog.Session) -> None:
    with pytest.raises(ProviderError):
        _run(Agent(session.store, ScriptedModel(ProviderError("down"))), session)
    assert _texts(session.messages()) == ["go"]
    session.lease().release()


# --- compaction inside a turn


def test_a_full_context_is_compacted_before_the_model_is_called(session: everlog.Session) -> None:
    _fill(session)
    events: list[RunEvent] = []
    model = ScriptedModel(SUMMARY, "answer")
    _run(Agent(session.store, model, settings=SMALL, emit=events.append), session)
    assert [_is_summary(request) for request in model.requests] == [True, False]
    sent = model.requests[1].messages
    assert sent[0].text.startswith("The conversation history before this point was compacted")
    assert sent[-1].text == "go"
    start, end = [e for e in events if isinstance(e, CompactStart | CompactEnd)]
    assert isinstance(start, CompactStart) and isinstance(end, CompactEnd)
    assert end.tokens_freed > 2_000
    assert end.summariser == "model"


def test_the_size_is_checked_between_the_steps_of_a_turn(session: everlog.Session) -> None:
    model = ScriptedModel(
        assistant([ToolCall("c1", "dump", {})]), assistant([ToolCall("c2", "dump", {})]), SUMMARY, "done"
    )
    agent = Agent(session.store, model, tools={"dump": lambda: LONG * 5}, settings=SMALL)
    _run(agent, session)
    assert [_is_summary(request) for request in model.requests] == [False, False, True, False]
    compaction = next(r for r in session.records() if isinstance(r, Compaction))
    # The open round is kept, the beginning of its turn is summarised.
    kept = [m for m in session.messages() if m.seq >= compaction.first_kept_seq]
    assert [call.id for call in kept[0].tool_calls] == ["c2"]
    assert "breaks off in the middle of a turn" in model.requests[2].messages[0].text


def test_the_size_is_checked_once_more_after_the_turn(session: everlog.Session) -> None:
    _fill(session, 6)
    model = ScriptedModel(LONG * 4, SUMMARY)
    _run(Agent(session.store, model, settings=SMALL), session)
    assert [_is_summary(request) for request in model.requests] == [False, True]
    assert any(isinstance(record, Compaction) for record in session.records())


def test_the_providers_count_triggers_what_the_estimate_would_not(session: everlog.Session) -> None:
    for number in range(8):
        session.append(user(f"question {number} " + "word " * 300))
        session.append(assistant("short"))
    session.append(user("last"))
    session.append(assistant("short", usage=Usage(input_tokens=25_500, output_tokens=20)))
    model = ScriptedModel(SUMMARY, "fine")
    _run(Agent(session.store, model, settings=SMALL), session)
    assert [_is_summary(request) for request in model.requests] == [True, False]


def test_usage_from_before_a_compaction_is_not_counted(session: everlog.Session) -> None:
    session.append(user("a " * 1500))
    session.append(assistant("b", usage=Usage(total_tokens=7_900)))
    session.append(Compaction(first_kept_seq=2, summary="S"))
    assert session.context().tokens < 200


def test_without_compaction_the_oldest_rounds_are_left_out_and_named(session: everlog.Session) -> None:
    _fill(session, 4)
    off = CompactionSettings(enabled=False, window=8_000, reserve_tokens=2_000)
    model = ScriptedModel("answer", "again")
    agent = Agent(session.store, model, settings=off)
    _run(agent, session)
    sent = _texts(model.requests[0].messages)
    assert sent[0].startswith("[") and "left out" in sent[0]
    assert sent[-1] == "go"
    assert "question 0" not in sent
    assert not any(isinstance(record, Compaction) for record in session.records())
    # What a provider counts for part of a history is not taken for the size of all of it.
    session.append(assistant("counted", usage=Usage(total_tokens=50)))
    _run(agent, session)
    assert "left out" in model.requests[1].messages[0].text
    trimmed = [r for r in session.records() if isinstance(r, Event) and r.kind == "trimmed"]
    assert len(trimmed) == 1


def test_one_round_larger_than_the_window_is_a_typed_error(session: everlog.Session) -> None:
    model = ScriptedModel("never")
    agent = Agent(session.store, model, settings=SMALL)
    with pytest.raises(ContextOverflowError):
        _run(agent, session, "huge " * 100_000)
    assert model.requests == []
    assert len(session.messages()) == 1


def test_a_refused_context_is_compacted_and_sent_once_more(session: everlog.Session) -> None:
    _fill(session, 2)
    model = ScriptedModel(ContextOverflowError("too long"), SUMMARY, "answer")
    settings = CompactionSettings(window=100_000)
    assert _run(Agent(session.store, model, settings=settings), session).text == "answer"
    assert len(model.requests[2].messages) < len(model.requests[0].messages)
    twice = ScriptedModel(ContextOverflowError("too long"), SUMMARY, ContextOverflowError("still"))
    _fill(session, 2)
    with pytest.raises(ContextOverflowError):
        _run(Agent(session.store, twice, settings=settings), session)


def test_warnings_come_at_80_and_95_percent_once_each(session: everlog.Session) -> None:
    events: list[RunEvent] = []
    off = CompactionSettings(enabled=False, window=200_000, reserve_tokens=1_024)
    used = [150_000, 165_000, 166_000, 191_000, 192_000]
    replies = [assistant("ok", usage=Usage(total_tokens=tokens)) for tokens in used]
    agent = Agent(session.store, ScriptedModel(*replies), settings=off, emit=events.append)
    told = []
    for _ in used:
        _run(agent, session)
        told.append([event.percent for event in events if isinstance(event, TokenWarning)])
    assert told == [[], [], [80], [80], [80, 95]]


# --- the breaker, through the engine


def _failing(session: everlog.Session, *errors: Any, **settings: Any) -> list[RunEvent]:
    """One turn on a full session whose summary calls go wrong; returns what was told."""
    _fill(session)
    events: list[RunEvent] = []
    chosen = msgspec.structs.replace(SMALL, **settings)
    model = ScriptedModel(*errors, "answer", *["unused"] * 2)
    agent = Agent(session.store, model, settings=chosen, emit=events.append)
    _run(agent, session)
    events.append(TokenWarning(session_id="", percent=0, tokens=len(model.requests), window=0))
    return events


def _asked(events: list[RunEvent]) -> int:
    last = events[-1]
    assert isinstance(last, TokenWarning)
    return last.tokens - 1  # calls beside the answer


def test_the_breaker_opens_after_the_third_failure_and_not_before(tmp_path: Path) -> None:
    session = everlog.open_store(tmp_path, create=True).create()
    down = ProviderError("down")
    for failures in (1, 2, 3):
        events = _failing(session, down)
        assert _asked(events) == 1, "the model was not asked"
        end = next(event for event in events if isinstance(event, CompactEnd))
        assert (end.summariser, end.problem) == ("extractive", "down")
        breaker = [r for r in session.records() if isinstance(r, Event) and r.kind == "breaker"]
        assert breaker[-1].data["failures"] == failures
    # Another process, the same session: the model is not asked any more, compaction goes on.
    session = everlog.open_store(tmp_path, create=True).session(session.id)
    for _ in range(3):
        events = _failing(session)
        assert _asked(events) == 0, "the breaker did not hold"
        assert any(isinstance(event, CompactEnd) for event in events)
    # By hand it still works, and a success resets it.
    _fill(session)
    agent = Agent(session.store, ScriptedModel(SUMMARY), settings=SMALL)
    outcome = asyncio.run(agent.compact(session))
    assert (outcome.compacted, outcome.summariser) == (True, "model")
    assert _asked(_failing(session, SUMMARY)) == 1


def test_a_success_between_failures_starts_the_count_again(session: everlog.Session) -> None:
    down = ProviderError("down")
    for reply in (down, down, SUMMARY, down, down):
        assert _asked(_failing(session, reply)) == 1
    assert _asked(_failing(session, down)) == 1
    assert _asked(_failing(session)) == 0


def test_without_fallback_nothing_is_summarised_and_the_failure_is_told(session: everlog.Session) -> None:
    for failures in (1, 2, 3):
        session.rewind(0)
        events = _failing(session, ProviderError("down"), fallback=False)
        failed = [event for event in events if isinstance(event, CompactFailed)]
        assert failed[0].failures == failures
        assert failed[0].error == "down"
    assert not any(isinstance(record, Compaction) for record in session.records())
    session.rewind(0)
    assert _asked(_failing(session, fallback=False)) == 0


def test_a_summary_twice_without_headings_counts_as_one_failure(session: everlog.Session) -> None:
    events = _failing(session, "just prose", "more prose")
    assert _asked(events) == 2
    end = next(event for event in events if isinstance(event, CompactEnd))
    assert "headings" in end.problem
    assert session.live().breaker["failures"] == 1
    assert _asked(_failing(session, "just prose", SUMMARY)) == 2
    assert session.live().breaker["failures"] == 0


def test_a_summary_that_takes_too_long_counts_as_a_failure(session: everlog.Session) -> None:
    class Slow(ScriptedModel):
        async def complete(self, request: Request, told: DeltaCallback = ignore_delta) -> Message:
            if _is_summary(request):
                await asyncio.Event().wait()
            return await super().complete(request, told)

    _fill(session)
    agent = Agent(session.store, Slow("answer"), settings=SMALL, summary_seconds=0.01)
    assert _run(agent, session).text == "answer"
    assert session.live().breaker["failures"] == 1


# --- a history that is given


def test_a_given_history_is_the_context_and_is_not_appended(session: everlog.Session) -> None:
    session.append(user("logged before"))
    session.append(assistant("yes"))
    given = [user("from elsewhere"), assistant("indeed")]
    model = ScriptedModel(assistant([ToolCall("c", "now", {})]), "twelve")
    agent = Agent(session.store, model, tools={"now": lambda: "12:00"})
    _run(agent, session, "what time?", messages=given)
    assert _texts(model.requests[0].messages) == ["from elsewhere", "indeed", "what time?"]
    assert [m.role for m in model.requests[1].messages][-2:] == ["assistant", "toolResult"]
    assert _texts(session.messages()) == ["logged before", "yes", "what time?", "", "12:00", "twelve"]


def test_the_context_itself_can_be_given_without_doubling_anything(session: everlog.Session) -> None:
    _run(Agent(session.store, ScriptedModel("one")), session, "first")
    history = session.context().messages
    other = ScriptedModel("two")
    _run(Agent(session.store, other), session, "second", messages=history)
    assert _texts(session.messages()) == ["first", "one", "second", "two"]
    assert _texts(other.requests[0].messages) == ["first", "one", "second"]


# --- hooks


class Recall:
    """Finds something on the turns it is told to."""

    def __init__(self, *finds: int) -> None:
        self.finds = finds
        self.turn = 0

    def on_before_run(self, agent: str, session: everlog.Session, messages: Sequence[Message]) -> list[Message]:
        self.turn += 1
        return [user(f"<recall>{n}</recall>") for n in range(self.finds[self.turn - 1])]


@pytest.mark.parametrize("finds", [(1, 0, 1), (2, 0, 0), (3, 0, 2), (0, 3, 0)])
def test_a_hook_that_injects_on_one_turn_and_not_on_the_next_loses_no_message(
    session: everlog.Session, finds: tuple[int, ...]
) -> None:
    model = ScriptedModel("answer 0", "answer 1", "answer 2")
    agent = Agent(session.store, model, hooks=[Recall(*finds)])
    said: list[str] = []
    for turn, found in enumerate(finds):
        _run(agent, session, f"question {turn}")
        sent = _texts(model.requests[turn].messages)
        assert sent == [*said, *[f"<recall>{n}</recall>" for n in range(found)], f"question {turn}"]
        said += [f"question {turn}", f"answer {turn}"]
        assert _texts(session.messages()) == said
    assert b"recall" not in b"".join(record.line for record in session.records())


def test_injections_stay_in_one_place_through_the_steps_of_a_turn(session: everlog.Session) -> None:
    model = ScriptedModel(assistant([ToolCall("c", "now", {})]), "done")
    hook = Recall(1)
    _run(Agent(session.store, model, tools={"now": lambda: "x"}, hooks=[hook]), session)
    first, second = model.requests
    assert second.messages[: len(first.messages)] == first.messages
    assert hook.turn == 1


def test_a_hook_that_fails_or_dawdles_is_told_and_skipped(session: everlog.Session) -> None:
    class Broken:
        def on_before_run(self, *_: Any) -> list[Message]:
            raise RuntimeError("no memory")

    class Slow:
        async def on_before_run(self, *_: Any) -> list[Message]:
            await asyncio.Event().wait()
            return []

    class Wrong:
        def on_before_run(self, *_: Any) -> list[Message]:
            return [tool_result("x", "y")]

    class Good:
        async def on_before_run(self, *_: Any) -> list[Message]:
            return [user("<environment/>")]

    events: list[RunEvent] = []
    model = ScriptedModel("ok")
    hooks: list[object] = [Broken(), Slow(), Wrong(), Good()]
    agent = Agent(session.store, model, hooks=hooks, emit=events.append, hook_seconds=0.05)
    _run(agent, session)
    failed = [event for event in events if isinstance(event, HookFailed)]
    assert [event.hook.rsplit(".")[-1] for event in failed] == ["Broken", "Slow", "Wrong"]
    assert failed[0].problem == "RuntimeError: no memory"
    assert failed[1].problem == "no answer within 0.05 s"
    assert _texts(model.requests[0].messages) == ["<environment/>", "go"]


def test_a_hook_that_hangs_holds_up_neither_the_turn_nor_the_end(session: everlog.Session) -> None:
    hanging = threading.Event()

    class Hanging:
        def on_before_run(self, *_: Any) -> list[Message]:
            hanging.wait()
            return []

    agent = Agent(session.store, ScriptedModel("ok"), hooks=[Hanging()], hook_seconds=0.05)
    assert _run(agent, session).text == "ok"
    hanging.set()


def test_a_compaction_that_cannot_be_written_does_not_take_the_answer_away(
    session: everlog.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fill(session, 6)
    append = session.store.port.append

    def full(name: str, records: Sequence[Any], **more: Any) -> Any:
        if any(isinstance(record, Compaction) for record in records):
            raise everlog.StoreFullError("the disk is full")
        return append(name, records, **more)

    monkeypatch.setattr(session.store.port, "append", full)
    events: list[RunEvent] = []
    model = ScriptedModel(LONG * 4, SUMMARY)
    agent = Agent(session.store, model, settings=SMALL, emit=events.append)
    assert _run(agent, session).text == LONG * 4
    (failed,) = [event for event in events if isinstance(event, CompactFailed)]
    assert "disk is full" in failed.error
    assert session.metadata.metrics.total_turns == 1


def test_a_hook_cannot_change_the_messages(session: everlog.Session) -> None:
    class Meddler:
        def on_before_run(self, agent: str, session: everlog.Session, messages: Sequence[Message]) -> list[Message]:
            for message in messages:
                for call in message.tool_calls:
                    call.arguments["path"] = "/etc/passwd"
            messages.clear()  # type: ignore[attr-defined]
            return []

    session.append(assistant([ToolCall("c", "read", {"path": "a.py"})]))
    session.append(tool_result("c", "text"))
    model = ScriptedModel("ok")
    _run(Agent(session.store, model, hooks=[Meddler()]), session)
    assert model.requests[0].messages[0].tool_calls[0].arguments == {"path": "a.py"}
    assert len(model.requests[0].messages) == 3


# --- calls that never got their result


def test_the_next_turn_closes_an_open_call_once_and_for_all(session: everlog.Session) -> None:
    session.append(user("look"))
    session.append(assistant([ToolCall("c1", "look", {}), ToolCall("c2", "look", {})]))
    session.append(tool_result("c2", "seen"))
    for _ in range(2):  # reading shows the answer in its place and writes nothing
        shown = session.context().messages
        assert [m.tool_call_id for m in shown[2:]] == ["c2", "c1"]
        assert len(session.messages()) == 3
    model = ScriptedModel("sorry", "still sorry")
    agent = Agent(session.store, model)
    _run(agent, session)
    _run(agent, session)
    closed = [m for m in session.messages() if m.tool_call_id == "c1"]
    assert len(closed) == 1 and closed[0].is_error
    assert [m.tool_call_id for m in model.requests[0].messages[2:4]] == ["c2", "c1"]


def test_calls_with_one_id_are_all_closed(session: everlog.Session) -> None:
    session.append(assistant([ToolCall("c", "look", {"n": 1}), ToolCall("c", "look", {"n": 2})]))
    with session.lease() as lease:
        assert len({one.id for one in session.close_calls(lease=lease)}) == 2
        assert session.close_calls(lease=lease) == []
    assert len(session.messages()) == 3


def test_a_call_that_a_rewind_opened_again_is_closed_again(session: everlog.Session) -> None:
    session.append(assistant([ToolCall("c1", "look", {})]))
    with session.lease() as lease:
        assert len(session.close_calls(lease=lease)) == 1
        session.rewind(1, lease=lease)
        assert len(session.close_calls(lease=lease)) == 1
        assert session.close_calls(lease=lease) == []
