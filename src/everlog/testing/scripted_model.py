"""A model with scripted replies, for tests."""

from __future__ import annotations

import re
from collections.abc import Callable

from everlog.errors import ProviderError
from everlog.model import Message, assistant
from everlog.ports import Delta, DeltaCallback, Request, ignore_delta

Reply = str | Message | Exception | Callable[[Request], str | Message]


class ScriptedModel:
    """A provider that returns its replies in order and records the requests.

    A reply is a text, a message, an exception to raise, or a function of the request. Titles are
    requested in the background, at no definite time: they use up no reply, and all are `title`.
    """

    def __init__(self, *replies: Reply, window: int | None = None, title: str = "") -> None:
        self.replies = list(replies)
        self.requests: list[Request] = []
        self._window = window
        self._title = title

    async def complete(self, request: Request, on_delta: DeltaCallback = ignore_delta) -> Message:
        """Return the next reply, streamed word by word. Raises `ProviderError` if none is left."""
        if request.purpose == "title":
            return assistant(self._title)
        self.requests.append(request)
        if not self.replies:
            raise ProviderError("the script has no more replies")
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        if callable(reply):
            reply = reply(request)
        message = assistant(reply) if isinstance(reply, str) else reply
        for word in re.findall(r"\S+\s*|\s+", message.text):
            on_delta(Delta(word))
        return message

    def window(self, model: str) -> int | None:
        """Return the window passed to the constructor."""
        return self._window
