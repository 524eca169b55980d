"""Every view of the page."""

from __future__ import annotations

from litestar import Router
from litestar.types import ControllerRouterHandler

from everlog.daemon.web.context_page import context
from everlog.daemon.web.cron_page import cron
from everlog.daemon.web.health_page import health
from everlog.daemon.web.list_page import sessions
from everlog.daemon.web.memory_page import memory
from everlog.daemon.web.session_outline import outline, seek
from everlog.daemon.web.session_page import ROUTES as SESSION
from everlog.daemon.web.static_files import static
from everlog.daemon.web.templating import HANDLERS
from everlog.daemon.web.usage_page import ROUTES as USAGE

ROUTES: tuple[ControllerRouterHandler, ...] = (
    sessions,
    *SESSION,
    outline,
    seek,
    static,
    context,
    cron,
    memory,
    health,
    *USAGE,
)

page = Router("/", route_handlers=ROUTES, exception_handlers=HANDLERS)
