"""The primary is cut off from everybody and its standby promoted: nobody loses anything, on neither side."""

from __future__ import annotations

import os
import shutil
import sys
import time

import pytest

from tests.stores.postgres.namespaces import Machines
from tests.stores.postgres.server import Server, both
from tests.stores.postgres.workers import Crew

pytestmark = pytest.mark.crash

QUICK_TO_NOTICE = {"wal_sender_timeout": "2s", "wal_receiver_timeout": "2s"}


@pytest.fixture
def machines() -> Machines:
    if not sys.platform.startswith("linux"):
        pytest.skip("network namespaces are there on Linux only")
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if shutil.which("ip") is None:
        pytest.skip("ip is missing (apt-get install iproute2)")
    return Machines()


def test_a_primary_that_is_cut_off_acknowledges_nothing_and_nothing_is_lost(machines: Machines) -> None:
    with (
        machines,
        Server(
            {"synchronous_standby_names": "*", **QUICK_TO_NOTICE},
            host=machines.one.address,
            inside=machines.one.entered,
        ) as primary,
        Server(QUICK_TO_NOTICE, copy_of=primary, host=machines.other.address, inside=machines.other.entered) as standby,
        Crew("Everlog", both(primary, standby), threads=4) as crew,
    ):
        crew.more(50)
        local = primary.url.replace(primary.host, "127.0.0.1")
        with (
            _left_behind("Everlog", primary, local, machines) as ours,
            _left_behind("CommitsHere", primary, local, machines) as twin,
        ):
            ours.more(10)
            twin.more(10)
            machines.one.isolate()
            cut = time.monotonic()
            twin.more(20)  # it goes on as if nothing had happened
            standby.promote()
            crew.more(50)
            outage = time.monotonic() - cut
            before = len(ours.acks)
            twin.more(20)
            assert len(ours.acks) == before, "acknowledged by a primary that nobody sees"
            ours.kill()
            twin.kill()
        crew.finish()
        found = crew.outcome(standby.url)
        print(f"partition {found}")
        assert found.wrong == []
        assert found.stored == found.acknowledged >= 100
        assert ours.outcome(standby.url).wrong == []
        assert any(": lost: " in one for one in twin.outcome(standby.url).wrong)
        assert outage < 30, outage


def _left_behind(kind: str, primary: Server, local: str, machines: Machines) -> Crew:
    """Writers on the machine of the primary."""
    return Crew(
        kind, primary.url, through=local, processes=1, threads=2, sessions=2, name="behind", inside=machines.one.entered
    )
