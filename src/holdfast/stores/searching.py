"""Search in the sessions of a root: what is new is taken in, then the index is asked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from holdfast.errors import HoldfastError, NotFound
from holdfast.index.fulltext import Behind, FullText, News, Shown
from holdfast.index.listing import Index
from holdfast.log.lines import clean
from holdfast.model import AnyRecord, Entry, Metadata
from holdfast.ports import Filter, Found, Hit, Progress, Query, Results
from holdfast.search import passages, ranking
from holdfast.search.query import parse
from holdfast.stamps import timestamp
from holdfast.stores.tail import Report

MARKS = ("«", "»")
_MOST = 2_000  # passages that are looked at for one query
_LATER = 7 * 86_400_000  # ms after a time in which something may still be told of it
_BATCH = 16_000_000  # characters that are taken in at once
_WORDS = 24  # of a snippet
_AROUND = 80  # characters on either side, where the index makes no snippet

Read = Callable[[str, int], Iterator[Entry]]  # the records of a session above a seq


class Searching:
    """The search of one root."""

    def __init__(self, index: Index, read: Read, report: Report, *, tools: bool) -> None:
        self._index = index
        self._text = FullText(index.database)
        self._read = read
        self._report = report
        self._tools = tools  # what tools answered is searched too

    # --- taking in

    def catch_up(self, progress: Progress | None = None) -> int:
        """Take in what is new, the oldest sessions first; returns how many had something.

        May be stopped at any moment and goes on from there.
        """
        done, failed = 0, set[str]()
        with ThreadPoolExecutor(1) as writing:  # what was read, while the next is read
            while behind := [one for one in self._text.behind() if one.session not in failed]:
                taking: Future[None] | None = None
                for some in self._batches(behind, failed):
                    if taking is not None:
                        taking.result()
                    taking = writing.submit(self._text.take, some)
                    done += len(some)
                    if progress is not None:
                        progress(done, max(done, len(behind)))
                if taking is not None:
                    taking.result()
        return done

    def _batches(self, behind: Sequence[Behind], failed: set[str]) -> Iterator[list[News]]:
        """What is new of sessions, some at a time."""
        news: list[News] = []
        size = 0
        for one in behind:
            try:
                news.append(self._news(one))
                size += sum(len(passage.text) for passage in news[-1].passages)
            except HoldfastError as error:  # one bad session must not hide the others
                failed.add(one.session)
                if not isinstance(error, NotFound):
                    self._report(f"session {one.session} cannot be searched: {error.message}")
            if size > _BATCH:
                yield news
                news, size = [], 0
        if news:
            yield news

    def _news(self, before: Behind) -> News:
        change = passages.changes(self._read(before.session, before.seq), tools=self._tools)
        new = list(change.new.values())
        if change.back:
            new += self._again(before.session, change.back)
            change.gone |= change.back  # what stands there is put there anew
        named = passages.title(before.metadata.name or "", before.metadata.created_at)
        change.gone.add(passages.TITLE)
        return News(before, change, new if named is None else [*new, named])

    def _again(self, session: str, seqs: set[int]) -> list[passages.Passage]:
        """Passages that were taken out and are found again."""
        found = []
        for seq in sorted(seqs):
            record: Any = next(self._read(session, seq - 1), None)
            if isinstance(record, AnyRecord) and record.seq == seq:
                found.append(passages.passage(record, tools=self._tools))
        return [one for one in found if one is not None]

    # --- asking

    def search(self, query: Query) -> Results:
        """The sessions in which something is found."""
        parsed = parse(clean(query.text))
        weights = list(ranking.WEIGHTS.values())
        for match in (parsed.match, parsed.any):
            hits = self._text.find(match, weights, query, _MOST) if match else []
            if hits:
                return self._results(ranking.group(hits, **_all), match, parsed.marks, query)
        hits = self._text.inside(parsed.inside, query, _MOST) if parsed.inside else []
        words = tuple(re.findall(r"[^\W_]+", query.text))
        return self._results(ranking.group(hits, **_all), "", words, query)

    def recall(self, message: str, now: int, query: Query) -> Results:
        """The sessions that a message is about."""
        question = ranking.ask(clean(message), now)
        chosen = ranking.choose({one: self._text.count(one) for one in question.terms})
        if not chosen:
            return Results()
        match = " OR ".join(chosen)
        weights = list(ranking.RECALL_WEIGHTS.values())
        if query.which == Filter():
            hits = self._text.newest(match, weights, ranking.BUDGET, ranking.HITS)
        else:
            hits = self._text.find(match, weights, query, ranking.HITS)
        for start, end in question.spans:  # the best of all may miss the day that is asked for
            told = start, end + _LATER
            there = self._text.between(match, weights, query, told, ranking.HITS)
            known = {hit.row for hit in hits}
            hits += [hit for hit in there if hit.row not in known]
        places = {one: self._text.places(one, ranking.BUDGET) for one in chosen}
        found = ranking.recall(question, hits, places, self._text.total(), **_all)
        return self._results(found, match, (), query)

    def _results(
        self,
        found: Sequence[ranking.Found],
        match: str,
        marks: Sequence[str],
        query: Query,
    ) -> Results:
        best = [one for one in found if one.session not in query.without][: query.limit]
        rows = [hit.row for one in best for hit in one.hits[: query.hits]]
        shown = self._text.shown(rows, match, MARKS, _WORDS)
        results = []
        for one in best:
            row = self._index.get(one.session)
            metadata = row.metadata if row is not None else Metadata(id=one.session)
            own = (hit for hit in one.hits[: query.hits] if hit.row in shown)
            hits = tuple(_hit(hit.seq, shown[hit.row], marks) for hit in own)
            results.append(Found(one.session, metadata.title, round(one.score, 6), hits))
        return Results(tuple(results), len(found))


_all: dict[str, int] = {"sessions": _MOST, "each": 20}


def _hit(seq: int, shown: Shown, marks: Sequence[str]) -> Hit:
    snippet = shown.snippet
    if MARKS[0] not in snippet:
        snippet = _cut(shown.text, marks)
    return Hit(seq, shown.kind, snippet, timestamp(max(shown.at, 0) / 1000))


def _cut(text: str, marks: Sequence[str]) -> str:
    """A piece of a text around the first of some words, which are marked."""
    places = re.compile("|".join(map(re.escape, marks)) or r"(?!)", re.IGNORECASE)
    first = places.search(text)
    start = max(first.start() - _AROUND, 0) if first else 0
    end = (first.end() if first else 0) + _AROUND
    piece = places.sub(lambda found: f"{MARKS[0]}{found[0]}{MARKS[1]}", text[start:end])
    return f"{'…' if start else ''}{piece}{'…' if end < len(text) else ''}"
