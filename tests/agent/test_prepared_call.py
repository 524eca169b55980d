"""What is told beforehand is what the model is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import everlog
from everlog.agent.agent import Agent, PreparedCall
from everlog.agent.hooks import Hook
from everlog.aio import AsyncSession
from everlog.model import Message, user
from everlog.ports import Request
from everlog.testing import ScriptedModel


class Knowing(Hook):
    """Says something in the system prompt and before the last message."""

    def on_system(self, agent: str, session: everlog.Session) -> str:
        return "the user likes tea"

    def on_before_run(self, agent: str, session: everlog.Session, messages: Sequence[Message]) -> list[Message]:
        return [user("<environment>here</environment>")]


def brew(minutes: int) -> str:
    """Make tea."""
    return f"{minutes}"


def test_what_is_prepared_is_what_is_sent(tmp_path: Path) -> None:
    session = everlog.open_store(tmp_path, create=True).create(system_prompt_override="In French.")
    model = ScriptedModel("oui")
    agent = Agent(session.store, model, system="Be brief.", tools=[brew], hooks=[Knowing()])

    async def run() -> PreparedCall:
        await agent.run("tea?", session=session)
        made = await agent.prepare(AsyncSession(agent.store, session))
        await agent.close()
        return made

    made = asyncio.run(run())
    sent: Request = model.requests[0]
    assert (made.system, made.tools) == (sent.system, sent.tools)
    shown = [message.text for message in made.context.messages]
    assert shown == [*(message.text for message in sent.messages), "oui"]


def test_its_tokens_count_the_system_prompt_and_the_tools(tmp_path: Path) -> None:
    session = everlog.open_store(tmp_path, create=True).create()
    session.append(user("hello"))
    plain = Agent(session.store, ScriptedModel())
    more = Agent(session.store, ScriptedModel(), system="Be very brief.", tools=[brew])

    async def tokens(agent: Agent) -> int:
        made = await agent.prepare(AsyncSession(agent.store, session))
        return made.context.tokens

    async def both() -> tuple[int, int]:
        return await tokens(plain), await tokens(more)

    without, with_them = asyncio.run(both())
    assert with_them - without == more.spec.overhead(more.spec.system, [more.spec.tools["brew"].spec])
