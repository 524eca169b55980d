"""What every store must tell of usage; part of its conformance."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from everlog.model import TURN_INTERRUPTED, Event, ToolCall, Usage, UsageRow, assistant, user
from everlog.testing.stores.store_suite import Suite

MONDAY, TUESDAY = "2026-11-16T08:00:00.000Z", "2026-11-17T23:59:59.999Z"
SMALL = Usage(input_tokens=10, output_tokens=5, cache_read_tokens=3, cache_write_tokens=2)


class SpendingConformance(Suite):
    """Counts by day and model: nothing twice, nothing lost."""

    def test_usage_of_messages_is_summed_by_day_and_model_oldest_first(self) -> None:
        store = self._store()
        for _ in range(2):
            session = store.create()
            session.append(user("later", timestamp=TUESDAY))
            session.append(assistant("yes", model="b", usage=SMALL, timestamp=TUESDAY))
            session.append(user("hello", timestamp=MONDAY))
            calls = [ToolCall("1", "ls", {}), ToolCall("2", "ls", {})]
            session.append(assistant(calls, model="a", usage=SMALL, timestamp=MONDAY))
        used = store.usage()
        monday, tuesday = (one for one in used.spent if one.tokens)
        assert (monday.day, monday.model, monday.tool_calls) == ("2026-11-16", "a", 4)
        assert (tuesday.day, tuesday.model, tuesday.tool_calls) == ("2026-11-17", "b", 0)
        assert (monday.input_tokens, monday.output_tokens) == (20, 10)
        assert (monday.cache_read_tokens, monday.cache_write_tokens) == (6, 4)
        assert sum(one.turns for one in used.spent) == 4
        assert (used.sessions, used.behind) == (2, 0)

    def test_a_turn_counts_as_its_end_says_and_its_messages_do_not_count_again(self) -> None:
        store = self._store()
        session = store.create()
        session.append(user("go", run_id="r1", timestamp=MONDAY))
        session.append(assistant([ToolCall("1", "ask", {})], model="a", usage=SMALL))
        assert sum(one.tokens for one in store.usage().spent) == 20
        whole = Usage(input_tokens=100, output_tokens=50)
        session.end_turn(duration_ms=1, usage=whole, cost=0.5, tool_calls=7, model="m")
        (one,) = store.usage().spent
        assert one == UsageRow(one.day, "m", 1, 7, 100, 50, 0, 0, 0.5)
        assert session.metadata.spending == ()

    def test_a_turn_that_was_interrupted_counts_what_its_messages_say(self) -> None:
        store = self._store()
        session = store.create(model="a")
        session.append(user("go", run_id="r1", timestamp=MONDAY))
        session.append(assistant("half", usage=SMALL, timestamp=MONDAY))
        session.append(Event(kind=TURN_INTERRUPTED, data={"runId": "r1"}))
        session = self._again(store, session)
        (one,) = session.metadata.spent
        assert one == UsageRow("2026-11-16", "a", 1, 0, 10, 5, 3, 2, 0.0)
        assert session.store.usage().spent == (one,)

    def test_a_fork_begins_with_nothing_spent(self) -> None:
        store = self._store()
        session = store.create()
        session.append(user("go", timestamp=MONDAY))
        session.append(assistant("ok", model="a", usage=SMALL, timestamp=MONDAY))
        before = store.usage().spent
        fork = session.fork()
        assert (fork.metadata.spent, fork.metadata.spending) == ((), ())
        assert store.usage().spent == before
        fork.append(assistant("on", model="a", usage=SMALL, timestamp=TUESDAY))
        assert [one.day for one in store.usage().spent] == ["2026-11-16", "2026-11-17"]

    def test_usage_can_be_asked_for_some_days_and_some_sessions(self) -> None:
        store = self._store()
        for agent in ("main", "other"):
            session = store.create(agent=agent)
            for stamp in (MONDAY, TUESDAY):
                session.append(assistant("x", model=agent, usage=SMALL, timestamp=stamp))

        def days(**which: Any) -> list[tuple[str, str]]:
            return [(one.day[8:], one.model) for one in store.usage(**which).spent]

        assert days(agent="main") == [("16", "main"), ("17", "main")]
        assert days(agent="main", since="2026-11-17") == [("17", "main")]
        assert days(since="2026-11-16T23:00:00Z", until="2026-11-17", agent="other") == [
            ("16", "other")
        ]
        assert days(until="2026-11-17T00:00:01Z", agent="other")[-1] == ("17", "other")
        assert days(since="2026-11-18") == []
        assert store.usage(since="2026-11-18").spenders == ()

    def test_the_sessions_that_took_most_are_named_with_their_models(self) -> None:
        store = self._store()
        for number in range(4):
            session = store.create(title=f"number {number}")
            for model in ("a", "b"):
                usage = replace(SMALL, input_tokens=1000 * number + 1)
                session.append(assistant("x", model=model, usage=usage, timestamp=MONDAY))
        found = store.usage(spenders=2).spenders
        assert [one.title for one in found] == ["number 3", "number 2"]
        assert [(one.model, one.input_tokens) for one in found[0].spent] == [
            ("a", 3001),
            ("b", 3001),
        ]
        assert store.usage(spenders=0).spenders == ()

    def test_what_has_a_stated_cost_stands_apart_from_what_has_none(self) -> None:
        store = self._store()
        for cost in (0.25, 0.0, 0.5):
            usage = replace(SMALL, cost=cost)
            store.create().append(assistant("x", model="m", usage=usage, timestamp=MONDAY))
        assert [(one.cost, one.input_tokens) for one in store.usage().spent] == [
            (0.75, 20),
            (0.0, 10),
        ]

    def test_a_session_that_was_named_keeps_what_has_no_stated_cost_apart(self) -> None:
        store = self._store()
        session = store.create()
        for stamp, cost in ((MONDAY, 0.0), (TUESDAY, 0.25)):
            usage = replace(SMALL, cost=cost)
            session.append(assistant("x", model="m", usage=usage, timestamp=stamp))
        (one,) = store.usage().spenders
        assert [(row.day, row.model, row.cost, row.input_tokens) for row in one.spent] == [
            ("2026-11-17", "m", 0.25, 10),
            ("2026-11-16", "m", 0.0, 10),
        ]

    def test_the_highest_stated_costs_are_named_beside_the_most_tokens(self) -> None:
        store = self._store()
        for number, cost in enumerate((3.0, 0.0, 2.0, 0.0, 1.0, 0.0)):
            usage = Usage(input_tokens=1000 * number + 1, cost=cost)
            session = store.create(title=f"number {number}")
            session.append(assistant("x", model="m", usage=usage, timestamp=MONDAY))

        def titles(most: int, **which: Any) -> list[str]:
            found = store.usage(spenders=most, **which).spenders
            return [one.title.removeprefix("number ") for one in found]

        assert titles(1) == ["5", "0"]
        assert titles(2) == ["5", "4", "2", "0"]
        assert titles(2, agent="main", since="2026-11-16") == ["5", "4", "2", "0"]
        assert titles(6) == ["5", "4", "3", "2", "1", "0"]
        assert titles(0) == titles(1, since="2026-11-17") == []

    def test_what_a_deleted_session_spent_goes_with_it(self) -> None:
        store = self._store()
        session = store.create()
        session.append(assistant("x", model="m", usage=SMALL, timestamp=MONDAY))
        assert store.usage().sessions == 1
        session.delete()
        assert store.usage().spent == ()
