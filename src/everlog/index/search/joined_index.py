"""The passages of several indexes as one, so that a search decides and ranks once over all of them.

BM25 rates a passage by how rare the words of a query are in its own index: a word that is in every
session of one store and in a single one of another would count for little there and for much here.
So the score of a passage is multiplied by the rarity, among the passages of all indexes, of those
words that it contains, relative to their rarity in its own index. With one of the words that is what
one index of all passages would give, but for the mean length of a passage; with several it is near
to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from everlog.index.search.passages import PassageText
from everlog.index.search.query import Node, any_phrase, find_phrases, identifier_parts
from everlog.index.search.ranking import PassageHit
from everlog.index.search.searcher import Searcher, Span
from everlog.model import Metadata
from everlog.ports import Query

T = TypeVar("T")
MIN_RARITY = 1e-6  # as in FTS5: of a word that more than half of all passages contain


class IndexSource(Protocol):
    """One of the indexes: its queries, and which of its sessions count."""

    def ask(self, question: Callable[[Searcher], T], default: T) -> T:
        """Return what a function finds in the index, or `default` if it cannot be read."""
        ...

    def narrow(self, query: Query) -> Query:
        """Return the query for this index."""
        ...

    def includes(self, session: str) -> bool:
        """Return whether a session counts: another index may have one with the same id."""
        ...


class JoinedIndex:
    """Several indexes as one. The row of a passage has the number of its index in its last digits."""

    score_unit = 0.0

    def __init__(self, sources: Sequence[IndexSource]) -> None:
        self._sources = sources
        self._counts: dict[Node, list[int]] = {}  # matching passages in each index
        self._totals: list[int] | None = None  # all passages in each index
        self._numbers: dict[str, int] = {}  # session → number of its index, of those that were found

    def find_best(self, match: Node, query: Query, span: Span | None = None) -> list[PassageHit]:
        """Return the best passages of each index, for recall."""
        return self._find(match, query, lambda index, narrowed: index.passages.find_best(match, narrowed, span))

    def find_per_session(self, match: Node, query: Query, per_session: int) -> list[PassageHit]:
        """Return the best passages of every session that matches, `per_session` of each."""
        return self._find(
            match, query, lambda index, narrowed: index.passages.find_per_session(match, narrowed, per_session)
        )

    def count_matches(self, match: Node) -> int:
        """Return how many passages match."""
        return sum(self._count(match))

    def matching_rows(self, match: Node) -> list[int]:
        """Return the rows of the newest passages of each index that match."""

        def find(index: Searcher) -> list[int]:
            return index.passages.matching_rows(match)

        return [self._join_row(row, number) for number in self._all for row in self._ask_list(number, find)]

    def filter_rows(self, rows: Sequence[int], match: Node) -> list[int]:
        """Return those of some rows that match."""
        own = {number: self._rows_of(number, rows) for number in self._all}
        return [
            self._join_row(row, number) for number in self._all for row in self._filter_own(number, own[number], match)
        ]

    def count_passages(self) -> int:
        """Return how many passages are indexed."""
        return sum(self._passage_counts())

    def load_passages(self, rows: Sequence[int], match: Node | None) -> dict[int, PassageText]:
        """Return passages, each with a snippet in which the matches are marked."""
        loaded: dict[int, PassageText] = {}
        for number in self._all:
            texts = self._load_own(number, self._rows_of(number, rows), match)
            loaded |= {self._join_row(row, number): text for row, text in texts.items()}
        return loaded

    def load_metadata(self, session: str) -> Metadata | None:
        """Return the metadata of a session that was found."""
        return self._ask(self._numbers[session], lambda index: index.load_metadata(session), None)

    # --- one index

    def _find(self, match: Node, query: Query, find: Callable[[Searcher, Query], list[PassageHit]]) -> list[PassageHit]:
        """Return hits of all indexes, with comparable scores."""
        found: list[PassageHit] = []
        for number in self._all:
            own = self._find_own(number, query, find)
            self._numbers |= dict.fromkeys((hit.session for hit in own), number)
            if own and not identifier_parts(match):  # those have no score
                own = self._rescale(match, own, number)
            found += (hit._replace(row=self._join_row(hit.row, number)) for hit in own)
        return found

    def _find_own(
        self, number: int, query: Query, find: Callable[[Searcher, Query], list[PassageHit]]
    ) -> list[PassageHit]:
        source = self._sources[number]
        narrowed = source.narrow(query)
        hits = self._ask_list(number, lambda index: find(index, narrowed))
        return [hit for hit in hits if source.includes(hit.session)]

    def _filter_own(self, number: int, rows: Sequence[int], match: Node) -> list[int]:
        return self._ask_list(number, lambda index: index.passages.filter_rows(rows, match)) if rows else []

    def _load_own(self, number: int, rows: Sequence[int], match: Node | None) -> dict[int, PassageText]:
        return self._ask(number, lambda index: index.passages.load_passages(rows, match), {}) if rows else {}

    def _ask(self, number: int, question: Callable[[Searcher], T], default: T) -> T:
        return self._sources[number].ask(question, default)

    def _ask_list(self, number: int, question: Callable[[Searcher], list[T]]) -> list[T]:
        return self._ask(number, question, [])

    @property
    def _all(self) -> range:
        return range(len(self._sources))

    def _rows_of(self, number: int, rows: Sequence[int]) -> list[int]:
        return [row // len(self._sources) for row in rows if row % len(self._sources) == number]

    def _join_row(self, row: int, number: int) -> int:
        return row * len(self._sources) + number

    # --- scores

    def _rescale(self, match: Node, hits: Sequence[PassageHit], number: int) -> list[PassageHit]:
        """Return hits of one index with the scores that they would have in one index of all passages."""
        rows, totals = [hit.row for hit in hits], self._passage_counts()
        phrases = list(dict.fromkeys(find_phrases(any_phrase(match))))
        unit = len(phrases) * self._ask(number, lambda index: index.passages.score_unit, 0.0)
        here, overall = dict.fromkeys(rows, 0.0), dict.fromkeys(rows, 0.0)  # rarity of the words in each passage
        for phrase in phrases:
            counts = self._count(phrase)
            for row in self._filter_own(number, rows, phrase) if counts[number] else ():
                here[row] += 1.0 if unit else _rarity(counts[number], totals[number])
                overall[row] += _rarity(sum(counts), sum(totals))
        factors = {row: (unit or 1.0) * overall[row] / here[row] if here[row] else 1.0 for row in rows}
        return [hit._replace(score=hit.score * factors[hit.row]) for hit in hits]

    def _count(self, match: Node) -> list[int]:
        """Return how many passages of each index match."""

        def count(index: Searcher) -> int:
            return index.passages.count_matches(match)

        if match not in self._counts:
            self._counts[match] = [self._ask(number, count, 0) for number in self._all]
        return self._counts[match]

    def _passage_counts(self) -> list[int]:
        if self._totals is None:
            self._totals = [self._ask(number, lambda index: index.passages.count_passages(), 0) for number in self._all]
        return self._totals


def _rarity(count: int, total: int) -> float:
    """Return the weight that BM25 gives to a phrase in `count` of `total` passages."""
    return max(math.log((total - count + 0.5) / (count + 0.5)) if count < total else 0.0, MIN_RARITY)
