"""`/api/usage` and `/api/sessions/{id}/usage`: what was spent, on what, and when."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from litestar import get
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, QueryParameter

from everlog.app import price
from everlog.daemon.api.requests import find
from everlog.daemon.error_responses import PROBLEMS
from everlog.log.usage_report import By, Reckoning, reckon
from everlog.runtime.runtime import Runtime

CANDIDATES = 100  # sessions that are priced to find the most expensive ones
Most = Annotated[int, QueryParameter(ge=0, le=CANDIDATES)]


@get("/api/usage", tags=["usage"], responses=PROBLEMS)
async def usage(
    *,
    runtime: NamedDependency[Runtime],
    since: FromQuery[str | None] = None,
    until: FromQuery[str | None] = None,
    agent: FromQuery[str | None] = None,
    sender: FromQuery[str | None] = None,
    source: FromQuery[str | None] = None,
    by: FromQuery[By | None] = None,
    limit: Most = 10,
) -> Reckoning:
    """What sessions spent over time, and the most expensive ones (`limit`).

    `since` and `until` are about days (UTC). `cost` was stated, `estimate` is by price lists.
    """
    which = {"agent": agent, "sender": sender, "source": source}
    return await reckoned(runtime, since, until, which, by=by, most=limit)


@get("/api/sessions/{session_id:str}/usage", tags=["usage"], responses=PROBLEMS)
async def session_usage(
    *,
    runtime: NamedDependency[Runtime],
    session_id: FromPath[str],
    since: FromQuery[str | None] = None,
    until: FromQuery[str | None] = None,
    by: FromQuery[By | None] = None,
) -> Reckoning:
    """What one session spent over time."""
    session = (await find(runtime, session_id)).sync

    def read() -> Reckoning:
        return reckon(session.usage(since=since, until=until), price, by=by)

    return await runtime.store.call(read)


async def reckoned(
    runtime: Runtime,
    since: str | None,
    until: str | None,
    which: Mapping[str, Any],
    **how: Any,
) -> Reckoning:
    """What sessions spent, as far as it is known: the daemon reads files of others by itself."""
    store = runtime.store.sync

    def read() -> Reckoning:
        used = store.usage(since=since, until=until, spenders=CANDIDATES, fresh=False, **which)
        return reckon(used, price, **how)

    return await runtime.store.call(read)  # in a thread: the price lists take long to load
