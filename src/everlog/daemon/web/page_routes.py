"""The routes of the web page."""

from __future__ import annotations

from litestar import Router
from litestar.di import Provide

from everlog.daemon.web.context_page import show_context
from everlog.daemon.web.cron_page import show_cron
from everlog.daemon.web.health_page import show_health
from everlog.daemon.web.list_page import show_sessions
from everlog.daemon.web.memory_page import show_memory
from everlog.daemon.web.session_outline import find_text, show_outline
from everlog.daemon.web.session_page import ROUTES, provide_view
from everlog.daemon.web.templating import HANDLERS, serve_asset
from everlog.daemon.web.usage_page import show_session_usage, show_usage

session_pages = Router(
    "/sessions/{session_id:str}",
    route_handlers=(*ROUTES, show_outline, find_text, show_context, show_session_usage),
    dependencies={"view": Provide(provide_view)},
)
page = Router(
    "/",
    route_handlers=(session_pages, show_sessions, show_usage, show_cron, show_memory, show_health, serve_asset),
    exception_handlers=HANDLERS,
    include_in_schema=False,
)
