"""Runners that are stopped past their lease: what they write late is refused, and epochs never go back."""

from __future__ import annotations

import os
import random

import pytest

from tests.stores.postgres.interfaces import open_face
from tests.stores.postgres.open_stores import shared_server
from tests.stores.postgres.workers import Crew

pytestmark = pytest.mark.crash

STOPS = int(os.environ.get("EVERLOG_TEST_STOPS", "6"))
LEASE = 0.3
TRIES = 10


def overtaken(kind: str) -> tuple[list[str], int]:
    """Stop a runner, take its turn when it is over, write, and let it go on; until it was in a turn."""
    with Crew(kind, shared_server().url, processes=1, threads=1, sessions=1, lease=LEASE) as crew:
        face = open_face(kind, crew.url, crew.schema)
        for number in range(TRIES):
            crew.more(5)
            with crew.paused(0):
                turn = None
                while turn is None:
                    turn = face.take(crew.sessions[0])
                crew.acks.append(face.append(crew.sessions[0], f"other-{number}", turn))
                turn.release()
            crew.more(5)
            if crew.late or any("goes back" in one for one in crew.outcome().wrong):
                break
        face.close()
        crew.finish()
        return crew.outcome().wrong, crew.late


def test_what_a_stopped_runner_writes_after_its_turn_was_taken_is_refused() -> None:
    wrong, late = overtaken("Everlog")
    assert wrong == [] and late


def test_the_control_refuses_it_too() -> None:
    wrong, late = overtaken("Careful")
    assert wrong == [] and late


def test_a_twin_that_forgets_the_epoch_writes_it() -> None:
    wrong, late = overtaken("ForgetsTheEpoch")
    assert any("goes back" in one for one in wrong) and not late


def test_a_storm_of_stops_among_four_runners_breaks_nothing() -> None:
    with Crew("Everlog", shared_server().url, processes=4, threads=1, sessions=3, lease=LEASE, name="storm") as crew:
        crew.more(10)
        for number in range(STOPS):
            crew.pause(number, random.uniform(0.5, 3) * LEASE)
            crew.more(5)
        while not crew.late and crew.stops < 10 * STOPS:  # by chance nobody was in a turn
            crew.pause(crew.stops, 2 * LEASE)
            crew.more(5)
        crew.finish()
        found = crew.outcome()
        epochs = len({(ack.session, ack.epoch) for ack in crew.acks})
        print(f"stops={crew.stops} late={crew.late} turns={epochs} {found}")
        assert found.wrong == []
        assert crew.late, "nobody was ever too late"
        assert crew.stops >= STOPS and len(crew.acks) > 5 * STOPS
        assert epochs > STOPS
