"""What goes wrong, as a client is told: a status and `{error, details, hint, code}`.

The one table of statuses. Nothing of an unexpected error goes over the wire; it is logged.
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
from everlog.daemon.json_log import note
from everlog.errors import EverlogError
from everlog.wire.responses import Problem

JSON = "application/json"
INVALID = "Validation failed"
INTERNAL = "internal error"

# What every answer carries.
SECURITY = (
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

STATUS: dict[type[EverlogError], int] = {
    errors.InvalidIdError: 400,
    errors.FormatError: 400,
    errors.UnsupportedError: 400,
    errors.NotFoundError: 404,
    errors.ConflictError: 409,
    errors.SessionBusyError: 409,
    errors.RunCancelledError: 409,
    errors.ContextOverflowError: 413,
    errors.ProviderRefusedError: 422,
    errors.QueueFullError: 429,
    errors.ProviderError: 502,
    errors.ProviderDeniedError: 502,
    errors.ProviderUnavailableError: 503,
    errors.LogDamagedError: 503,
    errors.StoreFullError: 503,
    errors.StoreFailedError: 503,
    errors.SettingsError: 503,
    EverlogError: 500,
}

MEANINGS = {
    400: "The request is not one that can be served.",
    401: "No token, or a wrong one.",
    403: "From a page or with a cookie that may not do this.",
    404: "There is no such thing.",
    405: "Not with this method.",
    408: "The body did not come in time.",
    409: "Not now: a turn runs, or the session is not as expected.",
    413: "Too large.",
    415: "Not JSON.",
    422: "The model's provider will not answer this.",
    429: "Too many requests, or too many messages wait.",
    502: "The model's provider failed.",
    503: "The store, the configuration or the provider cannot be used for now.",
}
PROBLEMS: dict[int, ResponseSpec] = {
    status: ResponseSpec(Problem, generate_examples=False, description=text)
    for status, text in MEANINGS.items()
}


class Refused(Exception):
    """A request that the daemon itself turns down."""

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
        self.problem = Problem(error=error, details=details, hint=hint, code=code)
        self.headers = dict(headers or {})


def status_of(error: EverlogError) -> int:
    """The status of an error: its own, or that of the nearest one above it in the tree."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def refused(error: EverlogError) -> Refused:
    """One of our errors as an answer."""
    headers = {}
    if isinstance(error, errors.QueueFullError):
        headers["Retry-After"] = "1"
    elif isinstance(error, errors.ProviderUnavailableError) and error.retry_after is not None:
        headers["Retry-After"] = str(max(1, round(error.retry_after)))
    return Refused(
        status_of(error),
        error.message,
        hint=error.hint,
        code=type(error).__name__,
        headers=headers,
    )


def _answer(request: Request[Any, Any, Any], error: Refused) -> Response[bytes]:
    if error.status >= 500:
        note(
            "request_failed",
            level="warning",
            method=request.method,
            path=request.scope["path"],
            status=error.status,
            error=error.problem.error,
        )
    body = msgspec.json.encode(error.problem)
    return Response(body, media_type=JSON, status_code=error.status, headers=error.headers)


def _ours(request: Request[Any, Any, Any], error: EverlogError) -> Response[bytes]:
    return _answer(request, refused(error))


def _framework(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    if error.status_code >= 500:
        return _unexpected(request, error)
    if isinstance(error, ValidationException):
        told = _details(error.extra) or (error.detail,)
        return _answer(request, Refused(400, INVALID, details=told))
    if error.status_code == 400:  # the body is no JSON
        return _answer(request, Refused(400, INVALID, details=(error.detail,)))
    headers = {k: v for k, v in (error.headers or {}).items() if k.lower() == "allow"}
    return _answer(request, Refused(error.status_code, error.detail, headers=headers))


def _details(extra: object) -> tuple[str, ...]:
    """`/field: what is wrong with it`, a line for each."""
    found = []
    for one in extra if isinstance(extra, list) else ():
        key, message = str(one.get("key", "")).removeprefix("data"), str(one.get("message", ""))
        if not key and message == "'data'":
            message = "there is no body"
        path = key.replace("[", ".").replace("]", "").strip(".").replace(".", "/")
        found.append(f"/{path}: {message}")
    return tuple(found)


def _unexpected(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    note(
        "request_failed",
        level="error",
        method=request.method,
        path=request.scope["path"],
        status=500,
        problem=repr(error)[:1000],
        at=_place(error),
    )
    body = msgspec.json.encode(Problem(error=INTERNAL))
    return Response(body, media_type=JSON, status_code=500)


def _place(error: BaseException) -> str:
    """Where an error was raised: file and line of its innermost frames."""
    import traceback  # noqa: PLC0415 - seldom needed

    frames = traceback.extract_tb(error.__traceback__)[-3:]
    return " < ".join(f"{frame.filename}:{frame.lineno}" for frame in reversed(frames))


HANDLERS: dict[int | type[Exception], ExceptionHandler[Any]] = {
    Refused: _answer,
    EverlogError: _ours,
    HTTPException: _framework,
    Exception: _unexpected,
}
