"""Searches and recall over a full-text index, which may be that of several stores."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Protocol

from everlog.index.search import ranking
from everlog.index.search.passages import PassageText
from everlog.index.search.query import Node, join_nodes, parse_query
from everlog.index.search.ranking import PassageHit
from everlog.index.search.snippets import make_hit
from everlog.log.line_codec import replace_surrogates
from everlog.model import Metadata
from everlog.ports import Query, Results, SessionHit

Span = tuple[int, int]  # Unix milliseconds
LoadMetadata = Callable[[str], Metadata | None]


class PassageIndex(Protocol):
    """The passages of sessions, by the words in them."""

    @property
    def score_unit(self) -> float:
        """Return 0 if scores are BM25; else what the mean over the words is multiplied by to be BM25 at rarity 1."""
        ...

    def find_best(self, match: Node, query: Query, span: Span | None = ...) -> list[PassageHit]: ...
    def find_per_session(self, match: Node, query: Query, per_session: int) -> list[PassageHit]: ...
    def count_matches(self, match: Node) -> int: ...
    def matching_rows(self, match: Node) -> list[int]: ...
    def filter_rows(self, rows: Sequence[int], match: Node) -> list[int]: ...
    def count_passages(self) -> int: ...
    def load_passages(self, rows: Sequence[int], match: Node | None) -> dict[int, PassageText]: ...


class Searcher:
    """Answers searches and recall."""

    def __init__(self, passages: PassageIndex, load_metadata: LoadMetadata) -> None:
        self.passages = passages
        self.load_metadata = load_metadata

    def search(self, query: Query) -> Results:
        """Return the sessions that match a query, the best first."""
        parsed = parse_query(replace_surrogates(query.text))
        # Some of every session, so that one with many matches does not hide the others.
        per_session = max(query.hits, ranking.BEST_PASSAGES)
        for match in (parsed.match, parsed.match_any, parsed.match_inside):
            hits = self.passages.find_per_session(match, query, per_session) if match is not None else []
            if hits:
                break
        matches = ranking.rank_sessions(hits, per_session=per_session)
        if match is parsed.match_inside:
            return self._results(matches, None, re.findall(r"[^\W_]+", query.text), query)
        return self._results(matches, match, parsed.highlights, query)

    def recall(self, message: str, now: int, query: Query) -> Results:
        """Return the sessions that a message is about, the best first."""
        question = ranking.parse_question(replace_surrogates(message), now)
        terms = ranking.choose_terms({term: self.passages.count_matches(term) for term in question.terms})
        match = join_nodes("OR", terms)
        if match is None:
            return Results()
        hits: dict[int, PassageHit] = {}
        # The best overall may miss the dates in question.
        for span in (None, *((start, end + ranking.LATE_MS) for start, end in question.spans)):
            hits = {hit.row: hit for hit in self.passages.find_best(match, query, span)} | hits
        term_rows = {term: self.passages.matching_rows(term) for term in terms}
        total = self.passages.count_passages()
        matches = ranking.rank_recall(question, hits.values(), term_rows, total, per_session=query.hits)
        return self._results(matches, match, (), query)

    def _results(
        self, matches: Sequence[ranking.SessionMatch], match: Node | None, highlights: Sequence[str], query: Query
    ) -> Results:
        remaining = [m for m in matches if m.session not in query.excluded_sessions]
        page = remaining[query.offset : query.offset + query.limit]
        texts = self.passages.load_passages([hit.row for m in page for hit in m.hits[: query.hits]], match)
        results = []
        for session, score, best in page:
            metadata = self.load_metadata(session) or Metadata(id=session)
            hits = (make_hit(hit.seq, texts[hit.row], highlights) for hit in best[: query.hits] if hit.row in texts)
            results.append(SessionHit(session, metadata.display_title, round(score, 6), tuple(hits)))
        return Results(tuple(results), len(remaining))
