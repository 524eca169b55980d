"""kill -9 of the server under sixteen writers, and answers that are lost on the way.

Nothing that was acknowledged is gone, nothing is there twice. `make crash-postgres` does the same in full.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.stores.postgres.interfaces import WORD
from tests.stores.postgres.open_stores import shared_server
from tests.stores.postgres.proxy import Proxy
from tests.stores.postgres.server import USER, Server
from tests.stores.postgres.workers import Crew, Outcome, until

pytestmark = pytest.mark.crash

KILLS = int(os.environ.get("EVERLOG_TEST_KILLS", "3"))
LOSSES = 3 * KILLS
TRIES = 4  # a twin may be lucky


def killed(kind: str, kills: int) -> Outcome:
    """Kill the server so often under load."""
    # What a kill takes with it is what the server has not given to the kernel yet.
    with Server({"wal_writer_delay": "10s"}) as server, Crew(kind, server.url) as crew:
        for _ in range(kills):
            crew.more(random.randint(30, 150))
            server.kill()
            server.start()
        crew.more(30)
        crew.finish()
        return crew.outcome()


def test_a_killed_server_costs_nothing_that_was_acknowledged_and_doubles_nothing() -> None:
    found = killed("Everlog", KILLS)
    print(f"kills={KILLS} {found}")
    assert found.wrong == []
    assert found.stored == found.acknowledged > 30 * KILLS


def test_the_control_survives_the_same_kills() -> None:
    found = killed("Careful", 1)
    assert found.wrong == [] and found.stored == found.acknowledged


def test_a_twin_that_acknowledges_early_loses_records() -> None:
    outcomes = (killed("AcknowledgesEarly", 1) for _ in range(TRIES))
    assert any(": lost: " in one for outcome in outcomes for one in outcome.wrong)


def answers_lost(kind: str, losses: int) -> Outcome:
    """Let so many appends through without their answers, each when there is load again."""
    server = shared_server()
    with Proxy(server.port) as proxy:
        through = f"postgresql://{USER}@127.0.0.1:{proxy.port}/postgres"
        with Crew(kind, server.url, name="answers", through=through) as crew:
            for _ in range(losses):
                crew.more(20)
                proxy.swallow(WORD.encode())
                until(proxy.swallowed.is_set, "an answer that is lost")
            crew.more(20)
            crew.finish()
            return crew.outcome()


def test_lost_answers_cost_nothing_and_double_nothing() -> None:
    found = answers_lost("Everlog", LOSSES)
    print(f"answers lost={LOSSES} {found}")
    assert found.wrong == []
    assert found.stored == found.acknowledged > 20 * LOSSES


def test_a_twin_that_retries_without_names_stores_records_twice() -> None:
    found = answers_lost("RetriesWithoutNames", 4)
    assert any("2 times" in one for one in found.wrong)
    assert found.stored > found.acknowledged
