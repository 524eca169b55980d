"""`everlog sessions browse`: pick a session from a list and continue it."""

from __future__ import annotations

import os
import sys

import click

from everlog.cli import output
from everlog.cli.options import json_option, open_root, root_option


@click.command()
@json_option
@root_option()
@click.pass_context
def browse(ctx: click.Context, as_json: bool) -> int:
    """Pick a session from a list and continue it in a chat.

    Type to filter by title and content. Enter opens, Ctrl-R renames, Ctrl-D deletes, Tab shows or
    hides the preview, Esc quits. With --json it prints the picked session instead.
    """
    screen = sys.stderr if as_json and not output.is_terminal(sys.stdout) else sys.stdout
    if not (output.is_terminal(sys.stdin) and output.is_terminal(screen)) or _is_dumb():
        raise click.UsageError("browse needs a terminal; use everlog sessions list instead", ctx)
    from everlog.cli.picker import pick

    with open_root() as store:
        store.list(limit=1)  # if the index is rebuilt, its progress bar is shown now
        picked = pick(store)
        if as_json:
            from everlog.log.fold import to_builtins

            output.print_json({"session": to_builtins(store.session(picked).metadata) if picked else None})
            return 0
    if picked is None:
        return 0
    return _chat(ctx, picked)


def _is_dumb() -> bool:
    return os.environ.get("TERM", "dumb") == "dumb"


def _chat(ctx: click.Context, session: str) -> int:
    """Continue a session, as `everlog chat --resume ID` on the same root does."""
    root = ctx.find_root().command
    assert isinstance(root, click.Group)
    chat = root.get_command(ctx, "chat")
    assert chat is not None
    with chat.make_context("chat", ["--resume", session], parent=ctx) as chat_context:
        return chat.invoke(chat_context) or 0
