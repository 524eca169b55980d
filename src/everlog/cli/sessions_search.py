"""`everlog sessions search`: finding anything that was said."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from everlog.cli import output
from everlog.cli.completion_source import complete_agent
from everlog.cli.options import json_option, moment, open_root, root_option

if TYPE_CHECKING:
    from everlog.ports import Hit

MOST = 1_000  # sessions
ROLES = ("user", "assistant", "summary", "title", "tool")


@click.command("search")
@click.argument("words", metavar="QUERY…", nargs=-1, required=True)
@click.option("--limit", type=click.IntRange(1, MOST), default=20, show_default=True)
@click.option("--agent", shell_complete=complete_agent, help="Only of this agent.")
@click.option("--sender", help="Only with this sender.")
@click.option("--source", help="Only from this source, such as interactive or cron.")
@click.option("--title", metavar="TEXT", help="Only with this text in the title.")
@click.option("--role", type=click.Choice(ROLES), help="Only what this one said.")
@click.option(
    "--since", callback=moment, metavar="TIME", help="Said since: ISO 8601 (UTC), or 7d, 12h …"
)
@click.option("--until", callback=moment, metavar="TIME", help="Said before.")
@json_option
@root_option()
def search(words: tuple[str, ...], limit: int, as_json: bool, **which: Any) -> None:
    """Find what was said: words, "phrases", prefix*, AND, OR, NOT.

    The best sessions come first, each with its best passages and their seq. What was said since
    the last search is taken in first.
    """
    with open_root() as store, output.progress("taking in what is new") as tell:
        found = store.search(" ".join(words), limit=limit, progress=tell, **which)
    if as_json:
        import msgspec

        output.put_json(msgspec.to_builtins(found))
        return
    if not found.results:
        output.note("nothing was found")
        return
    console = output.console()
    now = time.time()
    for one in found.results:
        head = f"{output.one_line(one.title)}  {one.session}"
        console.print(head, style="bold", markup=False, soft_wrap=True)
        for hit in one.hits:
            seq = f"#{hit.seq}" if hit.seq else ""
            place = f"  {seq:>6} {hit.role} · {output.ago(hit.timestamp, now)}  "
            console.print(place, style="dim", end="", markup=False)
            console.print(_marked(hit), soft_wrap=True)
    if found.total > len(found.results):
        more = "--limit shows more" if limit < MOST else "--agent, --since … narrow it"
        output.note(f"{len(found.results):,} of {found.total:,} sessions; {more}")


def _marked(hit: Hit) -> Any:
    """A snippet with what was found in bold."""
    from rich.text import Text

    shown = Text()
    for piece, is_found in hit.pieces:
        shown.append(output.one_line(piece), style="bold yellow" if is_found else "")
    return shown
