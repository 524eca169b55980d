"""Who may come in: the token, the cookie that is made of it, and links that open once.

A link is printed for a person to click; it gives the browser its cookie and is worthless
afterwards. The cookie is a keyed hash of a fixed text under the token: it survives a restart and
ends with the token. No secret is ever taken from a query string.
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
LINKS = 100  # that may be open at a time; the oldest goes first
_LABEL = b"everlog cookie 1"


class TokenSource(Protocol):
    """Where the token is kept."""

    def stamp(self) -> tuple[int, ...] | None:
        """What changes when the token does."""
        ...

    def token(self) -> str:
        """The token; empty if there is none."""
        ...


class Keys:
    """Everything that opens the daemon. Without a token nothing does."""

    def __init__(self, source: TokenSource, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._stamp: tuple[int, ...] | None = None
        self._token = b""
        self._links: dict[str, float] = {}  # code → when it ends

    def is_token(self, given: str) -> bool:
        """Whether this is the token, found out in the same time for every wrong one."""
        token = self._current()
        return bool(token) and hmac.compare_digest(given.encode(), token)

    def is_cookie(self, given: str) -> bool:
        """Whether this is the cookie of the token."""
        return bool(self._current()) and hmac.compare_digest(given.encode(), self.cookie().encode())

    def cookie(self) -> str:
        """The cookie's value."""
        return hmac.new(self._current(), _LABEL, sha256).hexdigest()

    def ticket(self) -> Callable[[], bool]:
        """Asked later, tells whether the token is still the one of now."""
        token = self._current()
        return lambda: bool(token) and hmac.compare_digest(self._current(), token)

    def make_code(self) -> str:
        """A code that opens once, for a quarter of an hour."""
        while len(self._links) >= LINKS:
            del self._links[next(iter(self._links))]
        code = secrets.token_urlsafe(32)
        self._links[code] = self._clock() + LINK_SECONDS
        return code

    def use_code(self, code: str) -> bool:
        """Whether a code opens; it does so once."""
        ends = self._links.pop(code, None)
        return ends is not None and self._clock() < ends and bool(self._current())

    def _current(self) -> bytes:
        """The token as its file has it now."""
        stamp = self._source.stamp()
        if stamp != self._stamp or not self._token:
            self._token = self._source.token().encode() if stamp is not None else b""
            self._stamp = stamp
        return self._token
