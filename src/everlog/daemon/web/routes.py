"""Every view of the page."""

from __future__ import annotations

from litestar import Router
from litestar.types import ControllerRouterHandler

from everlog.daemon.web.context import context
from everlog.daemon.web.cron import cron
from everlog.daemon.web.files import static
from everlog.daemon.web.health import health
from everlog.daemon.web.listing import sessions
from everlog.daemon.web.memory import memory
from everlog.daemon.web.places import outline, seek
from everlog.daemon.web.rendering import HANDLERS
from everlog.daemon.web.session import ROUTES as SESSION
from everlog.daemon.web.usage import ROUTES as USAGE

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
