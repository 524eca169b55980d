"""What other programs' sessions beside the store contribute to a prompt: nothing, or what their project said."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from everlog.aio import AsyncStore
from everlog.app import open_store
from everlog.memory.file_memory import FileMemories
from everlog.model import Compaction, Message, ToolCall, assistant, user
from everlog.ports import Store as StorePort
from everlog.ports.memory import RecallQuery
from everlog.runtime.runtime import Runtime
from everlog.session import Store
from everlog.settings import FurtherStoreSettings, MemorySettings, Settings, TurnSettings
from everlog.testing import ScriptedModel
from tests.foreign.foreign_directories import cersei_file, made

QUESTION = "Which gate does the kumquat valve have?"


def cersei_session(name: str, directory: str, text: str) -> bytes:
    """A session of Cersei in a working directory."""
    return cersei_file(name).replace(b'"cwd":"/w"', f'"cwd":"{directory}"'.encode()).replace(b"hi there", text.encode())


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings with a directory of another program: one session in /w/here, one elsewhere."""
    place = made(
        tmp_path / "cersei",
        {
            "here.jsonl": cersei_session("here", "/w/here/", "the kumquat valve has a brass gate"),
            "there.jsonl": cersei_session("there", "/w/there", "the kumquat valve has a steel gate"),
        },
    )
    return Settings(
        stores=(FurtherStoreSettings(f"cersei:{place}"),), turn=TurnSettings(model="test:model", titles=False)
    )


def recall(port: StorePort, home: Path, directory: str | None) -> str:
    query = RecallQuery(text=QUESTION, limit=5, tokens=1_500, sender="user", directory=directory)
    return FileMemories(home, port).open("main").recall(query)


def test_passages_of_other_programs_come_only_from_the_same_directory(tmp_path: Path, settings: Settings) -> None:
    with open_store(tmp_path / "home", create=True, settings=settings) as store:
        store.create().append(user("the kumquat valve has a gate of ours"))
        store.port.catch_up()
        ours, here, there = "gate of ours", "brass gate", "steel gate"
        for directory, expected in (
            (None, {ours}),
            ("/w/here", {ours, here}),
            ("/w/there/", {ours, there}),
            ("/w", {ours}),
            ("/w/here/inside", {ours}),
        ):
            text = recall(store.port, tmp_path / "home", directory)
            assert {one for one in (ours, here, there) if one in text} == expected, directory


@pytest.mark.parametrize("foreign", [False, True])
def test_a_turn_and_its_recall_tool_take_them_only_if_told_to(
    tmp_path: Path, settings: Settings, foreign: bool
) -> None:
    async def scenario() -> None:
        call = assistant([ToolCall("c1", "recall", {"query": QUESTION})])
        model = ScriptedModel(call, "brass")
        with open_store(tmp_path / "home", create=True, settings=settings) as joined:
            joined.port.catch_up()
            memory = MemorySettings(foreign=foreign)
            sync = Store(
                joined.port,
                Settings(stores=settings.stores, turn=settings.turn, memory=memory),
                provider=lambda _: model,
            )
            runtime = Runtime(AsyncStore(sync), home=tmp_path / "home")
            run = await runtime.submit(await runtime.create(), QUESTION, cwd="/w/here")
            await run.answer()
            await runtime.drain(5)
        first, second = model.requests
        assert ("brass gate" in texts(first.messages)) is foreign
        assert ("brass gate" in second.messages[-1].text) is foreign, "what the tool found"
        assert "steel gate" not in texts(second.messages)

    asyncio.run(scenario())


def texts(messages: tuple[Message, ...]) -> str:
    return "\n".join(message.text for message in messages)


def test_a_dream_looks_at_no_summary_of_another_program(tmp_path: Path, settings: Settings) -> None:
    place = tmp_path / "cersei" / "here.jsonl"
    with open_store(f"cersei:{place.parent}", home=tmp_path / "other") as theirs:
        theirs.session("here").append(Compaction(first_kept_seq=1, summary="They decided to use brass."))
    with open_store(tmp_path / "home", create=True, settings=settings) as store:
        session = store.create()
        session.append(user("go"))
        session.append(Compaction(first_kept_seq=1, summary="We decided to use steel."))
        memory = FileMemories(tmp_path / "home", store.port).open("main")
        asked: list[str] = []

        async def ask(system: str, message: str) -> str:
            asked.append(message)
            return '{"changes": []}'

        asyncio.run(memory.dream(ask, dry_run=True))
        assert "steel" in asked[0] and "brass" not in asked[0]
