"""What is known of the files of other programs: one row per transcript, its content the caller's.

Like every row it may be gone at any time; then the file is looked at again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from everlog.index.database import Database, IndexBroken


class Transcripts:
    """The rows of one directory."""

    def __init__(self, path: Path, report: Callable[[str], None]) -> None:
        self.database = Database(path, report)

    def load(self) -> dict[str, bytes]:
        """All rows, by path."""
        try:
            return self._load()
        except IndexBroken:
            self.database.reset()
            return self._load()
        finally:
            self.database.close()  # seldom used: a forked child must not find it open

    def _load(self) -> dict[str, bytes]:
        with self.database.reading() as cursor:
            return dict(cursor.execute("SELECT path, data FROM transcript"))

    def put(self, rows: Iterable[tuple[str, bytes]], gone: Iterable[str] = ()) -> None:
        """Write rows and forget others, in one transaction."""
        try:
            with self.database.writing() as cursor:
                cursor.executemany("INSERT OR REPLACE INTO transcript VALUES (?, ?)", rows)
                paths = ((one,) for one in gone)
                cursor.executemany("DELETE FROM transcript WHERE path = ?", paths)
        finally:
            self.database.close()
