"""The agents of a runtime.

They are created from the settings on first use, one for each name and model, and created again when
the settings change. All of them share the tools of MCP servers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext

from msgspec.structs import asdict

from everlog.agent.agent import Agent
from everlog.agent.answer import Answer
from everlog.agent.builtin_tools import current_time, make_ask_agent
from everlog.agent.environment import EnvironmentHook, Recall
from everlog.agent.memory_hook import MemoryHook
from everlog.agent.tools import Function, build_tools
from everlog.aio import AsyncSession, AsyncStore
from everlog.model import Message, Metadata
from everlog.ports import Lease, Toolset
from everlog.runtime.queue_log import TurnOptions
from everlog.settings import Settings
from everlog.wire.events import Sink

Toolsets = Callable[[Settings], Mapping[str, Toolset]]


class Agents:
    """The agents of the current settings, by name and model."""

    def __init__(
        self,
        store: AsyncStore,
        *,
        toolsets: Toolsets,
        tools: Iterable[Function],
        hooks: Iterable[object],
        recall: Recall | None,
    ) -> None:
        """Load the toolsets. Every agent gets `tools`, `hooks` and `recall`."""
        self._store = store
        self._load_toolsets = toolsets
        self._toolsets = dict(toolsets(self._settings))
        self._tools = (current_time, *tools)
        self._hooks = tuple(hooks)
        self._recall = recall
        self.memory: MemoryHook | None = None  # every agent gets its tools and notes
        self.turns = self.failures = 0  # since the start; a failure is a turn without an answer
        self._current: dict[tuple[str, str], Agent] = {}
        self._retired: list[Agent] = []  # of earlier settings, with work under way

    @property
    def _settings(self) -> Settings:
        return self._store.sync.settings

    async def answer(
        self, session: AsyncSession, message: Message, lease: Lease, *, emit: Sink, options: TurnOptions
    ) -> Answer:
        """Run the turn that answers a stored message, under a lease that the caller holds."""
        self.turns += 1
        try:
            agent = await self.for_session(session)
            with self.memory.bind_session(session) if self.memory else nullcontext():
                answer = await agent.answer(message, session, lease, emit=emit, **asdict(options))
        except BaseException:
            self.failures += 1
            raise
        if self.memory is not None:
            self.memory.after_turn(session)
        return answer

    async def for_session(self, session: AsyncSession) -> Agent:
        """Return the agent of a session, with the session's own model if one was chosen."""
        metadata = await session.metadata()
        name, model = metadata.agent, self.model_of(metadata)
        if (name, model) in self._current:
            return self._current[name, model]
        # Importing a provider takes a second or two; do not block the event loop.
        return await self._store.call(self.by_name, name, model)

    def model_of(self, metadata: Metadata) -> str:
        """Return the model that answers in a session."""
        return metadata.model if metadata.model_chosen else self._settings.model_of(metadata.agent)

    def by_name(self, name: str, model: str = "") -> Agent:
        """Return the agent of that name, created if needed; `model` overrides the settings."""
        model = model or self._settings.model_of(name)
        return self._current.get((name, model)) or self._current.setdefault((name, model), self._make(name, model))

    def prepare_toolsets(self, settings: Settings) -> dict[str, Toolset]:
        """Return the toolsets of new settings; raises `SettingsError` if they are invalid."""
        toolsets = dict(self._load_toolsets(settings))
        for name, toolset in self._toolsets.items():  # an unchanged server stays connected
            if name in toolsets and settings.mcp.get(name) == self._settings.mcp.get(name):
                toolsets[name] = toolset
        return toolsets

    async def replace_toolsets(self, toolsets: dict[str, Toolset]) -> None:
        """Create agents again from now on; turns under way finish with the old ones."""
        removed = [old for name, old in self._toolsets.items() if toolsets.get(name) is not old]
        self._toolsets = toolsets
        agents = (*self._retired, *self._current.values())
        self._current = {}
        self._retired = [agent for agent in agents if not agent.is_idle]
        for agent in agents:
            if agent.is_idle:
                await agent.close()
        for toolset in removed:
            await toolset.close()

    async def close(self, deadline: float) -> None:
        """Wait for work under way until `deadline` (monotonic clock), then close everything."""
        for agent in (*self._current.values(), *self._retired):
            await agent.close(max(deadline - time.monotonic(), 0))
        for toolset in self._toolsets.values():
            await toolset.close()

    def _make(self, name: str, model: str) -> Agent:
        config = self._settings.agent(name)
        members = {member: self._settings.agent(member).description for member in config.members}
        tools = [*self._tools]
        if members:
            tools.append(make_ask_agent(self.by_name, self._store.sync, tuple(members)))
        recall, hooks = self._recall, self._hooks
        if self.memory is not None:
            existing = build_tools(tools)  # the caller's tool wins over one of ours with that name
            tools += [tool for tool in self.memory.tools(name) if tool.__name__ not in existing]
            recall = recall or self.memory.recall
            hooks = (self.memory, *hooks)
        return Agent(
            self._store,
            name=name,
            model=model,
            system=config.system_prompt,
            tools=tools,
            toolsets=[
                toolset
                for server, toolset in self._toolsets.items()
                if not (allowed := self._settings.mcp[server].agents) or name in allowed
            ],
            hooks=(EnvironmentHook(members, recall), *hooks),
        )
