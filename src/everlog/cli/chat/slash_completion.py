"""Completion: slash commands by their first letters, and what they take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from everlog.cli import output
from everlog.cli.chat.slash_parser import VERBS
from everlog.errors import EverlogError
from everlog.session import Store

OFFERED = 50  # sessions


class SlashCompleter(Completer):
    """Completes what begins with a slash, and nothing else."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        """What may stand where the cursor is."""
        text = document.text_before_cursor
        if not text.startswith("/") or "\n" in document.text:
            return []
        name, space, given = text.partition(" ")
        if not space:
            return _names(name)
        if name == "/resume":
            return self._sessions(given)
        if name == "/export" and " " not in given:
            kinds = [kind for kind in ("md", "html") if kind.startswith(given)]
            return [Completion(kind, -len(given)) for kind in kinds]
        return []

    def _sessions(self, given: str) -> Iterator[Completion]:
        """Sessions whose id begins, or whose title has in it, what was typed."""
        try:
            page = self._store().list(limit=OFFERED)
        except EverlogError:
            return  # whoever presses Enter is told
        now = time.time()
        for one in page:
            title = output.one_line(one.metadata.title)
            if one.id.startswith(given.upper()) or given.lower() in title.lower():
                ago = output.ago(one.metadata.last_message_at, now)
                yield Completion(one.id, -len(given), f"{one.id[:10]}… {title}", ago)


def _names(typed: str) -> Iterator[Completion]:
    for name, verb in VERBS.items():
        if f"/{name}".startswith(typed):
            yield Completion(f"/{name}", -len(typed), f"/{name} {verb.takes}".rstrip(), verb.does)
