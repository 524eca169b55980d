"""Every view of the page."""

from __future__ import annotations

from litestar import Router
from litestar.types import ControllerRouterHandler

from holdfast.daemon.web.context import context
from holdfast.daemon.web.cron import cron
from holdfast.daemon.web.files import static
from holdfast.daemon.web.health import health
from holdfast.daemon.web.listing import sessions
from holdfast.daemon.web.memory import memory
from holdfast.daemon.web.places import outline, seek
from holdfast.daemon.web.rendering import HANDLERS
from holdfast.daemon.web.session import ROUTES as SESSION
from holdfast.daemon.web.usage import ROUTES as USAGE

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
