"""A CrabTalk client talks to a real daemon's runtime: its sessions are ours."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everlog.app import open_runtime
from everlog.daemon.crabtalk.frames import Limits
from everlog.daemon.crabtalk.handler import SUPPORTED_MESSAGES, CrabTalkServer, serve_socket
from everlog.daemon.crabtalk.proto import crabtalk_pb2 as pb
from everlog.model import Compaction, Event, Message
from everlog.runtime.runtime import Runtime
from everlog.settings import CompactionSettings, SessionSettings, Settings, TurnSettings
from tests.daemon.crabtalk_client import Crab, connected
from tests.examples import examples

FAST = SessionSettings(durability="os")
LONG = "many words of a long story " * 100
SMALL = CompactionSettings(window=48_000, reserve_tokens=24_000, keep_recent_tokens=1_024)


class Daemon(NamedTuple):
    """What a daemon consists of here."""

    runtime: Runtime
    socket: CrabTalkServer
    path: Path

    async def records(self, session: str) -> list[Any]:
        """A session's log."""
        return list(await (await self.runtime.store.session(session)).records())

    async def said(self, session: str) -> list[str]:
        """The text of a session's messages."""
        return [one.text for one in await self.records(session) if isinstance(one, Message)]

    async def ids(self) -> list[str]:
        """All sessions, newest first."""
        return [row.id for row in await self.runtime.store.list(limit=100)]


@asynccontextmanager
async def serving(root: Path, limits: Limits | None = None, **tables: Any) -> AsyncIterator[Daemon]:
    chosen = Settings(**{"session": FAST, "turn": TurnSettings(titles=False), **tables})
    runtime = open_runtime(home=root, create=True, settings=chosen)
    await runtime.start()
    path = root / "run" / "everlog.sock"
    made = await serve_socket(runtime, path, limits=limits or Limits())
    try:
        yield Daemon(runtime, made, path)
    finally:
        await made.close()
        await runtime.drain(5)
        await runtime.store.close()


@asynccontextmanager
async def serving_again(daemon: Daemon, path: Path) -> AsyncIterator[Path]:
    """A second socket to the same sessions."""
    made = await serve_socket(daemon.runtime, path)
    try:
        yield path
    finally:
        await made.close()


def run(main: Coroutine[Any, Any, None]) -> None:
    async def timed() -> None:
        async with asyncio.timeout(100):
            await main

    asyncio.run(timed())


async def listed(crab: Crab, **which: str) -> list[pb.ConversationInfo]:
    reply = await crab.call(list_conversations=pb.ListConversationsMsg(**which))
    return list(reply.conversation_list.conversations)


async def open_now(crab: Crab) -> list[pb.SessionInfo]:
    return list((await crab.call(sessions=pb.Sessions())).sessions.sessions)


async def history(crab: Crab, name: str) -> pb.ConversationHistory:
    asked = pb.GetConversationHistoryMsg(file_path=name)
    return (await crab.call(get_conversation_history=asked)).conversation_history


def kinds(events: list[pb.StreamEvent]) -> list[str]:
    """The kinds of events, those in a row once."""
    found = [str(event.WhichOneof("event")) for event in events]
    return [one for at, one in enumerate(found) if at == 0 or found[at - 1] != one]


def text(events: list[pb.StreamEvent]) -> str:
    return "".join(event.chunk.content for event in events)


# --- talking


def test_send_waits_for_the_answer(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as daemon, connected(daemon.path) as crab:
            reply = await crab.send("!say hello", cwd="/somewhere", sender="tg:7")
            assert (reply.agent, reply.content, reply.session) == ("main", "hello", 1)
            assert reply.model == "offline"
            assert reply.usage.total_tokens > 0
            (session,) = await daemon.ids()
            asked, answer = [one for one in await daemon.records(session) if isinstance(one, Message)]
            assert (asked.text, asked.cwd, asked.sender) == ("!say hello", "/somewhere", "tg:7")
            assert answer.text == "hello"

    run(main())


def test_the_next_message_of_an_identity_goes_to_the_same_session(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as daemon:
            for content in ("!say one", "!say two"):
                async with connected(daemon.path) as crab:  # also from another connection
                    assert (await crab.send(content)).session == 1
            (session,) = await daemon.ids()
            assert await daemon.said(session) == ["!say one", "one", "!say two", "two"]

    run(main())


def test_a_conversation_goes_on_after_a_restart_under_a_new_number(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as daemon, connected(daemon.path) as crab:
            await crab.send("!say x", sender="other")
            assert (await crab.send("!say one")).session == 2
        async with serving(tmp_path) as daemon, connected(daemon.path) as crab:
            assert await open_now(crab) == []
            assert (await crab.send("!say two")).session == 1
            assert len(await daemon.ids()) == 2

    run(main())


def test_stream_tells_start_first_and_end_last_after_everything_is_stored(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as daemon, connected(daemon.path) as crab:
            events = await crab.stream("!think let me see\n!say hello there")
            (session,) = await daemon.ids()
            last = (await daemon.records(session))[-1]
            assert isinstance(last, Event) and last.kind == "turn_end"
            assert kinds(events) == ["start", "thinking", "chunk", "end"]
            assert (events[0].start.agent, events[0].start.session) == ("main", 1)
            assert text(events) == "hello there"
            end = events[-1].end
            assert (end.agent, end.error, end.model) == ("main", "", "offline")
            assert end.usage.total_tokens > 0

    run(main())


def test_stream_tells_of_tools_in_batches(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as daemon, connected(daemon.path) as crab:
            script = '!call one {"a": 1}\n!call two {}\n!then\n!call three {}\n!say done'
            events = await crab.stream(script)
            batch = ["tool_start", "tool_result", "tools_complete"]
            assert kinds(events) == ["start", *batch, *batch, "chunk", "end"]
            started = [event.tool_start for event in events if event.HasField("tool_start")]
            assert [[one.name for one in each.calls] for each in started] == [["one", "two"], ["three"]]
            assert started[0].calls[0].arguments == '{"a":1}'
            (session,) = await daemon.ids()
            calls = [
                call.id for one in await daemon.records(session) if isinstance(one, Message) for call in one.tool_calls
            ]
            results = [event.tool_result for event in events if event.HasField("tool_result")]
            assert [one.call_id for one in results] == calls
            assert "one" in results[0].output  # there is no such tool, and it says so

    run(main())


def test_a_turn_that_fails_is_told_at_the_end_or_as_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as daemon, connected(daemon.path) as crab:
            events = await crab.stream("!fail denied")
            assert kinds(events) == ["start", "end"]
            assert "not accepted" in events[-1].end.error
            refusal = await crab.refusal(send=pb.SendMsg(content="!fail refused"))
            assert refusal.code == 500 and "refusal" in refusal.message
            assert (await crab.send("!say fine")).content == "fine"

    run(main())


def test_what_is_said_on_one_connection_is_said_in_its_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as daemon, connected(daemon.path) as crab:
            for number in range(8):
                await crab.ask(pb.ClientMessage(send=pb.SendMsg(content=f"!say {number}")))
            replies = [await crab.heard() for _ in range(8)]
            assert sorted(one.response.content for one in replies) == list("01234567")
            (session,) = await daemon.ids()
            asked = [one for one in await daemon.said(session) if one.startswith("!")]
            assert asked == [f"!say {number}" for number in range(8)]

    run(main())


def test_two_who_are_the_same_to_the_daemon_get_one_session(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as daemon, connected(daemon.path) as one, connected(daemon.path) as two:
            replies = await asyncio.gather(one.send("!say 1"), two.send("!say 2"))
            assert [reply.session for reply in replies] == [1, 1]
            assert len(await daemon.ids()) == 1

    run(main())


def test_a_slow_run_delays_nobody_else(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as daemon, connected(daemon.path) as slow, connected(daemon.path) as other:
            await slow.ask(pb.ClientMessage(stream=pb.StreamMsg(content="!wait 60")))
            assert (await slow.heard()).stream.start.session == 1
            assert (await other.send("!say quick", sender="tg:1")).content == "quick"
            assert (await other.send("!say quick", new_chat=True)).content == "quick"
            assert [one.active for one in await open_now(other)] == [True, False, False]
            assert (await other.call(kill=pb.KillMsg(session=1))).HasField("pong")

    run(main())


def test_too_many_messages_for_one_session_are_refused_to_their_sender(tmp_path: Path) -> None:
    async def main() -> None:
        turn = TurnSettings(waiting=1, titles=False)
        async with serving(tmp_path, turn=turn) as daemon, connected(daemon.path) as crab:
            await crab.ask(pb.ClientMessage(stream=pb.StreamMsg(content="!wait 60")))
            await crab.heard()
            await crab.ask(pb.ClientMessage(stream=pb.StreamMsg(content="!say next")))
            await crab.heard()
            async with connected(daemon.path) as other:
                refusal = await other.refusal(send=pb.SendMsg(content="!say too much"))
                assert refusal.code == 500 and "wait" in refusal.message
                await daemon.runtime.cancel((await daemon.ids())[0])
            told = [await crab.heard() for _ in range(3)]
            assert text([one.stream for one in told]) == "next"

    run(main())


def test_it_also_works_on_the_loop_of_the_daemon(tmp_path: Path) -> None:
    uvloop = pytest.importorskip("uvloop", reason="the daemon's loop")

    async def main() -> None:
        async with serving(tmp_path) as daemon, connected(daemon.path) as crab:
            events = await crab.stream("!call nothing {}\n!say hello")
            assert text(events) == "hello"
            assert (await crab.send("!say again")).content == "again"
            await crab.write(b"\xff\xff\xff\xff")
            assert (await crab.heard()).error.code == 400
            assert await crab.hung_up()
        assert not daemon.path.exists()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


# --- which session


def test_identities_that_look_alike_stay_apart(tmp_path: Path) -> None:
    who = [("main", "tg:1"), ("main", "tg-1"), ("main", "TG_1"), ("main", "user"), ("main_user", "1")]

    async def main() -> None:
        async with serving(tmp_path) as daemon, connected(daemon.path) as crab:
            for turn in range(2):
                for number, (agent, sender) in enumerate(who, 1):
                    reply = await crab.send(f"!say {turn}", agent=agent, sender=sender)
                    assert reply.session == number
            found = await listed(crab)
            assert {(one.agent, one.sender) for one in found} == set(who)
            assert [one.seq for one in found] == [1] * len(who)
            assert len(await listed(crab, agent="main")) == 4
            assert [one.sender for one in await listed(crab, sender="tg-1")] == ["tg-1"]

    run(main())


def test_a_new_chat_is_the_one_that_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as daemon, connected(daemon.path) as crab:
            assert (await crab.send("!say old")).session == 1
            assert (await crab.send("!say new", new_chat=True)).session == 2
            assert (await crab.send("!say second")).session == 2
            assert (await crab.send("!say third")).session == 2
            assert [one.seq for one in await listed(crab)] == [2, 1]

    run(main())


def test_a_resumed_conversation_is_the_one_that_goes_on_and_there_is_one_of_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as daemon, connected(daemon.path) as crab:
            await crab.send("!say old")
            await crab.send("!say new", new_chat=True)
            old = (await listed(crab))[1].file_path
            assert (await crab.send("!say again", resume_file=old)).session == 1
            assert (await crab.send("!say second")).session == 1
            assert (await crab.send("!say third")).session == 1
            assert len(await open_now(crab)) == 2
            assert (await daemon.said(old))[1::2] == ["old", "again", "second", "third"]
        async with serving(tmp_path) as daemon, connected(daemon.path) as crab:
            await crab.send("!say fourth")  # also after a restart
            assert (await daemon.said(old))[-1] == "fourth"

    run(main())


def test_a_resumed_conversation_of_another_identity_is_followed(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as daemon, connected(daemon.path) as crab:
            made = await daemon.runtime.create(sender="tg:9", key="agent:main:direct:tg:9")
            assert (await crab.send("!say mine")).session == 1
            assert (await crab.send("!say theirs", resume_file=made.id)).session == 2
            assert (await crab.send("!say second")).session == 2
            assert (await crab.send("!say by name", resume_file="agent:main:direct:tg:9")).session == 2
            assert (await crab.send("!say new", new_chat=True)).session == 3
            assert (await crab.send("!say second")).session == 3

    run(main())


def test_a_session_is_chosen_by_its_number_before_anything_else(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as daemon, connected(daemon.path) as crab:
            await crab.send("!say one")
            await crab.send("!say two", new_chat=True)
            reply = await crab.send("!say x", session=1, new_chat=True, resume_file="nothing")
            assert reply.session == 1
            assert (await crab.send("!say by identity")).session == 2
            for number in (0, 3, 2**64 - 1):
                refusal = await crab.refusal(send=pb.SendMsg(content="x", session=number))
                assert refusal.code == 404

    run(main())


def test_a_conversation_is_found_by_its_title_if_no_other_has_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as daemon, connected(daemon.path) as crab:
            first = await daemon.runtime.create(title="Plans for spring")
            assert (await history(crab, "Plans for spring")).title == "Plans for spring"
            await daemon.runtime.create(title="Plans for spring")
            asked = pb.DeleteConversationMsg(file_path="Plans for spring")
            refusal = await crab.refusal(delete_conversation=asked)
            assert "2 conversations" in refusal.message
            assert first.id in await daemon.ids()
            asked.file_path = "Plans for"
            assert (await crab.refusal(delete_conversation=asked)).code == 404

    run(main())


PATHS = [
    "",
    ".",
    "..",
    "/etc/passwd",
    "../victim.jsonl",
    "sessions/../victim.jsonl",
    "..\\victim.jsonl",
    "~/victim.jsonl",
]


@pytest.mark.parametrize("name", PATHS)
def test_no_path_is_ever_taken(tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim.jsonl"
    victim.write_text("mine")

    async def main() -> None:
        async with serving(tmp_path / "root") as daemon, connected(daemon.path) as crab:
            asked = pb.GetConversationHistoryMsg(file_path=name)
            assert (await crab.refusal(get_conversation_history=asked)).code == 400
            gone = pb.DeleteConversationMsg(file_path=name)
            assert (await crab.refusal(delete_conversation=gone)).code == 400
            if name:  # an empty one is none
                resumed = pb.SendMsg(content="x", resume_file=name)
                assert (await crab.refusal(send=resumed)).code == 400
            assert await daemon.ids() == []

    run(main())
    assert victim.read_text() == "mine"


def test_the_absolute_path_of_a_session_is_refused_as_well(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as daemon, connected(daemon.path) as crab:
            await crab.send("!say x")
            (session,) = await daemon.ids()
            (found,) = [one for one in tmp_path.rglob("*.jsonl") if session in str(one)]
            asked = pb.DeleteConversationMsg(file_path=str(found))
            assert (await crab.refusal(delete_conversation=asked)).code == 400
            assert found.exists()

    run(main())


# --- open sessions


def test_sessions_lists_those_that_were_opened_here(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as daemon, connected(daemon.path) as crab:
            await daemon.runtime.create(sender="elsewhere")
            assert await open_now(crab) == []
            await crab.send("!say one", sender="tg:1")
            (row,) = await open_now(crab)
            assert (row.id, row.agent, row.created_by) == (1, "main", "tg:1")
            assert (row.message_count, row.active, row.title) == (2, False, "")
            session = await daemon.runtime.store.session((await listed(crab, sender="tg:1"))[0].file_path)
            await session.rename("A title")
            assert (await open_now(crab))[0].title == "A title"

    run(main())


def test_kill_stops_the_turn_and_the_log_stays(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as daemon, connected(daemon.path) as crab, connected(daemon.path) as other:
            await crab.ask(pb.ClientMessage(stream=pb.StreamMsg(content="!wait 60")))
            assert (await crab.heard()).stream.start.session == 1
            assert (await open_now(other))[0].active
            assert (await other.call(kill=pb.KillMsg(session=1))).HasField("pong")
            (end,) = await crab.events()
            assert "cancelled" in end.end.error
            assert await open_now(other) == []
            assert (await other.refusal(kill=pb.KillMsg(session=1))).code == 404
            assert (await other.refusal(send=pb.SendMsg(content="x", session=1))).code == 404
            (session,) = await daemon.ids()
            assert await daemon.said(session) == ["!wait 60"]
            again = await crab.send("!say going on")
            assert again.session == 2  # never the same number twice
            assert (await daemon.said(session))[-1] == "going on"

    run(main())


def test_kill_also_takes_back_what_waits(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as daemon, connected(daemon.path) as crab, connected(daemon.path) as waiting:
            await crab.ask(pb.ClientMessage(stream=pb.StreamMsg(content="!wait 60")))
            await crab.heard()
            await waiting.ask(pb.ClientMessage(stream=pb.StreamMsg(content="!say later")))
            assert (await waiting.heard()).stream.HasField("start")
            async with connected(daemon.path) as other:
                assert (await other.call(kill=pb.KillMsg(session=1))).HasField("pong")
            assert (await crab.events())[-1].end.error
            assert (await waiting.events())[-1].end.error
            (session,) = await daemon.ids()
            assert await daemon.said(session) == ["!wait 60"]

    run(main())


def test_compact_records_the_summary_and_the_context_shrinks(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, compaction=SMALL) as daemon, connected(daemon.path) as crab:
            for number in range(6):
                await crab.send(f"question {number} {LONG}\n!say answer {number} {LONG}")
            (session,) = await daemon.ids()
            found = await daemon.runtime.store.session(session)
            before = (await found.context()).tokens
            shown = len((await history(crab, session)).messages)
            reply = await crab.call(compact=pb.CompactMsg(session=1))
            assert reply.compact.summary
            (record,) = [one for one in await daemon.records(session) if isinstance(one, Compaction)]
            assert record.summary == reply.compact.summary
            assert (await found.context()).tokens < before / 2
            messages = (await history(crab, session)).messages
            assert len(messages) < shown
            assert (messages[0].role, messages[0].content) == ("user", record.summary)
            assert len(await daemon.said(session)) == 12  # and nothing is gone
        async with serving(tmp_path) as daemon, connected(daemon.path) as crab:
            assert (await history(crab, session)).messages[0].content == record.summary

    run(main())


def test_compact_says_why_it_did_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as daemon, connected(daemon.path) as crab, connected(daemon.path) as other:
            assert (await crab.refusal(compact=pb.CompactMsg(session=1))).code == 404
            await crab.send("!say short")
            refusal = await crab.refusal(compact=pb.CompactMsg(session=1))
            assert refusal.code == 500 and len(refusal.message) > 25
            await crab.ask(pb.ClientMessage(stream=pb.StreamMsg(content="!wait 60")))
            await crab.heard()
            assert (await other.refusal(compact=pb.CompactMsg(session=1))).code == 500
            await other.call(kill=pb.KillMsg(session=1))

    run(main())


# --- conversations


def test_conversations_are_listed_newest_first(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as daemon, connected(daemon.path) as crab:
            assert await listed(crab) == []
            await crab.send("!say one")
            await crab.send("!say two", new_chat=True)
            await crab.send("!say three", session=1)
            first, second = await listed(crab)
            assert (first.seq, second.seq) == (1, 2)
            assert (first.agent, first.sender, first.message_count) == ("main", "user", 4)
            assert re.fullmatch("[0-9A-Z]{26}", first.file_path)
            assert first.date in ("Today", "Yesterday")  # midnight may just have passed
            assert first.title == ""
            assert await listed(crab, agent="other") == []

    run(main())


def test_history_is_the_context_without_tools(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as daemon, connected(daemon.path) as crab:
            await crab.send("!call nothing {}\n!say done")
            (session,) = await daemon.ids()
            shown = await history(crab, session)
            assert shown.agent == "main"
            assert [one.role for one in shown.messages] == ["user", "assistant", "assistant"]
            assert shown.messages[-1].content == "done"
            unknown = pb.GetConversationHistoryMsg(file_path="01J00000000000000000000000")
            assert (await crab.refusal(get_conversation_history=unknown)).code == 404

    run(main())


def test_delete_removes_a_conversation_unless_a_turn_runs(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as daemon, connected(daemon.path) as crab, connected(daemon.path) as other:
            await crab.ask(pb.ClientMessage(stream=pb.StreamMsg(content="!wait 60")))
            await crab.heard()
            (session,) = await daemon.ids()
            asked = pb.DeleteConversationMsg(file_path=session)
            assert (await other.refusal(delete_conversation=asked)).code == 500
            assert await daemon.ids() == [session]
            await daemon.runtime.cancel(session)
            await crab.events()
            assert (await other.call(delete_conversation=asked)).HasField("pong")
            assert await daemon.ids() == []
            assert await open_now(other) == []
            assert (await other.refusal(delete_conversation=asked)).code == 404
            assert (await other.refusal(compact=pb.CompactMsg(session=1))).code == 404
            assert (await crab.send("!say anew")).session == 2

    run(main())


def test_a_session_that_was_deleted_elsewhere_is_open_no_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as daemon, connected(daemon.path) as crab:
            await crab.send("!say x")
            await crab.send("!say y", new_chat=True)
            second = (await daemon.ids())[0]
            async with serving_again(daemon, tmp_path / "2.sock") as path, connected(path) as other:
                asked = pb.DeleteConversationMsg(file_path=second)
                assert (await other.call(delete_conversation=asked)).HasField("pong")
            assert [one.id for one in await open_now(crab)] == [1]
            assert (await crab.refusal(send=pb.SendMsg(content="x", session=2))).code == 404

    run(main())


# --- everything else


def test_every_other_message_is_refused_by_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as daemon, connected(daemon.path) as crab:
            for field in pb.DESCRIPTOR.message_types_by_name["ClientMessage"].fields:
                if field.name in SUPPORTED_MESSAGES:
                    continue
                message = pb.ClientMessage()
                getattr(message, field.name).SetInParent()
                await crab.ask(message)
                error = (await crab.heard()).error
                assert error.code == 400 and field.name in error.message
            await crab.ask(pb.ClientMessage())
            assert (await crab.heard()).error.code == 400
            await crab.write(b"\0\0\0\x03\xfa\x7f\x00")  # a message of a later version
            assert (await crab.heard()).error.code == 400
            assert await crab.ping()

    run(main())


def test_who_goes_away_does_not_stop_a_run(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as daemon:
            for message in (
                pb.ClientMessage(stream=pb.StreamMsg(content="!wait 0.2\n!say streamed")),
                pb.ClientMessage(send=pb.SendMsg(content="!wait 0.2\n!say sent")),
            ):
                async with connected(daemon.path) as crab:
                    await crab.ask(message)
                    async with connected(daemon.path) as other:
                        while not any(one.active for one in await open_now(other)):
                            await asyncio.sleep(0.005)
            (session,) = await daemon.ids()
            while (await daemon.said(session))[-1] != "sent":
                await asyncio.sleep(0.01)
            assert (await daemon.said(session))[1::2] == ["streamed", "sent"]
            assert daemon.runtime.feed.watchers == 0

    run(main())


def test_a_reader_who_stalls_does_not_hold_up_the_run(tmp_path: Path) -> None:
    async def main() -> None:
        limits = Limits(stall_seconds=0.2)
        async with serving(tmp_path, limits) as daemon, connected(daemon.path) as crab:
            crab.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a socket's
            await crab.ask(pb.ClientMessage(stream=pb.StreamMsg(content="!stream 60000")))
            while not await daemon.ids():
                await asyncio.sleep(0.01)
            (session,) = await daemon.ids()
            while len(await daemon.said(session)) < 2:
                await asyncio.sleep(0.05)
            assert (await daemon.said(session))[1].endswith("word60000")
            async with connected(daemon.path) as other:
                assert await other.ping()

    run(main())


def test_who_reads_too_slowly_for_the_feed_still_gets_the_end(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as daemon, connected(daemon.path) as crab:
            crab.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a socket's
            await crab.ask(pb.ClientMessage(stream=pb.StreamMsg(content="!stream 60000")))
            while not await daemon.ids():
                await asyncio.sleep(0.01)
            (session,) = await daemon.ids()
            while len(await daemon.said(session)) < 2:
                await asyncio.sleep(0.05)
            crab.writer.transport.resume_reading()  # type: ignore[attr-defined]
            events = await crab.events()
            assert kinds(events) == ["start", "chunk", "end"]
            assert events[-1].end.error == ""
            assert text(events).startswith("word1 word2 ")

    run(main())


NAMES = st.one_of(st.sampled_from(["", "main", "user", "x", *PATHS]), st.text(max_size=20))
TEXTS = st.sampled_from(["", "!say x", "!call a {}", "hello\0", "!fail refused"])
NUMBERS = st.one_of(st.integers(0, 3), st.just(2**64 - 1))


def _asked(of: type[Any]) -> st.SearchStrategy[Any]:
    optional = {"sender": NAMES, "cwd": NAMES, "resume_file": NAMES, "session": NUMBERS}
    return st.fixed_dictionaries({"agent": NAMES, "content": TEXTS, "new_chat": st.booleans()}, optional=optional).map(
        lambda fields: of(**fields)
    )


MESSAGES = st.one_of(
    st.builds(lambda m: pb.ClientMessage(send=m), _asked(pb.SendMsg)),
    st.builds(lambda m: pb.ClientMessage(stream=m), _asked(pb.StreamMsg)),
    st.builds(lambda n: pb.ClientMessage(kill=pb.KillMsg(session=n)), NUMBERS),
    st.builds(lambda n: pb.ClientMessage(compact=pb.CompactMsg(session=n)), NUMBERS),
    st.just(pb.ClientMessage(sessions=pb.Sessions())),
    st.builds(
        lambda a, s: pb.ClientMessage(list_conversations=pb.ListConversationsMsg(agent=a, sender=s)), NAMES, NAMES
    ),
    st.builds(lambda n: pb.ClientMessage(get_conversation_history=pb.GetConversationHistoryMsg(file_path=n)), NAMES),
    st.builds(lambda n: pb.ClientMessage(delete_conversation=pb.DeleteConversationMsg(file_path=n)), NAMES),
)


@settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(messages=st.lists(MESSAGES, min_size=1, max_size=10))
def test_any_messages_are_answered_and_none_breaks_the_daemon(
    tmp_path_factory: pytest.TempPathFactory, messages: list[pb.ClientMessage]
) -> None:
    async def main() -> None:
        async with serving(tmp_path_factory.mktemp("r")) as daemon, connected(daemon.path) as crab:
            for message in messages:
                await crab.ask(message)
                reply = await crab.heard()
                if reply.HasField("stream"):
                    assert (await crab.events())[-1].HasField("end")
                assert reply.error.message != "internal error", message
            assert await crab.ping()

    run(main())
