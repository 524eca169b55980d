"""State shared by the processes on one database, apart from its sessions."""

from __future__ import annotations

from collections.abc import Callable, Collection
from socket import gethostname
from uuid import uuid4

from everlog.errors import ConflictError
from everlog.ports import SharedBetweenMachines
from everlog.stores.postgres.connections import Connection
from everlog.stores.postgres.id_columns import session_of, sid_of
from everlog.stores.postgres.metadata_rows import storable_text
from everlog.stores.postgres.notifications import Notifications

MAX_CLOCK_SKEW = 60_000  # milliseconds


class SharedState(Notifications, SharedBetweenMachines):
    """What the processes on one database share: notifications of growth, unowned turns, jobs."""

    @property
    def address(self) -> str:
        """Return the address of the database, without a password."""
        return str(self.database.address)

    @property
    def lease_seconds(self) -> float:
        """Return how long a lease lasts whose process does not renew it."""
        return self.database.settings.lease_seconds

    # --- sessions

    def unowned(self, limit: int) -> list[str]:
        """Return sessions that may be unfinished and whose turn nobody holds, in any order."""
        rows = self.database.fetch_all("unowned", {"limit": limit})
        return [session_of(row[0]) for row in rows]

    def heads(self, sessions: Collection[str]) -> dict[str, int]:
        """Return the last seq of each session that exists."""
        values = {"sids": [sid_of(session) for session in sessions]}
        rows = self.database.fetch_all("heads", values)
        return {session_of(sid): head for sid, head in rows}

    # --- jobs

    def take_due(self, job: str, due: int) -> bytes | None:
        """Claim the run of a job for a time; return its state, or None if another process has it.

        ConflictError if the time is too far ahead of the server's clock: no other process could run
        the job until then.
        """
        values = {"name": storable_text(job), "due": due, "taker": uuid4()}

        def work(connection: Connection) -> bytes | None:
            now = connection.value("server_clock")
            if due > now + MAX_CLOCK_SKEW:
                raise ConflictError(
                    f"job {job!r} is not due: the clock of {gethostname()} is"
                    f" {(due - now) / 86_400_000:.1f} days ahead of that of {self.address}",
                    hint="correct the clock of that machine, for example by NTP; until then other"
                    " machines run the jobs",
                )
            latest = {"latest": now + MAX_CLOCK_SKEW}
            claim = connection.run("claim_job", values | latest)
            return None if (row := claim.fetchone()) is None else bytes(row[0])

        return self.database.run_idempotent(work)

    def jobs(self) -> dict[str, bytes]:
        """Return the state of each job."""
        rows = self.database.fetch_all("list_jobs")
        return {name: bytes(state) for name, state in rows}

    def change_job(self, job: str, change: Callable[[bytes], bytes]) -> bytes:
        """Change the state of a job atomically; return the new state."""

        def work(connection: Connection) -> bytes:
            name = {"name": storable_text(job)}
            connection.run("insert_job", name)
            row = connection.run("lock_job", name).fetchone()
            state = change(bytes(row[0]) if row else b"")
            connection.run("update_job", {**name, "fared": state})
            return state

        return self.database.run_transaction(work)
