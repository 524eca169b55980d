"""everlog: the durable session layer for AI agents.

    import everlog

    store = everlog.open_store("~/.everlog")
    session = store.create(agent="main", sender="user")
    session.append(everlog.user("fix the tests"))     # durable on return
    session.context().messages                          # what the model is sent next
    await everlog.Agent(store, model="…").run("go on", session=session)

Names are loaded on first use, so that `import everlog` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everlog.agent.agent import Agent
    from everlog.agent.hooks import Hook
    from everlog.agent.tools import tool
    from everlog.aio import AsyncSession, AsyncStore
    from everlog.app import load_settings, open_async_store, open_store
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
        UnsupportedError,
    )
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
    from everlog.ports import Lease, Page, SessionRow, UsageReport
    from everlog.session import Session, Store
    from everlog.settings import Settings

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "AsyncSession",
    "AsyncStore",
    "Compaction",
    "ConflictError",
    "Context",
    "ContextOverflowError",
    "Damaged",
    "Event",
    "EverlogError",
    "File",
    "FormatError",
    "Hook",
    "Image",
    "InvalidIdError",
    "Lease",
    "LogDamagedError",
    "Message",
    "Meta",
    "Metadata",
    "NotFoundError",
    "OtherBlock",
    "Page",
    "Part",
    "ProviderDeniedError",
    "ProviderError",
    "ProviderRefusedError",
    "ProviderUnavailableError",
    "QueueFullError",
    "Rewind",
    "RunCancelledError",
    "Session",
    "SessionBusyError",
    "SessionRow",
    "Settings",
    "SettingsError",
    "Store",
    "StoreFailedError",
    "StoreFullError",
    "Text",
    "Thinking",
    "Tombstone",
    "ToolCall",
    "Unknown",
    "UnsupportedError",
    "Usage",
    "UsageReport",
    "UsageRow",
    "View",
    "__version__",
    "assistant",
    "load_settings",
    "open_async_store",
    "open_store",
    "tool",
    "tool_result",
    "user",
]

_HOMES = (
    "model",
    "errors",
    "app",
    "session",
    "context.build",
    "settings",
    "ports",
    "log.fold",
    "aio",
    "agent.agent",
    "agent.hooks",
    "agent.tools",
)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'everlog' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - the point of loading lazily

    for home in _HOMES:
        module = import_module(f"everlog.{home}")
        if name in vars(module):
            globals()[name] = vars(module)[name]
            return globals()[name]
    raise AttributeError(f"module 'everlog' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
