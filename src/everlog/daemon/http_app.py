"""The HTTP application: routes, their types, their document; all behind the guard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from litestar import Controller, Litestar, Request, get, post
from litestar.datastructures import State
from litestar.di import NamedDependency, Provide
from litestar.exceptions import NotFoundException
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin, OpenAPIRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme
from litestar.params import FromPath
from litestar.types import Scope

from everlog import __version__
from everlog.daemon.api.health_routes import HealthRoutes
from everlog.daemon.api.memory_routes import MemoryRoutes
from everlog.daemon.api.message_routes import TalkRoutes
from everlog.daemon.api.requests import unquoted
from everlog.daemon.api.search_routes import search
from everlog.daemon.api.session_routes import SessionRoutes
from everlog.daemon.api.usage_routes import session_usage, usage
from everlog.daemon.error_responses import HANDLERS, JSON, PROBLEMS, Refused
from everlog.daemon.event_stream import Live
from everlog.daemon.request_guard import BY_COOKIE
from everlog.daemon.web.page_routes import page
from everlog.daemon.web.partial_answers import NAME, Unfinished
from everlog.daemon.web.templating import no_such_page, render
from everlog.runtime.cron import JobStatus
from everlog.runtime.runtime import Runtime
from everlog.wire.responses import Done, Link


class CronRoutes(Controller):
    """What happens at certain times."""

    path = "/api/cron"
    tags = ("cron",)

    @get("/", responses=PROBLEMS)
    async def statuses(self, runtime: NamedDependency[Runtime]) -> list[JobStatus]:
        """Every job: when it ran, how that went, when it runs next."""
        await runtime.cron.refresh()
        return runtime.cron.statuses()

    @post("/{job:str}/pause", status_code=200, responses=PROBLEMS)
    async def pause(self, runtime: NamedDependency[Runtime], job: FromPath[str]) -> Done:
        """Let a job rest."""
        await runtime.cron.pause(unquoted(job))
        return Done()

    @post("/{job:str}/resume", status_code=200, responses=PROBLEMS)
    async def resume(self, runtime: NamedDependency[Runtime], job: FromPath[str]) -> Done:
        """Let a job run at its times again."""
        await runtime.cron.resume(unquoted(job))
        return Done()

    @post("/{job:str}/run", status_code=200, responses=PROBLEMS)
    async def run(self, runtime: NamedDependency[Runtime], job: FromPath[str]) -> Done:
        """Run a job now."""
        return Done(session_id=await runtime.cron.run(unquoted(job)))


class Document(OpenAPIRenderPlugin):
    """The API for reading, made of its own description."""

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        """The page."""
        rows = [
            (method.upper(), path, operation.get("description") or operation.get("summary") or "")
            for path, methods in sorted(openapi_schema["paths"].items())
            for method, operation in methods.items()
            if isinstance(operation, dict)
        ]
        return render("document.html", request, rows=rows).encode()


def build(runtime: Runtime, make_link: Callable[[], str], live: Live) -> Litestar:
    """The application, without its guard."""

    @post("/api/link", status_code=200, tags=["daemon"], responses=PROBLEMS)
    async def link(scope: Scope) -> Link:
        """An address that opens the page once, within a quarter of an hour; with the token only."""
        if BY_COOKIE in scope["state"]:
            raise Refused(403, "Forbidden", hint="a link is made with the token only")
        return Link(url=make_link())

    unfinished = Unfinished()
    runtime.listeners.append(unfinished.hear)  # from the start: a page may be opened at any time
    return Litestar(
        state=State({NAME: unfinished}),
        route_handlers=[
            SessionRoutes,
            TalkRoutes,
            CronRoutes,
            MemoryRoutes,
            HealthRoutes,
            search,
            usage,
            session_usage,
            link,
            page,
            live.handler,
        ],
        dependencies={"runtime": Provide(lambda: runtime, sync_to_thread=False)},
        exception_handlers={**HANDLERS, NotFoundException: no_such_page},
        openapi_config=OpenAPIConfig(
            title="everlog",
            version=__version__,
            path="/docs",
            use_handler_docstrings=True,
            render_plugins=[
                Document(path="/"),
                JsonRenderPlugin(media_type=JSON),  # type: ignore[arg-type]
            ],
            components=Components(
                security_schemes={"token": SecurityScheme(type="http", scheme="bearer")}
            ),
            security=[{"token": []}],
        ),
        logging_config=None,
        debug=False,
        request_max_body_size=None,  # the guard's
    )
