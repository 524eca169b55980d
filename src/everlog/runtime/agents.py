"""The agents of a runtime.

They are made from the settings when they are first needed, one for each name and model, and made
anew when the settings change. The tools of MCP servers are shared by all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from everlog.agent.agent import Agent
from everlog.agent.builtin_tools import asking, current_time
from everlog.agent.environment import Recall, Surroundings
from everlog.agent.tools import Function, usable
from everlog.aio import AsyncSession, AsyncStore
from everlog.memory.memory_hook import Remembering
from everlog.ports import Toolset
from everlog.settings import Settings

Toolsets = Callable[[Settings], Mapping[str, Toolset]]


class Agents:
    """Who answers, by the settings in force."""

    def __init__(
        self,
        store: AsyncStore,
        *,
        toolsets: Toolsets,
        tools: Iterable[Function],
        hooks: Iterable[object],
        recall: Recall | None,
    ) -> None:
        """`tools`, `hooks` and `recall` are its owner's and every agent's."""
        self._store = store
        self._toolsets_of = toolsets
        self._toolsets = dict(toolsets(self._settings))
        self._tools = (current_time, *tools)
        self._hooks = tuple(hooks)
        self._recall = recall
        self.memory: Remembering | None = None  # whose tools and notes they have
        self._made: dict[tuple[str, str], Agent] = {}
        self._old: list[Agent] = []  # of earlier settings; their titles may be under way

    @property
    def _settings(self) -> Settings:
        return self._store.sync.settings

    async def of(self, session: AsyncSession) -> Agent:
        """The agent that answers in a session, with the model that was chosen for it."""
        metadata = await session.metadata()
        name = metadata.agent
        model = metadata.model if metadata.model_chosen else self._settings.model_of(name)
        if (name, model) in self._made:
            return self._made[name, model]
        # Loading what talks to a provider takes a second or two; others go on meanwhile.
        return await self._store.call(self.named, name, model)

    def named(self, name: str, model: str = "") -> Agent:
        """An agent by its name."""
        model = model or self._settings.model_of(name)
        return self._made.get((name, model)) or self._made.setdefault(
            (name, model), self._make(name, model)
        )

    def prepare(self, settings: Settings) -> dict[str, Toolset]:
        """The toolsets of other settings; SettingsError if they cannot be used."""
        toolsets = dict(self._toolsets_of(settings))
        for name, one in self._toolsets.items():  # a server that is as it was stays connected
            if name in toolsets and settings.mcp.get(name) == self._settings.mcp.get(name):
                toolsets[name] = one
        return toolsets

    async def renew(self, toolsets: dict[str, Toolset]) -> None:
        """Make agents anew from now on; turns that are under way end as they began."""
        gone = [one for name, one in self._toolsets.items() if toolsets.get(name) is not one]
        self._toolsets = toolsets
        agents = (*self._old, *self._made.values())
        self._made = {}
        self._old = [one for one in agents if not one.is_idle]
        for agent in agents:
            if agent.is_idle:
                await agent.close()
        for one in gone:
            await one.close()

    async def close(self, until: float) -> None:
        """Let what they have under way end, until a moment of the monotonic clock."""
        for agent in (*self._made.values(), *self._old):
            await agent.close(max(until - time.monotonic(), 0))
        for toolset in self._toolsets.values():
            await toolset.close()

    def _make(self, name: str, model: str) -> Agent:
        own = self._settings.agent(name)
        members = {one: self._settings.agent(one).description for one in own.members}
        tools = [*self._tools]
        if members:
            tools.append(asking(self.named, self._store.sync, tuple(members)))
        recall, hooks = self._recall, self._hooks
        if self.memory is not None:
            taken = usable(tools)  # a tool of the owner's takes the place of ours
            tools += [one for one in self.memory.tools(name) if one.__name__ not in taken]
            recall = recall or self.memory.recall
            hooks = (self.memory, *hooks)
        return Agent(
            self._store,
            name=name,
            model=model,
            system=own.system_prompt,
            tools=tools,
            toolsets=[
                toolset
                for server, toolset in self._toolsets.items()
                if not (allowed := self._settings.mcp[server].agents) or name in allowed
            ],
            hooks=(Surroundings(members, recall), *hooks),
        )
