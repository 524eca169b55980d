"""The routes of the web page."""

from __future__ import annotations

from litestar import Router
from litestar.di import NamedDependency, Provide
from litestar.params import FromPath

from everlog.aio import AsyncSession
from everlog.daemon.api.session_lookup import find_session
from everlog.daemon.web.context_page import show_context
from everlog.daemon.web.cron_page import show_cron
from everlog.daemon.web.health_page import show_health
from everlog.daemon.web.list_page import show_sessions
from everlog.daemon.web.memory_page import show_memory
from everlog.daemon.web.session_outline import find_text, show_outline
from everlog.daemon.web.session_page import ROUTES
from everlog.daemon.web.templating import HANDLERS, serve_asset
from everlog.daemon.web.usage_page import show_session_usage, show_usage
from everlog.runtime.runtime import Runtime


async def provide_session(runtime: NamedDependency[Runtime], session_id: FromPath[str]) -> AsyncSession:
    """Return the session that the path names."""
    return await find_session(runtime, session_id)


session_pages = Router(
    "/sessions/{session_id:str}",
    route_handlers=(*ROUTES, show_outline, find_text, show_context, show_session_usage),
    dependencies={"session": Provide(provide_session)},
)
page = Router(
    "/",
    route_handlers=(session_pages, show_sessions, show_usage, show_cron, show_memory, show_health, serve_asset),
    exception_handlers=HANDLERS,
    include_in_schema=False,
)
