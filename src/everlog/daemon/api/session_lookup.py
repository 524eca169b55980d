"""The session that a request names, and what the routes share of its parameters."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import unquote

from litestar.params import QueryParameter

from everlog.aio import AsyncSession
from everlog.daemon.error_responses import HttpError
from everlog.errors import InvalidIdError, NotFoundError
from everlog.runtime.runtime import Runtime
from everlog.wire.requests import MAX_INTEGER

Limit = Annotated[int, QueryParameter(ge=1, le=500)]
Offset = Annotated[int, QueryParameter(ge=0, le=MAX_INTEGER)]
# Writes also to the file of another program beside the store, which is refused otherwise.
ContinueHere = Annotated[bool, QueryParameter(name="continueHere")]

INVALID_SESSION_ID = "Invalid session ID"
SESSION_NOT_FOUND = "Session not found"


async def open_session(runtime: Runtime, name: str) -> AsyncSession:
    """Return a session by its id, key or alias.

    InvalidIdError for a name that no session has and that does not look like an id or a key.
    """
    try:
        return await runtime.store.session(name)
    except NotFoundError:
        if _ID_OR_KEY.fullmatch(name):
            raise
        raise InvalidIdError(
            f"not a session id or name: {name[:60]!r}", hint="ids are 26 characters, 0-9 and A-Z"
        ) from None


_ID_OR_KEY = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?:agent:|sk_).*")


async def find_session(runtime: Runtime, quoted: str) -> AsyncSession:
    """Return the session that a path segment names, by its id, key or alias."""
    try:
        return await open_session(runtime, unquote_segment(quoted))
    except InvalidIdError as error:
        raise HttpError(400, INVALID_SESSION_ID, hint=error.hint, code="InvalidIdError") from error
    except NotFoundError as error:
        raise HttpError(404, SESSION_NOT_FOUND, code="NotFoundError") from error


def unquote_segment(segment: str) -> str:
    """Decode a percent-encoded path segment. Raises InvalidIdError if it is not UTF-8."""
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidIdError("the path is not UTF-8") from error
