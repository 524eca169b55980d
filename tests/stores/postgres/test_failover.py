"""The primary is lost and its standby promoted, under load: writers go on there, and nothing is missing."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import pytest

from tests.stores.postgres.proxy import Proxy
from tests.stores.postgres.server import USER, Server, both
from tests.stores.postgres.workers import Crew, Outcome, until

pytestmark = pytest.mark.crash

FAILOVERS = int(os.environ.get("EVERLOG_TEST_FAILOVERS", "1"))


class Pair(NamedTuple):
    """A primary, a standby that must have everything, and the wire between them."""

    primary: Server
    standby: Server
    wire: Proxy

    @property
    def url(self) -> str:
        return both(self.primary, self.standby)

    def fail_over(self) -> None:
        """What an operator does when the primary is gone."""
        self.primary.kill()
        self.standby.promote()


@contextmanager
def replicated() -> Iterator[Pair]:
    with (
        Server({"synchronous_standby_names": "*"}) as primary,
        Proxy(primary.port) as wire,
        Server({"primary_conninfo": f"host=127.0.0.1 port={wire.port} user={USER}"}, copy_of=primary) as standby,
    ):
        with primary.connect() as asking:
            state = "SELECT sync_state FROM pg_stat_replication"
            until(lambda: asking.execute(state).fetchall() == [("sync",)], "a standby that follows")
        yield Pair(primary, standby, wire)


def test_a_failover_to_a_synchronous_standby_costs_nothing_and_doubles_nothing() -> None:
    for _ in range(FAILOVERS):
        with replicated() as pair, Crew("Everlog", pair.url) as crew:
            crew.more(50)
            pair.fail_over()
            crew.more(50)
            crew.finish()
            found = crew.outcome(pair.standby.url)
        print(f"failover {found}")
        assert found.wrong == []
        assert found.stored == found.acknowledged >= 100


# --- the standby is cut off first, and somebody ends the waiting for it


@pytest.fixture(scope="module")
def behind() -> dict[str, list[Outcome]]:
    """What became of several kinds of writers, each time."""
    runs = [_behind() for _ in range(FAILOVERS)]
    return {kind: [run[kind] for run in runs] for kind in runs[0]}


def _behind() -> dict[str, Outcome]:
    with replicated() as pair, ExitStack() as stack:
        crews = {
            kind: stack.enter_context(Crew(kind, pair.url, processes=1, sessions=3))
            for kind in ("Everlog", "CommitsHere", "TrustsWarnings")
        }
        for crew in crews.values():
            crew.more(10)
        pair.wire.close()
        before = {kind: len(crew.acks) for kind, crew in crews.items()}
        with pair.primary.connect() as other:

            def have_twins_gone_on() -> bool:
                threading.Event().wait(0.02)
                other.execute(
                    """SELECT pg_cancel_backend(pid) FROM pg_stat_activity
                    WHERE wait_event = 'SyncRep'"""
                )
                twins = ("CommitsHere", "TrustsWarnings")
                return all(len(crews[kind].acks) > before[kind] + 30 for kind in twins)

            until(have_twins_gone_on, "twins that think all is well")
        pair.fail_over()
        for crew in crews.values():
            crew.more(10)
            crew.finish()
        return {kind: crew.outcome(pair.standby.url) for kind, crew in crews.items()}


def test_an_ended_wait_for_the_standby_is_no_acknowledgement(behind: dict[str, list[Outcome]]) -> None:
    for found in behind["Everlog"]:
        print(f"waiting ended {found}")
        assert found.wrong == []
        assert found.stored == found.acknowledged >= 20


@pytest.mark.parametrize("twin", ["CommitsHere", "TrustsWarnings"])
def test_a_twin_that_does_not_wait_for_the_standby_loses_records(twin: str, behind: dict[str, list[Outcome]]) -> None:
    for found in behind[twin]:
        assert any(": lost: " in one for one in found.wrong)
