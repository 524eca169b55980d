"""The routes of the web page."""

from __future__ import annotations

from litestar import Router
from litestar.types import ControllerRouterHandler

from everlog.daemon.web.context_page import show_context
from everlog.daemon.web.cron_page import show_cron
from everlog.daemon.web.health_page import show_health
from everlog.daemon.web.list_page import show_sessions
from everlog.daemon.web.memory_page import show_memory
from everlog.daemon.web.session_outline import find_text, show_outline
from everlog.daemon.web.session_page import ROUTES as SESSION
from everlog.daemon.web.static_files import serve_asset
from everlog.daemon.web.templating import HANDLERS
from everlog.daemon.web.usage_page import ROUTES as USAGE

ROUTES: tuple[ControllerRouterHandler, ...] = (
    show_sessions,
    *SESSION,
    show_outline,
    find_text,
    serve_asset,
    show_context,
    show_cron,
    show_memory,
    show_health,
    *USAGE,
)

page = Router("/", route_handlers=ROUTES, exception_handlers=HANDLERS)
