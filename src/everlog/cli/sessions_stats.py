"""`everlog sessions stats`: what was spent, on what, and when."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import click

from everlog.cli import output
from everlog.cli.completion_source import complete_agent, complete_session
from everlog.cli.options import json_option, moment, open_root, root_option

if TYPE_CHECKING:
    from everlog.log.usage_report import By, Line, Reckoning

SHOWN = 10  # sessions
CANDIDATES = 100  # sessions that are priced to find those
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_NARROWEST = 6  # columns of a bar


@click.command("stats")
@click.argument("session_id", metavar="[ID]", required=False, shell_complete=complete_session)
@click.option(
    "--since", callback=moment, metavar="TIME", help="From this day on: ISO 8601 (UTC), or 30d …"
)
@click.option("--until", callback=moment, metavar="TIME", help="Only days that began before.")
@click.option("--agent", shell_complete=complete_agent, help="Only of this agent.")
@click.option("--sender", help="Only with this sender.")
@click.option("--source", help="Only from this source, such as interactive or cron.")
@click.option(
    "--by",
    type=click.Choice(("day", "week", "month", "model")),
    help="A line for each; default: day, week or month, whichever fits.",
)
@json_option
@root_option()
def stats(
    session_id: str | None,
    since: str | None,
    until: str | None,
    by: str | None,
    as_json: bool,
    **which: Any,
) -> None:
    """Show what was spent: turns, tool calls, tokens and cost over time.

    Without an ID it is about all sessions. A cost with ≈ is an estimate by the providers' price
    lists, where none was stated. Days are those of UTC.
    """
    from everlog.app import price
    from everlog.log.usage_report import reckon

    if session_id is not None and any(which.values()):
        raise click.UsageError("one session is of one agent, sender and source: give no option")
    with open_root() as store, output.progress("reading what is new") as tell:
        if session_id is None:
            used = store.usage(
                since=since, until=until, spenders=CANDIDATES, progress=tell, **which
            )
        else:
            used = store.session(session_id).usage(since=since, until=until)
    found = reckon(used, price, by=cast("By | None", by), most=SHOWN)
    if as_json:
        output.put_json(found)
        return
    if not found.sessions:
        narrowed = session_id or since or until or any(which.values())
        output.note("nothing was spent there" if narrowed else "nothing was spent yet")
    else:
        _put_totals(found, alone=session_id is not None)
        print()
        _put_lines(found)
        if found.costliest and session_id is None:
            print()
            _put_costliest(found)
    sys.stdout.flush()
    if found.unpriced:
        names = ", ".join(name or "an unknown model" for name in found.unpriced)
        output.note(f"no price is known for {names}")
    if found.behind:
        behind = output.plural(found.behind, "session")
        output.note(f"{behind} of other programs could not be read to the end and count in part")


def _put_totals(found: Reckoning, *, alone: bool) -> None:
    total = found.total
    sessions = "" if alone else f"{output.plural(found.sessions, 'session')}, "
    turns = output.plural(total.turns, "turn")
    calls = output.plural(total.tool_calls, "tool call")
    print(f"{sessions}{turns}, {calls}, {cost_of(total) or 'no cost known'}")
    print(
        f"{total.tokens:,} tokens: {total.input_tokens:,} in, {total.output_tokens:,} out, "
        f"{total.cache_read_tokens:,} from the cache, {total.cache_write_tokens:,} into it"
    )


def _put_lines(found: Reckoning) -> None:
    from everlog.render.humanize import short

    titles = [found.by.upper(), "TURNS", "CALLS", "TOKENS", "COST"]
    rows = [
        [
            one.name or "unknown",
            f"{one.turns:,}",
            f"{one.tool_calls:,}",
            short(one.tokens),
            cost_of(one),
        ]
        for one in found.lines
    ]
    bars = [("", [float(one.tokens) for one in found.lines])]
    bars.append((" ", [one.dollars for one in found.lines]))
    places = (4, 5)  # behind the numbers that they show
    width = _room(titles, rows)
    if width >= 2 * _NARROWEST and any(bars[1][1]):
        drawn = [(place, *bar, width // 2) for place, bar in zip(places, bars, strict=True)]
    elif width >= _NARROWEST:
        drawn = [(4, *bars[0], width)]
    else:
        drawn = []
    for place, title, values, columns in reversed(drawn):
        titles.insert(place, title)
        for row, bar in zip(rows, bar_chart(values, min(columns, 40)), strict=True):
            row.insert(place, bar)
    right = ("TURNS", "CALLS", "TOKENS", "COST")
    output.put_table(titles, rows, right=right, elastic=titles[0], spare=("CALLS", "TURNS"))


def _room(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Columns of a terminal that a table leaves for two bars; none when it is piped."""
    if not output.on_terminal(sys.stdout) or not _can_draw():
        return 0
    table = [titles, *rows]
    taken = sum(max(output.columns(row[n]) for row in table) for n in range(len(titles)))
    return output.console().width - taken - 2 * (len(titles) + 1)


def _can_draw() -> bool:
    """Whether the terminal's encoding has block characters."""
    try:
        _EIGHTHS.encode(sys.stdout.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def bar_chart(values: Sequence[float], width: int) -> list[str]:
    """A bar for each value, the largest so many columns wide; what is not nothing is seen."""
    largest = max(values, default=0.0)
    bars = []
    for value in values:
        eighths = round(value / largest * width * 8) if largest > 0 else 0
        whole, rest = divmod(max(eighths, 1 if value > 0 else 0), 8)
        bars.append(("█" * whole + _EIGHTHS[rest]).rstrip())
    return bars


def _put_costliest(found: Reckoning) -> None:
    from everlog.render.humanize import short

    rows = [
        (
            one.session,
            one.title,
            one.agent,
            f"{one.spent.turns:,}",
            short(one.spent.tokens),
            cost_of(one.spent),
        )
        for one in found.costliest
    ]
    titles = ("ID", "TITLE", "AGENT", "TURNS", "TOKENS", "COST")
    right = ("TURNS", "TOKENS", "COST")
    output.put_table(titles, rows, right=right, elastic="TITLE", spare=("AGENT", "TURNS", "TOKENS"))


def cost_of(line: Line) -> str:
    """Dollars; with ≈ if some of it is an estimate; empty if nothing is known."""
    from everlog.render.humanize import money

    if line.estimate:
        return f"≈ {money(line.dollars)}"
    return money(line.cost) if line.cost else ""
