"""`everlog sessions stats`: turns, tool calls, tokens and cost over time."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import click

from everlog.cli import output
from everlog.cli.options import (
    command,
    filter_options,
    find_session,
    open_chosen_store,
    optional_session_argument,
    time_option,
)
from everlog.render.humanize import money, short_number

if TYPE_CHECKING:
    from everlog.log.usage_report import Grouping, UsageLine, UsageSummary

TOP_SESSIONS = 10  # listed as the costliest
CANDIDATES = 100  # sessions that are priced to find them
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_BAR_MIN = 6  # columns of the narrowest bar


@command("stats")
@optional_session_argument
@time_option("--since", "Count from this day on: ISO 8601 (UTC), or an age such as 30d.")
@time_option("--until", "Count only days that began before TIME.")
@filter_options("Count")
@click.option(
    "--by",
    type=click.Choice(("day", "week", "month", "model")),
    help="Print one line for each; default: day, week or month, depending on the time span.",
)
def stats(
    session_id: str | None, since: str | None, until: str | None, by: str | None, as_json: bool, **criteria: Any
) -> None:
    """Show usage over time: turns, tool calls, tokens and cost.

    Covers all sessions, or only ID. A cost with ≈ is an estimate from the providers' price lists,
    used where no cost was reported. Days are in UTC.
    """
    from everlog.app import estimate_price
    from everlog.log.usage_report import summarize_usage

    if session_id is not None and any(criteria.values()):
        raise click.UsageError("--agent, --sender and --source cannot be combined with an ID")
    with open_chosen_store() as store, output.progress("reading new records") as on_progress:
        if session_id is None:
            usage = store.usage(since=since, until=until, spenders=CANDIDATES, progress=on_progress, **criteria)
        else:
            usage = find_session(store, session_id).usage(since=since, until=until)
    report = summarize_usage(usage, estimate_price, by=cast("Grouping | None", by), max_sessions=TOP_SESSIONS)
    if as_json:
        output.print_json(report)
        return
    if not report.sessions:
        is_filtered = session_id or since or until or any(criteria.values())
        output.info("no usage matches" if is_filtered else "no usage yet")
    else:
        _print_totals(report, is_single=session_id is not None)
        print()
        _print_lines(report)
        if report.costliest and session_id is None:
            print()
            _print_costliest(report)
    if report.unpriced:
        names = ", ".join(name or "an unknown model" for name in report.unpriced)
        output.info(f"no price is known for {names}")
    if report.behind:
        behind = output.plural(report.behind, "session")
        output.info(f"{behind} of other programs could not be read to the end; the totals are incomplete")


def _print_totals(report: UsageSummary, *, is_single: bool) -> None:
    total = report.total
    sessions = "" if is_single else f"{output.plural(report.sessions, 'session')}, "
    turns = output.plural(total.turns, "turn")
    calls = output.plural(total.tool_calls, "tool call")
    print(f"{sessions}{turns}, {calls}, {format_cost(total) or 'no cost known'}")
    print(
        f"{total.tokens:,} tokens: {total.input_tokens:,} in, {total.output_tokens:,} out, "
        f"{total.cache_read_tokens:,} cache reads, {total.cache_write_tokens:,} cache writes"
    )


def _print_lines(report: UsageSummary) -> None:
    titles = [report.by.upper(), "TURNS", "CALLS", "TOKENS", "COST"]
    rows = [
        [
            line.name or "unknown",
            f"{line.turns:,}",
            f"{line.tool_calls:,}",
            short_number(line.tokens),
            format_cost(line),
        ]
        for line in report.lines
    ]
    tokens, dollars = [float(line.tokens) for line in report.lines], [line.dollars for line in report.lines]
    charts = [(5, " ", dollars), (4, "", tokens)]  # each right of the numbers that it shows
    width = _bar_width(titles, rows)
    if width < 2 * _BAR_MIN or not any(dollars):
        charts = charts[1:] if width >= _BAR_MIN else []
    for position, title, values in charts:
        titles.insert(position, title)
        for row, bar in zip(rows, bar_chart(values, min(width // len(charts), 40)), strict=True):
            row.insert(position, bar)
    right = ("TURNS", "CALLS", "TOKENS", "COST")
    output.print_table(titles, rows, right=right, elastic=titles[0], droppable=("CALLS", "TURNS"))


def _bar_width(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Return the columns that the table leaves free for two bars; 0 in piped output."""
    if not output.is_terminal(sys.stdout) or not _can_draw():
        return 0
    table = [titles, *rows]
    used = sum(max(output.display_width(row[column]) for row in table) for column in range(len(titles)))
    return output.console().width - used - 2 * (len(titles) + 1)


def _can_draw() -> bool:
    """Return whether the terminal's encoding has block characters."""
    try:
        _EIGHTHS.encode(sys.stdout.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def bar_chart(values: Sequence[float], width: int) -> list[str]:
    """Return a bar for each value, the largest `width` columns wide; only 0 has an empty bar."""
    largest = max(values, default=0.0)
    bars = []
    for value in values:
        eighths = round(value / largest * width * 8) if largest > 0 else 0
        whole, remainder = divmod(max(eighths, 1 if value > 0 else 0), 8)
        bars.append(("█" * whole + _EIGHTHS[remainder]).rstrip())
    return bars


def _print_costliest(report: UsageSummary) -> None:
    rows = [
        (
            session.session,
            session.title,
            session.agent,
            f"{session.spent.turns:,}",
            short_number(session.spent.tokens),
            format_cost(session.spent),
        )
        for session in report.costliest
    ]
    titles = ("ID", "TITLE", "AGENT", "TURNS", "TOKENS", "COST")
    right = ("TURNS", "TOKENS", "COST")
    output.print_table(titles, rows, right=right, elastic="TITLE", droppable=("AGENT", "TURNS", "TOKENS"))


def format_cost(line: UsageLine) -> str:
    """Format the cost in dollars; with ≈ if partly estimated, empty if unknown."""
    if line.estimate:
        return f"≈ {money(line.dollars)}"
    return money(line.cost) if line.cost else ""
