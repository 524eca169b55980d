"""A connection that gives up on a server which has gone silent.

The server itself ends a statement that takes too long, but not a commit that waits for a standby
which is gone, and a server that is stopped ends nothing at all. Whether what was asked for was done
is then not known, as with any other connection that is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from psycopg import Connection, OperationalError, RawCursor
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus

T = TypeVar("T")


class Patient(Connection[tuple[Any, ...]]):
    """A connection whose every question must be answered within a time."""

    patience: float | None = None  # seconds; None: for ever
    warning = ""  # that came with what is just being run
    era = 0  # see `Links`
    since = 0.0  # when it was last given back
    _often: RawCursor[tuple[Any, ...]] | None = None

    def repeat(self, statement: str, values: Sequence[Any]) -> int:
        """Run a statement that is run very often, with $1 and so on; how many rows it changed.

        The cursor is kept, with all it has found out about the statement and its values.
        """
        if self._often is None:
            self._often = RawCursor(self)
        return self._often.execute(statement, values).rowcount

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        """Every question and its answer comes through here, commits included."""
        limit = self.patience if timeout is None else timeout
        try:
            return super().wait(gen, interval, limit)
        except OperationalError as error:
            told = error.sqlstate is not None  # by the server, so it is not silent
            if (
                timeout is None
                and not told
                and self.pgconn.transaction_status == TransactionStatus.ACTIVE
            ):
                self.pgconn.finish()  # an answer that still comes is not that to the next question
                raise OperationalError(f"no answer in {limit:g} seconds") from None
            raise
