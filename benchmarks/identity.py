"""How many messages a second one process routes: agent, scope, key and aliases."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.report import Figure, middle
from everlog.identity.route import ListedAgent, Router, Routing
from everlog.identity.scope import Inbound
from everlog.settings import DispatchRule, DispatchWhen

MESSAGES = 20_000
ROUNDS = 9
LIMIT = 50_000


def measure(_: Path) -> list[Figure]:
    """All figures about routing."""
    rules = tuple(
        DispatchRule(name=f"rule {number}", agent="sales", when=DispatchWhen(chat=f"group:{number}"))
        for number in range(19)
    )
    last = DispatchRule(name="last", agent="sales", when=DispatchWhen(channel="slack"))
    links: dict[str, tuple[str, ...]] = {
        f"person {number}": (f"telegram:{number}", f"U{number}") for number in range(1000)
    }
    full = Routing(("chat", "sender"), links, (ListedAgent("main"), ListedAgent("sales")), (*rules, last))
    return [
        _figure("messages routed with their keys", Router(), LIMIT),
        _figure("the same with 20 rules, 2,000 linked ids and two dimensions", Router(full), LIMIT),
    ]


def _figure(what: str, router: Router, limit: int) -> Figure:
    messages = [_message(number) for number in range(MESSAGES)]
    rates = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for message in messages:
            router.route(message)
        rates.append(MESSAGES / (time.perf_counter() - start))
    rate = middle(rates)
    note = f"{MESSAGES:,} messages, best of {ROUNDS} rounds {max(rates):,.0f}/s"
    return Figure(what, f"≥ {limit:,}/s", f"{rate:,.0f}/s", rate >= limit, note)


def _message(number: int) -> Inbound:
    """A direct chat, a forum or a thread in turn; no two messages are alike."""
    return (
        Inbound(channel="telegram", chat_id=str(number), chat_type="direct", sender_id=str(number)),
        Inbound(channel="telegram", chat_id=f"-100{number}", chat_type="group", topic_id="42", sender_id=str(number)),
        Inbound(
            channel="slack",
            account="T0ABC",
            chat_id=f"C{number}",
            chat_type="channel",
            topic_id="1700.01",
            space_id="T0ABC",
            space_type="workspace",
            sender_id=f"U{number}",
        ),
    )[number % 3]
