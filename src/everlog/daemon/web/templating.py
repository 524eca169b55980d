"""Rendering of templates, and the static files that they refer to.

All variables are escaped, except HTML that `everlog.render` made. An undefined variable in a
template is an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from litestar import MediaType, Request, Response, get
from litestar.exceptions import HTTPException
from litestar.params import FromPath, FromQuery
from markupsafe import Markup, escape

from everlog import __version__
from everlog.daemon import error_responses
from everlog.daemon.error_responses import HttpError
from everlog.errors import EverlogError
from everlog.render import humanize
from everlog.render.html_text import make_readable
from everlog.render.transcript_items import ROLE_LABELS, describe_damage, speaker_label
from everlog.wire.error_table import status_of

_TITLE_CHARACTERS = 80  # of the heading of an error page
THEME = "everlog_theme"  # cookie: "light" or "dark"; without it the system's theme
ASSETS = {
    "page.css": "text/css",  # Litestar adds the charset
    "page.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
VIEWS = (  # navigation: name, address
    ("Sessions", "/"),
    ("Usage", "/usage"),
    ("Cron", "/cron"),
    ("Memory", "/memory"),
    ("Health", "/health"),
)


@cache
def read_asset(name: str) -> bytes:
    """Read a static file."""
    return (files("everlog.daemon.web") / "static" / name).read_bytes()


@get("/static/{name:str}")
async def serve_asset(name: FromPath[str], v: FromQuery[str] = "") -> Response[bytes]:
    """Return a static file; its URL changes with its content, so browsers may cache it."""
    if name not in ASSETS:
        raise HttpError(404, "Not Found")
    headers = {"Cache-Control": "private, max-age=31536000, immutable"} if v else {}
    return Response(read_asset(name), media_type=ASSETS[name], headers=headers)


@cache
def asset_address(name: str) -> str:
    """Return the URL of a static file, which changes with its content."""
    return f"/static/{name}?v={sha256(read_asset(name)).hexdigest()[:12]}"


def session_address(session: str, *segments: str, seq: int | None = None) -> str:
    """Return the path of a session's page, or of a message in it."""
    path = "/".join(("/sessions", quote(session, safe=""), *segments))
    return f"{path}?at={seq}#m{seq}" if seq else path


def _time(iso: str, format_time: Callable[[str, float], str] = humanize.ago) -> Markup:
    """Format a time as relative, with the exact time as a tooltip."""
    exact = humanize.exact_time(iso)
    if not exact:
        return escape(iso[:40])
    relative = format_time(iso, time.time())
    return Markup('<time datetime="{}" title="{}">{}</time>').format(iso, exact, relative)


def _line(text: str) -> str:
    return humanize.one_line(make_readable(text))


@cache
def template_environment() -> Environment:
    """Return the Jinja2 environment with the globals and filters of the templates."""
    environment = Environment(
        loader=PackageLoader("everlog.daemon.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.globals |= {
        "asset": asset_address,
        "views": VIEWS,
        "version": __version__,
        "role_labels": ROLE_LABELS,
        "speaker_label": speaker_label,
    }
    environment.filters |= {
        "address": session_address,
        "size": humanize.size,
        "plural": humanize.plural,
        "short": humanize.short_number,
        "money": humanize.money,
        "duration": humanize.duration,
        "when": humanize.exact_time,
        "time": _time,
        "moment": lambda iso: _time(iso, humanize.ago_or_time),
        "line": _line,
        "sentence": lambda text: _line(text[:1].upper() + text[1:]),
        "kind": lambda value: type(value).__name__,
        "damage": describe_damage,
        "until": lambda iso: humanize.until(iso, time.time()),
        "readable": make_readable,
        "segment": lambda name: quote(name, safe=""),
        "number": lambda count: f"{count:,}",
    }
    return environment


def render(template: str, request: Request[Any, Any, Any], **variables: Any) -> str:
    """Render a template with the given variables."""
    theme = request.cookies.get(THEME, "")
    variables.setdefault("current_path", request.url.path)
    variables["theme"] = theme if theme in ("light", "dark") else ""
    return template_environment().get_template(template).render(variables)


def render_response(
    template: str,
    request: Request[Any, Any, Any],
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    **variables: Any,
) -> Response[str]:
    """Respond with a rendered template: a page or a part of one."""
    return Response(
        render(template, request, **variables),
        media_type=MediaType.HTML,
        status_code=status,
        headers=dict(headers or {}),
    )


# --- error pages ------------------------------------------------------------------------------


def _handle_request_error(request: Request[Any, Any, Any], error: HttpError) -> Response[str]:
    body = error.body
    return render_response("error.html", request, error.status, title=body.error, hint=body.hint or "")


def _handle_everlog_error(request: Request[Any, Any, Any], error: EverlogError) -> Response[str]:
    title, detail = error.message, ""
    if len(title) > _TITLE_CHARACTERS:  # the heading says what failed, the detail why
        title, _, detail = title.partition(": ")
    return render_response("error.html", request, status_of(error), title=title, detail=detail, hint=error.hint or "")


def _handle_http_exception(request: Request[Any, Any, Any], error: HTTPException) -> Response[Any]:
    if error.status_code >= 500:
        return error_responses.HANDLERS[Exception](request, error)
    return render_response("error.html", request, error.status_code, title=error.detail, hint="")


def page_not_found(request: Request[Any, Any, Any], error: HTTPException) -> Response[Any]:
    """Respond to an unknown path: with a page to a browser, else with a JSON error."""
    path = request.url.path
    if "text/html" not in request.headers.get("accept", "") or path.startswith("/api/"):
        return error_responses.HANDLERS[HTTPException](request, error)
    return render_response("error.html", request, 404, title="Page not found", hint="")


HANDLERS: dict[Any, Any] = {
    HttpError: _handle_request_error,
    EverlogError: _handle_everlog_error,
    HTTPException: _handle_http_exception,
}
