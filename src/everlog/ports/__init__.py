"""What the layers above ask of a store and of a provider: duties, not code."""

from __future__ import annotations

from everlog.ports.capabilities import ExpiringLease, Lease, Listening, Sharing, sharing_of
from everlog.ports.listing import (
    Filter,
    Order,
    Page,
    SessionRow,
    days_of,
    matcher,
    parse_cursor,
    since_ms,
)
from everlog.ports.provider import (
    Delta,
    DeltaCallback,
    Provider,
    Request,
    Tool,
    ToolAnswer,
    Toolset,
    ignore_delta,
)
from everlog.ports.queries import Chats, Hit, Query, Results, SessionHit, Spender, UsageReport
from everlog.ports.store import Progress, Store

__all__ = [
    "Chats",
    "Delta",
    "DeltaCallback",
    "ExpiringLease",
    "Filter",
    "Hit",
    "Lease",
    "Listening",
    "Order",
    "Page",
    "Progress",
    "Provider",
    "Query",
    "Request",
    "Results",
    "SessionHit",
    "SessionRow",
    "Sharing",
    "Spender",
    "Store",
    "Tool",
    "ToolAnswer",
    "Toolset",
    "UsageReport",
    "days_of",
    "ignore_delta",
    "matcher",
    "parse_cursor",
    "sharing_of",
    "since_ms",
]
