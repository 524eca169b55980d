"""`everlog sessions browse`: pick a session from all, and go on with it."""

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
    """Pick a session from a full-screen list, and go on with it in a chat.

    Type to filter by title and by what was said; Enter opens, Ctrl-R renames, Ctrl-D deletes, Tab
    shows or hides the preview, Esc leaves. With --json the session that was picked is the answer.
    """
    drawn_on = sys.stderr if as_json and not output.on_terminal(sys.stdout) else sys.stdout
    if not (output.on_terminal(sys.stdin) and output.on_terminal(drawn_on)) or _is_dumb():
        raise click.UsageError("browse needs a terminal; everlog sessions list lists them", ctx)
    from everlog.cli.picker import pick

    with open_root() as store:
        store.list(limit=1)  # an index that is made anew now shows how far it is
        picked = pick(store)
        if as_json:
            from everlog.log.fold import to_builtins

            output.put_json(
                {"session": to_builtins(store.session(picked).metadata) if picked else None}
            )
            return 0
    if picked is None:
        return 0
    return _chat(ctx, picked)


def _is_dumb() -> bool:
    return os.environ.get("TERM", "dumb") == "dumb"


def _chat(ctx: click.Context, session: str) -> int:
    """Go on with a session, as `everlog chat --resume ID` on the same root does."""
    root = ctx.find_root().command
    assert isinstance(root, click.Group)
    chat = root.get_command(ctx, "chat")
    assert chat is not None
    with chat.make_context("chat", ["--resume", session], parent=ctx) as own:
        return chat.invoke(own) or 0
