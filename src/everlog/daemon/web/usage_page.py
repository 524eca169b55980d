"""`/usage` and `/sessions/{id}/usage`: what was spent, on what, and when."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from litestar import Request, Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery
from markupsafe import Markup

from everlog.app import price
from everlog.daemon.api.requests import find
from everlog.daemon.api.usage_routes import CANDIDATES
from everlog.daemon.web.list_page import address_of
from everlog.daemon.web.templating import answer
from everlog.log.usage_report import Reckoning, reckon
from everlog.ports import UsageReport
from everlog.render.charts import Chart, Series, figure
from everlog.render.humanize import money, short
from everlog.runtime.runtime import Runtime

SHOWN = 10  # sessions
RANGES = {"7d": 7, "30d": 30, "90d": 90, "all": 0}  # days; 0: all
DEFAULT = "30d"
_UNITS = {"day": "Day", "week": "Week of", "month": "Month"}


@get("/usage", include_in_schema=False)
async def usage(
    *,
    request: Request[Any, Any, Any],
    runtime: NamedDependency[Runtime],
    agent: FromQuery[str | None] = None,
) -> Response[str]:
    """All sessions."""
    chosen = request.query_params.get("range", DEFAULT)
    days = _days(chosen)
    store = runtime.store.sync

    def read() -> tuple[UsageReport, UsageReport]:
        asked = {**_between(days), "spenders": CANDIDATES, "fresh": False}
        used = store.usage(agent=agent or None, **asked)
        return used, store.usage(**asked) if agent else used

    used, everybody = await runtime.store.call(read)
    agents = sorted({one.agent for one in everybody.spenders} | ({agent} if agent else set()))
    return await _answer(
        request,
        runtime,
        used,
        days,
        chosen=chosen,
        agent=agent or "",
        agents=agents,
        chips=[(name, _address("/usage", name, agent)) for name in RANGES],
        agent_chips=[(name, _address("/usage", chosen, name)) for name in agents],
        all_agents=_address("/usage", chosen, None),
        session=None,
    )


@get("/sessions/{session_id:str}/usage", include_in_schema=False)
async def session_usage(
    request: Request[Any, Any, Any],
    runtime: NamedDependency[Runtime],
    session_id: FromPath[str],
) -> Response[str]:
    """One session."""
    session = (await find(runtime, session_id)).sync
    chosen = request.query_params.get("range", "all")
    days = _days(chosen)

    def read() -> tuple[UsageReport, str]:
        return session.usage(**_between(days)), session.metadata.title

    used, title = await runtime.store.call(read)
    here = address_of(session.id, "usage")
    return await _answer(
        request,
        runtime,
        used,
        days,
        chosen=chosen,
        agent="",
        agents=[],
        chips=[(name, _address(here, name, None)) for name in RANGES],
        agent_chips=[],
        all_agents="",
        session={"title": title, "address": address_of(session.id)},
    )


async def _answer(
    request: Request[Any, Any, Any],
    runtime: Runtime,
    used: UsageReport,
    days: tuple[str, str],
    **what: Any,
) -> Response[str]:
    def made() -> tuple[Reckoning, Reckoning]:
        time = reckon(used, price, most=SHOWN, days=days if used.spent else ("", ""))
        return time, reckon(used, price, by="model")

    found, models = await runtime.store.call(made)  # in a thread: price lists take long to load
    return answer(
        "usage.html",
        request,
        found=found,
        models=models.lines,
        charts=[Markup(figure(one)) for one in _charts(found)],
        costly=[(one, address_of(one.session)) for one in found.costliest],
        ranges={"7d": "7 days", "30d": "30 days", "90d": "90 days", "all": "All"},
        **what,
    )


def _charts(found: Reckoning) -> list[Chart]:
    lines, unit = found.lines, _UNITS[found.by]
    names = [one.name for one in lines]
    tokens = Chart(
        "tokens",
        f"Tokens per {found.by}",
        unit,
        names,
        (
            Series("Input", "input", [one.input_tokens for one in lines]),
            Series("Output", "output", [one.output_tokens for one in lines]),
            Series("Cached", "cached", [one.cached_tokens for one in lines]),
        ),
        short,
    )
    if not found.total.dollars:
        return [tokens]
    cost = Chart(
        "cost",
        f"Cost per {found.by}",
        unit,
        names,
        (
            Series("Stated", "stated", [one.cost for one in lines]),
            Series("Estimated", "estimated", [one.estimate for one in lines]),
        ),
        money,
    )
    return [tokens, cost]


def _days(chosen: str) -> tuple[str, str]:
    """The first and the last day of a range; empty: open."""
    count = RANGES.get(chosen, RANGES[DEFAULT])
    if not count:
        return "", ""
    today = datetime.now(UTC).date()
    return (today - timedelta(days=count - 1)).isoformat(), today.isoformat()


def _between(days: tuple[str, str]) -> dict[str, Any]:
    """How a store is asked for them: a range ends today, whatever a wrong clock dated later."""
    first, last = days
    return {"since": first, "until": f"{last}T23:59:59Z"} if first else {}


def _address(where: str, chosen: str, agent: str | None) -> str:
    query = urlencode({"range": chosen} | ({"agent": agent} if agent else {}))
    return f"{where}?{query}"


ROUTES: Sequence[Any] = (usage, session_usage)
