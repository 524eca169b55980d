"""`/api/search`: finding anything that was said."""

from __future__ import annotations

from litestar import get
from litestar.di import NamedDependency
from litestar.params import FromQuery

from everlog.daemon.api.requests import Limit, Offset
from everlog.daemon.error_responses import PROBLEMS
from everlog.ports import Results
from everlog.runtime.runtime import Runtime


@get("/api/search", tags=["sessions"], responses=PROBLEMS)
async def search(
    *,
    runtime: NamedDependency[Runtime],
    q: FromQuery[str],
    limit: Limit = 20,
    offset: Offset = 0,
    agent: FromQuery[str | None] = None,
    sender: FromQuery[str | None] = None,
    source: FromQuery[str | None] = None,
    title: FromQuery[str | None] = None,
    role: FromQuery[str | None] = None,
    since: FromQuery[str | None] = None,
    until: FromQuery[str | None] = None,
) -> Results:
    """Sessions in which something was said, the best first, with their best passages.

    `q`: words, "phrases", prefix*, AND, OR, NOT. `offset` passes over so many of the best. What was
    found stands between « and »; `found` says where, since a text may have such marks of its own.
    """
    return await runtime.store.search(
        q,
        limit=limit,
        offset=offset,
        agent=agent,
        sender=sender,
        source=source,
        title=title,
        role=role,
        since=since,
        until=until,
    )
