"""The feed: everybody who watches gets everything, and nobody holds it up."""

from __future__ import annotations

import asyncio

import msgspec

from everlog.model import OtherBlock, user
from everlog.runtime.feed import Feed, Subscription
from everlog.wire.events import MessageStored, Status, StreamDelta, ToolStart


async def _texts(subscription: Subscription, count: int) -> list[str]:
    return [(await anext(subscription)).event.text for _ in range(count)]  # type: ignore[attr-defined]


def test_all_who_watch_a_session_get_its_events_in_order_and_no_others() -> None:
    async def scenario() -> None:
        feed = Feed()
        one, two, other = feed.subscribe("A"), feed.subscribe("A", "B"), feed.subscribe("B")
        for at in range(3):
            feed.emit(StreamDelta(session_id="A", text=str(at)))
        feed.emit(StreamDelta(session_id="B", text="b"))
        assert await _texts(one, 3) == ["0", "1", "2"]
        assert await _texts(two, 4) == ["0", "1", "2", "b"]
        assert await _texts(other, 1) == ["b"]
        assert feed.watchers == 3

    asyncio.run(scenario())


def test_an_event_is_encoded_once_for_all() -> None:
    async def scenario() -> None:
        feed = Feed()
        one, two = feed.subscribe("A"), feed.subscribe("A")
        feed.emit(Status(session_id="A", run_id="R", message="m"))
        wire = (await anext(one)).wire
        assert (await anext(two)).wire is wire
        assert msgspec.json.decode(wire) == {
            "type": "status",
            "sessionId": "A",
            "runId": "R",
            "message": "m",
            "attempt": 0,
            "delayMs": 0,
        }

    asyncio.run(scenario())


def test_a_message_with_a_block_of_an_unknown_kind_goes_over_the_wire_whole() -> None:
    async def scenario() -> None:
        feed = Feed()
        one = feed.subscribe("A")
        message = user([{"type": "hologram", "depth": 3}])
        assert isinstance(message.content[0], OtherBlock)
        feed.emit(MessageStored(session_id="A", seq=1, message=message))
        wire = msgspec.json.decode((await anext(one)).wire)
        assert wire["type"] == "message"
        assert wire["message"]["content"] == [{"type": "hologram", "depth": 3}]

    asyncio.run(scenario())


def test_one_who_does_not_keep_up_is_dropped_and_the_others_are_not() -> None:
    async def scenario() -> None:
        feed = Feed()
        slow, quick = feed.subscribe("A", limit=2), feed.subscribe("A")
        for at in range(5):
            feed.emit(StreamDelta(session_id="A", text=str(at)))
        assert [one async for one in slow] == []
        assert slow.dropped
        assert await _texts(quick, 5) == ["0", "1", "2", "3", "4"]
        assert feed.watchers == 1

    asyncio.run(scenario())


def test_closing_ends_the_iteration_and_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        feed = Feed()
        one = feed.subscribe("A", "B")
        one.unfollow("B")
        waiting = asyncio.create_task(anext(one, None))
        await asyncio.sleep(0)
        one.close()
        assert await waiting is None
        assert not one.dropped and feed.watchers == 0 and one.sessions == set()

    asyncio.run(scenario())


def test_half_a_character_of_a_delta_ends_nobodys_connection() -> None:
    async def scenario() -> None:
        feed = Feed()
        one = feed.subscribe("A")
        feed.emit(StreamDelta(session_id="A", text="so \ud83d"))
        feed.emit(ToolStart(session_id="A", tool_call_id="c", tool_name="t", args={"a": "\udfff"}))
        wires = [msgspec.json.decode((await anext(one)).wire) for _ in range(2)]
        assert wires[0]["text"] == "so \ufffd" and wires[1]["args"] == {"a": "\ufffd"}

    asyncio.run(scenario())


def test_one_who_is_closed_follows_nothing_any_more() -> None:
    async def scenario() -> None:
        feed = Feed()
        one = feed.subscribe("A")
        one.close()
        one.follow("B")
        assert feed.watchers == 0

    asyncio.run(scenario())


def test_some_may_close_while_an_event_is_given_out() -> None:
    async def scenario() -> None:
        feed = Feed()
        slow, quick = feed.subscribe("A", limit=1), feed.subscribe("A")
        every = feed.subscribe("A", limit=1)
        for at in range(3):
            feed.emit(StreamDelta(session_id="A", text=str(at)))
        assert await _texts(quick, 3) == ["0", "1", "2"]
        assert (slow.dropped, every.dropped, quick.dropped) == (True, True, False)
        assert feed.watchers == 1

    asyncio.run(scenario())
