"""Everything that was said, for search: one row per message, summary and title.

A projection of the logs by record: for each session it is known up to which record it was taken
in, so catching up costs what is new. What a tombstone or a rewind takes out of a conversation is
taken out here. The text stands in a plain table, the words in an FTS5 index over it that has a
column for each kind, so that kinds can weigh differently. The number of a row is made of its
session's number and its seq, so that what is of one session stands together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from heapq import nsmallest
from itertools import count
from typing import Any, NamedTuple

import msgspec

from everlog.index.database import Database
from everlog.index.passages import KINDS, Change, Passage
from everlog.index.ranking import Hit
from everlog.index.words import identifiers
from everlog.log.line_codec import clean
from everlog.model import Metadata
from everlog.ports import Filter, Query, since_ms

_COLUMNS = ", ".join(KINDS)
_VALUES = ", ".join("?" * len(KINDS))
_BITS = 24  # of a row's number that are the seq
_HIGHEST = (1 << _BITS) - 1  # a seq; what comes behind it is not searched
_AT_ONCE = 20_000  # passages that are scored before others may use the index again
_HIT = f"passage.id, taken.session, passage.id & {_HIGHEST}, passage.at, score"
_TAKEN = f"JOIN taken ON taken.number = passage.id >> {_BITS}"
_SESSION = "JOIN session ON session.id = taken.session"

# A score and minus a row: in order it is the best first, and of equal ones the newest.
Scored = tuple[float, int]

_metadata = msgspec.json.Decoder(Metadata)


class Behind(NamedTuple):
    """A session that has gone on since it was taken in."""

    session: str
    seq: int  # up to which it was
    bytes: int  # that it has now
    metadata: Metadata


class News(NamedTuple):
    """What is new of a session."""

    before: Behind
    change: Change
    passages: Sequence[Passage]


class Shown(NamedTuple):
    """A passage to be shown."""

    kind: str
    at: int  # ms
    snippet: str  # with what was found marked, as far as the index can tell
    text: str


class FullText:
    """The passages of one root."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # --- taking in

    def behind(self, limit: int = 1_000) -> list[Behind]:
        """Sessions that have gone on, the oldest first: so those of later ones have higher rows."""
        with self._database.reading() as cursor:
            rows: Any = cursor.execute(
                """SELECT session.id, coalesce(taken.seq, 0), session.bytes, session.metadata
                FROM ahead CROSS JOIN session ON session.id = ahead.session
                LEFT JOIN taken ON taken.session = session.id
                WHERE taken.bytes IS NOT session.bytes
                ORDER BY session.active LIMIT ?""",
                (limit,),
            )
            return [Behind(one, seq, size, _metadata.decode(data)) for one, seq, size, data in rows]

    def take(self, news: Iterable[News]) -> None:
        """Take in what is new of some sessions, and take out what is gone, in one go.

        Many at once: the index writes what it has gathered with every transaction.
        """
        with self._database.writing() as cursor:
            highest = cursor.execute("SELECT coalesce(max(number), 0) FROM taken").fetchone()
            numbers = count(highest[0] + 1)  # type: ignore[index]  # there is always one
            # In order: at a row before the last one FTS5 writes out all that it has gathered.
            _add(cursor, sorted(row for one in news for row in _settle(cursor, one, numbers)))

    # --- asking

    def find(self, match: str, weights: Sequence[float], query: Query, limit: int) -> list[Hit]:
        """The best passages for an FTS5 expression."""
        conditions, values = _conditions(query)
        score = f"bm25(word, {', '.join(str(float(one)) for one in weights)})"
        return self._hits(score, conditions, (match, *values, limit))

    def gather(self, match: str, weights: Sequence[float], query: Query, each: int) -> list[Hit]:
        """The best passages of every session that has something, so many of each."""
        score = f"bm25(word, {', '.join(str(float(one)) for one in weights)})"
        return self._gathered("word", score, match, query, each)

    def inside(self, match: str, query: Query, each: int) -> list[Hit]:
        """Likewise those with identifiers that contain something, the newest."""
        return self._gathered("inside", "-1.0", match, query, each)

    def _gathered(self, table: str, score: str, match: str, query: Query, each: int) -> list[Hit]:
        """One pass over all that match, some at a time, in the order of rows.

        Where they stand and from when they are is looked up only for those that were chosen.
        """
        numbers = self._numbers(query)
        if numbers is not None and not numbers:
            return []
        conditions, values = _said(query)
        fits = f", {' AND '.join(conditions)}" if conditions else ""
        join = "LEFT JOIN passage ON passage.id = found" if conditions else ""
        statement = f"""SELECT score, -found {fits}
            FROM (SELECT rowid AS found, {score} AS score FROM {table}
                WHERE {table} MATCH ? AND rowid > ? ORDER BY rowid LIMIT {_AT_ONCE})
            {join} ORDER BY found"""
        best: dict[int, list[Scored]] = {}
        last, more = -1, True
        while more:
            with self._database.reading() as cursor:
                rows: list[Any] = cursor.execute(statement, (*values, match, last)).fetchall()
            more = len(rows) == _AT_ONCE
            last = -rows[-1][1] if rows else last
            fitting = [row[:2] for row in rows if row[2]] if conditions else rows
            for number, those in _by_number(fitting):
                if numbers is None or number in numbers:
                    best[number] = nsmallest(each, (*best.get(number, ()), *those))
        return self._placed([(-row, score) for those in best.values() for score, row in those])

    def _numbers(self, query: Query) -> set[int] | None:
        """The numbers of the sessions in question; None for all."""
        conditions, values = _whose(query)
        if not conditions:
            return None
        statement = f"SELECT number FROM taken {_SESSION} WHERE {' AND '.join(conditions)}"
        with self._database.reading() as cursor:
            return {row[0] for row in cursor.execute(statement, values)}

    def _placed(self, scores: Sequence[tuple[int, float]]) -> list[Hit]:
        """Passages by their rows, as far as they are still there."""
        hits: list[Hit] = []
        for first in range(0, len(scores), _AT_ONCE):
            some = dict(scores[first : first + _AT_ONCE])
            with self._database.reading() as cursor:
                rows: Any = cursor.execute(
                    f"""SELECT passage.id, taken.session, passage.at
                    FROM json_each(?) JOIN passage ON passage.id = value {_TAKEN}""",
                    (msgspec.json.encode(list(some)).decode(),),
                )
                hits += [Hit(row, one, row & _HIGHEST, at, some[row]) for row, one, at in rows]
        return hits

    def _hits(self, score: str, conditions: Sequence[str], values: Sequence[Any]) -> list[Hit]:
        with self._database.reading() as cursor:
            rows = cursor.execute(
                f"""SELECT {_HIT.replace("score", f"{score} AS score")}
                FROM word JOIN passage ON passage.id = word.rowid {_TAKEN}
                {_SESSION if conditions else ""}
                WHERE word MATCH ? {"".join(f" AND {one}" for one in conditions)}
                ORDER BY score, passage.at DESC, passage.id DESC LIMIT ?""",
                values,
            )
            return [Hit(*row) for row in rows]

    def newest(self, match: str, weights: Sequence[float], among: int, limit: int) -> list[Hit]:
        """The best passages among the newest that have any of some words."""
        with self._database.reading() as cursor:
            rows = cursor.execute(
                f"""SELECT {_HIT} FROM (SELECT * FROM (
                    SELECT rowid AS found, bm25(word, {", ".join(map(str, weights))}) AS score
                    FROM word WHERE word MATCH ? ORDER BY rowid DESC LIMIT ?)
                    ORDER BY score LIMIT ?) JOIN passage ON passage.id = found {_TAKEN}""",
                (match, among, limit),
            )
            return [Hit(*row) for row in rows]

    def between(
        self,
        match: str,
        weights: Sequence[float],
        query: Query,
        span: tuple[int, int],
        limit: int,
    ) -> list[Hit]:
        """The best passages of a time."""
        score = f"bm25(word, {', '.join(map(str, weights))})"
        conditions, values = _conditions(query)
        conditions += ["passage.at >= ?", "passage.at < ?"]
        return self._hits(score, conditions, (match, *values, *span, limit))

    def count(self, match: str) -> int:
        """How many passages have something."""
        with self._database.reading() as cursor:
            row: Any = cursor.execute("SELECT count(*) FROM word WHERE word MATCH ?", (match,))
            return int(row.fetchone()[0])

    def places(self, match: str, limit: int) -> list[int]:
        """The rows of the passages that have something, of at most so many, the newest."""
        query = "SELECT rowid FROM word WHERE word MATCH ? ORDER BY rowid DESC LIMIT ?"
        with self._database.reading() as cursor:
            return [row[0] for row in cursor.execute(query, (match, limit))]

    def total(self) -> int:
        """How many passages there are."""
        with self._database.reading() as cursor:
            row: Any = cursor.execute("SELECT value FROM fact WHERE key = 'passages'")
            return int(row.fetchone()[0])

    def shown(
        self, rows: Sequence[int], match: str, marks: tuple[str, str], words: int
    ) -> dict[int, Shown]:
        """Passages with a piece of each in which what was found is marked."""
        if not rows:
            return {}
        holes = ", ".join("?" * len(rows))
        found: dict[int, Shown] = {}
        with self._database.reading() as cursor:
            query = f"SELECT id, kind, at, text FROM passage WHERE id IN ({holes})"
            given: list[Any] = cursor.execute(query, rows).fetchall()
            for row, kind, at, text in given:
                found[row] = Shown(kind, at, "", text)
            for column, kind in enumerate(KINDS if match else ()):
                own = [row for row, one in found.items() if one.kind == kind]
                if not own:
                    continue
                query = f"""SELECT rowid, snippet(word, {column}, ?, ?, '…', ?) FROM word
                    WHERE word MATCH ? AND rowid IN ({", ".join("?" * len(own))})"""
                made: list[Any] = cursor.execute(query, (*marks, words, match, *own)).fetchall()
                for row, text in made:
                    found[row] = found[row]._replace(snippet=text or "")
        return found


def _by_number(rows: Sequence[Scored]) -> Iterator[tuple[int, Sequence[Scored]]]:
    """The rows of each session, which stand together: not looked at one by one."""
    start = 0
    while start < len(rows):
        number = -rows[start][1] >> _BITS
        end = bisect_right(rows, _row(number, _HIGHEST), start, key=lambda row: -row[1])
        yield number, rows[start:end]
        start = end


def _conditions(query: Query) -> tuple[list[str], list[Any]]:
    (whose, values), (said, more) = _whose(query), _said(query)
    return whose + said, values + more


def _whose(query: Query) -> tuple[list[str], list[Any]]:
    """What is asked of a session."""
    which = query.which
    conditions: list[str] = []
    values: list[Any] = []
    for column in ("agent", "sender", "source"):
        value = getattr(which, column)
        if value is not None:
            conditions.append(f"session.{column} = ?")
            values.append(clean(value))
    if which.title is not None:
        conditions.append("instr(session.title, ?) > 0")
        values.append(clean(which.title).casefold())
    return conditions, values


def _said(query: Query) -> tuple[list[str], list[Any]]:
    """What is asked of a passage."""
    conditions: list[str] = []
    values: list[Any] = []
    if query.which.since is not None:
        conditions.append("passage.at >= ?")
        values.append(since_ms(query.which))
    if query.until is not None:
        conditions.append("passage.at < ?")
        values.append(since_ms(Filter(since=query.until)))
    if query.role is not None:
        conditions.append("passage.kind = ?")
        values.append(query.role)
    return conditions, values


# --- within a transaction -------------------------------------------------------------------


Row = tuple[int, str, int, str, str | None]  # of `passage`


def _settle(cursor: Any, news: News, numbers: Iterator[int]) -> list[Row]:
    """Take out what is gone of a session, and note how far it is taken in; what is to be added."""
    session, seq, size, _ = news.before
    known = cursor.execute("SELECT seq, number FROM taken WHERE session = ?", (session,)).fetchone()
    if (known[0] if known else 0) != seq:
        return []  # another process was here
    number = next(numbers) if known is None else known[1]
    if known is not None:
        for first, last in news.change.dropped:
            _remove(cursor, number, first, last, "kind != 'summary'")
        for one in news.change.gone:
            _remove(cursor, number, one, one)
    cursor.execute(
        "INSERT OR REPLACE INTO taken VALUES (?, ?, ?, ?)",
        (session, number, max(news.change.through, seq), size),
    )
    cursor.execute(
        """DELETE FROM ahead WHERE session = ?1
        AND EXISTS (SELECT 1 FROM session WHERE id = ?1 AND bytes IS ?2)""",
        (session, size),
    )
    return [
        (_row(number, one.seq), one.kind, one.at, clean(one.text), clean(one.grams) or None)
        for one in news.passages
        if one.seq <= _HIGHEST
    ]


def _add(cursor: Any, rows: Sequence[Row]) -> None:
    cursor.executemany("INSERT INTO passage VALUES (?, ?, ?, ?, ?)", rows)
    _count(cursor, len(rows))
    cursor.executemany(
        f"INSERT INTO word (rowid, {_COLUMNS}, grams) VALUES (?, {_VALUES}, ?)",
        ((row, *_columns(kind, text), grams) for row, kind, _, text, grams in rows),
    )
    cursor.executemany(
        "INSERT INTO inside (rowid, names) VALUES (?, ?)",
        [(row, names) for row, _, _, text, _ in rows if (names := identifiers(text))],
    )


def _remove(cursor: Any, number: int, first: int, last: int, which: str = "1") -> None:
    """Take passages out. An FTS5 index over another table must be told what stood there."""
    between = _row(number, first), _row(number, min(last, _HIGHEST))
    rows = cursor.execute(
        f"SELECT id, kind, text, grams FROM passage WHERE id BETWEEN ? AND ? AND {which}", between
    ).fetchall()
    cursor.executemany(
        f"INSERT INTO word (word, rowid, {_COLUMNS}, grams) VALUES ('delete', ?, {_VALUES}, ?)",
        [(row, *_columns(kind, text), grams) for row, kind, text, grams in rows],
    )
    _count(cursor, -len(rows))
    for table, key in (("passage", "id"), ("inside", "rowid")):
        cursor.executemany(f"DELETE FROM {table} WHERE {key} = ?", [(row[0],) for row in rows])


def _count(cursor: Any, more: int) -> None:
    if more:
        cursor.execute("UPDATE fact SET value = value + ? WHERE key = 'passages'", (more,))


def _row(number: int, seq: int) -> int:
    return (number << _BITS) | min(seq, _HIGHEST)


def _columns(kind: str, text: str) -> list[str | None]:
    return [text if kind == name else None for name in KINDS]


def drop(cursor: Any, session: str) -> None:
    """Forget a session."""
    known = cursor.execute("SELECT number FROM taken WHERE session = ?", (session,)).fetchone()
    if known is not None:
        _remove(cursor, known[0], 0, _HIGHEST)
        cursor.execute("DELETE FROM taken WHERE session = ?", (session,))
