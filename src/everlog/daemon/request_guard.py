"""The gate before everything else, for requests and WebSockets alike.

    Host          one of ours, exactly                                         else 400
    Origin        if there is one: ours, exactly, never null                   else 403
    token         bearer; or the cookie, to read, and to write JSON with
                  X-Everlog: 1, which no other page can send                  else 401, 403
    rate          so many a second                                             else 429
    body          JSON, not too large, not too deep                            else 415, 413, 400

A WebSocket is refused before it is one. Of all paths only `/open/{code}` needs no token. There
are no CORS headers: no other page reads anything here.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from email.message import Message as Headers
from html import escape
from typing import Any

import msgspec
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from everlog.daemon.auth import COOKIE, Keys
from everlog.daemon.error_responses import INVALID, JSON, SECURITY, Refused
from everlog.daemon.json_log import note
from everlog.daemon.request_limits import Bucket, text_problem
from everlog.settings import DaemonSettings

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
FAILURES_PER_SECOND = 40.0  # unknown callers are answered so often
READING = frozenset({"GET", "HEAD"})
OPEN = "/open/"
BY_COOKIE = "everlog_by_cookie"  # in the request's state: no token came with it
TICKET = "everlog_ticket"  # likewise: whether who opened a WebSocket would still be let in
BODY_SECONDS = 120.0  # for a body to come
BODIES = 64_000_000  # bytes of all bodies that are coming, if one alone may not be larger

# For a browser that is not let in: nothing of the page is loaded before it is.
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title></head><body><h1>{title}</h1><p>{how}</p></body></html>
"""
_LINK = "The page opens with a link that works once. Print a new one with: everlog page"
_HOW = "send Authorization: Bearer with the token in run/token, or open a link of everlog serve"


class Guard:
    """Wraps the application."""

    def __init__(
        self,
        app: ASGIApp,
        keys: Keys,
        settings: Callable[[], DaemonSettings],
        *,
        bucket: Bucket,
        port: int,
        host: str = "127.0.0.1",
        body_seconds: float = BODY_SECONDS,
    ) -> None:
        self._app = app
        self._keys = keys
        self._settings = settings
        self._port = port
        self._host = host
        self._bucket = bucket
        self._body_seconds = body_seconds
        self._coming = 0  # bytes of bodies that are not whole yet
        self._failures = Bucket(lambda: FAILURES_PER_SECOND)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        asked = _Asked(scope)
        guarded = _with_security(send)
        try:
            self._check_place(asked)
            if asked.path.startswith(OPEN) and asked.method == "GET" and not asked.is_socket:
                await self._open(asked, guarded)
                return
            self._check_caller(asked)
            if wait := self._bucket.take():
                raise _too_many("Too many requests", wait)
            scope["state"][TICKET] = self._keys.ticket()
            # Routed as it was sent: a key may hold a slash, and each segment is decoded alone.
            scope["path"] = asked.path
            if not asked.is_socket and asked.has_body:
                receive = await self._body(asked, receive)
        except _Gone:
            return
        except Refused as refused:
            await _refuse(refused, asked, receive, guarded)
            return
        await self._app(scope, receive, send if asked.is_socket else guarded)

    def _check_place(self, asked: _Asked) -> None:
        names = {*LOOPBACK, self._host, *self._settings().hosts}
        hosts = {f"{name}:{self._port}".lower() for name in names}
        host = asked.only("host")
        if host is None or host.lower() not in hosts:
            hint = "call the daemon by 127.0.0.1 and its port"
            raise self._stranger(Refused(400, "Invalid Host", hint=hint))
        if not asked.all("origin"):
            return
        scheme, _, origin = (asked.only("origin") or "").lower().partition("://")
        if scheme not in ("http", "https") or origin not in hosts:
            hint = "other pages may not call the daemon"
            raise self._stranger(Refused(403, "Invalid Origin", hint=hint))

    def _check_caller(self, asked: _Asked) -> None:
        given = asked.only("authorization") or ""
        scheme, _, token = given.partition(" ")
        if scheme.lower() == "bearer" and self._keys.is_token(token.strip()):
            return
        if not given and any(map(self._keys.is_cookie, asked.cookies)):
            if asked.method in READING or (asked.is_json and asked.only("x-everlog") == "1"):
                asked.scope["state"][BY_COOKIE] = True
                return
            raise Refused(
                403, "Forbidden", hint="with a cookie, write JSON and the header X-Everlog: 1"
            )
        raise self._stranger(
            Refused(401, "Unauthorized", hint=_HOW, headers={"WWW-Authenticate": "Bearer"})
        )

    def _stranger(self, refused: Refused) -> Refused:
        """The answer to who is not known, which nobody gets too often."""
        wait = self._failures.take()
        return _too_many("Too many failed requests", wait) if wait else refused

    async def _body(self, asked: _Asked, receive: Receive) -> Receive:
        """The whole body, checked, as what the application receives."""
        if not asked.is_json:
            raise Refused(415, "Unsupported content type", hint=f"send {JSON}")
        limit = self._settings().body_bytes
        length = asked.only("content-length") or "0"
        if not (length.isascii() and length.isdigit()):
            raise Refused(400, "Invalid Content-Length")
        large = Refused(413, "Request body too large", hint=f"at most {limit:,} bytes")
        if len(length) > 18 or int(length) > limit:
            raise large
        body = bytearray()
        more = True
        try:
            async with asyncio.timeout(self._body_seconds):
                while more:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise _Gone  # half a request is none
                    body += message["body"]
                    self._coming += len(message["body"])
                    if len(body) > limit:
                        raise large
                    more = message["more_body"]
                    if more and self._coming > max(limit, BODIES):
                        raise _too_many("Too many large bodies at once", 1.0)
        except TimeoutError:
            raise Refused(408, "Request body too slow") from None
        finally:
            self._coming -= len(body)
        given = bytes(body)
        if problem := text_problem(given):
            raise Refused(400, INVALID, details=(f"/: {problem}",))
        whole: list[Any] = [{"type": "http.request", "body": given, "more_body": False}]

        async def replay() -> Any:
            return whole.pop() if whole else await receive()

        return replay

    async def _open(self, asked: _Asked, send: Send) -> None:
        """A one-time link: the cookie, and on to the page."""
        if self._keys.use_code(asked.path.removeprefix(OPEN)):
            cookie = f"{COOKIE}={self._keys.cookie()}; Path=/; HttpOnly; SameSite=Strict"
            if asked.scope["scheme"] == "https":
                cookie += "; Secure"
            await _send(send, 303, b"", {"Location": "/", "Set-Cookie": cookie})
            return
        if wait := self._failures.take():
            raise _too_many("Too many failed requests", wait)
        page = _PAGE.format(title="This link has been used, or is too old", how=_LINK)
        await _send(send, 403, page.encode(), {"Content-Type": "text/html; charset=utf-8"})


class _Gone(Exception):
    """The client left before its request was whole."""


class _Asked:
    """What the gate looks at in a request."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.is_socket = scope["type"] == ScopeType.WEBSOCKET
        self.method = "GET" if self.is_socket else str(scope.get("method", ""))
        raw = scope.get("raw_path") or scope["path"].encode()
        self.path = raw.decode("ascii", "replace")
        self._headers: dict[bytes, list[str]] = {}
        for name, value in scope["headers"]:
            self._headers.setdefault(name.lower(), []).append(value.decode("latin-1"))

    def all(self, name: str) -> list[str]:
        return self._headers.get(name.encode(), [])

    def only(self, name: str) -> str | None:
        """A header that may be there once; given twice it counts as not given."""
        found = self.all(name)
        return found[0].strip() if len(found) == 1 else None

    @property
    def cookies(self) -> Iterable[str]:
        for header in self.all("cookie"):
            for pair in header.split(";"):
                name, _, value = pair.strip().partition("=")
                if name == COOKIE:
                    yield value

    @property
    def is_person(self) -> bool:
        """Whether a browser asks for a page."""
        return "text/html" in (self.only("accept") or "") and not self.path.startswith("/api/")

    @property
    def has_body(self) -> bool:
        return bool(self.all("transfer-encoding")) or self.all("content-length") not in ([], ["0"])

    @property
    def is_json(self) -> bool:
        kind = Headers()
        kind["content-type"] = self.only("content-type") or "text/plain"
        return kind.get_content_type() == JSON


def _too_many(error: str, wait: float) -> Refused:
    seconds = str(math.ceil(wait))
    return Refused(429, error, hint="slow down", headers={"Retry-After": seconds})


def _with_security(send: Send) -> Send:
    async def guarded(message: Any) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            given = message.get("headers", ())
            names = {name.lower() for name, _ in given}
            message["headers"] = [*given, *(one for one in SECURITY if one[0] not in names)]
        await send(message)

    return guarded


async def _refuse(refused: Refused, asked: _Asked, receive: Receive, send: Send) -> None:
    if refused.status in (400, 403):
        note("refused", level="warning", status=refused.status, error=refused.problem.error)
    body = msgspec.json.encode(refused.problem)
    headers = {"Content-Type": JSON, **refused.headers}
    if asked.is_person and not asked.is_socket:
        problem = refused.problem
        how = _LINK if refused.status == 401 else problem.hint
        body = _PAGE.format(title=escape(problem.error), how=escape(how)).encode()
        headers["Content-Type"] = "text/html; charset=utf-8"
    if not asked.is_socket:
        await _send(send, refused.status, body, headers)
        return
    await receive()  # the wish to connect
    if "websocket.http.response" in (asked.scope.get("extensions") or {}):
        await _send(send, refused.status, body, headers, kind="websocket.http.response")
        # uvicorn logs an error if we return before the connection is down.
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                await receive()
                await receive()
    else:
        await send({"type": "websocket.close", "code": 1008, "reason": ""})


async def _send(
    send: Send, status: int, body: bytes, headers: dict[str, str], kind: str = "http.response"
) -> None:
    rows = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
    rows.append((b"content-length", b"%d" % len(body)))
    start: Any = {"type": f"{kind}.start", "status": status, "headers": rows}
    await send(start)
    end: Any = {"type": f"{kind}.body", "body": body, "more_body": False}
    await send(end)
