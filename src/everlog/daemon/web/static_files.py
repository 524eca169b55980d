"""`/static/…`: the style sheet, the module and the icon."""

from __future__ import annotations

from litestar import Response, get
from litestar.params import FromPath, FromQuery

from everlog.daemon.error_responses import Refused
from everlog.daemon.web.templating import ASSETS, asset


@get("/static/{name:str}", include_in_schema=False)
async def static(name: FromPath[str], v: FromQuery[str] = "") -> Response[bytes]:
    """A file of the page; its address changes with it, so it is kept."""
    if name not in ASSETS:
        raise Refused(404, "Not Found")
    headers = {"Cache-Control": "private, max-age=31536000, immutable"} if v else {}
    return Response(asset(name), media_type=ASSETS[name], headers=headers)
