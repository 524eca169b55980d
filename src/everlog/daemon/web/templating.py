"""Templates into answers.

Everything that a template is given is escaped, except what `pages` has made HTML of. A template
that asks for something it was not given is an error, not an empty place.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from litestar import MediaType, Request, Response
from litestar.exceptions import HTTPException
from markupsafe import Markup, escape

from everlog import __version__
from everlog.daemon import error_responses
from everlog.daemon.error_responses import Refused, status_of
from everlog.errors import EverlogError
from everlog.render import humanize
from everlog.render.html_text import readable
from everlog.render.markdown_document import one_line

_TITLE = 80  # characters of a heading
THEME = "everlog_theme"  # cookie: "light" or "dark"; without it, as the system has it
ASSETS = {
    "page.css": "text/css",  # Litestar says in which characters
    "page.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
VIEWS = (  # of the navigation: name, address, key in the help
    ("Sessions", "/"),
    ("Usage", "/usage"),
    ("Cron", "/cron"),
    ("Memory", "/memory"),
    ("Health", "/health"),
)


@cache
def asset(name: str) -> bytes:
    """A file of the page."""
    return (files("everlog.daemon.web") / "static" / name).read_bytes()


@cache
def asset_address(name: str) -> str:
    """Where a file of the page is; another one as soon as the file is."""
    return f"/static/{name}?v={sha256(asset(name)).hexdigest()[:12]}"


def _time(iso: str, say: Callable[[str, float], str] = humanize.ago) -> Markup:
    """A time as long ago as it is, with the exact one on pointing at it."""
    exact = humanize.when(iso)
    if not exact:
        return escape(iso[:40])
    shown = say(iso, time.time())
    return Markup('<time datetime="{}" title="{}">{}</time>').format(iso, exact, shown)


@cache
def environment() -> Environment:
    """Where the templates are found, and what they can say."""
    made = Environment(
        loader=PackageLoader("everlog.daemon.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.globals |= {"asset": asset_address, "views": VIEWS, "version": __version__}
    made.filters |= {
        "size": humanize.size,
        "plural": humanize.plural,
        "short": humanize.short,
        "money": humanize.money,
        "lasted": humanize.lasted,
        "when": humanize.when,
        "time": _time,
        "moment": lambda iso: _time(iso, humanize.moment),
        "line": lambda text: one_line(readable(text)),
        "number": lambda count: f"{count:,}",
    }
    return made


def render(template: str, request: Request[Any, Any, Any], **what: Any) -> str:
    """A template with what it is about."""
    theme = request.cookies.get(THEME, "")
    what.setdefault("here", request.url.path)
    what["theme"] = theme if theme in ("light", "dark") else ""
    return environment().get_template(template).render(what)


def answer(
    template: str,
    request: Request[Any, Any, Any],
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    **what: Any,
) -> Response[str]:
    """A page, or a piece of one."""
    return Response(
        render(template, request, **what),
        media_type=MediaType.HTML,
        status_code=status,
        headers=dict(headers or {}),
    )


# --- what goes wrong, as a page ---------------------------------------------------------------


def _refused(request: Request[Any, Any, Any], error: Refused) -> Response[str]:
    problem = error.problem
    return answer("error.html", request, error.status, title=problem.error, hint=problem.hint or "")


def _ours(request: Request[Any, Any, Any], error: EverlogError) -> Response[str]:
    title, detail = error.message, ""
    if len(title) > _TITLE:  # what has failed, and below it how
        title, _, detail = title.partition(": ")
    return answer(
        "error.html", request, status_of(error), title=title, detail=detail, hint=error.hint or ""
    )


def _framework(request: Request[Any, Any, Any], error: HTTPException) -> Response[Any]:
    if error.status_code >= 500:
        return error_responses.HANDLERS[Exception](request, error)
    return answer("error.html", request, error.status_code, title=error.detail, hint="")


def no_such_page(request: Request[Any, Any, Any], error: HTTPException) -> Response[Any]:
    """The answer where no view is: a page for a browser, else as everything else is answered."""
    path = request.url.path
    if "text/html" not in request.headers.get("accept", "") or path.startswith("/api/"):
        return error_responses.HANDLERS[HTTPException](request, error)
    return answer("error.html", request, 404, title="There is no such page", hint="")


HANDLERS: dict[Any, Any] = {
    Refused: _refused,
    EverlogError: _ours,
    HTTPException: _framework,
}
