"""The search index of a store: indexes new records, and answers searches and recall."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from msgspec import UNSET

from everlog.errors import NotFoundError, SettingsError, StoreFailedError, StoreFullError
from everlog.index.listing_rows import SessionIndex
from everlog.index.search import passages, ranking
from everlog.index.search.fts5 import FullText
from everlog.index.search.passages import PassageText, SessionUpdate, StaleSession
from everlog.index.search.query import Node, join_nodes, parse_query
from everlog.index.search.ranking import PassageHit
from everlog.index.search.snippets import make_hit
from everlog.log.line_codec import replace_surrogates
from everlog.model import Entry, Message, Metadata
from everlog.ports import Progress, Query, Results, SessionHit

_BATCH_CHARACTERS = 16_000_000  # indexed in one transaction
_MAX_ROUNDS = 2  # for a session in one `catch_up`
# Errors of the store, not of a session.
_STORE_ERRORS = (StoreFailedError, StoreFullError, SettingsError)

ReadEntries = Callable[[str, int], Iterator[Entry]]  # the records of a session above a seq
Report = Callable[[str], None]
Span = tuple[int, int]  # Unix milliseconds


class FullTextIndex(Protocol):
    """The full-text index of a store: `fts5.FullText`, or the tables of a database."""

    def stale_sessions(self) -> list[StaleSession]: ...
    def apply_updates(self, updates: Sequence[SessionUpdate]) -> None: ...
    def find_best(self, match: Node, query: Query, span: Span | None = ...) -> list[PassageHit]: ...
    def find_per_session(self, match: Node, query: Query, per_session: int) -> list[PassageHit]: ...
    def count_matches(self, match: Node) -> int: ...
    def matching_rows(self, match: Node) -> list[int]: ...
    def count_passages(self) -> int: ...
    def load_passages(self, rows: Sequence[int], match: Node | None) -> dict[int, PassageText]: ...


def open_search_index(index: SessionIndex, read: ReadEntries, report: Report, *, include_tools: bool) -> SearchIndex:
    """Return the search index of one root, from its session index."""

    def load_metadata(session: str) -> Metadata | None:
        return row.metadata if (row := index.get(session)) is not None else None

    return SearchIndex(FullText(index.database), load_metadata, read, report, include_tools=include_tools)


class SearchIndex:
    """The search index of one store."""

    def __init__(
        self,
        text: FullTextIndex,
        load_metadata: Callable[[str], Metadata | None],
        read: ReadEntries,
        report: Report,
        *,
        include_tools: bool,
    ) -> None:
        self._load_metadata = load_metadata
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

    # --- queries

    def search(self, query: Query) -> Results:
        """Return the sessions that match a query, the best first."""
        parsed = parse_query(replace_surrogates(query.text))
        # Some of every session, so that one with many matches does not hide the others.
        per_session = max(query.hits, ranking.BEST_PASSAGES)
        for match in (parsed.match, parsed.match_any, parsed.match_inside):
            hits = self._text.find_per_session(match, query, per_session) if match is not None else []
            if hits:
                break
        matches = ranking.rank_sessions(hits, per_session=per_session)
        if match is parsed.match_inside:
            return self._results(matches, None, re.findall(r"[^\W_]+", query.text), query)
        return self._results(matches, match, parsed.highlights, query)

    def recall(self, message: str, now: int, query: Query) -> Results:
        """Return the sessions that a message is about, the best first."""
        question = ranking.parse_question(replace_surrogates(message), now)
        terms = ranking.choose_terms({term: self._text.count_matches(term) for term in question.terms})
        match = join_nodes("OR", terms)
        if match is None:
            return Results()
        hits: dict[int, PassageHit] = {}
        # The best overall may miss the dates in question.
        for span in (None, *((start, end + ranking.LATE_MS) for start, end in question.spans)):
            hits = {hit.row: hit for hit in self._text.find_best(match, query, span)} | hits
        term_rows = {term: self._text.matching_rows(term) for term in terms}
        total = self._text.count_passages()
        matches = ranking.rank_recall(question, hits.values(), term_rows, total, per_session=query.hits)
        return self._results(matches, match, (), query)

    def _results(
        self, matches: Sequence[ranking.SessionMatch], match: Node | None, highlights: Sequence[str], query: Query
    ) -> Results:
        remaining = [m for m in matches if m.session not in query.excluded_sessions]
        page = remaining[query.offset : query.offset + query.limit]
        texts = self._text.load_passages([hit.row for m in page for hit in m.hits[: query.hits]], match)
        results = []
        for session, score, best in page:
            metadata = self._load_metadata(session) or Metadata(id=session)
            hits = (make_hit(hit.seq, texts[hit.row], highlights) for hit in best[: query.hits] if hit.row in texts)
            results.append(SessionHit(session, metadata.display_title, round(score, 6), tuple(hits)))
        return Results(tuple(results), len(remaining))
