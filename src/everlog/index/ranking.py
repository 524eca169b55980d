"""Which sessions answer, and in which order; the figures behind it are in `benchmarks/recall.py`.

A search asks for words and gets the passages that have them, grouped by session. Recall asks with
a whole message, most of whose words are in no answer. It goes in four steps, and the index does
two of them:

1. `ask` takes the telling words of a message, and the times it speaks of.
2. The index counts the passages that have each word.
3. `choose` keeps the rarest words, as many as can be looked up in time. The index finds the
   best passages that have any of them, and for each word the passages that have it.
4. `recall` puts sessions in order. Three things count: how well the best two passages of a session
   match; how much of the question an exchange of few messages covers, whichever of them the words
   are in, since people ask in one sentence about what was said in three; and whether it was said
   when the question says.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from heapq import nlargest
from typing import NamedTuple

from everlog.index.query import FUNCTION_WORDS, term
from everlog.index.words import pairs, segments

# Weights of the columns, in their order. They multiply how often a word occurs in a passage, and
# that is worth less and less: twice the weight is worth 1.4 times the score for the first word.
WEIGHTS = {"summary": 8.0, "title": 4.0, "user": 2.0, "assistant": 1.0, "tool": 0.5, "grams": 1.0}
# Recall wants the answer, whoever gave it.
RECALL_WEIGHTS = {**WEIGHTS, "user": 3.0, "assistant": 3.0}

# --- a message as a question ----------------------------------------------------------------

# More than FUNCTION_WORDS: here a word too few costs little, and a word too many finds everything.
_TELLS_NOTHING = FUNCTION_WORDS | frozenset(
    """about above according after again against all also am any before below between both can
    could currently d don down during each either ever few further here herself himself hi hello
    itself just kind kinds let likely ll long m many may maybe mention mentioned might mine more
    most much must myself neither no nor not now off often once only other ourselves out over own
    please re recently regarding s same shall should some sort such t tell thanks themselves
    through too type types under until up ve very whether while yes yourself
    yourselves""".split()  # noqa: SIM905 - words, to be read as such
)
# Of a long message these many distinct words are counted, the most frequent ones first.
_MOST_TERMS = 32
_LONGEST = 100_000  # characters of a message that are looked at
_WORD = re.compile(r"[^\W_]+(?:[_.]+[^\W_]+)*")


@dataclass(frozen=True, slots=True)
class Question:
    """What a message asks the past for."""

    # Expressions for the index, one for each telling word; none if there is nothing to ask.
    terms: tuple[str, ...]
    # Times that it speaks of, as Unix milliseconds, each with its end.
    spans: tuple[tuple[int, int], ...]


def ask(message: str, now: int) -> Question:
    """The telling words of a message and the times it speaks of; `now` in Unix milliseconds."""
    message = message[:_LONGEST]
    today = _day(now)
    dated, spans = _dates(message, today) if today else (message, [])
    said: dict[str, int] = {}
    for match in _WORD.finditer(dated):
        for piece, unspaced in segments(match[0]):
            for word in pairs(piece).split()[:-1] or [piece] if unspaced else [piece]:
                meant = "" if word.lower() in _TELLS_NOTHING else _meant(word, unspaced)
                if meant:
                    said[meant] = said.get(meant, 0) + 1
    return Question(tuple(nlargest(_MOST_TERMS, said, key=said.__getitem__)), tuple(spans))


def _meant(word: str, unspaced: bool) -> str:
    return f'grams : "{word}"' if unspaced and len(word) > 1 else term(word)


# --- when -----------------------------------------------------------------------------------

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = (
    "january|february|march|april|june|july|august|september|october|november|december|sept|"
    + "|".join(_MONTHS)
)
_DAY = r"\d{1,2}(?:st|nd|rd|th)?"
_YEAR = r"(?:19|20)\d\d"
_DATE = re.compile(
    rf"""\b(?:
    (?P<iso>{_YEAR}-\d\d-\d\d)
    | (?P<d1>{_DAY})(?:\ of)?\ (?P<m1>{_MONTH})\b\.?(?:,?\ (?P<y1>{_YEAR}))?
    | (?P<m2>{_MONTH})\b\.?\ (?P<d2>{_DAY})\b(?:,?\ (?P<y2>{_YEAR}))?
    | (?P<m3>{_MONTH})\b\.?,?\ (?:of\ )?(?P<y3>{_YEAR})
    | (?:in|of|by|since|until|during|before|after|last|early|late)\ (?P<m4>{_MONTH})\b(?!\.?,?\ \d)
    | (?:in|since|during)\ (?P<y4>{_YEAR})
    | (?P<days>today|yesterday)
    | (?P<count>\d{{1,3}}|a|one|two|three)\ (?P<unit>day|week|month)s?\ ago
    | last\ (?P<last>week|month)
    )\b""",
    re.VERBOSE | re.IGNORECASE,
)
_COUNTS = {"a": 1, "one": 1, "two": 2, "three": 3}
_UNITS = {"day": 1, "week": 7, "month": 30}
# People tell what happened after it happened: a passage of the days after a time may be about it.
_TOLD_WITHIN = timedelta(days=7)
_TOLD_LATER = 0.5
_EPOCH = date(1970, 1, 1)
_DAY_MS = 86_400_000


def _dates(text: str, today: date) -> tuple[str, list[tuple[int, int]]]:
    """A text without the dates in it, and what they mean.

    Without a year a month is that of this year and of the year before, as far as they have begun.
    """
    found: list[tuple[date, date]] = []
    rest = []
    at = 0
    for match in _DATE.finditer(text):
        meant = list(_meanings(match, today))
        if meant:
            rest.append(text[at : match.start()])
            at = match.end()
            found += meant
    return " ".join((*rest, text[at:])), [(_ms(start), _ms(end)) for start, end in found]


def _meanings(match: re.Match[str], today: date) -> Iterable[tuple[date, date]]:
    said = {name: text.lower() for name, text in match.groupdict().items() if text}
    try:
        if "iso" in said:
            day = date.fromisoformat(said["iso"])
            return [(day, day + timedelta(1))]
        if "days" in said:
            day = today - timedelta(said["days"] == "yesterday")
            return [(day, day + timedelta(1))]
        if "unit" in said or "last" in said:
            unit = _UNITS[said.get("unit") or said["last"]]
            count = _COUNTS.get(said.get("count", "one")) or int(said["count"])
            day = today - timedelta(unit * count)
            # Nobody counts days: `a week ago` is a week around that day.
            return [(day - timedelta(unit // 2), day + timedelta(unit - unit // 2))]
    except (ValueError, OverflowError):
        return []
    name = next((said[key] for key in ("m1", "m2", "m3", "m4") if key in said), "")
    month = _MONTHS.index(name[:3]) + 1 if name else 0
    digits = "".join(filter(str.isdigit, said.get("d1") or said.get("d2") or ""))
    year = next((int(said[key]) for key in ("y1", "y2", "y3", "y4") if key in said), 0)
    years = [year] if year else [today.year, today.year - 1]
    found = []
    for one in years:
        try:
            start = date(one, month or 1, int(digits or 1))
            if digits:
                end = start + timedelta(1)
            elif month:
                end = date(one + month // 12, month % 12 + 1, 1)
            else:
                end = date(one + 1, 1, 1)
        except (ValueError, OverflowError):
            continue  # no such day, or the end of time
        if year or start <= today:
            found.append((start, end))
    return found


def _day(ms: int) -> date | None:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).date()
    except (ValueError, OverflowError, OSError):
        return None


def _ms(day: date) -> int:
    return (day - _EPOCH).days * _DAY_MS


def _timely(time: int, spans: Sequence[tuple[int, int]]) -> float:
    """Whether something was said at a time that was asked for: 1, or less if soon after."""
    later = _TOLD_WITHIN // timedelta(milliseconds=1)
    return max(
        (1.0 if time < end else _TOLD_LATER for start, end in spans if start <= time < end + later),
        default=0.0,
    )


# --- which words ----------------------------------------------------------------------------

# Passages that all words together may have. A passage costs 1 to 2 microseconds to score and to
# place, so that these are less than 10 ms; a store of 10,000 sessions has 200,000.
BUDGET = 5_000
# Passages that are put in order, the best ones of those.
HITS = 200


def choose(counts: Mapping[str, int], budget: int = BUDGET) -> tuple[str, ...]:
    """The rarest terms whose passages fit a budget; at least one, if any occurs at all.

    `counts`: the number of passages that have a term. Where a single one is above the budget
    the index looks at the newest passages only, as many as the budget allows.
    """
    chosen: list[str] = []
    for one in sorted((name for name, count in counts.items() if count), key=counts.__getitem__):
        budget -= counts[one]
        if chosen and budget < 0:
            break
        chosen.append(one)
    return tuple(chosen)


# --- in which order -------------------------------------------------------------------------


class Hit(NamedTuple):
    """A passage that was found."""

    row: int  # of the index
    session: str
    seq: int
    time: int  # Unix milliseconds
    score: float  # as FTS5 says it: the lower the better, and below zero


class Found(NamedTuple):
    """A session that was found."""

    session: str
    score: float  # 1 is the best of a search; comparable within it only
    hits: tuple[Hit, ...]  # the best ones, best first


# The best two passages of a session count, not one: one long quotation is no conversation. Not
# more either, or long sessions win.
PASSAGES = 2
# Passages and coverage count alike; anything from 0.3 to 0.7 finds as much.
_COVERAGE = 0.5
# Messages of an exchange: a question, its answer, a word about it.
_EXCHANGE = 3
# A session of the day that is asked for goes before one that has a few words more.
_TIME = 0.6
_ALIKE = 3  # digits of a score; what is the same to them is ordered by time, newest first


def group(hits: Iterable[Hit], *, sessions: int | None = 20, each: int = 3) -> list[Found]:
    """The sessions of a search in order, with their best passages."""
    found = _by_session(hits)
    strengths = {session: _strength(those) for session, those in found.items()}
    return _ordered(found, _shares(strengths), sessions, each)


def recall(
    question: Question,
    hits: Iterable[Hit],
    places: Mapping[str, Iterable[int]],
    passages: int,
    *,
    sessions: int | None = 20,
    each: int = 3,
) -> list[Found]:
    """The sessions that a message is about in order, with their best passages.

    `places`: for each chosen term the rows that have it; `passages`: how many rows there are.
    """
    found = _by_session(hits)
    strengths = _shares({session: _strength(those) for session, those in found.items()})
    covered = _shares(_coverage(found, places, passages))
    scores = {
        session: (1 - _COVERAGE) * strengths[session]
        + _COVERAGE * covered[session]
        + _TIME * max(_timely(hit.time, question.spans) for hit in those)
        for session, those in found.items()
    }
    return _ordered(found, _shares(scores), sessions, each)


def _coverage(
    found: Mapping[str, Sequence[Hit]], places: Mapping[str, Iterable[int]], passages: int
) -> dict[str, float]:
    """How much of a question an exchange of each session covers: the weights of its words."""
    rows = {hit.row for hits in found.values() for hit in hits}
    said = dict.fromkeys(rows, 0)  # a bit for each term
    weights = []
    for number, those in enumerate(places.values()):
        having = frozenset(those)
        weights.append(math.log(1 + (passages - len(having) + 0.5) / (len(having) + 0.5)))
        for row in rows & having:
            said[row] |= 1 << number
    worth: dict[int, float] = {}
    best: dict[str, float] = {}
    for session, hits in found.items():
        there = {hit.seq: said[hit.row] for hit in hits}
        best[session] = 0.0
        for seq, bits in there.items():
            for after in range(seq + 1, seq + _EXCHANGE):
                bits |= there.get(after, 0)
            if bits not in worth:
                worth[bits] = sum(
                    weight for number, weight in enumerate(weights) if bits >> number & 1
                )
            best[session] = max(best[session], worth[bits])
    return best


def _by_session(hits: Iterable[Hit]) -> dict[str, list[Hit]]:
    """Hits of each session, best first; of equal ones the newest, then the last."""
    found: dict[str, list[Hit]] = {}
    for hit in sorted(hits, key=lambda hit: (hit.score, -hit.time, -hit.row)):
        found.setdefault(hit.session, []).append(hit)
    return found


def _strength(hits: Sequence[Hit]) -> float:
    return -sum(hit.score for hit in hits[:PASSAGES])


def _shares(values: Mapping[str, float]) -> dict[str, float]:
    """Values as shares of the highest."""
    most = max(values.values(), default=0.0)
    return {key: value / most if most > 0 else 0.0 for key, value in values.items()}


def _ordered(
    found: Mapping[str, list[Hit]], scores: Mapping[str, float], sessions: int | None, each: int
) -> list[Found]:
    """Sessions by score; of equal ones the newest first, then by name, so that all is certain."""
    last = {session: max(hit.time for hit in hits) for session, hits in found.items()}
    order = sorted(found, key=lambda name: (-round(scores[name], _ALIKE), -last[name], name))
    return [Found(name, scores[name], tuple(found[name][:each])) for name in order[:sessions]]
