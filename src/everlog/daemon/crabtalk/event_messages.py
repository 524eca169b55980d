"""What the engine tells, in CrabTalk's messages. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import msgspec

from everlog.daemon.crabtalk.frames import sound
from everlog.daemon.crabtalk.proto import crabtalk_pb2 as pb
from everlog.model import Message, Usage
from everlog.wire.events import (
    MessageStored,
    RunEvent,
    StreamDelta,
    ThinkingDelta,
    ToolResult,
    ToolStart,
)

U32 = 2**32 - 1


class Told:
    """A run's events as CrabTalk tells them.

    All calls of a message are told at once. Its clients match results to calls by their order,
    so a result waits for those of the calls before it.
    """

    def __init__(self) -> None:
        self._calls: list[tuple[str, ToolResult | None]] = []  # whose result was not told yet
        self._said = False  # some of the message that is being made

    def tell(self, event: RunEvent) -> Iterator[pb.StreamEvent]:
        """What an event is told as; most are nothing to CrabTalk."""
        match event:
            case StreamDelta(text=text):
                self._said = True
                yield pb.StreamEvent(chunk=pb.StreamChunk(content=sound(text)))
            case ThinkingDelta(text=text):
                yield pb.StreamEvent(thinking=pb.StreamThinking(content=sound(text)))
            case MessageStored(message=message) if message.role == "assistant":
                if message.text and not self._said:  # its model does not stream
                    yield pb.StreamEvent(chunk=pb.StreamChunk(content=sound(message.text)))
                self._said = False
                if calls := [(one.id, one.name, one.arguments) for one in message.tool_calls]:
                    yield self._begun(calls)
            case ToolStart(tool_call_id=call, tool_name=name, args=args):
                if call not in {known for known, _ in self._calls}:
                    yield self._begun([(call, name, args)])
            case ToolResult():
                yield from self._result(event)

    def rest(self) -> Iterator[pb.StreamEvent]:
        """Results that waited for one that did not come."""
        for _, result in self._calls:
            if result is not None:
                yield _result_event(result)
        self._calls = []

    def _begun(self, calls: list[tuple[str, str, dict[str, Any]]]) -> pb.StreamEvent:
        begun = pb.ToolStartEvent()
        for call, name, arguments in calls:
            self._calls.append((call, None))
            begun.calls.add(name=sound(name), arguments=msgspec.json.encode(arguments).decode())
        return pb.StreamEvent(tool_start=begun)

    def _result(self, event: ToolResult) -> Iterator[pb.StreamEvent]:
        for place, (call, result) in enumerate(self._calls):
            if call == event.tool_call_id and result is None:
                self._calls[place] = call, event
                break
        else:
            yield _result_event(event)
            return
        while self._calls and (first := self._calls[0][1]) is not None:
            del self._calls[0]
            yield _result_event(first)
        if not self._calls:
            yield pb.StreamEvent(tools_complete=pb.ToolsCompleteEvent())


def _result_event(result: ToolResult) -> pb.StreamEvent:
    told = pb.ToolResultEvent(
        call_id=sound(result.tool_call_id),
        output=sound(result.result),
        duration_ms=max(result.duration_ms, 0),
    )
    return pb.StreamEvent(tool_result=told)


def split_model(reply: Message) -> tuple[str, str]:
    """Provider and model of an answer; a model without a provider stands alone."""
    provider, colon, model = (reply.model or "").partition(":")
    return (provider, model) if colon else ("", provider)


def token_usage(usage: Usage) -> pb.TokenUsage | None:
    """The count of a turn; None if nothing was counted."""
    total = usage.total_tokens or usage.input_tokens + usage.output_tokens
    if not total:
        return None
    made = pb.TokenUsage(
        prompt_tokens=min(usage.input_tokens, U32),
        completion_tokens=min(usage.output_tokens, U32),
        total_tokens=min(total, U32),
    )
    if usage.cache_read_tokens:
        made.cache_hit_tokens = min(usage.cache_read_tokens, U32)
    return made


def day(milliseconds: int, now: datetime) -> str:
    """A time as a person says it: Today, Yesterday, or its date, where `now` is."""
    # Not the offset of now but that of then: between them may lie a change of the clocks.
    date = datetime.fromtimestamp(milliseconds / 1000).date()
    today = now.date()
    if date == today:
        return "Today"
    return "Yesterday" if date == today - timedelta(days=1) else date.isoformat()
