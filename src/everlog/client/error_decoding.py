"""Error responses of the daemon, decoded to everlog's errors."""

from __future__ import annotations

import msgspec

from everlog import errors
from everlog.errors import EverlogError
from everlog.wire.responses import ErrorBody

# For responses without an everlog error code: from the guard, the framework or a proxy.
_BY_STATUS: dict[int, type[EverlogError]] = {
    400: errors.FormatError,
    401: errors.SettingsError,
    403: errors.SettingsError,
    404: errors.NotFoundError,
    409: errors.ConflictError,
    413: errors.FormatError,
    415: errors.FormatError,
    422: errors.FormatError,
    429: errors.QueueFullError,
    502: errors.ProviderError,
    503: errors.StoreFailedError,
}


def decode_error(status: int, body: bytes) -> EverlogError:
    """Return the error that a response stands for, by its code or else by its status."""
    try:
        error_body = msgspec.json.decode(body, type=ErrorBody)
    except (ValueError, RecursionError):
        error_body = ErrorBody(error=f"the daemon answered {status}")
    error_class = getattr(errors, error_body.code, None)
    if not (isinstance(error_class, type) and issubclass(error_class, EverlogError)):
        error_class = _BY_STATUS.get(status, errors.StoreFailedError)
    message = ": ".join((error_body.error, *error_body.details))
    return error_class(message, hint=error_body.hint, status=status)
