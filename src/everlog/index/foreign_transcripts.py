"""Cached facts about foreign files: one row per transcript; the caller defines its content.

Like every row of the index it may be deleted at any time; then the file is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from everlog.index.database import Database


class ForeignTranscripts:
    """The transcript rows of one index."""

    def __init__(self, path: Path, report: Callable[[str], None]) -> None:
        self.database = Database(path, report)

    def load(self) -> dict[str, bytes]:
        """Return all rows, by path."""
        try:
            return self.database.run(self._load)
        finally:
            self.database.close()  # seldom used, and a forked child must not inherit it open

    def _load(self) -> dict[str, bytes]:
        with self.database.read_cursor() as cursor:
            return dict(cursor.execute("SELECT path, data FROM transcript"))

    def put(self, rows: Iterable[tuple[str, bytes]], removed: Iterable[str] = ()) -> None:
        """Write rows and delete those of `removed` paths, in one transaction."""
        try:
            with self.database.write_transaction() as cursor:
                cursor.executemany("INSERT OR REPLACE INTO transcript VALUES (?, ?)", rows)
                paths = [(path,) for path in removed]
                cursor.executemany("DELETE FROM transcript WHERE path = ?", paths)
            if paths:
                self.database.truncate_log()  # a row has a title
        finally:
            self.database.close()
