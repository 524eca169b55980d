"""Conformance tests for usage reports."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from everlog.model import TURN_INTERRUPTED, Event, ToolCall, Usage, UsageRow, assistant, user
from everlog.testing.stores.store_suite import StoreSuite

MONDAY, TUESDAY = "2026-11-16T08:00:00.000Z", "2026-11-17T23:59:59.999Z"
SMALL = Usage(input_tokens=10, output_tokens=5, cache_read_tokens=3, cache_write_tokens=2)


class UsageConformance(StoreSuite):
    """Usage is counted by day and model, without duplicates or losses."""

    def test_usage_of_messages_is_summed_by_day_and_model_oldest_first(self) -> None:
        store = self._open_store()
        for _ in range(2):
            session = store.create()
            session.append(user("later", timestamp=TUESDAY))
            session.append(assistant("yes", model="b", usage=SMALL, timestamp=TUESDAY))
            session.append(user("hello", timestamp=MONDAY))
            calls = [ToolCall("1", "ls", {}), ToolCall("2", "ls", {})]
            session.append(assistant(calls, model="a", usage=SMALL, timestamp=MONDAY))
        report = store.usage()
        monday, tuesday = (row for row in report.spent if row.tokens)
        assert (monday.day, monday.model, monday.tool_calls) == ("2026-11-16", "a", 4)
        assert (tuesday.day, tuesday.model, tuesday.tool_calls) == ("2026-11-17", "b", 0)
        assert (monday.input_tokens, monday.output_tokens) == (20, 10)
        assert (monday.cache_read_tokens, monday.cache_write_tokens) == (6, 4)
        assert sum(row.turns for row in report.spent) == 4
        assert (report.sessions, report.behind) == (2, 0)

    def test_a_finished_turn_counts_the_usage_of_its_end_and_not_of_its_messages(self) -> None:
        store = self._open_store()
        session = store.create()
        session.append(user("go", run_id="r1", timestamp=MONDAY))
        session.append(assistant([ToolCall("1", "ask", {})], model="a", usage=SMALL))
        assert sum(row.tokens for row in store.usage().spent) == 20
        whole = Usage(input_tokens=100, output_tokens=50)
        session.end_turn(duration_ms=1, usage=whole, cost=0.5, tool_calls=7, model="m")
        (row,) = store.usage().spent
        assert row == UsageRow(row.day, "m", 1, 7, 100, 50, 0, 0, 0.5)
        assert session.metadata.spending == ()

    def test_an_interrupted_turn_counts_the_usage_of_its_messages(self) -> None:
        store = self._open_store()
        session = store.create(model="a")
        session.append(user("go", run_id="r1", timestamp=MONDAY))
        session.append(assistant("half", usage=SMALL, timestamp=MONDAY))
        session.append(Event(kind=TURN_INTERRUPTED, data={"runId": "r1"}))
        session = self._reopen_session(store, session)
        (row,) = session.metadata.spent
        assert row == UsageRow("2026-11-16", "a", 1, 0, 10, 5, 3, 2, 0.0)
        assert session.store.usage().spent == (row,)

    def test_a_fork_starts_without_usage(self) -> None:
        store = self._open_store()
        session = store.create()
        session.append(user("go", timestamp=MONDAY))
        session.append(assistant("ok", model="a", usage=SMALL, timestamp=MONDAY))
        before = store.usage().spent
        fork = session.fork()
        assert (fork.metadata.spent, fork.metadata.spending) == ((), ())
        assert store.usage().spent == before
        fork.append(assistant("on", model="a", usage=SMALL, timestamp=TUESDAY))
        assert [row.day for row in store.usage().spent] == ["2026-11-16", "2026-11-17"]

    def test_usage_can_be_filtered_by_day_and_session(self) -> None:
        store = self._open_store()
        for agent in ("main", "other"):
            session = store.create(agent=agent)
            for stamp in (MONDAY, TUESDAY):
                session.append(assistant("x", model=agent, usage=SMALL, timestamp=stamp))

        def days(**criteria: Any) -> list[tuple[str, str]]:
            return [(row.day[8:], row.model) for row in store.usage(**criteria).spent]

        assert days(agent="main") == [("16", "main"), ("17", "main")]
        assert days(agent="main", since="2026-11-17") == [("17", "main")]
        assert days(since="2026-11-16T23:00:00Z", until="2026-11-17", agent="other") == [("16", "other")]
        assert days(until="2026-11-17T00:00:01Z", agent="other")[-1] == ("17", "other")
        assert days(since="2026-11-18") == []
        assert store.usage(since="2026-11-18").spenders == ()

    def test_the_sessions_with_the_most_tokens_are_listed_with_their_models(self) -> None:
        store = self._open_store()
        for number in range(4):
            session = store.create(title=f"number {number}")
            for model in ("a", "b"):
                usage = replace(SMALL, input_tokens=1000 * number + 1)
                session.append(assistant("x", model=model, usage=usage, timestamp=MONDAY))
        sessions = store.usage(spenders=2).spenders
        assert [row.title for row in sessions] == ["number 3", "number 2"]
        assert [(row.model, row.input_tokens) for row in sessions[0].spent] == [("a", 3001), ("b", 3001)]
        assert store.usage(spenders=0).spenders == ()

    def test_usage_with_and_without_a_stated_cost_is_counted_separately(self) -> None:
        store = self._open_store()
        for cost in (0.25, 0.0, 0.5):
            usage = replace(SMALL, cost=cost)
            store.create().append(assistant("x", model="m", usage=usage, timestamp=MONDAY))
        assert [(row.cost, row.input_tokens) for row in store.usage().spent] == [(0.75, 20), (0.0, 10)]

    def test_a_listed_session_separates_usage_without_a_stated_cost(self) -> None:
        store = self._open_store()
        session = store.create()
        for stamp, cost in ((MONDAY, 0.0), (TUESDAY, 0.25)):
            usage = replace(SMALL, cost=cost)
            session.append(assistant("x", model="m", usage=usage, timestamp=stamp))
        (listed,) = store.usage().spenders
        assert [(row.day, row.model, row.cost, row.input_tokens) for row in listed.spent] == [
            ("2026-11-17", "m", 0.25, 10),
            ("2026-11-16", "m", 0.0, 10),
        ]

    def test_the_sessions_with_the_highest_stated_costs_are_listed_too(self) -> None:
        store = self._open_store()
        for number, cost in enumerate((3.0, 0.0, 2.0, 0.0, 1.0, 0.0)):
            usage = Usage(input_tokens=1000 * number + 1, cost=cost)
            session = store.create(title=f"number {number}")
            session.append(assistant("x", model="m", usage=usage, timestamp=MONDAY))

        def titles(limit: int, **criteria: Any) -> list[str]:
            sessions = store.usage(spenders=limit, **criteria).spenders
            return [row.title.removeprefix("number ") for row in sessions]

        assert titles(1) == ["5", "0"]
        assert titles(2) == ["5", "4", "2", "0"]
        assert titles(2, agent="main", since="2026-11-16") == ["5", "4", "2", "0"]
        assert titles(6) == ["5", "4", "3", "2", "1", "0"]
        assert titles(0) == titles(1, since="2026-11-17") == []

    def test_deleting_a_session_removes_its_usage(self) -> None:
        store = self._open_store()
        session = store.create()
        session.append(assistant("x", model="m", usage=SMALL, timestamp=MONDAY))
        assert store.usage().sessions == 1
        session.delete()
        assert store.usage().spent == ()
