"""Translation of run events to CrabTalk's messages, without I/O."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import msgspec

from everlog.daemon.crabtalk.frames import valid_text
from everlog.daemon.crabtalk.proto import crabtalk_pb2 as pb
from everlog.model import Message, Usage
from everlog.wire.events import MessageStored, RunEvent, StreamDelta, ThinkingDelta, ToolResult, ToolStart

MAX_U32 = 2**32 - 1


class EventTranslator:
    """Translates the events of one run to CrabTalk's stream events.

    All tool calls of a message are sent in one event. Clients match results to calls by their
    order, so a result waits for the results of the calls before it.
    """

    def __init__(self) -> None:
        self._calls: list[tuple[str, ToolResult | None]] = []  # result not sent yet
        self._has_streamed = False  # a part of the current message

    def translate(self, event: RunEvent) -> Iterator[pb.StreamEvent]:
        """Yield the stream events for an event; CrabTalk has none for most."""
        match event:
            case StreamDelta(text=text):
                self._has_streamed = True
                yield pb.StreamEvent(chunk=pb.StreamChunk(content=valid_text(text)))
            case ThinkingDelta(text=text):
                yield pb.StreamEvent(thinking=pb.StreamThinking(content=valid_text(text)))
            case MessageStored(message=message) if message.role == "assistant":
                if message.text and not self._has_streamed:  # the model does not stream
                    yield pb.StreamEvent(chunk=pb.StreamChunk(content=valid_text(message.text)))
                self._has_streamed = False
                if calls := [(call.id, call.name, call.arguments) for call in message.tool_calls]:
                    yield self._start_calls(calls)
            case ToolStart(tool_call_id=started, tool_name=name, args=args):
                if started not in {call_id for call_id, _ in self._calls}:
                    yield self._start_calls([(started, name, args)])
            case ToolResult():
                yield from self._add_result(event)

    def flush(self) -> Iterator[pb.StreamEvent]:
        """Yield the results that still wait for an earlier one."""
        for _, result in self._calls:
            if result is not None:
                yield _result_event(result)
        self._calls = []

    def _start_calls(self, calls: list[tuple[str, str, dict[str, Any]]]) -> pb.StreamEvent:
        start = pb.ToolStartEvent()
        for call, name, arguments in calls:
            self._calls.append((call, None))
            start.calls.add(name=valid_text(name), arguments=msgspec.json.encode(arguments).decode())
        return pb.StreamEvent(tool_start=start)

    def _add_result(self, event: ToolResult) -> Iterator[pb.StreamEvent]:
        for index, (call, result) in enumerate(self._calls):
            if call == event.tool_call_id and result is None:
                self._calls[index] = call, event
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
    event = pb.ToolResultEvent(
        call_id=valid_text(result.tool_call_id),
        output=valid_text(result.result),
        duration_ms=max(result.duration_ms, 0),
    )
    return pb.StreamEvent(tool_result=event)


def split_model(reply: Message) -> tuple[str, str]:
    """Return provider and model of an answer; the provider is empty if there is none."""
    provider, colon, model = (reply.model or "").partition(":")
    return (provider, model) if colon else ("", provider)


def token_usage(usage: Usage) -> pb.TokenUsage | None:
    """Return the token counts of a turn; None if nothing was counted."""
    total = usage.total_tokens or usage.input_tokens + usage.output_tokens
    if not total:
        return None
    counts = pb.TokenUsage(
        prompt_tokens=min(usage.input_tokens, MAX_U32),
        completion_tokens=min(usage.output_tokens, MAX_U32),
        total_tokens=min(total, MAX_U32),
    )
    if usage.cache_read_tokens:
        counts.cache_hit_tokens = min(usage.cache_read_tokens, MAX_U32)
    return counts


def day_label(milliseconds: int, now: datetime) -> str:
    """Return Today, Yesterday or the date of a time, in the time zone of `now`."""
    # Use the offset at that time, not the current one: a DST change may lie between.
    date = datetime.fromtimestamp(milliseconds / 1000).date()
    today = now.date()
    if date == today:
        return "Today"
    return "Yesterday" if date == today - timedelta(days=1) else date.isoformat()
