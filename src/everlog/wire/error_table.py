"""Errors over the wire: the one table of statuses, by which both sides encode and decode errors."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from everlog import errors
from everlog.errors import EverlogError
from everlog.wire.events import Error
from everlog.wire.responses import ErrorBody


class ErrorStatus(NamedTuple):
    """What a status means, the errors that have it, and the error of a response without a code.

    Such a response comes from the guard, the framework or a proxy.
    """

    description: str
    classes: tuple[type[EverlogError], ...] = ()
    fallback: type[EverlogError] = errors.StoreFailedError


ERROR_STATUSES = {
    400: ErrorStatus(
        "The request is invalid.",
        (errors.FormatError, errors.InvalidIdError, errors.UnsupportedError),
        errors.FormatError,
    ),
    401: ErrorStatus("The token is missing or wrong.", (), errors.SettingsError),
    403: ErrorStatus("The page or cookie may not do this.", (), errors.SettingsError),
    404: ErrorStatus("Not found.", (errors.NotFoundError,), errors.NotFoundError),
    405: ErrorStatus("Method not allowed."),
    408: ErrorStatus("The body did not arrive in time."),
    409: ErrorStatus(
        "Conflict: a turn is running, the session has changed, or it is another program's: see `continueHere`.",
        (errors.ConflictError, errors.SessionBusyError, errors.RunCancelledError, errors.UnconfirmedError),
        errors.ConflictError,
    ),
    413: ErrorStatus("The request is too large.", (errors.ContextOverflowError,), errors.FormatError),
    415: ErrorStatus("The body is not JSON.", (), errors.FormatError),
    422: ErrorStatus("The model's provider refused the request.", (errors.ProviderRefusedError,), errors.FormatError),
    429: ErrorStatus("Too many requests, or the queue is full.", (errors.QueueFullError,), errors.QueueFullError),
    502: ErrorStatus(
        "The model's provider failed.", (errors.ProviderError, errors.ProviderDeniedError), errors.ProviderError
    ),
    503: ErrorStatus(
        "The store, the configuration or the provider is unavailable.",
        (
            errors.StoreFailedError,
            errors.StoreFullError,
            errors.LogDamagedError,
            errors.SettingsError,
            errors.ProviderUnavailableError,
        ),
    ),
}
STATUS: dict[type[EverlogError], int] = {EverlogError: 500} | {
    error: status for status, row in ERROR_STATUSES.items() for error in row.classes
}


def status_of(error: EverlogError) -> int:
    """Return the status of an error: that of its class or of the nearest base class."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def decode_error(status: int, body: bytes) -> EverlogError:
    """Return the error that a response stands for, by its code or else by its status."""
    try:
        error_body = msgspec.json.decode(body, type=ErrorBody)
    except (ValueError, RecursionError):
        error_body = ErrorBody(error=f"the daemon answered {status}")
    fallback = ERROR_STATUSES[status].fallback if status in ERROR_STATUSES else errors.StoreFailedError
    message = ": ".join((error_body.error, *error_body.details))
    return _find_class(error_body.code, fallback)(message, hint=error_body.hint, status=status)


def decode_error_event(event: Error, fallback: type[EverlogError], **facts: object) -> EverlogError:
    """Return the error that an event stands for, by its code."""
    return _find_class(event.code, fallback)(event.message, hint=event.hint, **facts)


def _find_class(code: str, fallback: type[EverlogError]) -> type[EverlogError]:
    error_class = getattr(errors, code, None)
    if isinstance(error_class, type) and issubclass(error_class, EverlogError):
        return error_class
    return fallback
