"""`everlog sessions search`: full-text search in all sessions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from everlog.cli import output
from everlog.cli.options import command, filter_options, limit_option, open_chosen_store, time_option

if TYPE_CHECKING:
    from everlog.ports import Hit

MAX_LIMIT = 1_000  # sessions
ROLES = ("user", "assistant", "summary", "title", "tool")


@command("search")
@click.argument("words", metavar="QUERY…", nargs=-1, required=True)
@limit_option(MAX_LIMIT, 20, "sessions")
@filter_options("Search")
@click.option("--title", metavar="TEXT", help="Search only sessions with TEXT in the title.")
@click.option("--role", type=click.Choice(ROLES), help="Search only text of this role.")
@time_option("--since", "Search only messages since TIME: ISO 8601 (UTC), or an age such as 7d or 12h.")
@time_option("--until", "Search only messages before TIME.")
def search(words: tuple[str, ...], limit: int, as_json: bool, **criteria: Any) -> None:
    """Search messages: words, "phrases", prefix*, AND, OR, NOT.

    Prints the best sessions first, each with its best passages and their seq. Messages added since
    the last search are indexed first.
    """
    with open_chosen_store() as store, output.progress("indexing new messages") as on_progress:
        results = store.search(" ".join(words), limit=limit, progress=on_progress, **criteria)
    if as_json:
        import msgspec

        output.print_json(msgspec.to_builtins(results))
        return
    if not results.results:
        output.info("no matches")
        return
    console = output.console()
    now = time.time()
    for session in results.results:
        head = f"{output.one_line(session.title)}  {session.session}"
        console.print(head, style="bold", markup=False, soft_wrap=True)
        for hit in session.hits:
            seq = f"#{hit.seq}" if hit.seq else ""
            label = f"  {seq:>6} {hit.role} · {output.ago(hit.timestamp, now)}  "
            console.print(label, style="dim", end="", markup=False)
            console.print(_highlight(hit), soft_wrap=True)
    if results.total > len(results.results):
        more = "--limit shows more" if limit < MAX_LIMIT else "narrow it with --agent, --since, …"
        output.info(f"{len(results.results):,} of {results.total:,} sessions; {more}")


def _highlight(hit: Hit) -> Any:
    """Return a snippet with the matches in bold."""
    from rich.text import Text

    snippet = Text()
    for chunk, is_match in hit.fragments:
        snippet.append(output.one_line(chunk), style="bold yellow" if is_match else "")
    return snippet
