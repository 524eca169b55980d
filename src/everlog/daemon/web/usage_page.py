"""`/usage` and `/sessions/{id}/usage`: tokens and costs over time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from litestar import Request, Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery
from markupsafe import Markup

from everlog.app import estimate_price
from everlog.daemon.api.session_lookup import find_session
from everlog.daemon.api.usage_routes import CANDIDATES
from everlog.daemon.web.list_page import session_address
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


@get("/usage", include_in_schema=False)
async def show_usage(
    *, request: Request[Any, Any, Any], runtime: NamedDependency[Runtime], agent: FromQuery[str | None] = None
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
    return await _render_usage(
        request,
        runtime,
        report,
        days,
        selected_range=range_name,
        agent=agent or "",
        agents=agents,
        chips=[(name, _range_address("/usage", name, agent)) for name in RANGES],
        agent_chips=[(name, _range_address("/usage", range_name, name)) for name in agents],
        all_agents=_range_address("/usage", range_name, None),
        session=None,
    )


@get("/sessions/{session_id:str}/usage", include_in_schema=False)
async def show_session_usage(
    request: Request[Any, Any, Any], runtime: NamedDependency[Runtime], session_id: FromPath[str]
) -> Response[str]:
    """Show the usage of one session."""
    session = (await find_session(runtime, session_id)).sync
    range_name = request.query_params.get("range", "all")
    days = _range_days(range_name)

    def read() -> tuple[UsageReport, str]:
        return session.usage(**_range_filter(days)), session.metadata.display_title

    report, title = await runtime.store.call(read)
    address = session_address(session.id, "usage")
    return await _render_usage(
        request,
        runtime,
        report,
        days,
        selected_range=range_name,
        agent="",
        agents=[],
        chips=[(name, _range_address(address, name, None)) for name in RANGES],
        agent_chips=[],
        all_agents="",
        session={"title": title, "address": session_address(session.id)},
    )


async def _render_usage(
    request: Request[Any, Any, Any], runtime: Runtime, report: UsageReport, days: tuple[str, str], **variables: Any
) -> Response[str]:
    def summarize() -> tuple[UsageSummary, UsageSummary]:  # slow: loads the price lists
        shown_days = days if report.spent else ("", "")
        by_time = summarize_usage(report, estimate_price, max_sessions=MAX_SESSIONS, days=shown_days)
        return by_time, summarize_usage(report, estimate_price, by="model")

    by_time, models = await runtime.store.call(summarize)
    return render_response(
        "usage.html",
        request,
        usage=by_time,
        models=models.lines,
        charts=[Markup(render_figure(chart)) for chart in _charts(by_time)],
        top_sessions=[(spender, session_address(spender.session)) for spender in by_time.costliest],
        ranges={"7d": "7 days", "30d": "30 days", "90d": "90 days", "all": "All"},
        **variables,
    )


def _charts(report: UsageSummary) -> list[Chart]:
    lines, unit = report.lines, _AXIS_LABELS[report.by]
    names = [line.name for line in lines]
    tokens = Chart(
        "tokens",
        f"Tokens per {report.by}",
        unit,
        names,
        (
            Series("Input", "input", [line.input_tokens for line in lines]),
            Series("Output", "output", [line.output_tokens for line in lines]),
            Series("Cached", "cached", [line.cached_tokens for line in lines]),
        ),
        short_number,
    )
    if not report.total.dollars:
        return [tokens]
    cost = Chart(
        "cost",
        f"Cost per {report.by}",
        unit,
        names,
        (
            Series("Stated", "stated", [line.cost for line in lines]),
            Series("Estimated", "estimated", [line.estimate for line in lines]),
        ),
        money,
    )
    return [tokens, cost]


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


def _range_address(path: str, range_name: str, agent: str | None) -> str:
    query = urlencode({"range": range_name} | ({"agent": agent} if agent else {}))
    return f"{path}?{query}"


ROUTES: Sequence[Any] = (show_usage, show_session_usage)
