"""The ports: what a store and a provider must do, as Protocols."""

from __future__ import annotations

from everlog.ports.capabilities import (
    ChangeSubscription,
    ExpiringLease,
    Lease,
    SharedBetweenMachines,
    shared_between_machines,
)
from everlog.ports.listing import Filter, Order, Page, SessionRow, days_of, matcher, parse_cursor, since_ms
from everlog.ports.provider import Delta, DeltaCallback, Provider, Request, ToolOutput, Toolset, ToolSpec, ignore_delta
from everlog.ports.queries import Chats, Hit, Query, Results, SessionHit, Spender, UsageReport
from everlog.ports.store import Progress, Store

__all__ = [
    "ChangeSubscription",
    "Chats",
    "Delta",
    "DeltaCallback",
    "ExpiringLease",
    "Filter",
    "Hit",
    "Lease",
    "Order",
    "Page",
    "Progress",
    "Provider",
    "Query",
    "Request",
    "Results",
    "SessionHit",
    "SessionRow",
    "SharedBetweenMachines",
    "Spender",
    "Store",
    "ToolOutput",
    "ToolSpec",
    "Toolset",
    "UsageReport",
    "days_of",
    "ignore_delta",
    "matcher",
    "parse_cursor",
    "shared_between_machines",
    "since_ms",
]
