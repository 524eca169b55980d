"""Tools that come with the engine: asking another agent, and the time.

An agent that is asked answers in a session of its own on the ephemeral store. Nothing of that
conversation is kept but the call and its result, in the log of the one who asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from everlog.agent.tools import Function, tool
from everlog.agent.worker_threads import in_thread
from everlog.aio import AsyncStore
from everlog.errors import EverlogError
from everlog.model import Usage
from everlog.ports import ToolAnswer
from everlog.session import Store
from everlog.wire.events import MessageComplete, RunEvent

if TYPE_CHECKING:
    from everlog.agent.agent import Agent

DEEPEST = 3  # agents that ask one another

_depth: ContextVar[int] = ContextVar("depth", default=0)


def asking(agent_of: Callable[[str], Agent], store: Store, members: Sequence[str]) -> Function:
    """A tool by which an agent asks one of its members."""

    async def ask_agent(agent: str, task: str) -> ToolAnswer:
        """Give a task to another agent and get its answer. It sees nothing of this conversation."""
        if agent not in members:
            return ToolAnswer(f"there is no agent {agent!r} to ask", is_error=True)
        if _depth.get() >= DEEPEST:
            return ToolAnswer("agents may not ask one another any deeper", is_error=True)
        depth = _depth.set(_depth.get() + 1)
        try:
            # Loading what talks to a provider takes a second or two; others go on meanwhile.
            return await sub_turn(await in_thread(agent_of, agent), store, task)
        except EverlogError as error:
            return ToolAnswer(str(error), is_error=True)
        finally:
            _depth.reset(depth)

    return ask_agent


async def sub_turn(agent: Agent, store: Store, task: str) -> ToolAnswer:
    """Let an agent do a task without a trace; its answer, and what that took."""
    used: list[Usage] = []

    def heard(event: RunEvent) -> None:
        if isinstance(event, MessageComplete):
            used.append(event.usage)

    async with AsyncStore(store.ephemeral()) as own:
        session = await own.create(agent=agent.name, sender="agent", title="sub-turn")
        reply = await agent.on(own).run(task, session=session, emit=heard)
        return ToolAnswer(reply.text, usage=used[-1] if used else None)


@tool(reads=True)
def current_time(timezone: str = "UTC") -> str:
    """The date and time now, in a time zone such as Europe/Berlin."""
    try:
        return datetime.now(ZoneInfo(timezone)).isoformat(timespec="seconds")
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"there is no time zone {timezone!r}") from None
