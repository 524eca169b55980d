"""The ports: what a store and a provider must do, as Protocols."""

from __future__ import annotations

from everlog.ports.capabilities import (
    ChangeSubscription,
    DirectoryBacked,
    FileBacked,
    Measurable,
    Purgeable,
    RawLine,
    RawReadable,
    Reclaimable,
    Reporting,
    SharedBetweenMachines,
    SkippedFile,
    Sweepable,
    SweepResult,
    Transferable,
    Watchable,
)
from everlog.ports.listing import Filter, Order, Page, SessionRow
from everlog.ports.provider import Delta, DeltaCallback, Provider, Request, ToolOutput, Toolset, ToolSpec, ignore_delta
from everlog.ports.queries import Chats, DiskUsage, Hit, Query, Results, SessionHit, Spender, UsageReport
from everlog.ports.store import ExpiringLease, Lease, Progress, Store

__all__ = [
    "ChangeSubscription",
    "Chats",
    "Delta",
    "DeltaCallback",
    "DirectoryBacked",
    "DiskUsage",
    "ExpiringLease",
    "FileBacked",
    "Filter",
    "Hit",
    "Lease",
    "Measurable",
    "Order",
    "Page",
    "Progress",
    "Provider",
    "Purgeable",
    "Query",
    "RawLine",
    "RawReadable",
    "Reclaimable",
    "Reporting",
    "Request",
    "Results",
    "SessionHit",
    "SessionRow",
    "SharedBetweenMachines",
    "SkippedFile",
    "Spender",
    "Store",
    "SweepResult",
    "Sweepable",
    "ToolOutput",
    "ToolSpec",
    "Toolset",
    "Transferable",
    "UsageReport",
    "Watchable",
    "ignore_delta",
]
