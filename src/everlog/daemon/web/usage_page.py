"""`/usage` and `/sessions/{id}/usage`: tokens and costs over time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from litestar import Request, Response, get
from litestar.di import NamedDependency
from litestar.params import FromQuery
from markupsafe import Markup

from everlog.app import estimate_price
from everlog.daemon.api.usage_routes import CANDIDATES
from everlog.daemon.web.session_page import SessionView
from everlog.daemon.web.templating import render_response
from everlog.log.usage_report import UsageSummary, summarize_usage
from everlog.ports import UsageReport
from everlog.render.charts import Chart, Series, render_figure
from everlog.render.humanize import money, short_number
from everlog.runtime.runtime import Runtime

MAX_SESSIONS = 10  # the most expensive
RANGES = {"7d": 7, "30d": 30, "90d": 90, "all": 0}  # days; 0: all
DEFAULT_RANGE = "30d"
_AXIS_LABELS = {"day": "Day", "week": "Week of", "month": "Month"}


@get("/usage")
async def show_usage(
    request: Request[Any, Any, Any], runtime: NamedDependency[Runtime], agent: FromQuery[str] = ""
) -> Response[str]:
    """Show the usage of all sessions."""
    range_name = request.query_params.get("range", DEFAULT_RANGE)
    days = _range_days(range_name)
    store = runtime.store.sync

    def read() -> tuple[UsageReport, UsageReport]:
        criteria = {**_range_filter(days), "spenders": CANDIDATES, "fresh": False}
        report = store.usage(agent=agent or None, **criteria)
        return report, store.usage(**criteria) if agent else report

    report, all_agents = await runtime.store.call(read)
    agents = sorted({spender.agent for spender in all_agents.spenders} | ({agent} if agent else set()))
    return await runtime.store.call(
        _render_usage, request, report, days, selected_range=range_name, agent=agent, agents=agents, session_id=""
    )


@get("/usage")
async def show_session_usage(view: NamedDependency[SessionView]) -> Response[str]:
    """Show the usage of one session."""
    request, session = view.request, view.session
    range_name = request.query_params.get("range", "all")
    days = _range_days(range_name)

    def show() -> Response[str]:
        report, title = session.sync.usage(**_range_filter(days)), session.sync.metadata.display_title
        return _render_usage(
            request, report, days, selected_range=range_name, agent="", agents=[], session_id=session.id, title=title
        )

    return await session.store.call(show)


def _render_usage(
    request: Request[Any, Any, Any], report: UsageReport, days: tuple[str, str], **variables: Any
) -> Response[str]:
    """Render a report, in a thread: the first one loads the price lists."""
    shown_days = days if report.spent else ("", "")
    by_time = summarize_usage(report, estimate_price, max_sessions=MAX_SESSIONS, days=shown_days)
    return render_response(
        "usage.html",
        request,
        usage=by_time,
        models=summarize_usage(report, estimate_price, by="model").lines,
        charts=[Markup(render_figure(chart)) for chart in _charts(by_time)],
        ranges=RANGES,
        **variables,
    )


def _charts(report: UsageSummary) -> list[Chart]:
    lines, unit = report.lines, _AXIS_LABELS[report.by]
    names = [line.name for line in lines]
    tokens = (
        Series("Input", "input", [line.input_tokens for line in lines]),
        Series("Output", "output", [line.output_tokens for line in lines]),
        Series("Cached", "cached", [line.cached_tokens for line in lines]),
    )
    charts = [Chart("tokens", f"Tokens per {report.by}", unit, names, tokens, short_number)]
    if report.total.dollars:
        cost = (
            Series("Stated", "stated", [line.cost for line in lines]),
            Series("Estimated", "estimated", [line.estimate for line in lines]),
        )
        charts.append(Chart("cost", f"Cost per {report.by}", unit, names, cost, money))
    return charts


def _range_days(range_name: str) -> tuple[str, str]:
    """Return the first and last day of a range; empty: unlimited."""
    count = RANGES.get(range_name, RANGES[DEFAULT_RANGE])
    if not count:
        return "", ""
    today = datetime.now(UTC).date()
    return (today - timedelta(days=count - 1)).isoformat(), today.isoformat()


def _range_filter(days: tuple[str, str]) -> dict[str, Any]:
    """Return the criteria for a store; the range ends today, ignoring dates in the future."""
    first, last = days
    return {"since": first, "until": f"{last}T23:59:59Z"} if first else {}
