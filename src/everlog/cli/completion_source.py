"""Values for shell completion: existing sessions and agents.

It runs at every press of Tab, so it reads listings only and creates nothing on disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING

import click

from everlog.cli.output import one_line, shorten

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from everlog.session import Store

MAX_SESSIONS = 50  # offered
HELP_WIDTH = 60  # columns of a title


def complete_session(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a session id; the last active sessions first, with their titles."""
    from click.shell_completion import CompletionItem

    with _store(ctx) as store:
        if store is None:
            return []
        matches = (row for row in store.walk() if row.id.startswith(incomplete))
        return [
            CompletionItem(row.id, help=shorten(one_line(row.metadata.display_title), HELP_WIDTH))
            for row in islice(matches, MAX_SESSIONS)
        ]


def complete_agent(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete an agent from the settings and the newest sessions."""
    from click.shell_completion import CompletionItem

    with _store(ctx) as store:
        if store is None:
            return []
        agents = {"main", *store.settings.agents}
        agents |= {row.metadata.agent for row in store.list(limit=500)}
    return [CompletionItem(name) for name in sorted(agents) if name.startswith(incomplete) and name == one_line(name)]


@contextmanager
def _store(ctx: click.Context) -> Iterator[Store | None]:
    """Open the store that the words typed so far select; None if it does not exist."""
    from everlog.app import open_store
    from everlog.cli.options import chosen_foreign, chosen_root, chosen_store

    with ctx.scope(cleanup=False):
        home, foreign, database = chosen_root(), chosen_foreign(), chosen_store()
    if database is not None:
        with open_store(database, home=home) as store:
            yield store
        return
    location, dialect = foreign or (home, "native")
    if not location.is_dir():
        yield None
        return
    with open_store(location, dialect=dialect, home=home) as store:
        yield store
