"""Checks that every request and every WebSocket passes before the application.

    Host          exactly one of the daemon's                                  else 400
    Origin        if present: exactly one of the daemon's, never null          else 403
    token         bearer; or the cookie, to read, and to write JSON with
                  X-Everlog: 1, which no other page can send                   else 401, 403
    rate          requests per second                                          else 429
    body          JSON, not too large, not too deep                            else 415, 413, 400

A WebSocket is refused before the upgrade. Only `/open/{code}` needs no token. There are no CORS
headers: no other page can read a response.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from email.message import Message as MimeHeaders
from html import escape
from typing import Any

import msgspec
from litestar.datastructures import Headers
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from everlog.daemon.auth import COOKIE, Credentials
from everlog.daemon.error_responses import INVALID, JSON, SECURITY_HEADERS, HttpError
from everlog.daemon.json_log import log_event
from everlog.daemon.request_limits import RateLimiter, find_json_problem
from everlog.settings import DaemonSettings

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
FAILURES_PER_SECOND = 40.0  # responses to unauthenticated callers, all together
READ_METHODS = frozenset({"GET", "HEAD"})
OPEN_PATH = "/open/"
BY_COOKIE = "everlog_by_cookie"  # key in the request's state: authenticated by cookie, not token
TOKEN_CHECK = "everlog_ticket"  # key in the request's state: is the token still the current one?
BODY_SECONDS = 120.0  # for a body to arrive
MAX_PENDING_BYTES = 64_000_000  # of all incomplete bodies; more if a single body may be larger

# For a browser that is not authenticated; it needs no style sheet or script.
_ERROR_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title></head><body><h1>{title}</h1><p>{hint}</p></body></html>
"""
_LINK_HINT = "Open the page with a one-time link. To get a new link, run: everlog page"
_TOKEN_HINT = "send Authorization: Bearer with the token in run/token, or open a one-time link"


class Guard:
    """An ASGI middleware that checks every request."""

    def __init__(
        self,
        app: ASGIApp,
        credentials: Credentials,
        settings: Callable[[], DaemonSettings],
        *,
        limiter: RateLimiter,
        port: int,
        host: str = "127.0.0.1",
        body_seconds: float = BODY_SECONDS,
    ) -> None:
        self._app = app
        self._credentials = credentials
        self._settings = settings
        self._port = port
        self._host = host
        self._limiter = limiter
        self._body_seconds = body_seconds
        self._pending_bytes = 0  # of all incomplete bodies
        self._failure_limiter = RateLimiter(lambda: FAILURES_PER_SECOND)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        request = _RequestHead(scope)
        guarded = _add_security_headers(send)
        try:
            self._check_host_and_origin(request)
            if request.path.startswith(OPEN_PATH) and request.method == "GET" and not request.is_socket:
                await self._open_link(request, guarded)
                return
            self._check_caller(request)
            if wait := self._limiter.acquire():
                raise _rate_limit_error("Too many requests", wait)
            scope["state"][TOKEN_CHECK] = self._credentials.make_token_check()
            # Route by the raw path: a key may contain a slash, so each segment is decoded alone.
            scope["path"] = request.path
            if not request.is_socket and request.has_body:
                receive = await self._read_body(request, receive)
        except _DisconnectError:
            return
        except HttpError as error:
            await _refuse(error, request, receive, guarded)
            return
        await self._app(scope, receive, send if request.is_socket else guarded)

    def _check_host_and_origin(self, request: _RequestHead) -> None:
        names = {*LOOPBACK, self._host, *self._settings().hosts}
        hosts = {f"{name}:{self._port}".lower() for name in names}
        host = request.header("host")
        if host is None or host.lower() not in hosts:
            hint = "use 127.0.0.1 and the daemon's port"
            raise self._limit_failures(HttpError(400, "Invalid Host", hint=hint))
        if not request.header_values("origin"):
            return
        scheme, _, origin = (request.header("origin") or "").lower().partition("://")
        if scheme not in ("http", "https") or origin not in hosts:
            hint = "pages from other origins may not call the daemon"
            raise self._limit_failures(HttpError(403, "Invalid Origin", hint=hint))

    def _check_caller(self, request: _RequestHead) -> None:
        authorization = request.header("authorization") or ""
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() == "bearer" and self._credentials.is_token(token.strip()):
            return
        if not authorization and any(map(self._credentials.is_cookie, request.cookies)):
            if request.method in READ_METHODS or (request.is_json and request.header("x-everlog") == "1"):
                request.scope["state"][BY_COOKIE] = True
                return
            raise HttpError(403, "Forbidden", hint="with a cookie, send JSON and the header X-Everlog: 1")
        raise self._limit_failures(
            HttpError(401, "Unauthorized", hint=_TOKEN_HINT, headers={"WWW-Authenticate": "Bearer"})
        )

    def _limit_failures(self, error: HttpError) -> HttpError:
        """Return the error, or 429 if there were too many failed requests."""
        wait = self._failure_limiter.acquire()
        return _rate_limit_error("Too many failed requests", wait) if wait else error

    async def _read_body(self, request: _RequestHead, receive: Receive) -> Receive:
        """Read and check the whole body. Return a `receive` that replays it."""
        if not request.is_json:
            raise HttpError(415, "Unsupported content type", hint=f"send {JSON}")
        limit = self._settings().body_bytes
        length = request.header("content-length") or "0"
        if not (length.isascii() and length.isdigit()):
            raise HttpError(400, "Invalid Content-Length")
        too_large = HttpError(413, "Request body too large", hint=f"at most {limit:,} bytes")
        if len(length) > 18 or int(length) > limit:
            raise too_large
        body = bytearray()
        more = True
        try:
            async with asyncio.timeout(self._body_seconds):
                while more:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise _DisconnectError  # an incomplete request is dropped
                    body += message["body"]
                    self._pending_bytes += len(message["body"])
                    if len(body) > limit:
                        raise too_large
                    more = message["more_body"]
                    if more and self._pending_bytes > max(limit, MAX_PENDING_BYTES):
                        raise _rate_limit_error("Too many large bodies at once", 1.0)
        except TimeoutError:
            raise HttpError(408, "Request body too slow") from None
        finally:
            self._pending_bytes -= len(body)
        data = bytes(body)
        if problem := find_json_problem(data):
            raise HttpError(400, INVALID, details=(f"/: {problem}",))
        messages: list[Any] = [{"type": "http.request", "body": data, "more_body": False}]

        async def replay() -> Any:
            return messages.pop() if messages else await receive()

        return replay

    async def _open_link(self, request: _RequestHead, send: Send) -> None:
        """Redeem a one-time link: set the cookie and redirect to the page."""
        if self._credentials.redeem_code(request.path.removeprefix(OPEN_PATH)):
            cookie = f"{COOKIE}={self._credentials.cookie()}; Path=/; HttpOnly; SameSite=Strict"
            if request.scope["scheme"] == "https":
                cookie += "; Secure"
            await _send_response(send, 303, b"", {"Location": "/", "Set-Cookie": cookie})
            return
        if wait := self._failure_limiter.acquire():
            raise _rate_limit_error("Too many failed requests", wait)
        title = "This link has already been used or has expired"
        page = _ERROR_PAGE.format(title=title, hint=_LINK_HINT)
        await _send_response(send, 403, page.encode(), {"Content-Type": "text/html; charset=utf-8"})


class _DisconnectError(Exception):
    """The client disconnected before its request was complete."""


class _RequestHead:
    """The parts of a request that the guard checks."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.is_socket = scope["type"] == ScopeType.WEBSOCKET
        self.method = "GET" if self.is_socket else str(scope.get("method", ""))
        raw = scope.get("raw_path") or scope["path"].encode()
        self.path = raw.decode("ascii", "replace")
        self._headers = Headers.from_scope(scope)

    def header_values(self, name: str) -> list[str]:
        return self._headers.getall(name, [])

    def header(self, name: str) -> str | None:
        """Return a header that may occur once; None if it is missing or repeated."""
        values = self.header_values(name)
        return values[0].strip() if len(values) == 1 else None

    @property
    def cookies(self) -> Iterable[str]:
        for header in self.header_values("cookie"):
            for pair in header.split(";"):
                name, _, value = pair.strip().partition("=")
                if name == COOKIE:
                    yield value

    @property
    def is_browser(self) -> bool:
        """Whether a browser requests a page."""
        return "text/html" in (self.header("accept") or "") and not self.path.startswith("/api/")

    @property
    def has_body(self) -> bool:
        return bool(self.header_values("transfer-encoding")) or self.header_values("content-length") not in ([], ["0"])

    @property
    def is_json(self) -> bool:
        headers = MimeHeaders()
        headers["content-type"] = self.header("content-type") or "text/plain"
        return headers.get_content_type() == JSON


def _rate_limit_error(error: str, wait: float) -> HttpError:
    seconds = str(math.ceil(wait))
    return HttpError(429, error, hint="slow down", headers={"Retry-After": seconds})


def _add_security_headers(send: Send) -> Send:
    async def guarded(message: Any) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            headers = message.get("headers", ())
            names = {name.lower() for name, _ in headers}
            message["headers"] = [*headers, *(header for header in SECURITY_HEADERS if header[0] not in names)]
        await send(message)

    return guarded


async def _refuse(error: HttpError, request: _RequestHead, receive: Receive, send: Send) -> None:
    if error.status in (400, 403):
        log_event("refused", level="warning", status=error.status, error=error.body.error)
    body = msgspec.json.encode(error.body)
    headers = {"Content-Type": JSON, **error.headers}
    if request.is_browser and not request.is_socket:
        error_body = error.body
        hint = _LINK_HINT if error.status == 401 else error_body.hint
        body = _ERROR_PAGE.format(title=escape(error_body.error), hint=escape(hint)).encode()
        headers["Content-Type"] = "text/html; charset=utf-8"
    if not request.is_socket:
        await _send_response(send, error.status, body, headers)
        return
    await receive()  # websocket.connect
    if "websocket.http.response" in (request.scope.get("extensions") or {}):
        await _send_response(send, error.status, body, headers, kind="websocket.http.response")
        # uvicorn logs an error if this returns before the connection is closed.
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                await receive()
                await receive()
    else:
        await send({"type": "websocket.close", "code": 1008, "reason": ""})


async def _send_response(
    send: Send, status: int, body: bytes, headers: dict[str, str], kind: str = "http.response"
) -> None:
    rows = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
    rows.append((b"content-length", b"%d" % len(body)))
    start: Any = {"type": f"{kind}.start", "status": status, "headers": rows}
    await send(start)
    end: Any = {"type": f"{kind}.body", "body": body, "more_body": False}
    await send(end)
