"""What processes that run turns on one database share beside its sessions."""

from __future__ import annotations

from collections.abc import Callable, Collection
from socket import gethostname
from uuid import uuid4

from everlog.errors import ConflictError
from everlog.stores.postgres.connections import Database, Link
from everlog.stores.postgres.id_columns import session_of, sid_of
from everlog.stores.postgres.metadata_rows import one, text
from everlog.stores.postgres.notifications import Heard, Listening, News
from everlog.stores.postgres.statements import load

SLACK = 60_000  # milliseconds by which clocks may differ


class Sharing:
    """The port of the same name on PostgreSQL."""

    def __init__(self, database: Database, news: News) -> None:
        self._database = database
        self._news = news
        self._sql = load("sharing", database.settings.schema)

    @property
    def address(self) -> str:
        """Where the database is, without a password."""
        return str(self._database.address)

    @property
    def lease_seconds(self) -> float:
        """How long a turn stays taken whose process is silent."""
        return self._database.settings.lease_seconds

    # --- sessions

    def unowned(self, limit: int) -> list[str]:
        """Sessions that may be unfinished and whose turn nobody has, in any order."""
        rows = self._database.reading(
            lambda link: link.execute(
                self._sql["unowned"], {"limit": limit}, binary=True
            ).fetchall()
        )
        return [session_of(row[0]) for row in rows]

    def heads(self, sessions: Collection[str]) -> dict[str, int]:
        """The last seq of each session that is there."""
        values = {"sids": [sid_of(session) for session in sessions]}
        rows = self._database.reading(
            lambda link: link.execute(self._sql["heads"], values, binary=True).fetchall()
        )
        return {session_of(sid): head for sid, head in rows}

    def listen(self, heard: Heard) -> Listening:
        """Hear which sessions have gone on elsewhere, and tell others of those here."""
        return self._news.listen(heard)

    # --- jobs

    def take_due(self, job: str, due: int) -> bytes | None:
        """Be the one to run a job for a time: how it fared, or None if another is.

        ConflictError for a time that is not near by the server's clock: nobody else could run the job
        until then.
        """
        values = {"name": text(job), "due": due, "taker": uuid4()}

        def work(link: Link) -> bytes | None:
            now = one(link, self._sql["clock"])
            if due > now + SLACK:
                raise ConflictError(
                    f"job {job!r} is not due: the clock of {gethostname()} is"
                    f" {(due - now) / 86_400_000:.1f} days ahead of that of {self.address}",
                    hint="set the clock of the machine that is wrong, by NTP; until then the others"
                    " run the jobs",
                )
            latest = {"latest": now + SLACK}
            row = link.execute(self._sql["take_due"], values | latest, binary=True).fetchone()
            return None if row is None else bytes(row[0])

        return self._database.reading(work)

    def jobs(self) -> dict[str, bytes]:
        """How each job fared."""
        rows = self._database.reading(
            lambda link: link.execute(self._sql["jobs"], binary=True).fetchall()
        )
        return {name: bytes(fared) for name, fared in rows}

    def change_job(self, job: str, change: Callable[[bytes], bytes]) -> bytes:
        """Change how a job fared, by what it is; nobody else does so meanwhile."""

        def work(link: Link) -> bytes:
            name = {"name": text(job)}
            link.execute(self._sql["know_job"], name)
            row = link.execute(self._sql["lock_job"], name, binary=True).fetchone()
            fared = change(bytes(row[0]) if row else b"")
            link.execute(self._sql["put_job"], {**name, "fared": fared})
            return fared

        return self._database.changing(work)
