"""The runtime: messages from channels, agents from the settings, what runs are told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

import everlog
from everlog.agent.environment import agents_block, environment_block, instructions_block
from everlog.aio import THREADS, AsyncStore
from everlog.app import open_runtime
from everlog.errors import SettingsError
from everlog.identity.scope import Inbound
from everlog.model import Text, user
from everlog.ports import Page, ToolOutput, ToolSpec
from everlog.runtime.runtime import Runtime
from everlog.session import Store
from everlog.settings import (
    AgentSettings,
    CronJob,
    CronSettings,
    McpSettings,
    PostgresSettings,
    Settings,
    TurnSettings,
    parse,
)
from everlog.stores.in_memory import InMemoryStore

T = TypeVar("T")
QUIET = TurnSettings(titles=False)


def _run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


async def _closed(runtime: Runtime) -> None:
    await runtime.drain(1)
    await runtime.store.close()


TELEGRAM = Inbound(channel="telegram", chat_id="7", chat_type="direct", sender_id="7")
SLACK = Inbound(channel="slack", chat_id="c1", chat_type="channel", sender_id="u1")


# --- channels


def test_a_message_from_a_channel_goes_to_the_session_of_its_key(tmp_path: Path) -> None:
    async def scenario() -> None:
        runtime = open_runtime(home=tmp_path, create=True, settings=Settings(turn=QUIET))
        await runtime.start()
        first = await runtime.inbound(TELEGRAM, "!say hello", cwd="/srv")
        assert (await first.run.answer()).reply.text == "hello"
        again = await runtime.inbound(TELEGRAM, "!say again")
        other = await runtime.inbound(SLACK, "!say other")
        assert again.session.id == first.session.id != other.session.id
        assert first.key.startswith("sk_v1_")
        assert (await first.session.metadata()).key == first.key
        await again.run.answer()
        said = (await first.session.messages())[0]
        assert (said.sender, said.cwd) == ("7", "/srv")
        fresh = await runtime.inbound(TELEGRAM, "!say new", new_chat=True)
        assert fresh.session.id != first.session.id and fresh.key == first.key
        follow = await runtime.inbound(TELEGRAM, "!say on")
        assert follow.session.id == fresh.session.id
        await _closed(runtime)

    _run(scenario())


def test_a_system_message_goes_to_the_main_session_and_takes_no_names(tmp_path: Path) -> None:
    async def scenario() -> None:
        runtime = open_runtime(home=tmp_path, create=True, settings=Settings(turn=QUIET))
        await runtime.start()
        chat = await runtime.inbound(TELEGRAM, "!say hello")
        system = await runtime.inbound(TELEGRAM, "!say noted", system=True)
        assert system.session.id != chat.session.id
        known = await system.session.metadata()
        assert known.aliases == ("agent:main:main",) and known.key == system.key
        both = await asyncio.gather(*(runtime.inbound(SLACK, "!say x", system=True) for _ in range(4)))
        assert {one.session.id for one in both} == {system.session.id}
        await _closed(runtime)

    _run(scenario())


# --- agents


CONFIG = """
[turn]
titles = false

[agents.main]
description = "does everything"
system_prompt = "You are main."
members = ["digger"]

[agents.digger]
description = "digs"
system_prompt = "You dig."
"""


def test_an_agent_of_the_settings_may_ask_its_members_and_is_told_of_them(tmp_path: Path) -> None:
    async def scenario() -> None:
        runtime = open_runtime(home=tmp_path, create=True, settings=parse(CONFIG, {}))
        await runtime.start()
        session = await runtime.create()
        run = await runtime.submit(session, '!call ask_agent {"agent": "digger", "task": "!say a bone"}', cwd="/")
        messages = (await run.answer()).messages
        assert messages[2].text == "a bone"
        assert (await runtime.store.list()).total == 1, "the sub-turn left no session"
        context = await runtime.context(session)
        injected = [one.text for one in context.messages if one.auto_injected]
        assert injected[0] == "<agents>\n- digger: digs\n</agents>"
        assert injected[1].startswith("<environment>")
        assert runtime.agents.by_name("main").spec.system == "You are main."
        assert "ask_agent" not in runtime.agents.by_name("digger").spec.tools
        await _closed(runtime)

    _run(scenario())


def test_other_settings_count_from_the_next_turn_and_wrong_ones_not_at_all(tmp_path: Path) -> None:
    async def scenario() -> None:
        runtime = open_runtime(home=tmp_path, create=True, settings=parse(CONFIG, {}))
        await runtime.start()
        session = await runtime.create()
        assert runtime.agents.by_name("main").spec.system == "You are main."
        wrong = parse('[[cron.jobs]]\nid = "a"\nschedule = "x"\nprompt = "p"\n', {})
        with pytest.raises(everlog.SettingsError):
            await runtime.reload(wrong)
        assert runtime.agents.by_name("main").spec.system == "You are main."
        await runtime.reload(Settings(agents={"main": AgentSettings(system_prompt="Other.")}))
        assert (await runtime.agents.for_session(session)).spec.system == "Other."
        await _closed(runtime)

    _run(scenario())


class Shelf:
    """A toolset that keeps what it was asked."""

    def __init__(self, name: str, *, away: bool = False) -> None:
        self.name, self.away = name, away
        self.asked: list[dict[str, Any]] = []
        self.closed = False

    async def tools(self) -> list[ToolSpec]:
        if self.away:
            raise everlog.ProviderUnavailableError("it is not there")
        return [ToolSpec(f"{self.name}__take", "Take.", {"type": "object"})]

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolOutput:
        self.asked.append({name: arguments})
        return ToolOutput((Text("a book"),))

    async def close(self) -> None:
        self.closed = True


def test_tools_of_servers_are_used_and_one_that_is_away_is_told(tmp_path: Path) -> None:
    shelf, away, private = Shelf("shelf"), Shelf("away", away=True), Shelf("private")

    async def scenario() -> None:
        settings = Settings(
            turn=QUIET,
            mcp={
                "shelf": McpSettings(command="x"),
                "away": McpSettings(command="x"),
                "private": McpSettings(command="x", agents=("other",)),
            },
        )
        store = everlog.AsyncStore(everlog.open_store(tmp_path, create=True, settings=settings))
        toolsets = {one.name: one for one in (shelf, away, private)}
        runtime = Runtime(store, toolsets=lambda _: toolsets)
        events: list[Any] = []
        runtime.listeners.append(events.append)
        await runtime.start()
        session = await runtime.create()
        run = await runtime.submit(session, '!call shelf__take {"n": 1}\n!call private__take {"n": 1}')
        results = [one.text for one in (await run.answer()).messages if one.role == "toolResult"]
        assert sorted(results) == ["a book", "unknown tool 'private__take'"]
        assert shelf.asked == [{"shelf__take": {"n": 1}}]
        told = [one.message for one in events if type(one).__name__ == "Status"]
        assert told == ["away: it is not there"]
        await _closed(runtime)

    _run(scenario())
    assert shelf.closed and away.closed


def test_the_model_that_was_chosen_for_a_session_answers_in_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        runtime = open_runtime(home=tmp_path, create=True, settings=Settings(turn=TurnSettings(model="no:where")))
        await runtime.start()
        session = await runtime.create(model="offline")
        assert (await (await runtime.submit(session, "!say ok")).answer()).reply.text == "ok"
        await _closed(runtime)

    _run(scenario())


def test_compacting_right_after_an_answer_is_never_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        runtime = open_runtime(home=tmp_path, create=True, settings=Settings(turn=QUIET))
        await runtime.start()
        session = await runtime.create()
        watching = runtime.feed.subscribe(session.id)
        for _ in range(10):
            await runtime.submit(session, "!say ok")
            async for notice in watching:
                if type(notice.event).__name__ == "MessageComplete":
                    break
            await runtime.compact(session)
        run = await runtime.submit(session, "!wait 30")
        with pytest.raises(everlog.SessionBusyError):
            await runtime.compact(session)
        assert await runtime.cancel(session.id, run.id)
        await _closed(runtime)

    _run(scenario())


def test_health_counts(tmp_path: Path) -> None:
    async def scenario() -> None:
        runtime = open_runtime(home=tmp_path, create=True, settings=Settings(turn=QUIET))
        await runtime.start()
        session = await runtime.create()
        await (await runtime.submit(session, "!say ok")).answer()
        failing = await runtime.submit(session, "!fail denied")
        with pytest.raises(everlog.ProviderDeniedError):
            await failing.answer()
        await runtime.submit(session, "!wait 30")
        await runtime.submit(session, "!say later")
        health = runtime.health()
        assert (health.running, health.waiting, health.turns, health.failures) == (1, 1, 3, 1)
        assert runtime.open_sessions() == [session.id]
        await _closed(runtime)

    _run(scenario())


class Silent(InMemoryStore):
    """A store that says nothing for a while."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.speaks = threading.Event()
        self.asked = 0

    def list(self, *which: Any, **how: Any) -> Page:
        self.asked += 1
        self.speaks.wait(30)
        return super().list(*which, **how)


def test_health_is_told_while_the_store_is_silent(tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = Settings(turn=QUIET, postgres=PostgresSettings(wait_seconds=0.02))
        port = Silent(settings)
        runtime = Runtime(AsyncStore(Store(port, settings)), home=tmp_path)
        for _ in range(2 * THREADS):
            health = await runtime.check_health()
            assert not (health.ok or health.reachable)
            assert "0.02 seconds" in health.problem and health.hint
        assert port.asked == 1, "one thread waits, and the others are there for everybody else"
        await runtime.create()
        port.speaks.set()
        async with asyncio.timeout(60):
            while not (health := await runtime.check_health()).ok:
                await asyncio.sleep(0)
        assert (health.reachable, health.sessions, health.problem) == (True, 1, "")
        await runtime.store.close()

    _run(scenario())


def test_servers_stay_connected_and_turns_end_as_they_began_when_settings_change(tmp_path: Path) -> None:
    made: list[Shelf] = []

    def toolsets(settings: Settings) -> dict[str, Shelf]:
        made.extend(Shelf(name) for name in settings.mcp)
        return {one.name: one for one in made[-len(settings.mcp) :]}

    async def scenario() -> None:
        servers = {"kept": McpSettings(command="a"), "changed": McpSettings(command="b")}
        settings = Settings(turn=QUIET, mcp=servers)
        store = everlog.AsyncStore(everlog.open_store(tmp_path, create=True, settings=settings))
        runtime = Runtime(store, toolsets=toolsets)
        await runtime.start()
        session = await runtime.create()
        run = await runtime.submit(session, "!wait 0.2\n!say as before")
        changed = {**servers, "changed": McpSettings(command="c")}
        await runtime.reload(Settings(turn=QUIET, mcp=changed))
        assert [one.closed for one in made] == [False, True, False, False]
        assert (await run.answer()).reply.text == "as before"
        after = await runtime.submit(session, "!call kept__take {}")
        assert (await after.answer()).messages[2].text == "a book"
        assert made[0].asked == [{"kept__take": {}}]
        await _closed(runtime)

    _run(scenario())


# --- surroundings


def test_what_a_memory_recalls_stands_between_agents_and_environment(tmp_path: Path) -> None:
    asked: list[str] = []

    def recall(agent: str, session: everlog.Session, messages: Any) -> str:
        asked.append(messages[-1].text)
        return "they like tea"

    async def scenario() -> None:
        store = everlog.AsyncStore(everlog.open_store(tmp_path, create=True, settings=parse(CONFIG, {})))
        runtime = Runtime(store, recall=recall)
        await runtime.start()
        session = await runtime.create()
        await (await runtime.submit(session, "what do I drink?")).answer()
        context = await runtime.context(session)
        kinds = [one.text.split("\n")[0] for one in context.messages if one.auto_injected]
        assert kinds == ["<agents>", "<recall>", "<environment>"]
        await _closed(runtime)

    _run(scenario())
    assert asked[0] == "what do I drink?"


def test_instruction_files_are_read_from_the_top_down_to_the_working_directory(tmp_path: Path) -> None:
    deep = tmp_path / "project" / "part"
    deep.mkdir(parents=True)
    (tmp_path / "project" / "AGENTS.md").write_text("be careful\n")
    (tmp_path / "project" / "CLAUDE.md").write_text("be brief")
    (deep / "AGENTS.md").write_text("x" * 50_000)
    (tmp_path / "AGENTS.md").mkdir()
    text = instructions_block(str(deep))
    places = [text.index(part) for part in ("be careful", "be brief", "xxx")]
    assert places == sorted(places)
    assert "the rest of the file was left out" in text and len(text) < 45_000
    assert instructions_block(None) == instructions_block("relative/path") == instructions_block("/no/such") == ""


def test_the_environment_has_the_clients_directory_and_no_clock() -> None:
    text = environment_block("/srv/app")
    assert "working_directory: /srv/app" in text and "date: 20" in text
    assert text == environment_block("/srv/app")
    assert "working_directory" not in environment_block(None)
    assert agents_block({}) == ""


def test_what_is_injected_follows_the_message_it_came_with(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("local rules")

    async def scenario() -> None:
        runtime = open_runtime(home=tmp_path / "root", create=True, settings=Settings(turn=QUIET))
        await runtime.start()
        session = await runtime.create()
        await session.append(user("earlier", cwd="/nowhere"))
        await (await runtime.submit(session, "!say x", cwd=str(tmp_path))).answer()
        context = await runtime.context(session)
        assert any("local rules" in one.text for one in context.messages if one.auto_injected)
        assert all("local rules" not in one.text for one in await session.messages())
        await _closed(runtime)

    _run(scenario())


def test_a_turn_that_cannot_begin_for_its_model_leaves_no_session(tmp_path: Path) -> None:
    async def scenario() -> None:
        job = CronJob(id="night", schedule="0 3 * * *", prompt="go")
        settings = Settings(turn=TurnSettings(model="nowhere:m"), cron=CronSettings(jobs=(job,)))
        runtime = open_runtime(home=tmp_path, create=True, settings=settings)
        for make in (
            lambda: runtime.inbound(TELEGRAM, "hello"),
            lambda: runtime.inbound(TELEGRAM, "hello", new_chat=True),
            lambda: runtime.inbound(TELEGRAM, "hello", system=True),
            lambda: runtime.create(check=True),
            lambda: runtime.cron.run("night"),
        ):
            with pytest.raises(SettingsError, match="there is no provider 'nowhere'"):
                await make()
        assert (await runtime.store.list()).total == 0
        with_model = await runtime.store.create(model="offline")
        assert (await (await runtime.submit(with_model, "!say yes")).answer()).reply.text == "yes"
        await _closed(runtime)

    _run(scenario())
