"""Removing what the home has of foreign sessions whose files are gone.

A mirror has the text of its session, and so has a companion, which is truth besides. So a companion
goes only if its file is really gone: the directory must be there and readable as a whole, no file
that is left may be the session under another name, and a directory that is empty must be the one
that had the sessions, not the mount point of a disk that is away.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from everlog.errors import EverlogError, NotFoundError
from everlog.interop.foreign.transcript_row import TranscriptRow
from everlog.ports import SessionRow, SkippedFile, Store
from everlog.ports.listing import MAX_PAGE

_UNREADABLE = "cannot be read"  # in the reason why a folder or a file was skipped
_IDENTITY_FILE = "directory"


def is_complete(root: Path, home: Path, rows: Iterable[TranscriptRow], skipped: Iterable[SkippedFile]) -> bool:
    """Return whether a listing has all sessions that are there, so that the others are gone."""
    if any(_UNREADABLE in file.reason for file in skipped):
        return False
    identity, file = str(os.stat(root).st_ino), home / _IDENTITY_FILE
    if any(True for _ in rows):
        with suppress(OSError):
            if not file.exists() or file.read_text() != identity:
                file.write_text(identity)
        return True
    with suppress(OSError):
        return file.read_text() == identity
    return False


def find_vanished(
    store: Store, keys: set[str], names: set[str], skipped: Iterable[SkippedFile]
) -> Iterator[SessionRow]:
    """Yield the mirrors or companions of sessions that are not there.

    `keys` are those of the sessions that are, `names` the aliases of sessions that have moved.
    """
    paths = [file.path for file in skipped]
    for row in store.list(limit=MAX_PAGE):
        key = row.metadata.key or ""
        folder, _, name = key.rpartition("/")
        is_there = key in keys and store.resolve(key) == row.id
        # A key that is no path says nothing about the name of the file.
        is_elsewhere = not names.isdisjoint(row.metadata.aliases) or any(name in path or not folder for path in paths)
        if not is_there and not is_elsewhere:
            yield row


def delete_all(store: Store, rows: Iterable[SessionRow]) -> set[str]:
    """Delete mirrors or companions, except those in use; return the keys of the deleted ones."""
    deleted: set[str] = set()
    for row in rows:
        with suppress(EverlogError, NotFoundError):
            store.delete(row.id)
            deleted.add(row.metadata.key or "")
    return deleted
