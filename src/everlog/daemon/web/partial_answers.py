"""Partial answers of running turns.

Deltas are not stored. Here they are collected until the message is stored, so that a page opened
during a turn shows the answer so far.
"""

from __future__ import annotations

from everlog.wire.events import Error, MessageComplete, MessageStored, RunEvent, StreamDelta

MAX_CHARACTERS = 200_000  # characters of one answer


class PartialAnswers:
    """The text of the running answer, by session."""

    def __init__(self) -> None:
        self._deltas: dict[str, list[str]] = {}
        self._lengths: dict[str, int] = {}

    def on_event(self, event: RunEvent) -> None:
        """Collect deltas, and drop them when the message is stored or the turn ends."""
        session = event.session_id
        if isinstance(event, StreamDelta):
            length = self._lengths.get(session, 0) + len(event.text)
            if length <= MAX_CHARACTERS:
                self._deltas.setdefault(session, []).append(event.text)
                self._lengths[session] = length
        elif isinstance(event, MessageStored | MessageComplete | Error):
            self._deltas.pop(session, None)
            self._lengths.pop(session, None)

    def text(self, session: str) -> str:
        """Return the partial answer of a session; empty if there is none."""
        return "".join(self._deltas.get(session, ()))
