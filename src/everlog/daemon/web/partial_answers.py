"""What the agents have said of answers that are still being made.

Deltas are of the moment: nobody else keeps them. These are kept so that a page that is opened
during a turn begins with what was said so far; with the stored message they are forgotten.
"""

from __future__ import annotations

from typing import Any

from litestar import Request

from everlog.wire.events import Error, MessageComplete, MessageStored, RunEvent, StreamDelta

MOST = 200_000  # characters of one answer
NAME = "unfinished"  # in the application's state


class Unfinished:
    """By session, the text of the answer so far."""

    def __init__(self) -> None:
        self._said: dict[str, list[str]] = {}
        self._lengths: dict[str, int] = {}

    def hear(self, event: RunEvent) -> None:
        """Called with everything that happens."""
        session = event.session_id
        if isinstance(event, StreamDelta):
            length = self._lengths.get(session, 0) + len(event.text)
            if length <= MOST:
                self._said.setdefault(session, []).append(event.text)
                self._lengths[session] = length
        elif isinstance(event, MessageStored | MessageComplete | Error):
            self._said.pop(session, None)
            self._lengths.pop(session, None)

    def text(self, session: str) -> str:
        """What was said in a session since its last message."""
        return "".join(self._said.get(session, ()))


def unfinished_of(request: Request[Any, Any, Any]) -> Unfinished:
    """Those of the application that serves a request."""
    kept: Unfinished = request.app.state[NAME]
    return kept
