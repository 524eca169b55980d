"""The search index of a store: indexes new records, and answers searches and recall."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from msgspec import UNSET

from everlog.errors import NotFoundError, SettingsError, StoreFailedError, StoreFullError
from everlog.ids import timestamp
from everlog.index import passages, ranking
from everlog.index.fulltext import FullText, PassageText, SessionUpdate, StaleSession
from everlog.index.listing_rows import SessionIndex
from everlog.index.query import parse_query
from everlog.log.line_codec import replace_surrogates
from everlog.model import Entry, Message, Metadata
from everlog.ports import Filter, Hit, Progress, Query, Results, SessionHit
from everlog.stores.file.log_tail import Report

MARKS = ("«", "»")
# Marks in snippets from an index: noncharacters, which no text contains.
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
_MARKED = re.compile(f"{_OPEN}([^{_OPEN}{_CLOSE}]*){_CLOSE}")
_LATE_MS = 7 * 86_400_000  # a passage so long after a date may still be about it
_BATCH_CHARACTERS = 16_000_000  # indexed in one transaction
_SNIPPET_WORDS = 24
_CONTEXT_CHARACTERS = 80  # on either side, where the index makes no snippet
_MAX_ROUNDS = 2  # for a session in one `catch_up`
# Errors of the store, not of a session.
_STORE_ERRORS = (StoreFailedError, StoreFullError, SettingsError)

ReadEntries = Callable[[str, int], Iterator[Entry]]  # the records of a session above a seq


class FullTextIndex(Protocol):
    """The full-text index of a store; expressions are those of FTS5, from `index.query`."""

    def stale_sessions(self, limit: int = ...) -> list[StaleSession]: ...
    def apply_updates(self, updates: Iterable[SessionUpdate]) -> None: ...
    def find_best(self, match: str, weights: Sequence[float], query: Query, limit: int) -> list[ranking.PassageHit]: ...
    def find_per_session(
        self, match: str, weights: Sequence[float], query: Query, per_session: int
    ) -> list[ranking.PassageHit]: ...
    def find_substrings(self, match: str, query: Query, per_session: int) -> list[ranking.PassageHit]: ...
    def find_newest(
        self, match: str, weights: Sequence[float], candidates: int, limit: int
    ) -> list[ranking.PassageHit]: ...
    def find_between(
        self, match: str, weights: Sequence[float], query: Query, span: tuple[int, int], limit: int
    ) -> list[ranking.PassageHit]: ...
    def count_matches(self, match: str) -> int: ...
    def matching_rows(self, match: str, limit: int) -> list[int]: ...
    def count_passages(self) -> int: ...
    def load_passages(
        self, rows: Sequence[int], match: str, marks: tuple[str, str], words: int
    ) -> dict[int, PassageText]: ...


def open_search_index(index: SessionIndex, read: ReadEntries, report: Report, *, include_tools: bool) -> SearchIndex:
    """Return the search index of one root, from its session index."""

    def load_metadata(session: str) -> Metadata | None:
        row = index.get(session)
        return None if row is None else row.metadata

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
                size += sum(len(passage.text) for passage in batch[-1].passages)
            except Exception as error:
                self._record_failure(session.session, error, failed)
            if size > _BATCH_CHARACTERS:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _read_update(self, stale: StaleSession) -> SessionUpdate:
        entries = self._read(stale.session, stale.seq)
        changes = passages.collect_changes(entries, include_tools=self._include_tools)
        new = list(changes.new.values())
        if changes.restored:
            new += self._read_restored(stale.session, changes.restored)
            changes.removed |= changes.restored  # a passage that is there is replaced
        # The records just read may be newer than the metadata of the session.
        name = stale.metadata.title if changes.name is UNSET else changes.name
        title = passages.make_title(name or "", stale.metadata.created_at)
        changes.removed.add(passages.TITLE_SEQ)
        return SessionUpdate(stale, changes, new if title is None else [*new, title])

    def _read_restored(self, session: str, seqs: set[int]) -> list[passages.Passage]:
        """Return the passages of restored messages that are live."""
        entries = self._read(session, min(seqs) - 1)  # with the rewinds since, which a restore does not undo
        relevant = (entry for entry in entries if not isinstance(entry, Message) or entry.seq in seqs)
        changes = passages.collect_changes(relevant, include_tools=self._include_tools)
        return [passage for seq, passage in changes.new.items() if seq in seqs]

    # --- queries

    def search(self, query: Query) -> Results:
        """Return the sessions that match a query, the best first."""
        parsed = parse_query(replace_surrogates(query.text))
        weights = list(ranking.WEIGHTS.values())
        # Some of every session, so that one with many matches does not hide the others.
        per_session = max(query.hits, ranking.BEST_PASSAGES)
        for match in (parsed.match, parsed.match_any):
            hits = self._text.find_per_session(match, weights, query, per_session) if match else []
            if hits:
                matches = ranking.rank_sessions(hits, sessions=None, per_session=per_session)
                return self._results(matches, match, parsed.highlights, query)
        substring = parsed.match_substring
        hits = self._text.find_substrings(substring, query, per_session) if substring else []
        words = tuple(re.findall(r"[^\W_]+", query.text))
        matches = ranking.rank_sessions(hits, sessions=None, per_session=per_session)
        return self._results(matches, "", words, query)

    def recall(self, message: str, now: int, query: Query) -> Results:
        """Return the sessions that a message is about, the best first."""
        question = ranking.parse_question(replace_surrogates(message), now)
        counts = {term: self._text.count_matches(term) for term in question.terms}
        terms = ranking.choose_terms(counts)
        if not terms:
            return Results()
        match = " OR ".join(terms)
        weights = list(ranking.RECALL_WEIGHTS.values())
        if query.criteria == Filter():
            hits = self._text.find_newest(match, weights, ranking.BUDGET, ranking.MAX_HITS)
        else:
            hits = self._text.find_best(match, weights, query, ranking.MAX_HITS)
        for start, end in question.spans:  # the best overall may miss the dates in question
            span = start, end + _LATE_MS
            timely = self._text.find_between(match, weights, query, span, ranking.MAX_HITS)
            rows = {hit.row for hit in hits}
            hits += [hit for hit in timely if hit.row not in rows]
        term_rows = {term: self._text.matching_rows(term, ranking.BUDGET) for term in terms}
        total = self._text.count_passages()
        matches = ranking.rank_recall(question, hits, term_rows, total, sessions=None, per_session=query.hits)
        return self._results(matches, match, (), query)

    def _results(
        self, matches: Sequence[ranking.SessionMatch], match: str, highlights: Sequence[str], query: Query
    ) -> Results:
        remaining = [m for m in matches if m.session not in query.excluded_sessions]
        page = remaining[query.offset : query.offset + query.limit]
        rows = [hit.row for m in page for hit in m.hits[: query.hits]]
        texts = self._text.load_passages(rows, match, (_OPEN, _CLOSE), _SNIPPET_WORDS)
        results = []
        for session_match in page:
            session = session_match.session
            metadata = self._load_metadata(session) or Metadata(id=session)
            loaded = (hit for hit in session_match.hits[: query.hits] if hit.row in texts)
            hits = tuple(_make_hit(hit.seq, texts[hit.row], highlights) for hit in loaded)
            score = round(session_match.score, 6)
            results.append(SessionHit(session, metadata.display_title, score, hits))
        return Results(tuple(results), len(remaining))


def _make_hit(seq: int, passage: PassageText, highlights: Sequence[str]) -> Hit:
    snippet = passage.snippet
    if _OPEN not in snippet:
        snippet = _make_snippet(passage.text, highlights)
    spans = tuple(match.span(1) for match in _MARKED.finditer(snippet))
    snippet = snippet.replace(_OPEN, MARKS[0]).replace(_CLOSE, MARKS[1])
    return Hit(seq, passage.kind, snippet, timestamp(max(passage.time, 0) / 1000), spans)


def _make_snippet(text: str, highlights: Sequence[str]) -> str:
    """Return an excerpt around the first of some words, which are marked."""
    pattern = re.compile("|".join(map(re.escape, highlights)) or r"(?!)", re.IGNORECASE)
    first = pattern.search(text)
    start = max(first.start() - _CONTEXT_CHARACTERS, 0) if first else 0
    end = (first.end() if first else 0) + _CONTEXT_CHARACTERS
    excerpt = pattern.sub(lambda match: f"{_OPEN}{match[0]}{_CLOSE}", text[start:end])
    return f"{'…' if start else ''}{excerpt}{'…' if end < len(text) else ''}"
