"""The specification of a turn: everything of an agent that its turns need, and that never changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from everlog.agent.compactor import Compactor
from everlog.agent.hooks import Hooks
from everlog.agent.tools import RunnableTool, load_toolset
from everlog.agent.worker_threads import run_external
from everlog.aio import AsyncSession
from everlog.context.inject import wrap_stored_text
from everlog.context.tokens import TokenCounter
from everlog.model import Metadata
from everlog.ports import Provider, Toolset, ToolSpec
from everlog.settings import TurnSettings
from everlog.wire.events import Sink, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSpec:
    """A model with its system prompt, tools, hooks and limits, as a turn uses them."""

    agent: str  # its name
    model: str
    provider: Provider
    compactor: Compactor  # knows the window and when it is too full
    system: str
    tools: Mapping[str, RunnableTool]
    toolsets: tuple[Toolset, ...]
    hooks: Hooks
    settings: TurnSettings
    count: TokenCounter
    max_steps: int
    allowed: frozenset[str] | None = None  # the only tools that may be used, by name
    reads_only: bool = False  # use only tools that change nothing

    async def collect_tools(self, session: str, emit: Sink) -> dict[str, RunnableTool]:
        """Return the tools that may be used, of toolsets too; report and skip a toolset that fails."""
        tools = dict(self.tools)
        for toolset in self.toolsets:
            try:
                tools = await run_external(load_toolset(toolset)) | tools  # the first name wins
            except Exception as error:  # third-party code may raise anything
                emit(Status(session_id=session, message=f"{toolset.name}: {error}"))
        return {
            name: tool
            for name, tool in tools.items()
            if (self.allowed is None or name in self.allowed) and (not self.reads_only or tool.spec.reads)
        }

    async def system_prompt(self, session: AsyncSession, metadata: Metadata, emit: Sink) -> str:
        """Join the agent's system prompt, the hooks' texts and the session's override."""
        data = await self.hooks.system_texts(session.sync, emit)
        parts = (self.system, *map(wrap_stored_text, data), metadata.system_prompt_override or "")
        return "\n\n".join(text for text in parts if text)

    def overhead(self, system: str, tools: Iterable[ToolSpec]) -> int:
        """Estimate the tokens of the system prompt and the tools."""
        return self.count(system) + sum(map(self.tool_tokens, tools))

    def tool_tokens(self, tool: ToolSpec) -> int:
        """Estimate the tokens of one tool."""
        return self.count(tool.name) + self.count(tool.description) + 10
