"""What the engine tells, in CrabTalk's messages."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from everlog.daemon.crabtalk.event_messages import EventTranslator, day_label, split_model, token_usage
from everlog.daemon.crabtalk.handler import SUPPORTED_MESSAGES, SessionNumbers, error_code
from everlog.daemon.crabtalk.proto import crabtalk_pb2 as pb
from everlog.errors import EverlogError, FormatError, InvalidIdError, NotFoundError, QueueFullError, SessionBusyError
from everlog.model import AnyBlock, Text, ToolCall, Usage, assistant, user
from everlog.wire.events import MessageStored, RunEvent, StreamDelta, ThinkingDelta, ToolResult, ToolStart

S = "01J00000000000000000000000"


def _stored(*blocks: AnyBlock, seq: int = 2) -> MessageStored:
    return MessageStored(session_id=S, seq=seq, message=replace(assistant(blocks), seq=seq))


def _result(call: str, text: str = "") -> ToolResult:
    return ToolResult(
        session_id=S, tool_call_id=call, tool_name="t", result=text or f"of {call}", is_error=False, duration_ms=7
    )


def _start(call: str) -> ToolStart:
    return ToolStart(session_id=S, tool_call_id=call, tool_name="t", args={})


def _tell(*events: RunEvent, told: EventTranslator | None = None) -> list[str]:
    return [_short(one) for one in _events(told or EventTranslator(), *events)]


def _events(told: EventTranslator, *events: RunEvent) -> Iterator[pb.StreamEvent]:
    for event in events:
        yield from told.translate(event)


def _short(event: pb.StreamEvent) -> str:
    match event.WhichOneof("event"):
        case "chunk":
            return f"chunk {event.chunk.content}"
        case "thinking":
            return f"thinking {event.thinking.content}"
        case "tool_start":
            return "start " + " ".join(f"{one.name}{one.arguments}" for one in event.tool_start.calls)
        case "tool_result":
            return f"result {event.tool_result.call_id}: {event.tool_result.output}"
        case other:
            return str(other)


def test_text_and_thoughts_are_told_piece_by_piece() -> None:
    assert _tell(
        ThinkingDelta(session_id=S, text="hm"),
        StreamDelta(session_id=S, text="he"),
        StreamDelta(session_id=S, text="llo"),
        _stored(Text("hello")),
    ) == ["thinking hm", "chunk he", "chunk llo"]


def test_the_answer_of_a_model_that_does_not_stream_is_told_at_once() -> None:
    assert _tell(_stored(Text("hello")), _stored(Text("again"))) == ["chunk hello", "chunk again"]


def test_the_users_own_message_is_not_told() -> None:
    assert _tell(MessageStored(session_id=S, seq=1, message=user("hi"))) == []


def test_calls_of_a_message_are_told_together_and_their_results_in_their_order() -> None:
    calls = [ToolCall("a", "look", {"n": 1}), ToolCall("b", "find", {})]
    events = (_stored(*calls), _start("a"), _start("b"), _result("b"), _result("a"))
    assert _tell(*events) == ['start look{"n":1} find{}', "result a: of a", "result b: of b", "tools_complete"]


def test_each_batch_of_tools_is_completed_once() -> None:
    one, two = ToolCall("a", "t", {}), ToolCall("a", "t", {})  # some models give an id twice
    events = (_stored(one), _result("a"), _stored(one, two), _result("a", "1"), _result("a", "2"))
    assert _tell(*events) == [
        "start t{}",
        "result a: of a",
        "tools_complete",
        "start t{} t{}",
        "result a: 1",
        "result a: 2",
        "tools_complete",
    ]


def test_a_call_that_no_message_told_of_is_told_when_it_starts() -> None:
    assert _tell(_start("a"), _result("a")) == ["start t{}", "result a: of a", "tools_complete"]


def test_results_that_waited_for_one_that_never_came_are_told_at_the_end() -> None:
    told = EventTranslator()
    calls = [ToolCall("a", "t", {}), ToolCall("b", "t", {})]
    assert _tell(_stored(*calls), _result("b"), told=told) == ["start t{} t{}"]
    assert [_short(one) for one in told.flush()] == ["result b: of b"]


def test_text_that_is_no_unicode_still_goes_over_the_wire() -> None:
    assert _tell(StreamDelta(session_id=S, text="a\ud800b")) == ["chunk a?b"]


def test_a_model_is_split_at_the_first_colon() -> None:
    assert split_model(assistant("x", model="ollama:qwen3:8b")) == ("ollama", "qwen3:8b")
    assert split_model(assistant("x", model="offline")) == ("", "offline")
    assert split_model(assistant("x")) == ("", "")


def test_usage_is_left_out_when_nothing_was_counted_and_never_overflows() -> None:
    assert token_usage(Usage()) is None
    made = token_usage(Usage(input_tokens=2**40, output_tokens=2, cache_read_tokens=1))
    assert made is not None
    assert (made.prompt_tokens, made.completion_tokens) == (2**32 - 1, 2)
    assert made.cache_hit_tokens == 1 and not made.HasField("cache_miss_tokens")
    small = token_usage(Usage(input_tokens=3, output_tokens=2))
    assert small is not None and small.total_tokens == 5


def test_days_are_those_of_the_local_calendar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    time.tzset()
    try:
        now = datetime(2026, 3, 1, 0, 30).astimezone()

        def at(*when: int) -> str:
            return day_label(int(datetime(*when).timestamp() * 1000), now)  # type: ignore[arg-type]

        assert at(2026, 3, 1, 0, 1) == "Today"
        assert at(2026, 2, 28, 23, 59) == "Yesterday"
        assert at(2026, 2, 28, 0, 0) == "Yesterday"
        assert at(2026, 2, 27, 23, 59) == "2026-02-27"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_numbers_begin_at_one_and_none_is_given_twice() -> None:
    numbers = SessionNumbers()
    assert [numbers.open("a"), numbers.open("b"), numbers.open("a")] == [1, 2, 1]
    numbers.close("b")
    numbers.close("b")
    with pytest.raises(NotFoundError):
        numbers.session(2)
    assert numbers.open("b") == 3
    assert list(numbers) == [(1, "a"), (3, "b")]


@pytest.mark.parametrize(
    ("error", "code"),
    [(InvalidIdError, 400), (FormatError, 400), (NotFoundError, 404), (SessionBusyError, 500), (QueueFullError, 500)],
)
def test_errors_have_the_codes_that_crabtalk_knows(error: type[EverlogError], code: int) -> None:
    assert error_code(error("x")) == code


def test_the_page_tells_of_every_message_that_is_served() -> None:
    page = (Path(__file__).parents[2] / "docs" / "crabtalk.md").read_text(encoding="utf-8")
    table = page.split("## Messages")[1].split("## Which")[0]
    told = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    names = {field.name for field in pb.DESCRIPTOR.message_types_by_name["ClientMessage"].fields}
    served = {"".join(word.title() for word in name.split("_")) for name in SUPPORTED_MESSAGES}
    assert names > SUPPORTED_MESSAGES
    assert told == served
