"""A connection that gives up on a server that does not answer.

The server itself cancels a statement that takes too long, but not a commit that waits for a standby
that is gone, and a stopped server cancels nothing. The outcome is then unknown, as with every other
lost connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from psycopg import Connection, Cursor, OperationalError, RawCursor
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus

T = TypeVar("T")


class TimedConnection(Connection[tuple[Any, ...]]):
    """A connection on which every request must be answered within a time."""

    answer_timeout: float | None = None  # seconds; None: no limit
    warning = ""  # received with the running statement
    statements: Mapping[str, str] = {}  # by label: see `sql/`
    pool_generation = 0  # see `ConnectionPool`
    idle_since = 0.0  # when it was last released
    _repeat_cursor: RawCursor[tuple[Any, ...]] | None = None

    def run(self, label: str, values: Mapping[str, Any] | None = None) -> Cursor[tuple[Any, ...]]:
        """Run a statement of `sql/` by its label; results are binary."""
        return self.execute(self.statements[label], values, binary=True)

    def run_many(self, label: str, rows: Iterable[Any]) -> None:
        """Run a statement of `sql/` once for each row of values."""
        with self.cursor() as cursor:
            cursor.executemany(self.statements[label], rows)

    def value(self, label: str, values: Mapping[str, Any] | None = None) -> Any:
        """Return the first column of the first row of a statement; None if there is no row."""
        row = self.run(label, values).fetchone()
        return None if row is None else row[0]

    def run_repeated(self, label: str, values: Sequence[Any]) -> int:
        """Run a frequent statement with $1 parameters; return how many rows it changed.

        The cursor is kept, with what it has cached about the statement and its values.
        """
        if self._repeat_cursor is None:
            self._repeat_cursor = RawCursor(self)
        return self._repeat_cursor.execute(self.statements[label], values).rowcount

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        """Wait for an answer, with a time limit; every request passes here, commits included."""
        limit = self.answer_timeout if timeout is None else timeout
        try:
            return super().wait(gen, interval, limit)
        except OperationalError as error:
            from_server = error.sqlstate is not None  # so it is not silent
            if timeout is None and not from_server and self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                self.pgconn.finish()  # a late answer must not pass for that to the next request
                raise OperationalError(f"no answer in {limit:g} seconds") from None
            raise
