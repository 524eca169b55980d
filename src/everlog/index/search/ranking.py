"""The ranking of search results; its figures come from `benchmarks/recall.py`.

A search looks for words and returns the passages that contain them, grouped by session. Recall
takes a whole message, most of whose words are in no answer. It has four steps, and the index does
two of them:

1. `parse_question` extracts the significant words of a message, and the dates it mentions.
2. The index counts the passages that contain each word.
3. `choose_terms` keeps the rarest words, as many as can be looked up in time. The index finds the
   best passages that contain any of them, and for each word the passages that contain it.
4. `rank_recall` orders the sessions. Three things count: how well the best two passages of a
   session match; how much of the question a short exchange covers, whichever of its messages
   contain the words, since people ask in one sentence about what took three; and whether the
   passages are from the dates in the question.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple, TypeVar

from everlog.index.search.date_phrases import DatePhrase, find_dates
from everlog.index.search.query import FUNCTION_WORDS, Node, Phrase, parse_word
from everlog.index.search.words import character_pairs, split_scripts

Term = TypeVar("Term", bound=Hashable)

# Weights of the columns, in their order. They multiply how often a word occurs in a passage, with
# diminishing returns: twice the weight gives 1.4 times the score for the first word.
WEIGHTS = {"summary": 8.0, "title": 4.0, "user": 2.0, "assistant": 1.0, "tool": 0.5, "grams": 1.0}
# Recall looks for the answer, whoever gave it.
RECALL_WEIGHTS = {**WEIGHTS, "user": 3.0, "assistant": 3.0}

# --- a message as a question ----------------------------------------------------------------

# More than FUNCTION_WORDS: a missing word costs little here, a common one matches everything.
_STOP_WORDS = FUNCTION_WORDS | frozenset(
    """about above according after again against all also am any before below between both can
    could currently d don down during each either ever few further here herself himself hi hello
    itself just kind kinds let likely ll long m many may maybe mention mentioned might mine more
    most much must myself neither no nor not now off often once only other ourselves out over own
    please re recently regarding s same shall should some sort such t tell thanks themselves
    through too type types under until up ve very whether while yes yourself
    yourselves""".split()  # noqa: SIM905 - words, to be read as such
)
# Distinct words of a long message to look up, the most frequent ones first.
_MAX_TERMS = 32
_MAX_CHARACTERS = 100_000  # of a message; the remainder is ignored
_WORD = re.compile(r"[^\W_]+(?:[_.]+[^\W_]+)*")


@dataclass(frozen=True, slots=True)
class Question:
    """A message as a question for recall."""

    # The trees of the significant words.
    terms: tuple[Node, ...]
    # Time spans that it mentions, start and end in Unix milliseconds.
    spans: tuple[tuple[int, int], ...]


def parse_question(message: str, now: int) -> Question:
    """Extract the significant words and the dates of a message; `now` in Unix milliseconds."""
    undated, spans = _extract_dates(message[:_MAX_CHARACTERS], now)
    counts = Counter[Node]()
    for match in _WORD.finditer(undated):
        for segment, unspaced in split_scripts(match[0]):
            pairs = character_pairs(segment).split()[:-1] if unspaced else []
            for word in pairs or [segment]:
                node = Phrase(word, field="grams") if unspaced and len(word) > 1 else parse_word(word)
                if node is not None and word.lower() not in _STOP_WORDS:
                    counts[node] += 1
    return Question(tuple(node for node, _ in counts.most_common(_MAX_TERMS)), tuple(spans))


# --- dates ----------------------------------------------------------------------------------

_UNITS = {"day": 1, "week": 7, "month": 30}
_DAY_MS = 86_400_000
# People report events afterwards: a passage from the days after a date may be about it.
LATE_MS = 7 * _DAY_MS
_LATE_SCORE = 0.5
_EPOCH = date(1970, 1, 1)


def _extract_dates(text: str, now: int) -> tuple[str, list[tuple[int, int]]]:
    """Return a text without its dates, and the time spans of those dates."""
    spans: list[tuple[int, int]] = []
    try:
        today = datetime.fromtimestamp(now / 1000, UTC).date()
    except (ValueError, OverflowError, OSError):
        return text, spans
    undated: list[str] = []
    position = 0
    for phrase in find_dates(text):
        if meanings := _date_spans(phrase, today):
            spans += (((start - _EPOCH).days * _DAY_MS, (end - _EPOCH).days * _DAY_MS) for start, end in meanings)
            undated.append(text[position : phrase.start])
            position = phrase.end
    return " ".join((*undated, text[position:])), spans


def _date_spans(phrase: DatePhrase, today: date) -> list[tuple[date, date]]:
    """Return what a date may mean.

    A month without a year is that of this and of the previous year, unless in the future.
    """
    spans: list[tuple[date, date]] = []
    if phrase.steps is not None:
        days = _UNITS.get(phrase.unit, 0)
        is_past = phrase.steps < 0 or (phrase.steps == 0 and not phrase.is_period)
        with suppress(OverflowError):
            start = today + timedelta(days * phrase.steps - days // 2)
            # Not meant to the day: `a week ago` is the week around that day.
            return [(start, start + timedelta(days))] if days and is_past else []
        return spans
    if phrase.modifier in ("next", "this"):
        return spans
    for year in [phrase.year] if phrase.year else [today.year, today.year - 1]:
        with suppress(ValueError, OverflowError):  # no such day, or beyond the last year
            start = date(year, phrase.month or 1, phrase.day or 1)
            if phrase.day is not None:
                end = start + timedelta(1)
            elif phrase.month is not None:
                end = date(year + phrase.month // 12, phrase.month % 12 + 1, 1)
            else:
                end = date(year + 1, 1, 1)
            if phrase.year or start <= today:
                spans.append((start, end))
    return spans


def _time_score(time: int, spans: Sequence[tuple[int, int]]) -> float:
    """Score whether a time is in one of some spans: 1; less if soon after; else 0."""
    scores = (1.0 if time < end else _LATE_SCORE for start, end in spans if start <= time < end + LATE_MS)
    return max(scores, default=0.0)


# --- terms ----------------------------------------------------------------------------------

# Passages that may match all terms together. A passage costs 1 to 2 microseconds to score and to
# locate, so this takes less than 10 ms; a store of 10,000 sessions has 200,000 passages.
BUDGET = 5_000
# The best of those passages, which are ranked.
MAX_HITS = 200


def choose_terms(counts: Mapping[Term, int], budget: int = BUDGET) -> tuple[Term, ...]:
    """Return the rarest terms whose passages fit a budget; at least one, if any occurs at all.

    `counts`: the number of passages that contain each term. If a single term exceeds the budget,
    the index only uses the newest passages, as many as the budget allows.
    """
    terms: list[Term] = []
    for term in sorted((name for name, count in counts.items() if count), key=counts.__getitem__):
        budget -= counts[term]
        if terms and budget < 0:
            break
        terms.append(term)
    return tuple(terms)


# --- order ----------------------------------------------------------------------------------


class PassageHit(NamedTuple):
    """A passage that matches."""

    row: int  # of the index
    session: str
    seq: int
    time: int  # Unix milliseconds
    score: float  # as from FTS5: below zero, lower is better


class SessionMatch(NamedTuple):
    """A session with matching passages."""

    session: str
    score: float  # 1 is the best of a search; not comparable between searches
    hits: tuple[PassageHit, ...]  # the best ones, best first


# The best two passages of a session count, not one: one long quotation is not a conversation.
# Not more either, or long sessions win.
BEST_PASSAGES = 2
# Passages and coverage count equally; anything from 0.3 to 0.7 finds as much.
_COVERAGE_WEIGHT = 0.5
# Messages of an exchange: a question, its answer, a follow-up.
_EXCHANGE_MESSAGES = 3
# A session from the date in question ranks above one with a few more matching words.
_TIME_WEIGHT = 0.6
_SCORE_DIGITS = 3  # to compare; sessions with equal scores are ordered by time, newest first


def rank_sessions(hits: Iterable[PassageHit], *, per_session: int = 3) -> list[SessionMatch]:
    """Rank the sessions of a search; each with its best passages."""
    by_session = _group_by_session(hits)
    strengths = {session: _strength(hits) for session, hits in by_session.items()}
    return _order_sessions(by_session, _normalize(strengths), per_session)


def rank_recall(
    question: Question,
    hits: Iterable[PassageHit],
    term_rows: Mapping[Term, Iterable[int]],
    passages: int,
    *,
    per_session: int = 3,
) -> list[SessionMatch]:
    """Rank the sessions that a message is about; each with its best passages.

    `term_rows`: for each chosen term the rows that contain it; `passages`: the number of all rows.
    """
    by_session = _group_by_session(hits)
    strengths = _normalize({session: _strength(hits) for session, hits in by_session.items()})
    coverage = _normalize(_coverage(by_session, term_rows, passages))
    scores = {
        session: (1 - _COVERAGE_WEIGHT) * strengths[session]
        + _COVERAGE_WEIGHT * coverage[session]
        + _TIME_WEIGHT * max(_time_score(hit.time, question.spans) for hit in session_hits)
        for session, session_hits in by_session.items()
    }
    return _order_sessions(by_session, _normalize(scores), per_session)


def _coverage(
    by_session: Mapping[str, Sequence[PassageHit]], term_rows: Mapping[Term, Iterable[int]], passages: int
) -> dict[str, float]:
    """Return the best coverage by an exchange of each session: the weight of its terms."""
    rows = {hit.row for hits in by_session.values() for hit in hits}
    term_bits = dict.fromkeys(rows, 0)  # a bit for each term
    weights = []
    for number, matching in enumerate(term_rows.values()):
        matching_rows = frozenset(matching)
        count = len(matching_rows)
        weights.append(math.log(1 + (passages - count + 0.5) / (count + 0.5)))
        for row in rows & matching_rows:
            term_bits[row] |= 1 << number
    weight_of_bits: dict[int, float] = {}
    best: dict[str, float] = {}
    for session, hits in by_session.items():
        bits_by_seq = {hit.seq: term_bits[hit.row] for hit in hits}
        best[session] = 0.0
        for seq, bits in bits_by_seq.items():
            for next_seq in range(seq + 1, seq + _EXCHANGE_MESSAGES):
                bits |= bits_by_seq.get(next_seq, 0)
            if bits not in weight_of_bits:
                weight_of_bits[bits] = sum(weight for number, weight in enumerate(weights) if bits >> number & 1)
            best[session] = max(best[session], weight_of_bits[bits])
    return best


def _group_by_session(hits: Iterable[PassageHit]) -> dict[str, list[PassageHit]]:
    """Group hits by session, best first; equal ones by time, then by row, newest first."""
    by_session: dict[str, list[PassageHit]] = {}
    for hit in sorted(hits, key=lambda hit: (hit.score, -hit.time, -hit.row)):
        by_session.setdefault(hit.session, []).append(hit)
    return by_session


def _strength(hits: Sequence[PassageHit]) -> float:
    return -sum(hit.score for hit in hits[:BEST_PASSAGES])


def _normalize(values: Mapping[str, float]) -> dict[str, float]:
    """Return values relative to the highest."""
    highest = max(values.values(), default=0.0)
    return {key: value / highest if highest > 0 else 0.0 for key, value in values.items()}


def _order_sessions(
    by_session: Mapping[str, list[PassageHit]], scores: Mapping[str, float], per_session: int
) -> list[SessionMatch]:
    """Order sessions by score; equal ones newest first, then by id: deterministic."""
    last = {session: max(hit.time for hit in hits) for session, hits in by_session.items()}
    order = sorted(by_session, key=lambda s: (-round(scores[s], _SCORE_DIGITS), -last[s], s))
    return [SessionMatch(session, scores[session], tuple(by_session[session][:per_session])) for session in order]
