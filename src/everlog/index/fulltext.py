"""The full-text index for search: one row per message, summary and title.

A projection of the logs by record: each session has the seq up to which it is indexed, so that
catching up only costs the new records. A message that a tombstone or a rewind removes is removed
here too. The text is in a plain table, the words in an FTS5 index over it that has a column for
each kind, so that kinds can have different weights. A row's number consists of its session's
number and its seq, so that the rows of a session are consecutive.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from heapq import nsmallest
from itertools import count
from typing import Any, NamedTuple

import msgspec

from everlog.index.database import Database
from everlog.index.passages import KINDS, Passage, PassageChanges
from everlog.index.ranking import PassageHit
from everlog.index.words import identifiers
from everlog.log.line_codec import replace_surrogates
from everlog.model import Metadata
from everlog.ports import Filter, Query, since_ms

_COLUMNS = ", ".join(KINDS)
_VALUES = ", ".join("?" * len(KINDS))
_SEQ_BITS = 24  # low bits of a row's number, for the seq
_MAX_SEQ = (1 << _SEQ_BITS) - 1  # later records are not searched
_BATCH_ROWS = 20_000  # scored passages before other threads may use the index
_HIT_COLUMNS = f"passage.id, taken.session, passage.id & {_MAX_SEQ}, passage.at, score"
_JOIN_TAKEN = f"JOIN taken ON taken.number = passage.id >> {_SEQ_BITS}"
_JOIN_SESSION = "JOIN session ON session.id = taken.session"

# A score and a negated row: sorted, the best come first, and of equal ones the newest.
ScoredRow = tuple[float, int]

_metadata_decoder = msgspec.json.Decoder(Metadata)


class StaleSession(NamedTuple):
    """A session that has grown since it was indexed."""

    session: str
    seq: int  # up to which it is indexed
    bytes: int  # its current size
    metadata: Metadata


class SessionUpdate(NamedTuple):
    """The changes of a session since it was indexed."""

    stale: StaleSession
    changes: PassageChanges
    passages: Sequence[Passage]


class PassageText(NamedTuple):
    """A passage to show in search results."""

    kind: str
    time: int  # ms
    snippet: str  # with the matches marked, as far as the index can
    text: str


class FullText:
    """The full-text index of one root."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # --- indexing

    def stale_sessions(self, limit: int = 1_000) -> list[StaleSession]:
        """Return sessions that have grown, oldest first, so that newer ones get higher rows."""
        with self._database.read_cursor() as cursor:
            rows: Any = cursor.execute(
                """SELECT session.id, coalesce(taken.seq, 0), session.bytes, session.metadata
                FROM ahead CROSS JOIN session ON session.id = ahead.session
                LEFT JOIN taken ON taken.session = session.id
                WHERE taken.bytes IS NOT session.bytes
                ORDER BY session.active LIMIT ?""",
                (limit,),
            )
            return [
                StaleSession(session, seq, size, _metadata_decoder.decode(data)) for session, seq, size, data in rows
            ]

    def apply_updates(self, updates: Iterable[SessionUpdate]) -> None:
        """Add the new passages of sessions and remove the deleted ones, in one transaction.

        Many at once: FTS5 flushes its buffer with every transaction.
        """
        with self._database.write_transaction() as cursor:
            highest = cursor.execute("SELECT coalesce(max(number), 0) FROM taken").fetchone()
            numbers = count(highest[0] + 1)  # type: ignore[index]  # there is always one
            # Sorted: FTS5 flushes its buffer when a row is lower than the one before.
            rows = (row for update in updates for row in _update_session(cursor, update, numbers))
            _insert_passages(cursor, sorted(rows))

    # --- queries

    def find_best(self, match: str, weights: Sequence[float], query: Query, limit: int) -> list[PassageHit]:
        """Return the best passages for an FTS5 expression."""
        conditions, values = _conditions(query)
        score = f"bm25(word, {', '.join(str(float(weight)) for weight in weights)})"
        return self._query_hits(score, conditions, (match, *values, limit))

    def find_per_session(
        self, match: str, weights: Sequence[float], query: Query, per_session: int
    ) -> list[PassageHit]:
        """Return the best passages of every session that matches, `per_session` of each."""
        score = f"bm25(word, {', '.join(str(float(weight)) for weight in weights)})"
        return self._best_per_session("word", score, match, query, per_session)

    def find_substrings(self, match: str, query: Query, per_session: int) -> list[PassageHit]:
        """Return the newest passages of every session whose identifiers contain something."""
        return self._best_per_session("inside", "-1.0", match, query, per_session)

    def _best_per_session(self, table: str, score: str, match: str, query: Query, per_session: int) -> list[PassageHit]:
        """Return the best passages of every session, in one pass over all matches, in batches.

        Session and time are looked up only for the passages that are returned.
        """
        numbers = self._session_numbers(query)
        if numbers is not None and not numbers:
            return []
        conditions, values = _passage_conditions(query)
        fit = f", {' AND '.join(conditions)}" if conditions else ""
        join = "LEFT JOIN passage ON passage.id = found" if conditions else ""
        statement = f"""SELECT score, -found {fit}
            FROM (SELECT rowid AS found, {score} AS score FROM {table}
                WHERE {table} MATCH ? AND rowid > ? ORDER BY rowid LIMIT {_BATCH_ROWS})
            {join} ORDER BY found"""
        best: dict[int, list[ScoredRow]] = {}
        last_row, has_more = -1, True
        while has_more:
            with self._database.read_cursor() as cursor:
                rows: list[Any] = cursor.execute(statement, (*values, match, last_row)).fetchall()
            has_more = len(rows) == _BATCH_ROWS
            last_row = -rows[-1][1] if rows else last_row
            fitting = [row[:2] for row in rows if row[2]] if conditions else rows
            for number, scored in _group_by_session(fitting):
                if numbers is None or number in numbers:
                    best[number] = nsmallest(per_session, (*best.get(number, ()), *scored))
        return self._load_hits([(-row, score) for scored in best.values() for score, row in scored])

    def _session_numbers(self, query: Query) -> set[int] | None:
        """Return the numbers of the sessions that a query is about; None for all."""
        conditions, values = _session_conditions(query)
        if not conditions:
            return None
        statement = f"SELECT number FROM taken {_JOIN_SESSION} WHERE {' AND '.join(conditions)}"
        with self._database.read_cursor() as cursor:
            return {row[0] for row in cursor.execute(statement, values)}

    def _load_hits(self, scores: Sequence[tuple[int, float]]) -> list[PassageHit]:
        """Return the hits for scored rows, as far as they still exist."""
        hits: list[PassageHit] = []
        for first in range(0, len(scores), _BATCH_ROWS):
            batch = dict(scores[first : first + _BATCH_ROWS])
            with self._database.read_cursor() as cursor:
                rows: Any = cursor.execute(
                    f"""SELECT passage.id, taken.session, passage.at
                    FROM json_each(?) JOIN passage ON passage.id = value {_JOIN_TAKEN}""",
                    (msgspec.json.encode(list(batch)).decode(),),
                )
                hits += [PassageHit(row, session, row & _MAX_SEQ, time, batch[row]) for row, session, time in rows]
        return hits

    def _query_hits(self, score: str, conditions: Sequence[str], values: Sequence[Any]) -> list[PassageHit]:
        with self._database.read_cursor() as cursor:
            rows = cursor.execute(
                f"""SELECT {_HIT_COLUMNS.replace("score", f"{score} AS score")}
                FROM word JOIN passage ON passage.id = word.rowid {_JOIN_TAKEN}
                {_JOIN_SESSION if conditions else ""}
                WHERE word MATCH ? {"".join(f" AND {condition}" for condition in conditions)}
                ORDER BY score, passage.at DESC, passage.id DESC LIMIT ?""",
                values,
            )
            return [PassageHit(*row) for row in rows]

    def find_newest(self, match: str, weights: Sequence[float], candidates: int, limit: int) -> list[PassageHit]:
        """Return the best passages among the newest `candidates` that match."""
        with self._database.read_cursor() as cursor:
            rows = cursor.execute(
                f"""SELECT {_HIT_COLUMNS} FROM (SELECT * FROM (
                    SELECT rowid AS found, bm25(word, {", ".join(map(str, weights))}) AS score
                    FROM word WHERE word MATCH ? ORDER BY rowid DESC LIMIT ?)
                    ORDER BY score LIMIT ?) JOIN passage ON passage.id = found {_JOIN_TAKEN}""",
                (match, candidates, limit),
            )
            return [PassageHit(*row) for row in rows]

    def find_between(
        self, match: str, weights: Sequence[float], query: Query, span: tuple[int, int], limit: int
    ) -> list[PassageHit]:
        """Return the best passages of a time span."""
        score = f"bm25(word, {', '.join(map(str, weights))})"
        conditions, values = _conditions(query)
        conditions += ["passage.at >= ?", "passage.at < ?"]
        return self._query_hits(score, conditions, (match, *values, *span, limit))

    def count_matches(self, match: str) -> int:
        """Return how many passages match."""
        with self._database.read_cursor() as cursor:
            row: Any = cursor.execute("SELECT count(*) FROM word WHERE word MATCH ?", (match,))
            return int(row.fetchone()[0])

    def matching_rows(self, match: str, limit: int) -> list[int]:
        """Return the rows of the newest `limit` passages that match."""
        query = "SELECT rowid FROM word WHERE word MATCH ? ORDER BY rowid DESC LIMIT ?"
        with self._database.read_cursor() as cursor:
            return [row[0] for row in cursor.execute(query, (match, limit))]

    def count_passages(self) -> int:
        """Return how many passages are indexed."""
        with self._database.read_cursor() as cursor:
            row: Any = cursor.execute("SELECT value FROM fact WHERE key = 'passages'")
            return int(row.fetchone()[0])

    def load_passages(
        self, rows: Sequence[int], match: str, marks: tuple[str, str], words: int
    ) -> dict[int, PassageText]:
        """Return passages, each with a snippet in which the matches are marked."""
        if not rows:
            return {}
        placeholders = ", ".join("?" * len(rows))
        passages: dict[int, PassageText] = {}
        with self._database.read_cursor() as cursor:
            query = f"SELECT id, kind, at, text FROM passage WHERE id IN ({placeholders})"
            loaded: list[Any] = cursor.execute(query, rows).fetchall()
            for row, kind, time, text in loaded:
                passages[row] = PassageText(kind, time, "", text)
            for column, kind in enumerate(KINDS if match else ()):
                of_kind = [row for row, passage in passages.items() if passage.kind == kind]
                if not of_kind:
                    continue
                query = f"""SELECT rowid, snippet(word, {column}, ?, ?, '…', ?) FROM word
                    WHERE word MATCH ? AND rowid IN ({", ".join("?" * len(of_kind))})"""
                values = (*marks, words, match, *of_kind)
                snippets: list[Any] = cursor.execute(query, values).fetchall()
                for row, text in snippets:
                    passages[row] = passages[row]._replace(snippet=text or "")
        return passages


def _group_by_session(rows: Sequence[ScoredRow]) -> Iterator[tuple[int, Sequence[ScoredRow]]]:
    """Group rows by session; they are consecutive, so each group's end is found by bisection."""
    start = 0
    while start < len(rows):
        number = -rows[start][1] >> _SEQ_BITS
        end = bisect_right(rows, _row_id(number, _MAX_SEQ), start, key=lambda row: -row[1])
        yield number, rows[start:end]
        start = end


def _conditions(query: Query) -> tuple[list[str], list[Any]]:
    conditions, values = _session_conditions(query)
    passage_conditions, passage_values = _passage_conditions(query)
    return conditions + passage_conditions, values + passage_values


def _session_conditions(query: Query) -> tuple[list[str], list[Any]]:
    """Return the SQL conditions of a query on sessions."""
    criteria = query.criteria
    conditions: list[str] = []
    values: list[Any] = []
    for column in ("agent", "sender", "source"):
        value = getattr(criteria, column)
        if value is not None:
            conditions.append(f"session.{column} = ?")
            values.append(replace_surrogates(value))
    if criteria.title is not None:
        conditions.append("instr(session.title, ?) > 0")
        values.append(replace_surrogates(criteria.title).casefold())
    return conditions, values


def _passage_conditions(query: Query) -> tuple[list[str], list[Any]]:
    """Return the SQL conditions of a query on passages."""
    conditions: list[str] = []
    values: list[Any] = []
    if query.criteria.since is not None:
        conditions.append("passage.at >= ?")
        values.append(since_ms(query.criteria))
    if query.until is not None:
        conditions.append("passage.at < ?")
        values.append(since_ms(Filter(since=query.until)))
    if query.role is not None:
        conditions.append("passage.kind = ?")
        values.append(query.role)
    return conditions, values


# --- within a transaction -------------------------------------------------------------------


Row = tuple[int, str, int, str, str | None]  # of `passage`


def _update_session(cursor: Any, update: SessionUpdate, numbers: Iterator[int]) -> list[Row]:
    """Remove a session's deleted passages, store its indexed seq, return the rows to add."""
    session, seq, size, _ = update.stale
    row = cursor.execute("SELECT seq, number FROM taken WHERE session = ?", (session,)).fetchone()
    if (row[0] if row else 0) != seq:
        return []  # another process indexed it meanwhile
    number = next(numbers) if row is None else row[1]
    if row is not None:
        for first, last in update.changes.removed_ranges:
            _remove_passages(cursor, number, first, last, "kind != 'summary'")
        for removed_seq in update.changes.removed:
            _remove_passages(cursor, number, removed_seq, removed_seq)
    cursor.execute(
        "INSERT OR REPLACE INTO taken VALUES (?, ?, ?, ?)", (session, number, max(update.changes.last_seq, seq), size)
    )
    cursor.execute(
        """DELETE FROM ahead WHERE session = ?1
        AND EXISTS (SELECT 1 FROM session WHERE id = ?1 AND bytes IS ?2)""",
        (session, size),
    )
    return [
        (
            _row_id(number, passage.seq),
            passage.kind,
            passage.time,
            replace_surrogates(passage.text),
            replace_surrogates(passage.grams) or None,
        )
        for passage in update.passages
        if passage.seq <= _MAX_SEQ
    ]


def _insert_passages(cursor: Any, rows: Sequence[Row]) -> None:
    cursor.executemany("INSERT INTO passage VALUES (?, ?, ?, ?, ?)", rows)
    _change_count(cursor, len(rows))
    cursor.executemany(
        f"INSERT INTO word (rowid, {_COLUMNS}, grams) VALUES (?, {_VALUES}, ?)",
        ((row, *_columns(kind, text), grams) for row, kind, _, text, grams in rows),
    )
    cursor.executemany(
        "INSERT INTO inside (rowid, names) VALUES (?, ?)",
        [(row, names) for row, _, _, text, _ in rows if (names := identifiers(text))],
    )


def _remove_passages(cursor: Any, number: int, first: int, last: int, condition: str = "1") -> None:
    """Remove passages. An external-content FTS5 table must be given the old values."""
    bounds = _row_id(number, first), _row_id(number, min(last, _MAX_SEQ))
    rows = cursor.execute(
        f"SELECT id, kind, text, grams FROM passage WHERE id BETWEEN ? AND ? AND {condition}", bounds
    ).fetchall()
    cursor.executemany(
        f"INSERT INTO word (word, rowid, {_COLUMNS}, grams) VALUES ('delete', ?, {_VALUES}, ?)",
        [(row, *_columns(kind, text), grams) for row, kind, text, grams in rows],
    )
    _change_count(cursor, -len(rows))
    for table, key in (("passage", "id"), ("inside", "rowid")):
        cursor.executemany(f"DELETE FROM {table} WHERE {key} = ?", [(row[0],) for row in rows])


def _change_count(cursor: Any, delta: int) -> None:
    if delta:
        cursor.execute("UPDATE fact SET value = value + ? WHERE key = 'passages'", (delta,))


def _row_id(number: int, seq: int) -> int:
    return (number << _SEQ_BITS) | min(seq, _MAX_SEQ)


def _columns(kind: str, text: str) -> list[str | None]:
    return [text if kind == name else None for name in KINDS]


def drop_session(cursor: Any, session: str) -> None:
    """Delete the passages of a session."""
    row = cursor.execute("SELECT number FROM taken WHERE session = ?", (session,)).fetchone()
    if row is not None:
        _remove_passages(cursor, row[0], 0, _MAX_SEQ)
        cursor.execute("DELETE FROM taken WHERE session = ?", (session,))
