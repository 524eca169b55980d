"""What the layers above ask of a store and of a provider: duties, not code."""

from __future__ import annotations

from everlog.ports.capabilities import Fleeting, Lease, Listening, Sharing, sharing_of
from everlog.ports.listing import (
    Filter,
    Listed,
    Order,
    Page,
    days_of,
    matcher,
    parse_cursor,
    since_ms,
)
from everlog.ports.provider import (
    Delta,
    Provider,
    Request,
    Told,
    Tool,
    ToolAnswer,
    Toolset,
    unheard,
)
from everlog.ports.queries import Chats, Found, Hit, Query, Results, Spender, Used
from everlog.ports.store import Progress, Store

__all__ = [
    "Chats",
    "Delta",
    "Filter",
    "Fleeting",
    "Found",
    "Hit",
    "Lease",
    "Listed",
    "Listening",
    "Order",
    "Page",
    "Progress",
    "Provider",
    "Query",
    "Request",
    "Results",
    "Sharing",
    "Spender",
    "Store",
    "Told",
    "Tool",
    "ToolAnswer",
    "Toolset",
    "Used",
    "days_of",
    "matcher",
    "parse_cursor",
    "sharing_of",
    "since_ms",
    "unheard",
]
