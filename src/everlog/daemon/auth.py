"""Authentication: the token, the cookie derived from it, and one-time links.

A link is printed for a person to open; it sets the browser's cookie and is invalid afterwards. The
cookie is a keyed hash of a fixed text under the token: it survives a restart and expires when the
token changes. No secret is ever read from a query string.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Protocol

COOKIE = "everlog"
LINK_SECONDS = 15 * 60
MAX_LINKS = 100  # unused at a time; the oldest is dropped first
_LABEL = b"everlog cookie 1"


class TokenSource(Protocol):
    """The storage of the token."""

    def stamp(self) -> tuple[int, ...] | None:
        """Return a value that changes with the token; None if there is no token."""
        ...

    def token(self) -> str:
        """Return the token; empty if there is none."""
        ...


class Credentials:
    """The token, cookie and links that grant access. Without a token, all are refused."""

    def __init__(self, source: TokenSource, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._stamp: tuple[int, ...] | None = None
        self._token = b""
        self._links: dict[str, float] = {}  # code → when it expires

    def is_token(self, value: str) -> bool:
        """Return whether this is the token, in constant time."""
        token = self._current_token()
        return bool(token) and hmac.compare_digest(value.encode(), token)

    def is_cookie(self, value: str) -> bool:
        """Return whether this is the cookie of the current token."""
        return bool(self._current_token()) and hmac.compare_digest(value.encode(), self.cookie().encode())

    def cookie(self) -> str:
        """Return the value of the cookie."""
        return hmac.new(self._current_token(), _LABEL, sha256).hexdigest()

    def make_token_check(self) -> Callable[[], bool]:
        """Return a function that tells whether the token is still the current one."""
        token = self._current_token()
        return lambda: bool(token) and hmac.compare_digest(self._current_token(), token)

    def make_code(self) -> str:
        """Create a one-time code that is valid for 15 minutes."""
        while len(self._links) >= MAX_LINKS:
            del self._links[next(iter(self._links))]
        code = secrets.token_urlsafe(32)
        self._links[code] = self._clock() + LINK_SECONDS
        return code

    def redeem_code(self, code: str) -> bool:
        """Use up a code. Return whether it was valid."""
        expires_at = self._links.pop(code, None)
        return expires_at is not None and self._clock() < expires_at and bool(self._current_token())

    def _current_token(self) -> bytes:
        """Return the token as it is now in its source."""
        stamp = self._source.stamp()
        if stamp != self._stamp or not self._token:
            self._token = self._source.token().encode() if stamp is not None else b""
            self._stamp = stamp
        return self._token
