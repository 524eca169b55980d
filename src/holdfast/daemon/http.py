"""The HTTP application: routes, their types, their document; all behind the guard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from litestar import Controller, Litestar, Request, get, post
from litestar.di import NamedDependency, Provide
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin, OpenAPIRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme
from litestar.params import FromPath
from litestar.types import Scope

from holdfast import __version__
from holdfast.client.answers import Done, Link
from holdfast.daemon import page
from holdfast.daemon.finding import search
from holdfast.daemon.guard import BY_COOKIE
from holdfast.daemon.live import Live
from holdfast.daemon.memory import MemoryRoutes
from holdfast.daemon.problems import HANDLERS, JSON, PROBLEMS, Refused
from holdfast.daemon.sessions import SessionRoutes
from holdfast.daemon.talk import TalkRoutes
from holdfast.daemon.wire import unquoted
from holdfast.engine.cron import JobStatus
from holdfast.engine.runtime import Health, Runtime


class CronRoutes(Controller):
    """What happens at certain times."""

    path = "/api/cron"
    tags = ("cron",)

    @get("/", responses=PROBLEMS)
    async def statuses(self, runtime: NamedDependency[Runtime]) -> list[JobStatus]:
        """Every job: when it ran, how that went, when it runs next."""
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


@get("/api/health", tags=["daemon"], responses=PROBLEMS)
async def health(runtime: NamedDependency[Runtime]) -> Health:
    """That the daemon runs, and counts."""
    return runtime.health((await runtime.store.list(limit=1)).total)


class Document(OpenAPIRenderPlugin):
    """The API for reading, made of its own description."""

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        """The page."""
        return page.document(openapi_schema).encode()


def build(runtime: Runtime, make_link: Callable[[], str], live: Live) -> Litestar:
    """The application, without its guard."""

    @post("/api/link", status_code=200, tags=["daemon"], responses=PROBLEMS)
    async def link(scope: Scope) -> Link:
        """An address that opens the page once, within a quarter of an hour; with the token only."""
        if BY_COOKIE in scope["state"]:
            raise Refused(403, "Forbidden", hint="a link is made with the token only")
        return Link(url=make_link())

    return Litestar(
        route_handlers=[
            SessionRoutes,
            TalkRoutes,
            CronRoutes,
            MemoryRoutes,
            search,
            health,
            link,
            page.front,
            live.handler,
        ],
        dependencies={"runtime": Provide(lambda: runtime, sync_to_thread=False)},
        exception_handlers=HANDLERS,
        openapi_config=OpenAPIConfig(
            title="holdfast",
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
