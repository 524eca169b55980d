"""Built-in tools: delegate a task to a subagent, and get the current time.

A subagent answers in a session of its own on an ephemeral store. Only the tool call and its result
are stored, in the log of the calling agent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from datetime import datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from everlog.agent.agent import Agent
from everlog.agent.tools import Function, tool
from everlog.agent.worker_threads import run_in_thread
from everlog.aio import AsyncStore
from everlog.errors import EverlogError
from everlog.model import Usage
from everlog.ports import ToolOutput
from everlog.session import Store
from everlog.wire.events import MessageComplete, RunEvent

MAX_DEPTH = 3  # levels of nested subagents

_depth: ContextVar[int] = ContextVar("depth", default=0)


def make_ask_agent(agent_of: Callable[[str], Agent], store: Store, members: Sequence[str]) -> Function:
    """Return the tool with which an agent delegates tasks to its members."""

    async def ask_agent(agent: str, task: str) -> ToolOutput:
        """Give a task to another agent and get its answer. It sees nothing of this conversation."""
        if agent not in members:
            return ToolOutput(f"unknown agent {agent!r}", is_error=True)
        if _depth.get() >= MAX_DEPTH:
            return ToolOutput(f"subagents may be nested at most {MAX_DEPTH} levels deep", is_error=True)
        depth = _depth.set(_depth.get() + 1)
        try:
            # Importing a provider takes a second or two; do not block the event loop.
            return await run_subagent(await run_in_thread(agent_of, agent), store, task)
        except EverlogError as error:
            return ToolOutput(str(error), is_error=True)
        finally:
            _depth.reset(depth)

    return ask_agent


async def run_subagent(agent: Agent, store: Store, task: str) -> ToolOutput:
    """Run a task in an ephemeral session; return the answer and the usage."""
    usages: list[Usage] = []

    def on_event(event: RunEvent) -> None:
        if isinstance(event, MessageComplete):
            usages.append(event.usage)

    async with AsyncStore(store.ephemeral()) as ephemeral:
        session = await ephemeral.create(agent=agent.name, sender="agent", title="sub-turn")
        reply = await agent.with_store(ephemeral).run(task, session=session, emit=on_event)
        return ToolOutput(reply.text, usage=usages[-1] if usages else None)


@tool(reads=True)
def current_time(timezone: str = "UTC") -> str:
    """The date and time now, in a time zone such as Europe/Berlin."""
    try:
        return datetime.now(ZoneInfo(timezone)).isoformat(timespec="seconds")
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"unknown time zone {timezone!r}") from None
