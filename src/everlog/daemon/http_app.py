"""The HTTP application: its routes and its API document. The guard wraps it."""

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
from everlog.daemon.api.message_routes import MessageRoutes
from everlog.daemon.api.search_routes import search
from everlog.daemon.api.session_lookup import unquote_segment
from everlog.daemon.api.session_routes import SessionRoutes
from everlog.daemon.api.usage_routes import session_usage, usage
from everlog.daemon.error_responses import ERROR_RESPONSES, HANDLERS, JSON, HttpError
from everlog.daemon.event_stream import EventStream
from everlog.daemon.request_guard import BY_COOKIE
from everlog.daemon.web.marker_cache import MarkerCache
from everlog.daemon.web.page_routes import page
from everlog.daemon.web.partial_answers import PartialAnswers
from everlog.daemon.web.templating import page_not_found, render
from everlog.runtime.runtime import Runtime
from everlog.wire.responses import ActionResult, JobStatus, PageLink


class CronRoutes(Controller):
    """Cron jobs."""

    path = "/api/cron"
    tags = ("cron",)

    @get("/", responses=ERROR_RESPONSES)
    async def list_jobs(self, runtime: NamedDependency[Runtime]) -> list[JobStatus]:
        """List all jobs with their last run, its result and the next run."""
        await runtime.cron.refresh()
        return runtime.cron.statuses()

    @post("/{job:str}/pause", status_code=200, responses=ERROR_RESPONSES)
    async def pause_job(self, runtime: NamedDependency[Runtime], job: FromPath[str]) -> ActionResult:
        """Pause a job."""
        await runtime.cron.pause(unquote_segment(job))
        return ActionResult()

    @post("/{job:str}/resume", status_code=200, responses=ERROR_RESPONSES)
    async def resume_job(self, runtime: NamedDependency[Runtime], job: FromPath[str]) -> ActionResult:
        """Resume a paused job."""
        await runtime.cron.resume(unquote_segment(job))
        return ActionResult()

    @post("/{job:str}/run", status_code=200, responses=ERROR_RESPONSES)
    async def run_job(self, runtime: NamedDependency[Runtime], job: FromPath[str]) -> ActionResult:
        """Run a job now."""
        return ActionResult(session_id=await runtime.cron.run(unquote_segment(job)))


class ApiDocument(OpenAPIRenderPlugin):
    """The API reference page, rendered from the OpenAPI document."""

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        """Render the page."""
        rows = [
            (method.upper(), path, operation.get("description") or operation.get("summary") or "")
            for path, methods in sorted(openapi_schema["paths"].items())
            for method, operation in methods.items()
            if isinstance(operation, dict)
        ]
        return render("document.html", request, rows=rows).encode()


def build_app(runtime: Runtime, make_link: Callable[[], str], event_stream: EventStream) -> Litestar:
    """Build the application, without its guard."""

    @post("/api/link", status_code=200, tags=["daemon"], responses=ERROR_RESPONSES)
    async def create_link(scope: Scope) -> PageLink:
        """Create a one-time link to the page, valid for 15 minutes; requires the token."""
        if BY_COOKIE in scope["state"]:
            raise HttpError(403, "Forbidden", hint="creating a link requires the token")
        return PageLink(url=make_link())

    partial_answers = PartialAnswers()
    runtime.listeners.append(partial_answers.on_event)  # before any turn runs
    return Litestar(
        state=State({"marker_cache": MarkerCache(), "partial_answers": partial_answers}),
        route_handlers=[
            SessionRoutes,
            MessageRoutes,
            CronRoutes,
            MemoryRoutes,
            HealthRoutes,
            search,
            usage,
            session_usage,
            create_link,
            page,
            event_stream.handler,
        ],
        dependencies={"runtime": Provide(lambda: runtime, sync_to_thread=False)},
        exception_handlers={**HANDLERS, NotFoundException: page_not_found},
        openapi_config=OpenAPIConfig(
            title="everlog",
            version=__version__,
            path="/docs",
            use_handler_docstrings=True,
            render_plugins=[
                ApiDocument(path="/"),
                JsonRenderPlugin(media_type=JSON),  # type: ignore[arg-type]
            ],
            components=Components(security_schemes={"token": SecurityScheme(type="http", scheme="bearer")}),
            security=[{"token": []}],
        ),
        logging_config=None,
        debug=False,
        request_max_body_size=None,  # the guard limits it
    )
