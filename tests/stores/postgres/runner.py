"""A process that takes the turn of a session again and again, and appends under it.

    python -m tests.stores.postgres.runner URL SCHEMA SESSION NAME SECONDS LEASE

Prints a line for each record that was acknowledged: its id, its seq, and the epoch of the lease.
"""

from __future__ import annotations

import random
import sys
import time

from everlog.errors import ConflictError, SessionBusyError, StoreFailedError
from everlog.model import user
from everlog.settings import PostgresSettings, Settings
from everlog.stores.postgres.postgres_store import PostgresStore


def main(url: str, schema: str, session: str, name: str, times: tuple[float, float]) -> None:
    """Go on for so many seconds, with leases of so many."""
    seconds, lease = times
    settings = Settings(postgres=PostgresSettings(schema=schema, lease_seconds=lease, pool_size=3))
    store = PostgresStore(url, settings)
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end:
        try:
            held = store.lease(session)
        except SessionBusyError:
            time.sleep(0.01)
            continue
        try:
            with held:
                for _ in range(random.randint(1, 40)):
                    number += 1
                    record = user(f"{name} {number}", id=f"{name}-{number}")
                    (stored,) = store.append(session, [record], lease=held)
                    print(record.id, stored.seq, held.epoch, flush=True)
        except (ConflictError, SessionBusyError, StoreFailedError):
            continue  # another has the turn by now
    store.close()


if __name__ == "__main__":
    url, schema, session, name, seconds, lease = sys.argv[1:]
    main(url, schema, session, name, (float(seconds), float(lease)))
