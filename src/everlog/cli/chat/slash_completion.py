"""Completion of slash commands and their arguments."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from everlog.cli import output
from everlog.cli.chat.slash_parser import SLASH_COMMANDS
from everlog.errors import EverlogError
from everlog.session import Store

MAX_SESSIONS = 50  # searched for a match


class SlashCompleter(Completer):
    """Completes input that begins with a slash, and nothing else."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Return the completions at the cursor."""
        text = document.text_before_cursor
        if not text.startswith("/") or "\n" in document.text:
            return []
        name, space, typed = text.partition(" ")
        if not space:
            return _complete_name(name)
        if name == "/resume":
            return self._complete_session(typed)
        if name == "/export" and " " not in typed:
            kinds = [kind for kind in ("md", "html") if kind.startswith(typed)]
            return [Completion(kind, -len(typed)) for kind in kinds]
        return []

    def _complete_session(self, typed: str) -> Iterator[Completion]:
        """Complete a session by the beginning of its id, or any part of its title."""
        try:
            page = self._store().list(limit=MAX_SESSIONS)
        except EverlogError:
            return  # the command reports the error when it is run
        now = time.time()
        for row in page:
            title = output.one_line(row.metadata.display_title)
            if row.id.startswith(typed.upper()) or typed.lower() in title.lower():
                ago = output.ago(row.metadata.last_message_at, now)
                yield Completion(row.id, -len(typed), f"{row.id[:10]}… {title}", ago)


def _complete_name(typed: str) -> Iterator[Completion]:
    for name, command in SLASH_COMMANDS.items():
        if f"/{name}".startswith(typed):
            display = f"/{name} {command.usage}".rstrip()
            yield Completion(f"/{name}", -len(typed), display, command.help)
