"""`/api/usage` and `/api/sessions/{id}/usage`: tokens and costs over time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from litestar import get
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, QueryParameter

from everlog.app import estimate_price
from everlog.daemon.api.session_lookup import find_session
from everlog.daemon.error_responses import ERROR_RESPONSES
from everlog.log.usage_report import Grouping, UsageSummary, summarize_usage
from everlog.runtime.runtime import Runtime

CANDIDATES = 100  # sessions to price when looking for the most expensive ones
SessionLimit = Annotated[int, QueryParameter(ge=0, le=CANDIDATES)]


@get("/api/usage", tags=["usage"], responses=ERROR_RESPONSES)
async def usage(
    *,
    runtime: NamedDependency[Runtime],
    since: FromQuery[str | None] = None,
    until: FromQuery[str | None] = None,
    agent: FromQuery[str | None] = None,
    sender: FromQuery[str | None] = None,
    source: FromQuery[str | None] = None,
    by: FromQuery[Grouping | None] = None,
    limit: SessionLimit = 10,
) -> UsageSummary:
    """Return the usage of sessions over time, and the most expensive ones (`limit`).

    `since` and `until` are days (UTC). `cost` is as stated by providers, `estimate` by price lists.
    """
    criteria = {"agent": agent, "sender": sender, "source": source}
    return await read_usage(runtime, since, until, criteria, by=by, max_sessions=limit)


@get("/api/sessions/{session_id:str}/usage", tags=["usage"], responses=ERROR_RESPONSES)
async def session_usage(
    *,
    runtime: NamedDependency[Runtime],
    session_id: FromPath[str],
    since: FromQuery[str | None] = None,
    until: FromQuery[str | None] = None,
    by: FromQuery[Grouping | None] = None,
) -> UsageSummary:
    """Return the usage of one session over time."""
    session = (await find_session(runtime, session_id)).sync

    def read() -> UsageSummary:
        return summarize_usage(session.usage(since=since, until=until), estimate_price, by=by)

    return await runtime.store.call(read)


async def read_usage(
    runtime: Runtime, since: str | None, until: str | None, criteria: Mapping[str, Any], **options: Any
) -> UsageSummary:
    """Return the usage as indexed so far; the daemon indexes foreign files in the background."""
    store = runtime.store.sync

    def read() -> UsageSummary:
        report = store.usage(since=since, until=until, spenders=CANDIDATES, fresh=False, **criteria)
        return summarize_usage(report, estimate_price, **options)

    return await runtime.store.call(read)  # in a thread: loading the price lists is slow
