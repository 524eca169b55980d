"""Errors as responses: a status and `{error, details, hint, code}`.

Unexpected errors are logged, and nothing of them is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.openapi import ResponseSpec
from litestar.types import ExceptionHandler

from everlog import errors
from everlog.daemon.json_log import Level, log_event
from everlog.errors import EverlogError
from everlog.wire.error_table import ERROR_STATUSES, status_of
from everlog.wire.responses import ErrorBody

JSON = "application/json"
INVALID = "Validation failed"
INTERNAL = "internal error"

# Headers of every response.
SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        b"connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    ),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)

ERROR_RESPONSES: dict[int, ResponseSpec] = {
    status: ResponseSpec(ErrorBody, generate_examples=False, description=row.description)
    for status, row in ERROR_STATUSES.items()
}


class HttpError(Exception):
    """A request that the daemon refuses, with its status and error body."""

    def __init__(
        self,
        status: int,
        error: str,
        *,
        details: tuple[str, ...] = (),
        hint: str = "",
        code: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(error)
        self.status = status
        self.body = ErrorBody(error=error, details=details, hint=hint, code=code)
        self.headers = dict(headers or {})


def to_http_error(error: EverlogError) -> HttpError:
    """Convert an everlog error to a response with its status."""
    headers = {}
    if isinstance(error, errors.QueueFullError):
        headers["Retry-After"] = "1"
    elif isinstance(error, errors.ProviderUnavailableError) and error.retry_after is not None:
        headers["Retry-After"] = str(max(1, round(error.retry_after)))
    return HttpError(status_of(error), error.message, hint=error.hint, code=type(error).__name__, headers=headers)


def _respond(request: Request[Any, Any, Any], error: HttpError) -> Response[bytes]:
    if error.status >= 500:
        _log_failure(request, error.status, "warning", error=error.body.error)
    return _encode(error)


def _encode(error: HttpError) -> Response[bytes]:
    body = msgspec.json.encode(error.body)
    return Response(body, media_type=JSON, status_code=error.status, headers=error.headers)


def _log_failure(request: Request[Any, Any, Any], status: int, level: Level, **fields: object) -> None:
    path = request.scope["path"]
    log_event("request_failed", level=level, method=request.method, path=path, status=status, **fields)


def _handle_everlog_error(request: Request[Any, Any, Any], error: EverlogError) -> Response[bytes]:
    return _respond(request, to_http_error(error))


def _handle_http_exception(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    if error.status_code >= 500:
        return _handle_unexpected(request, error)
    if isinstance(error, ValidationException):
        details = _details(error.extra) or (error.detail,)
        return _respond(request, HttpError(400, INVALID, details=details))
    if error.status_code == 400:  # the body is not JSON
        return _respond(request, HttpError(400, INVALID, details=(error.detail,)))
    headers = {k: v for k, v in (error.headers or {}).items() if k.lower() == "allow"}
    return _respond(request, HttpError(error.status_code, error.detail, headers=headers))


def _details(extra: object) -> tuple[str, ...]:
    """Return a line `/field: problem` for each validation error."""
    lines = []
    for item in extra if isinstance(extra, list) else ():
        key, message = str(item.get("key", "")).removeprefix("data"), str(item.get("message", ""))
        if not key and message == "'data'":
            message = "the body is missing"
        path = key.replace("[", ".").replace("]", "").strip(".").replace(".", "/")
        lines.append(f"/{path}: {message}")
    return tuple(lines)


def _handle_unexpected(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    _log_failure(request, 500, "error", problem=repr(error)[:1000], at=_location(error))
    return _encode(HttpError(500, INTERNAL))


def _location(error: BaseException) -> str:
    """Return where an error was raised: file and line of its innermost frames."""
    import traceback  # noqa: PLC0415 - rarely needed

    frames = traceback.extract_tb(error.__traceback__)[-3:]
    return " < ".join(f"{frame.filename}:{frame.lineno}" for frame in reversed(frames))


HANDLERS: dict[int | type[Exception], ExceptionHandler[Any]] = {
    HttpError: _respond,
    EverlogError: _handle_everlog_error,
    HTTPException: _handle_http_exception,
    Exception: _handle_unexpected,
}
