"""`/static/…`: the style sheet, the JavaScript module and the icon."""

from __future__ import annotations

from litestar import Response, get
from litestar.params import FromPath, FromQuery

from everlog.daemon.error_responses import HttpError
from everlog.daemon.web.templating import ASSETS, read_asset


@get("/static/{name:str}", include_in_schema=False)
async def serve_asset(name: FromPath[str], v: FromQuery[str] = "") -> Response[bytes]:
    """Return a static file; its URL changes with its content, so browsers may cache it."""
    if name not in ASSETS:
        raise HttpError(404, "Not Found")
    headers = {"Cache-Control": "private, max-age=31536000, immutable"} if v else {}
    return Response(read_asset(name), media_type=ASSETS[name], headers=headers)
