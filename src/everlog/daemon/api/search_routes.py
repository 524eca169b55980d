"""`/api/search`: full-text search over all sessions."""

from __future__ import annotations

from litestar import get
from litestar.di import NamedDependency
from litestar.params import FromQuery

from everlog.daemon.api.session_lookup import Limit, Offset
from everlog.daemon.error_responses import ERROR_RESPONSES
from everlog.ports import Results
from everlog.runtime.runtime import Runtime


@get("/api/search", tags=["sessions"], responses=ERROR_RESPONSES)
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
    """Search all sessions, best match first, with their best passages.

    `q`: words, "phrases", prefix*, AND, OR, NOT. `offset` skips so many sessions. Matches are
    between « and »; `found` has their positions, since a text may contain such marks itself.
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
