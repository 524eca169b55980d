"""What a shell may complete: the sessions and agents that are there.

Asked at the press of a key, so it reads listings only, and nothing is made on the disk for it.
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

OFFERED = 50  # sessions
HELP_WIDTH = 60  # columns of a title


def complete_session(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Ids that begin so, those last active first, with their titles."""
    from click.shell_completion import CompletionItem

    with _store(ctx) as store:
        if store is None:
            return []
        fitting = (one for one in store.walk() if one.id.startswith(incomplete))
        return [
            CompletionItem(one.id, help=shorten(one_line(one.metadata.title), HELP_WIDTH))
            for one in islice(fitting, OFFERED)
        ]


def complete_agent(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Agents of the settings and of the newest sessions."""
    from click.shell_completion import CompletionItem

    with _store(ctx) as store:
        if store is None:
            return []
        found = {"main", *store.settings.agents}
        found |= {one.metadata.agent for one in store.list(limit=500)}
    return [
        CompletionItem(name)
        for name in sorted(found)
        if name.startswith(incomplete) and name == one_line(name)
    ]


@contextmanager
def _store(ctx: click.Context) -> Iterator[Store | None]:
    """The store that the words so far chose; None if there is none to read."""
    from everlog.app import open_store
    from everlog.cli.options import chosen_foreign, chosen_root, chosen_store

    with ctx.scope(cleanup=False):
        home, foreign, database = chosen_root(), chosen_foreign(), chosen_store()
    if database is not None:
        with open_store(database, home=home) as store:
            yield store
        return
    where, dialect = foreign or (home, "native")
    if not where.is_dir():
        yield None
        return
    with open_store(where, dialect=dialect, home=home) as store:
        yield store
