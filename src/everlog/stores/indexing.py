"""Search in the sessions of a store: what is new is taken in, then its full text is asked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from msgspec import UNSET

from everlog.errors import NotFoundError, SettingsError, StoreFailedError, StoreFullError
from everlog.ids import timestamp
from everlog.index import passages, ranking
from everlog.index.fulltext import Behind, FullText, News, Shown
from everlog.index.listing_rows import Index
from everlog.index.query import parse
from everlog.log.line_codec import clean
from everlog.model import AnyRecord, Entry, Metadata
from everlog.ports import Filter, Hit, Progress, Query, Results, SessionHit
from everlog.stores.file.log_tail import Report

MARKS = ("«", "»")
# What an index marks with: they are for use inside of programs, and are no characters of a text.
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
_MARKED = re.compile(f"{_OPEN}([^{_OPEN}{_CLOSE}]*){_CLOSE}")
_LATER = 7 * 86_400_000  # ms after a time in which something may still be told of it
_BATCH = 16_000_000  # characters that are taken in at once
_WORDS = 24  # of a snippet
_AROUND = 80  # characters on either side, where the index makes no snippet
_ROUNDS = 2  # of a session in one call
_OF_ALL = (
    StoreFailedError,
    StoreFullError,
    SettingsError,
)  # what is wrong with the store, not a session

Read = Callable[[str, int], Iterator[Entry]]  # the records of a session above a seq


class Texts(Protocol):
    """The full text of a store; expressions are those of FTS5, as `search.query` makes them."""

    def behind(self, limit: int = ...) -> list[Behind]: ...
    def take(self, news: Iterable[News]) -> None: ...
    def find(
        self, match: str, weights: Sequence[float], query: Query, limit: int
    ) -> list[ranking.Hit]: ...
    def gather(
        self, match: str, weights: Sequence[float], query: Query, each: int
    ) -> list[ranking.Hit]: ...
    def inside(self, match: str, query: Query, each: int) -> list[ranking.Hit]: ...
    def newest(
        self, match: str, weights: Sequence[float], among: int, limit: int
    ) -> list[ranking.Hit]: ...
    def between(
        self,
        match: str,
        weights: Sequence[float],
        query: Query,
        span: tuple[int, int],
        limit: int,
    ) -> list[ranking.Hit]: ...
    def count(self, match: str) -> int: ...
    def places(self, match: str, limit: int) -> list[int]: ...
    def total(self) -> int: ...
    def shown(
        self, rows: Sequence[int], match: str, marks: tuple[str, str], words: int
    ) -> dict[int, Shown]: ...


def search_index(index: Index, read: Read, report: Report, *, tools: bool) -> Searching:
    """The search of one root, by its index."""

    def known(session: str) -> Metadata | None:
        row = index.get(session)
        return None if row is None else row.metadata

    return Searching(FullText(index.database), known, read, report, tools=tools)


class Searching:
    """The search of one store."""

    def __init__(
        self,
        text: Texts,
        known: Callable[[str], Metadata | None],
        read: Read,
        report: Report,
        *,
        tools: bool,
    ) -> None:
        self._known = known
        self._text = text
        self._read = read
        self._report = report
        self._tools = tools  # what tools answered is searched too

    # --- taking in

    def catch_up(self, progress: Progress | None = None) -> int:
        """Take in what is new, the oldest sessions first; returns how many had something.

        May be stopped at any moment and goes on from there.
        """
        failed = set[str]()
        # Session → from which seq on. Not twice, or a gap would be for ever; and no more than once
        # more from another, or one that others write to all the time would be.
        taken: dict[str, list[int]] = {}
        with ThreadPoolExecutor(1) as writing:  # what was read, while the next is read
            while behind := [
                one
                for one in self._text.behind()
                if one.session not in failed
                and one.seq not in (known := taken.get(one.session, []))
                and len(known) < _ROUNDS
            ]:
                taking: Future[None] | None = None
                for some in self._batches(behind, failed):
                    if taking is not None:
                        taking.result()
                    taking = writing.submit(self._take, some, failed)
                    for each in some:
                        taken.setdefault(each.before.session, []).append(each.before.seq)
                    if progress is not None:
                        progress(len(taken), max(len(taken), len(behind)))
                if taking is not None:
                    taking.result()
        return len(taken.keys() - failed)

    def _take(self, some: list[News], failed: set[str]) -> None:
        """Take in what is new of some sessions, without those that cannot be."""
        try:
            self._text.take(some)
        except _OF_ALL:
            raise
        except Exception as error:
            if len(some) > 1:
                for one in some:
                    self._take([one], failed)
                return
            self._failed(some[0].before.session, error, failed)

    def _failed(self, session: str, error: Exception, failed: set[str]) -> None:
        """One bad session must not hide the others; the next time it is tried again."""
        failed.add(session)
        if not isinstance(error, NotFoundError):
            self._report(f"session {session} cannot be searched: {type(error).__name__}: {error}")

    def _batches(self, behind: Sequence[Behind], failed: set[str]) -> Iterator[list[News]]:
        """What is new of sessions, some at a time."""
        news: list[News] = []
        size = 0
        for one in behind:
            try:
                news.append(self._news(one))
                size += sum(len(passage.text) for passage in news[-1].passages)
            except Exception as error:
                self._failed(one.session, error, failed)
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
        # Records are read up to now, so what is known of the session may be older than they are.
        name = before.metadata.name if change.name is UNSET else change.name
        named = passages.title(name or "", before.metadata.created_at)
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
        # Of every session, so that none is hidden by one that says it often.
        each = max(query.hits, ranking.PASSAGES)
        for match in (parsed.match, parsed.any):
            hits = self._text.gather(match, weights, query, each) if match else []
            if hits:
                found = ranking.group(hits, sessions=None, each=each)
                return self._results(found, match, parsed.marks, query)
        hits = self._text.inside(parsed.inside, query, each) if parsed.inside else []
        words = tuple(re.findall(r"[^\W_]+", query.text))
        return self._results(ranking.group(hits, sessions=None, each=each), "", words, query)

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
        found = ranking.recall(
            question, hits, places, self._text.total(), sessions=None, each=query.hits
        )
        return self._results(found, match, (), query)

    def _results(
        self,
        found: Sequence[ranking.Found],
        match: str,
        marks: Sequence[str],
        query: Query,
    ) -> Results:
        wanted = [one for one in found if one.session not in query.without]
        best = wanted[query.offset : query.offset + query.limit]
        rows = [hit.row for one in best for hit in one.hits[: query.hits]]
        shown = self._text.shown(rows, match, (_OPEN, _CLOSE), _WORDS)
        results = []
        for one in best:
            metadata = self._known(one.session) or Metadata(id=one.session)
            own = (hit for hit in one.hits[: query.hits] if hit.row in shown)
            hits = tuple(_hit(hit.seq, shown[hit.row], marks) for hit in own)
            results.append(SessionHit(one.session, metadata.title, round(one.score, 6), hits))
        return Results(tuple(results), len(wanted))


def _hit(seq: int, shown: Shown, marks: Sequence[str]) -> Hit:
    snippet = shown.snippet
    if _OPEN not in snippet:
        snippet = _cut(shown.text, marks)
    found = tuple(match.span(1) for match in _MARKED.finditer(snippet))
    snippet = snippet.replace(_OPEN, MARKS[0]).replace(_CLOSE, MARKS[1])
    return Hit(seq, shown.kind, snippet, timestamp(max(shown.at, 0) / 1000), found)


def _cut(text: str, marks: Sequence[str]) -> str:
    """A piece of a text around the first of some words, which are marked."""
    places = re.compile("|".join(map(re.escape, marks)) or r"(?!)", re.IGNORECASE)
    first = places.search(text)
    start = max(first.start() - _AROUND, 0) if first else 0
    end = (first.end() if first else 0) + _AROUND
    piece = places.sub(lambda found: f"{_OPEN}{found[0]}{_CLOSE}", text[start:end])
    return f"{'…' if start else ''}{piece}{'…' if end < len(text) else ''}"
