"""A model that says what it was told to say, for tests of everything around it."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.errors import ProviderError
from holdfast.model import Message, assistant
from holdfast.ports import Request

Reply = str | Message | Exception | Callable[[Request], str | Message]


class ScriptedModel:
    """A provider that gives its replies in order and remembers what it was asked.

    A reply is a text, a message, an exception to raise, or a function of the request.
    """

    def __init__(self, *replies: Reply, window: int | None = None) -> None:
        self.replies = list(replies)
        self.requests: list[Request] = []
        self._window = window

    async def complete(self, request: Request) -> Message:
        """The next reply; ProviderError when there are no more."""
        self.requests.append(request)
        if not self.replies:
            raise ProviderError("the script has no more replies")
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        if callable(reply):
            reply = reply(request)
        return assistant(reply) if isinstance(reply, str) else reply

    def window(self, model: str) -> int | None:
        """The window that it was given."""
        return self._window
