"""What a runtime does by itself, cron jobs and the main session, on the files of other programs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from everlog.app import open_runtime
from everlog.errors import SettingsError
from everlog.identity.scope import Inbound
from everlog.settings import (
    CronJob,
    CronSettings,
    DispatchRule,
    DispatchSettings,
    DispatchWhen,
    MemorySettings,
    Settings,
    TurnSettings,
)
from tests.foreign.foreign_directories import SESSIONS, made

CALLER = Inbound(channel="telegram", chat_type="direct", chat_id="7", sender_id="7")
JOB = CronJob(id="night/ly", schedule="0 3 * * *", prompt="!say all is well", timezone="UTC")
SETTINGS = Settings(
    cron=CronSettings(jobs=(JOB,)), turn=TurnSettings(titles=False), memory=MemorySettings(enabled=False)
)


@pytest.mark.parametrize("program", sorted(SESSIONS))
def test_jobs_and_the_main_session_have_sessions_of_their_own(tmp_path: Path, program: str) -> None:
    place = made(tmp_path / "place", SESSIONS[program][0])

    async def scenario() -> None:
        runtime = open_runtime(f"{program}:{place}", home=tmp_path / "home", create=True, settings=SETTINGS)
        await runtime.start()
        chat = await runtime.inbound(CALLER, "!say hello")
        assert (await chat.run.answer()).reply.text == "hello"
        runs = [await runtime.cron.run("night/ly")]
        await (await runtime.store.session(runs[0])).messages()
        main = await runtime.inbound(CALLER, "!say noted", system=True)
        assert (await main.run.answer()).reply.text == "noted"
        assert len({chat.session.id, main.session.id, *runs, SESSIONS[program][1]}) == 4 - (program == "picoclaw")
        assert (await runtime.inbound(CALLER, "!say again", system=True)).session.id == main.session.id
        # The same message delivered again begins no second chat.
        first = await runtime.inbound(CALLER, "!say new", id="m-1", new_chat=True)
        await first.run.answer()
        again = await runtime.inbound(CALLER, "!say new", id="m-1", new_chat=True)
        assert (again.session.id, again.run.id) == (first.session.id, first.run.id)
        await runtime.drain(10)
        await runtime.store.close()

    asyncio.run(scenario())


def test_rules_that_separate_sessions_otherwise_are_refused_at_the_start_and_by_a_reload(tmp_path: Path) -> None:
    place = made(tmp_path / "place", SESSIONS["crabtalk"][0])
    rule = DispatchRule(name="topics", when=DispatchWhen(channel="telegram"), session_dimensions=("chat", "topic"))
    refused = replace(SETTINGS, dispatch=DispatchSettings(rules=(rule,)))

    async def scenario() -> None:
        with pytest.raises(SettingsError, match="topics"):
            open_runtime(f"crabtalk:{place}", home=tmp_path / "home", create=True, settings=refused)
        runtime = open_runtime(f"crabtalk:{place}", home=tmp_path / "home", create=True, settings=SETTINGS)
        with pytest.raises(SettingsError, match="topics"):
            await runtime.reload(refused)
        assert runtime.router.dimensions == ("sender",) and runtime.router.default_agent == "crab"
        await runtime.drain(1)
        await runtime.store.close()

    asyncio.run(scenario())
