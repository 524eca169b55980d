"""everlog: the durable session layer for AI agents.

    import everlog

    store = everlog.open_store()
    session = store.session("support-42", create=True)     # by any id of yours
    session.append("fix the tests")                         # durable on return
    session.context().messages                              # what the model is sent next
    await everlog.Agent(store, model="…").run("go on", session=session)

Names are loaded on first use, so that `import everlog` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everlog.agent.agent import Agent, PreparedCall
    from everlog.agent.answer import Answer
    from everlog.agent.compactor import Outcome
    from everlog.agent.hooks import Hook
    from everlog.agent.tools import tool
    from everlog.aio import AsyncSession, AsyncStore
    from everlog.app import load_settings, open_async_store, open_runtime, open_store
    from everlog.context.build import Context
    from everlog.errors import (
        ConflictError,
        ContextOverflowError,
        EverlogError,
        FormatError,
        InvalidIdError,
        LogDamagedError,
        NotFoundError,
        ProviderDeniedError,
        ProviderError,
        ProviderRefusedError,
        ProviderUnavailableError,
        QueueFullError,
        RunCancelledError,
        SessionBusyError,
        SettingsError,
        StoreFailedError,
        StoreFullError,
        UnconfirmedError,
        UnsupportedError,
    )
    from everlog.identity.route import Routed, Router, Routing
    from everlog.identity.scope import Inbound, Scope
    from everlog.log.backward_read import LiveMessages
    from everlog.log.fold import View
    from everlog.model import (
        Compaction,
        Damaged,
        Event,
        File,
        Image,
        Message,
        Meta,
        Metadata,
        Metrics,
        OtherBlock,
        Part,
        Rewind,
        Text,
        Thinking,
        Tombstone,
        ToolCall,
        Unknown,
        Usage,
        UsageRow,
        assistant,
        tool_result,
        user,
    )
    from everlog.ports import (
        Delta,
        Hit,
        Lease,
        Page,
        Provider,
        Request,
        Results,
        SessionAccess,
        SessionHit,
        SessionRow,
        Spender,
        ToolOutput,
        Toolset,
        ToolSpec,
        UsageReport,
    )
    from everlog.providers.mcp_tools import McpServer
    from everlog.runtime.run import RecoveredSession, Run
    from everlog.runtime.runtime import InboundResult, Runtime
    from everlog.session import Session, Store
    from everlog.settings import Settings
    from everlog.wire import events
    from everlog.wire.events import RunEvent
    from everlog.wire.responses import Health

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "Answer",
    "AsyncSession",
    "AsyncStore",
    "Compaction",
    "ConflictError",
    "Context",
    "ContextOverflowError",
    "Damaged",
    "Delta",
    "Event",
    "EverlogError",
    "File",
    "FormatError",
    "Health",
    "Hit",
    "Hook",
    "Image",
    "Inbound",
    "InboundResult",
    "InvalidIdError",
    "Lease",
    "LiveMessages",
    "LogDamagedError",
    "McpServer",
    "Message",
    "Meta",
    "Metadata",
    "Metrics",
    "NotFoundError",
    "OtherBlock",
    "Outcome",
    "Page",
    "Part",
    "PreparedCall",
    "Provider",
    "ProviderDeniedError",
    "ProviderError",
    "ProviderRefusedError",
    "ProviderUnavailableError",
    "QueueFullError",
    "RecoveredSession",
    "Request",
    "Results",
    "Rewind",
    "Routed",
    "Router",
    "Routing",
    "Run",
    "RunCancelledError",
    "RunEvent",
    "Runtime",
    "Scope",
    "Session",
    "SessionAccess",
    "SessionBusyError",
    "SessionHit",
    "SessionRow",
    "Settings",
    "SettingsError",
    "Spender",
    "Store",
    "StoreFailedError",
    "StoreFullError",
    "Text",
    "Thinking",
    "Tombstone",
    "ToolCall",
    "ToolOutput",
    "ToolSpec",
    "Toolset",
    "UnconfirmedError",
    "Unknown",
    "UnsupportedError",
    "Usage",
    "UsageReport",
    "UsageRow",
    "View",
    "__version__",
    "assistant",
    "events",
    "load_settings",
    "open_async_store",
    "open_runtime",
    "open_store",
    "tool",
    "tool_result",
    "user",
]

_HOMES = (  # where the names are defined; the modules that load fastest first
    "model",
    "errors",
    "app",
    "session",
    "settings",
    "ports",
    "log.fold",
    "log.backward_read",
    "context.build",
    "identity.scope",
    "identity.route",
    "wire.events",
    "aio",
    "agent.agent",
    "agent.compactor",
    "agent.hooks",
    "agent.tools",
    "agent.answer",
    "providers.mcp_tools",
    "runtime.run",
    "runtime.runtime",
)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'everlog' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - the point of loading lazily

    if name == "events":
        return import_module("everlog.wire.events")
    for home in _HOMES:
        module = import_module(f"everlog.{home}")
        if name in vars(module):
            globals()[name] = vars(module)[name]
            return globals()[name]
    raise AttributeError(f"module 'everlog' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
