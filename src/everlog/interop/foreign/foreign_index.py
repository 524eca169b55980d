"""The search and usage index of a foreign directory: its sessions under their own ids.

A session that nobody opened has no mirror on the disk. It is read into memory once, and its
passages and usage go into the index, with the seqs that a mirror of the same content would have. A
session that grows after that is mirrored, so that the next time only its new lines are read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from everlog.index.listing_rows import SessionIndex
from everlog.index.search.search_index import SearchIndex, open_search_index
from everlog.interop.foreign.transcript_row import TranscriptRow
from everlog.model import Entry, Metadata
from everlog.ports import Filter, Progress, SessionRow, UsageReport
from everlog.ports.listing import matcher
from everlog.stores.file.log_tail import Report

T = TypeVar("T")

MAX_IN_MEMORY = 64_000_000  # bytes of a session that is read without a mirror
_MIRROR_KEY = "mirror"  # in the metadata of a row: id of the mirror whose seqs are indexed; empty: none


class SessionRecords(NamedTuple):
    """The records of one session, from its mirror or read into memory."""

    metadata: Metadata  # with the session's usage
    read: Callable[[int], Iterator[Entry]]  # the records above a seq


class SessionSource(NamedTuple):
    """How the index reads the sessions of its directory."""

    find_mirror: Callable[[TranscriptRow], str | None]  # id of a session's mirror, if it has one
    open_mirror: Callable[[str], SessionRecords]  # up to date, made if need be
    read_file: Callable[[TranscriptRow], SessionRecords]  # without a mirror


class ForeignIndex:
    """The index of one foreign directory; like every index it may be deleted and is made again."""

    def __init__(self, path: Path, source: SessionSource, report: Report, *, include_tools: bool) -> None:
        self._index = SessionIndex(path, report)
        self._source = source
        self._sessions: Mapping[str, TranscriptRow] = {}
        self._mirrors: dict[str, str] = {}  # session → its mirror, while it is indexed
        self._read_metadata: dict[str, Metadata] = {}  # of the sessions read by this run
        self._search = open_search_index(self._index, self._read_entries, report, include_tools=include_tools)

    def catch_up(
        self,
        sessions: Mapping[str, TranscriptRow],
        progress: Progress | None = None,
        *,
        only: Collection[str] | None = None,
    ) -> int:
        """Index new and changed sessions, drop those that are gone; returns how many had changed.

        `only`: read no others.
        """
        return self._index.database.run(lambda: self._catch_up(sessions, progress, only))

    def _catch_up(
        self, sessions: Mapping[str, TranscriptRow], progress: Progress | None, only: Collection[str] | None
    ) -> int:
        self._sessions = sessions
        indexed = self._index.sizes()
        chosen = sessions if only is None else [name for name in sessions if name in only]
        changed = [name for name in chosen if indexed.get(name) != _file_state(sessions[name])]
        replaced = [name for name in changed if name in indexed and self._has_other_seqs(name)]
        if gone := [*(indexed.keys() - sessions.keys()), *replaced]:
            self._index.drop(gone)
        self._index.put(self._row(name) for name in changed)
        self._read_metadata = {}
        try:
            count = self._search.catch_up(progress)
            self._index.put(self._row(name) for name in self._read_metadata)
        finally:
            self._mirrors = {}
        return count

    def usage(
        self, sessions: Mapping[str, TranscriptRow], criteria: Filter, days: tuple[str, str], spenders: int
    ) -> UsageReport:
        """Return the usage of the sessions as far as they are indexed, and how many are behind."""
        indexed, report = self._index.database.run(
            lambda: (self._index.sizes(), self._index.usage(criteria, days, spenders))
        )
        matches = matcher(criteria)
        behind = sum(
            indexed.get(name) != _file_state(row) for name, row in sessions.items() if matches(row.session_row(name))
        )
        return replace(report, behind=behind)

    def query_search(self, query: Callable[[SearchIndex], T]) -> T:
        """Run a query on the search index as it is."""
        return self._index.database.run(lambda: query(self._search))

    def drop(self, sessions: Collection[str]) -> None:
        """Remove deleted sessions with all their text."""
        self._index.database.run(lambda: self._index.drop(sessions))

    def drop_missing(self, sessions: Collection[str]) -> None:
        """Remove all sessions but these."""

        def drop() -> None:
            if gone := self._index.ids() - set(sessions):
                self._index.drop(gone)

        self._index.database.run(drop)

    def close(self) -> None:
        """Close the database."""
        self._index.database.close()

    def _has_other_seqs(self, session: str) -> bool:
        """Choose where a changed session is read from; return whether its seqs were other ones."""
        mirror = self._mirror_of(session, make=True)  # it grows: the next time only new lines are to be read
        indexed = self._index.get(session)
        return indexed is None or str(indexed.metadata.extra.get(_MIRROR_KEY, "")) != mirror

    def _mirror_of(self, session: str, *, make: bool) -> str:
        """Return the id of a session's mirror; empty if it has none and is to be read without one."""
        row = self._sessions[session]
        mirror = self._source.find_mirror(row)
        if mirror is None and make:
            self._source.open_mirror(session)
            mirror = self._source.find_mirror(row)
        self._mirrors[session] = mirror or ""
        return self._mirrors[session]

    def _row(self, session: str) -> SessionRow:
        """Return the row of a session; its size stands for the state of its files."""
        row = self._sessions[session].session_row(session)
        read = self._read_metadata.get(session, row.metadata)
        extra = {**row.metadata.extra, _MIRROR_KEY: self._mirrors.get(session, "")}
        metadata = replace(row.metadata, metrics=read.metrics, spent=read.spent, spending=read.spending, extra=extra)
        return SessionRow(metadata, _file_state(self._sessions[session]), row.parts)

    def _read_entries(self, session: str, after: int) -> Iterator[Entry]:
        row = self._sessions[session]
        mirror = self._mirrors.get(session)
        if mirror is None:
            mirror = self._mirror_of(session, make=sum(row.sizes) > MAX_IN_MEMORY)
        records = self._source.open_mirror(session) if mirror else self._source.read_file(row)
        self._read_metadata[session] = records.metadata
        return records.read(after)


def _file_state(row: TranscriptRow) -> int:
    """Return a number that differs after every change of a session's files; the `bytes` of its row."""
    return int.from_bytes(sha256(repr(row.stamps).encode()).digest()[:7])
