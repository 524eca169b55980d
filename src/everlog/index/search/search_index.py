"""The search index of a store: a searcher that indexes new records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from msgspec import UNSET

from everlog.errors import NotFoundError, SettingsError, StoreFailedError, StoreFullError
from everlog.index.listing_rows import SessionIndex
from everlog.index.search import passages
from everlog.index.search.fts5 import FullText
from everlog.index.search.passages import SessionUpdate, StaleSession
from everlog.index.search.searcher import LoadMetadata, PassageIndex, Searcher
from everlog.model import Entry, Message, Metadata
from everlog.ports import Progress

_BATCH_CHARACTERS = 16_000_000  # indexed in one transaction
_MAX_ROUNDS = 2  # for a session in one `catch_up`
# Errors of the store, not of a session.
_STORE_ERRORS = (StoreFailedError, StoreFullError, SettingsError)

ReadEntries = Callable[[str, int], Iterator[Entry]]  # the records of a session above a seq
Report = Callable[[str], None]


class FullTextIndex(PassageIndex, Protocol):
    """The full-text index of a store: `fts5.FullText`, or the tables of a database."""

    def stale_sessions(self) -> list[StaleSession]: ...
    def apply_updates(self, updates: Sequence[SessionUpdate]) -> None: ...


def open_search_index(index: SessionIndex, read: ReadEntries, report: Report, *, include_tools: bool) -> SearchIndex:
    """Return the search index of one root, from its session index."""

    def load_metadata(session: str) -> Metadata | None:
        return row.metadata if (row := index.get(session)) is not None else None

    return SearchIndex(FullText(index.database), load_metadata, read, report, include_tools=include_tools)


class SearchIndex(Searcher):
    """The search index of one store."""

    def __init__(
        self,
        text: FullTextIndex,
        load_metadata: LoadMetadata,
        read: ReadEntries,
        report: Report,
        *,
        include_tools: bool,
    ) -> None:
        super().__init__(text, load_metadata)
        self._text = text
        self._read = read
        self._report = report
        self._include_tools = include_tools  # tool results are searched too

    # --- indexing

    def catch_up(self, progress: Progress | None = None) -> int:
        """Index new records, the oldest sessions first; returns how many sessions had any.

        It may be interrupted at any time and continues from there.
        """
        failed = set[str]()
        # Session → the seqs it was read from. Never twice from one seq, or a gap would loop
        # forever; and at most twice in all, or a session under constant writes would.
        indexed: dict[str, list[int]] = {}
        with ThreadPoolExecutor(1) as executor:  # writes a batch while the next is read
            while stale := [
                session
                for session in self._text.stale_sessions()
                if session.session not in failed
                and session.seq not in (starts := indexed.get(session.session, []))
                and len(starts) < _MAX_ROUNDS
            ]:
                pending: Future[None] | None = None
                for batch in self._read_batches(stale, failed):
                    if pending is not None:
                        pending.result()
                    pending = executor.submit(self._apply_updates, batch, failed)
                    for update in batch:
                        indexed.setdefault(update.stale.session, []).append(update.stale.seq)
                    if progress is not None:
                        progress(len(indexed), max(len(indexed), len(stale)))
                if pending is not None:
                    pending.result()
        return len(indexed.keys() - failed)

    def _apply_updates(self, updates: list[SessionUpdate], failed: set[str]) -> None:
        """Apply updates; if a batch fails, one by one, recording the sessions that fail."""
        try:
            self._text.apply_updates(updates)
        except _STORE_ERRORS:
            raise
        except Exception as error:
            if len(updates) > 1:
                for update in updates:
                    self._apply_updates([update], failed)
                return
            self._record_failure(updates[0].stale.session, error, failed)

    def _record_failure(self, session: str, error: Exception, failed: set[str]) -> None:
        """Record a failed session, which must not hide the others; `catch_up` retries it."""
        failed.add(session)
        if not isinstance(error, NotFoundError):
            self._report(f"session {session} cannot be searched: {type(error).__name__}: {error}")

    def _read_batches(self, stale: Sequence[StaleSession], failed: set[str]) -> Iterator[list[SessionUpdate]]:
        """Yield the updates of stale sessions, in batches."""
        batch: list[SessionUpdate] = []
        size = 0
        for session in stale:
            try:
                batch.append(self._read_update(session))
                size += sum(len(passage.text) for passage in batch[-1].changes.new.values())
            except Exception as error:
                self._record_failure(session.session, error, failed)
            if size > _BATCH_CHARACTERS:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _read_update(self, stale: StaleSession) -> SessionUpdate:
        changes = passages.collect_changes(self._read(stale.session, stale.seq), include_tools=self._include_tools)
        if changes.restored:
            changes.new |= self._read_restored(stale.session, changes.restored)
        # The records just read may be newer than the metadata of the session.
        name = stale.metadata.title if changes.name is UNSET else changes.name
        title = passages.build_passage(passages.TITLE_SEQ, "title", stale.metadata.created_at, name or "")
        if title is not None:
            changes.new[passages.TITLE_SEQ] = title
        changes.removed |= {*changes.restored, passages.TITLE_SEQ}  # a passage that is there is replaced
        return SessionUpdate(stale, changes)

    def _read_restored(self, session: str, seqs: set[int]) -> dict[int, passages.Passage]:
        """Return the passages of restored messages that are live."""
        entries = self._read(session, min(seqs) - 1)  # with the rewinds since, which a restore does not undo
        relevant = (entry for entry in entries if not isinstance(entry, Message) or entry.seq in seqs)
        changes = passages.collect_changes(relevant, include_tools=self._include_tools)
        return {seq: passage for seq, passage in changes.new.items() if seq in seqs}
