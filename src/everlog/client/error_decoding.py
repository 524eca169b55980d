"""What the daemon refused, as one of our errors again."""

from __future__ import annotations

import msgspec

from everlog import errors
from everlog.errors import EverlogError
from everlog.wire.responses import Problem

# For answers that name no error of ours: those of the guard, of the framework, of a proxy.
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


def failure(status: int, body: bytes) -> EverlogError:
    """The error behind an answer."""
    try:
        problem = msgspec.json.decode(body, type=Problem)
    except (ValueError, RecursionError):
        problem = Problem(error=f"the daemon answered {status}")
    kind = getattr(errors, problem.code, None)
    if not (isinstance(kind, type) and issubclass(kind, EverlogError)):
        kind = _BY_STATUS.get(status, errors.StoreFailedError)
    message = ": ".join((problem.error, *problem.details))
    return kind(message, hint=problem.hint, status=status)
