"""The full-text index of files and of the in-memory store: FTS5, one row per message, summary and title.

A projection of the logs by record: each session has the seq up to which it is indexed, so that
catching up only costs the new records. A message that a tombstone or a rewind removes is removed
here too. The text is in a plain table, the words in an FTS5 index over it that has a column for
each kind, so that kinds can have different weights. A row's number consists of its session's
number and its seq, so that the rows of a session are consecutive.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from heapq import nsmallest
from itertools import count
from typing import Any

import apsw
import msgspec

from everlog.index.database import Database
from everlog.index.index_file import TOKENIZER
from everlog.index.listing_sql import SQLITE
from everlog.index.search.passages import KINDS, PassageText, SessionUpdate, StaleSession, query_conditions
from everlog.index.search.query import Node, Operator, Phrase, any_phrase, compile_node, identifier_parts
from everlog.index.search.ranking import BUDGET, MAX_HITS, RECALL_WEIGHTS, WEIGHTS, PassageHit
from everlog.index.search.snippets import CLOSE, MAX_WORDS, OPEN
from everlog.index.search.words import grams, identifiers
from everlog.log.line_codec import replace_surrogates
from everlog.model import Metadata
from everlog.ports import Query

_ADD_WORDS = {kind: f"INSERT INTO word (rowid, {kind}, grams) VALUES (?, ?, ?)" for kind in KINDS}
# An external-content FTS5 table must be given the old values.
_REMOVE_WORDS = {kind: f"INSERT INTO word (word, rowid, {kind}, grams) VALUES ('delete', ?, ?, ?)" for kind in KINDS}
_REMOVE_NAMES = "INSERT INTO inside (inside, rowid, names) VALUES ('delete', ?, ?)"
_ADD_PASSAGES = "UPDATE fact SET value = value + ? WHERE key = 'passages'"
_COLUMN_NUMBER = "".join(f" WHEN '{kind}' THEN {number}" for number, kind in enumerate(KINDS))
_SEQ_BITS = 24  # low bits of a row's number, for the seq
_MAX_SEQ = (1 << _SEQ_BITS) - 1  # later records are not searched
_OF_SESSIONS = (
    f"found >> {_SEQ_BITS} IN (SELECT number FROM taken WHERE session IN (SELECT id FROM session WHERE {{}}))"
)
# Characters from which a text is searched for its snippet window by window: `snippet` compares every
# match in a text with every other one.
_WINDOW = 16_000
_OVERLAP = 200  # characters of a window that are in the next one too
_BYTES_PER_CHARACTER = 8  # of the disk, at most: a text, its words, and their copies in the write-ahead log
_BATCH_ROWS = 20_000  # scored passages before other threads may use the index

_OPERATORS: Mapping[Operator, str] = {"AND": "AND", "OR": "OR", "NOT": "NOT"}
# A score, a negated row and 1: sorted, the best come first, and of equal ones the newest.
ScoredRow = tuple[float, int, int]

_metadata_decoder = msgspec.json.Decoder(Metadata)


def to_fts5(node: Node) -> str:
    """Return a tree as an FTS5 expression."""
    return compile_node(node, _phrase, _OPERATORS)


def _phrase(phrase: Phrase) -> str:
    column = f"{phrase.field} : " if phrase.field else ""
    quoted = phrase.text.replace('"', '""')  # whatever is quoted, the index sees consecutive words
    return f"""{column}"{quoted}"{" *" if phrase.is_prefix else ""}"""


def make_snippets(texts: Sequence[str], match: Node) -> dict[int, str]:
    """Return the snippets of texts that are in no index of files, by their number from 0.

    That of a long text is from its first window that has any of what is searched for.
    """
    connection = apsw.Connection(":memory:")
    connection.execute(f'CREATE VIRTUAL TABLE word USING fts5(text, grams, tokenize = "{TOKENIZER}")')
    whole, part = to_fts5(match), to_fts5(any_phrase(match))

    def find_snippet(text: str) -> str:
        expression = whole if len(text) <= _WINDOW else part
        for start in range(0, max(len(text), 1), _WINDOW):
            window = text[max(start - _OVERLAP, 0) : start + _WINDOW]
            connection.execute("INSERT INTO word (rowid, text, grams) VALUES (1, ?, ?)", (window, grams(window)))
            query = f"SELECT {_snippet('0')} FROM word WHERE word MATCH ?"
            snippet: str | None = connection.execute(query, (expression,)).get
            connection.execute("DELETE FROM word")
            if snippet is not None:
                return snippet if not start or snippet.startswith("…") else f"…{snippet}"
        return ""

    return {number: snippet for number, text in enumerate(texts) if (snippet := find_snippet(text))}


def _snippet(column: str) -> str:
    return f"snippet(word, {column}, '{OPEN}', '{CLOSE}', '…', {MAX_WORDS})"


class FullText:
    """The full-text index of one root."""

    score_unit = 0.0

    def __init__(self, database: Database) -> None:
        self._database = database

    # --- indexing

    def stale_sessions(self) -> list[StaleSession]:
        """Return sessions that have grown, oldest first, so that newer ones get higher rows."""
        rows = self._fetch(
            """SELECT session.id, coalesce(taken.seq, 0), session.bytes, session.metadata
            FROM ahead CROSS JOIN session ON session.id = ahead.session
            LEFT JOIN taken ON taken.session = session.id
            WHERE taken.bytes IS NOT session.bytes
            ORDER BY session.active LIMIT 1000"""
        )
        return [StaleSession(session, seq, size, _metadata_decoder.decode(data)) for session, seq, size, data in rows]

    def apply_updates(self, updates: Sequence[SessionUpdate]) -> None:
        """Add the new passages of sessions and remove the deleted ones, in one transaction.

        Many at once: FTS5 flushes its buffer with every transaction.
        """
        characters = sum(len(passage.text) for update in updates for passage in update.changes.new.values())
        with self._database.write_transaction(room=_BYTES_PER_CHARACTER * characters) as cursor:
            highest = cursor.execute("SELECT coalesce(max(number), 0) FROM taken").fetchone()
            numbers = count(highest[0] + 1)  # type: ignore[index]  # there is always one
            # Sorted: FTS5 flushes its buffer when a row is lower than the one before.
            rows = (row for update in updates for row in _update_session(cursor, update, numbers))
            _insert_passages(cursor, sorted(rows))

    # --- queries

    def find_best(self, match: Node, query: Query, span: tuple[int, int] | None = None) -> list[PassageHit]:
        """Return the best passages of a time span, or of all, for recall.

        Without any condition, only the newest `BUDGET` are ranked.
        """
        conditions, values = query_conditions(query, _OF_SESSIONS, "passage", SQLITE, span)
        if conditions:
            statement = f"""SELECT word.rowid AS found, {_score(RECALL_WEIGHTS)} AS score
                FROM word JOIN passage ON passage.id = found WHERE word MATCH :match AND {" AND ".join(conditions)}
                ORDER BY score, passage.at DESC, found DESC LIMIT {MAX_HITS}"""
        else:
            statement = f"""SELECT * FROM (SELECT rowid, {_score(RECALL_WEIGHTS)} AS score
                FROM word WHERE word MATCH :match ORDER BY rowid DESC LIMIT {BUDGET}) ORDER BY score LIMIT {MAX_HITS}"""
        return self._load_hits(self._fetch(statement, match=to_fts5(match), **values))

    def find_per_session(self, match: Node, query: Query, per_session: int) -> list[PassageHit]:
        """Return the best passages of every session that matches, `per_session` of each.

        One pass over all matches, in batches. Session and time are looked up only for the passages
        that are returned.
        """
        table, score = ("inside", "-1.0") if identifier_parts(match) else ("word", _score(WEIGHTS))
        conditions, values = query_conditions(query, _OF_SESSIONS, "passage", SQLITE)
        fits = " AND ".join(conditions) or "1"
        statement = f"""SELECT score, -found, {fits}
            FROM (SELECT rowid AS found, {score} AS score FROM {table}
                WHERE {table} MATCH :match AND rowid > :last_row ORDER BY rowid LIMIT {_BATCH_ROWS})
            {"LEFT JOIN passage ON passage.id = found" if "passage." in fits else ""} ORDER BY found"""
        values |= {"match": to_fts5(match), "last_row": -1}
        best: dict[int, list[ScoredRow]] = {}
        has_more = True
        while has_more:
            rows = self._fetch(statement, **values)
            has_more = len(rows) == _BATCH_ROWS
            values["last_row"] = -rows[-1][1] if rows else -1
            for number, scored in _group_by_session([row for row in rows if row[2]] if conditions else rows):
                best[number] = nsmallest(per_session, (*best.get(number, ()), *scored))
        return self._load_hits([(-row, score) for scored in best.values() for score, row, _ in scored])

    def _load_hits(self, scores: Sequence[tuple[int, float]]) -> list[PassageHit]:
        """Return the hits for scored rows, as far as they still exist."""
        hits: list[PassageHit] = []
        for first in range(0, len(scores), _BATCH_ROWS):
            batch = dict(scores[first : first + _BATCH_ROWS])
            rows = self._fetch(
                f"""SELECT passage.id, taken.session, at FROM json_each(:rows) JOIN passage ON passage.id = value
                JOIN taken ON taken.number = passage.id >> {_SEQ_BITS}""",
                rows=msgspec.json.encode(list(batch)).decode(),
            )
            hits += [PassageHit(row, session, row & _MAX_SEQ, time, batch[row]) for row, session, time in rows]
        return hits

    def count_matches(self, match: Node) -> int:
        """Return how many passages match."""
        return int(self._fetch("SELECT count(*) FROM word WHERE word MATCH :match", match=to_fts5(match))[0][0])

    def matching_rows(self, match: Node) -> list[int]:
        """Return the rows of the newest passages that match."""
        statement = f"SELECT rowid FROM word WHERE word MATCH :match ORDER BY rowid DESC LIMIT {BUDGET}"
        return [row[0] for row in self._fetch(statement, match=to_fts5(match))]

    def filter_rows(self, rows: Sequence[int], match: Node) -> list[int]:
        """Return those of some rows that match."""
        statement = "SELECT rowid FROM word WHERE word MATCH :match AND rowid IN (SELECT value FROM json_each(:rows))"
        found = self._fetch(statement, match=to_fts5(match), rows=msgspec.json.encode(rows).decode())
        return [row[0] for row in found]

    def count_passages(self) -> int:
        """Return how many passages are indexed."""
        return int(self._fetch("SELECT value FROM fact WHERE key = 'passages'")[0][0])

    def load_passages(self, rows: Sequence[int], match: Node | None) -> dict[int, PassageText]:
        """Return passages, each with a snippet in which the matches are marked."""
        wanted = msgspec.json.encode(rows).decode()
        is_wanted = "IN (SELECT value FROM json_each(:wanted))"
        texts = self._fetch(f"SELECT id, kind, at, text FROM passage WHERE id {is_wanted}", wanted=wanted)
        snippets: dict[int, str] = {}
        if match is not None:
            statement = f"""SELECT word.rowid, {_snippet(f"CASE kind {_COLUMN_NUMBER} END")} FROM word
                JOIN passage ON passage.id = word.rowid WHERE word MATCH :match AND word.rowid {is_wanted}"""
            long_texts = {row: text for row, _, _, text in texts if len(text) > _WINDOW}
            short = msgspec.json.encode([row for row in rows if row not in long_texts]).decode()
            found = make_snippets(list(long_texts.values()), match) if long_texts else {}
            snippets = dict(self._fetch(statement, match=to_fts5(match), wanted=short))
            snippets |= {row: found.get(number, "") for number, row in enumerate(long_texts)}
        return {row: PassageText(kind, time, snippets.get(row) or "", text) for row, kind, time, text in texts}

    def _fetch(self, statement: str, **values: Any) -> list[Any]:
        with self._database.read_cursor() as cursor:
            return cursor.execute(statement, values).fetchall()


def _score(weights: Mapping[str, float]) -> str:
    return f"bm25(word, {', '.join(map(str, weights.values()))})"


def _group_by_session(rows: Sequence[ScoredRow]) -> Iterator[tuple[int, Sequence[ScoredRow]]]:
    """Group rows by session; they are consecutive, so each group's end is found by bisection."""
    start = 0
    while start < len(rows):
        number = -rows[start][1] >> _SEQ_BITS
        end = bisect_right(rows, _row_id(number, _MAX_SEQ), start, key=lambda row: -row[1])
        yield number, rows[start:end]
        start = end


# --- within a transaction -------------------------------------------------------------------


Row = tuple[int, str, int, str, str | None]  # of `passage`


def _update_session(cursor: Any, update: SessionUpdate, numbers: Iterator[int]) -> list[Row]:
    """Remove a session's deleted passages, store its indexed seq, return the rows to add."""
    (session, seq, size, _), changes = update
    row = cursor.execute("SELECT seq, number FROM taken WHERE session = ?", (session,)).fetchone()
    if (row[0] if row else 0) != seq:
        return []  # another process indexed it meanwhile
    number = next(numbers) if row is None else row[1]
    if row is not None:
        for first, last in changes.removed_ranges:
            _remove_passages(cursor, number, first, last, "kind != 'summary'")
        for removed_seq in changes.removed:
            _remove_passages(cursor, number, removed_seq, removed_seq)
    cursor.execute(
        "INSERT OR REPLACE INTO taken VALUES (?, ?, ?, ?)", (session, number, max(changes.last_seq, seq), size)
    )
    cursor.execute(
        """DELETE FROM ahead WHERE session = ?1
        AND EXISTS (SELECT 1 FROM session WHERE id = ?1 AND bytes IS ?2)""",
        (session, size),
    )
    return [
        (_row_id(number, seq), kind, time, replace_surrogates(text), replace_surrogates(pairs) or None)
        for seq, kind, time, text, pairs in changes.new.values()
        if seq <= _MAX_SEQ
    ]


def _insert_passages(cursor: Any, rows: Sequence[Row]) -> None:
    cursor.executemany("INSERT INTO passage VALUES (?, ?, ?, ?, ?)", rows)
    for row, kind, _, text, pairs in rows:
        cursor.execute(_ADD_WORDS[kind], (row, text, pairs))
    names = [(row, names) for row, _, _, text, _ in rows if (names := identifiers(text))]
    cursor.executemany("INSERT INTO inside (rowid, names) VALUES (?, ?)", names)
    cursor.execute(_ADD_PASSAGES, (len(rows),))


def _remove_passages(cursor: Any, number: int, first: int, last: int, condition: str = "1", *, limit: int = -1) -> int:
    """Remove passages of a session with their words; return how many there were."""
    selection = f"SELECT id, kind, text, grams FROM passage WHERE id BETWEEN ? AND ? AND {condition} LIMIT ?"
    rows = cursor.execute(selection, (_row_id(number, first), _row_id(number, last), limit)).fetchall()
    for row, kind, text, pairs in rows:
        cursor.execute(_REMOVE_WORDS[kind], (row, text, pairs))
        cursor.execute("DELETE FROM passage WHERE id = ?", (row,))
        if names := identifiers(text):
            cursor.execute(_REMOVE_NAMES, (row, names))
    cursor.execute(_ADD_PASSAGES, (-len(rows),))
    return len(rows)


def _row_id(number: int, seq: int) -> int:
    return (number << _SEQ_BITS) | min(seq, _MAX_SEQ)


def drop_passages(cursor: Any, session: str, limit: int) -> int:
    """Delete passages of a session, at most so many; return how many there were."""
    row = cursor.execute("SELECT number FROM taken WHERE session = ?", (session,)).fetchone()
    if row is None:
        return 0
    count = _remove_passages(cursor, row[0], 0, _MAX_SEQ, limit=limit)
    if count < limit:
        cursor.execute("DELETE FROM taken WHERE session = ?", (session,))
    return count


def has_deleted_words(cursor: Any) -> bool:
    """Return whether the index still has a word that is in no passage any more.

    FTS5 removes the words of deleted passages from its pages. But the tree above the pages has the
    beginnings of some words, as far as it needs them; rarely a whole one, where a merge was resumed.
    """
    beginnings = cursor.execute("SELECT DISTINCT substr(term, 2) FROM word_idx WHERE length(term) > 4").fetchall()
    for (beginning,) in beginnings:
        text = bytes(beginning).decode("utf-8", "ignore")
        following = cursor.execute("SELECT term FROM word_term WHERE term >= ? LIMIT 1", (text,)).fetchone()
        if following is None or not following[0].startswith(text):
            return True
    return False


def optimize(cursor: Any) -> None:
    """Write the index of the words anew."""
    cursor.execute("INSERT INTO word (word) VALUES ('optimize')")
