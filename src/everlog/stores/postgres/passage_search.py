"""Search by PostgreSQL's full text: passages in rows, their words in an indexed tsvector.

Implements the same interface as the index of files (`index.fulltext`), for `stores.indexing`. A row
id consists of the session's id and the seq. The rank is ts_rank times the weight of the passage's
kind. A search ranks all matches; recall ranks the newest if there are very many.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

import msgspec
from psycopg import Rollback

from everlog.index.fulltext import PassageText, SessionUpdate, StaleSession
from everlog.index.passages import KINDS
from everlog.index.ranking import BUDGET, PassageHit
from everlog.model import Metadata
from everlog.ports import Filter, Query, since_ms
from everlog.stores.postgres import text_search_words as vocabulary
from everlog.stores.postgres.connections import Connection, Database
from everlog.stores.postgres.id_columns import session_of, sid_of, stripe_of
from everlog.stores.postgres.metadata_rows import MetadataRows, decode_metadata, filter_conditions, storable_text
from everlog.stores.postgres.snippets import make_snippet
from everlog.stores.postgres.statements import load_statements

_SEQ_BITS = 40  # of a row id that hold the seq
_MAX_RANKED = 20_000  # the newest passages, for one query
_MAX_STEMS = 50_000  # in the cache
_LEXEME = re.compile(r"'((?:[^']|'')*)'")


class PassageSearch:
    """The full-text index of one store."""

    def __init__(self, database: Database, rows: MetadataRows) -> None:
        self._database = database
        self._rows = rows
        self._schema = database.settings.schema
        self._sql = load_statements("search", self._schema)
        self._stems: dict[str, str] = {}

    # --- indexing

    def mark_pending(self, connection: Connection, sid: UUID, seq: int) -> None:
        """Mark a session as having records to index."""
        connection.execute(self._sql["mark_pending"], {"sid": sid, "seq": seq})

    def stale_sessions(self, limit: int = 1_000) -> list[StaleSession]:
        """Return sessions that have grown since they were indexed, oldest first."""
        rows = self._run_named("stale_sessions", {"limit": limit})
        return [
            StaleSession(session_of(sid), seq, size, decode_metadata(data) or Metadata(id=session_of(sid)))
            for sid, seq, size, data in rows
        ]

    def apply_updates(self, updates: Iterable[SessionUpdate]) -> None:
        """Index new records of sessions, each session in its own transaction."""
        for update in updates:
            work = partial(self._apply_update, update)
            self._database.run_transaction(work)

    def _apply_update(self, update: SessionUpdate, connection: Connection) -> None:
        sid, seq = sid_of(update.stale.session), update.stale.seq
        through = max(update.changes.last_seq, seq)
        values = {"sid": sid, "seq": seq, "through": through}
        connection.execute(self._sql["insert_indexed"], {"sid": sid})
        if not connection.execute(self._sql["advance_indexed"], values).rowcount:
            return  # another process indexed it meanwhile
        count_change = 0
        for first, last in update.changes.removed_ranges:
            removed_range = {"sid": sid, "first": first, "last": last}
            count_change -= connection.execute(self._sql["delete_range"], removed_range).rowcount
        if update.changes.removed:
            removed = {"sid": sid, "seqs": sorted(update.changes.removed)}
            count_change -= connection.execute(self._sql["delete_seqs"], removed).rowcount
        rows = [
            {
                "sid": sid,
                "seq": passage.seq,
                "at": passage.time,
                "kind": passage.kind,
                "text": storable_text(passage.text),
                "words": vocabulary.encode_document(passage.text, passage.grams),
                "inside": vocabulary.encode_trigrams(passage.text),
            }
            for passage in update.passages
        ]
        if rows:
            with connection.cursor() as cursor:
                cursor.executemany(self._sql["upsert_passage"], rows)
        # As late as possible, since appends wait for it. A deletion before this point undoes all of
        # it; one after it waits for the transaction and removes what was written.
        if connection.execute(self._sql["lock_session"], {"sid": sid}).fetchone() is None:
            raise Rollback
        stripe = {"stripe": stripe_of(sid.bytes), "more": count_change + len(rows)}
        connection.execute(self._sql["add_passages"], stripe)
        connection.execute(self._sql["delete_pending_through"], {"sid": sid, "through": through})

    def drop(self, connection: Connection, sid: UUID) -> None:
        """Delete the passages of a session."""
        count = connection.execute(self._sql["delete_passages"], {"sid": sid}).rowcount
        for name in ("delete_indexed", "delete_pending"):
            connection.execute(self._sql[name], {"sid": sid})
        if count:
            stripe = {"stripe": stripe_of(sid.bytes), "more": -count}
            connection.execute(self._sql["add_passages"], stripe)

    # --- searching

    def find_best(self, match: str, weights: Sequence[float], query: Query, limit: int) -> list[PassageHit]:
        """Return the best passages for an expression."""
        return self._hits(match, weights, query, limit)

    def find_per_session(
        self, match: str, weights: Sequence[float], query: Query, per_session: int
    ) -> list[PassageHit]:
        """Return the best passages of every session with a match, up to `per_session` of each."""
        tsquery = self._tsquery(match)
        if not tsquery:
            return []
        conditions, values = _conditions(query, None)
        conditions.append("p.words @@ %(match)s::tsquery")
        return self._gather(_score(weights), conditions, values | {"match": tsquery}, per_session)

    def _gather(
        self, score: str, conditions: Sequence[str], values: Mapping[str, Any], per_session: int
    ) -> list[PassageHit]:
        rows = self._fetch(
            f"""SELECT sid, seq, at, score FROM (
                SELECT sid, seq, at, score,
                    row_number() OVER (PARTITION BY sid ORDER BY score, seq DESC) AS place
                FROM (
                    SELECT p.sid, p.seq, p.at, ({score})::double precision AS score
                    FROM {self._from(conditions)} WHERE {" AND ".join(conditions)}
                ) ranked
            ) placed WHERE place <= %(each)s""",
            {**values, "each": per_session},
        )
        return [_hit(*row) for row in rows]

    def find_newest(self, match: str, weights: Sequence[float], candidates: int, limit: int) -> list[PassageHit]:
        """Return the best passages among the newest matches."""
        return self._hits(match, weights, Query(text=""), limit, candidates=candidates)

    def find_between(
        self, match: str, weights: Sequence[float], query: Query, span: tuple[int, int], limit: int
    ) -> list[PassageHit]:
        """Return the best passages of a time span."""
        return self._hits(match, weights, query, limit, span=span)

    def _hits(
        self,
        match: str,
        weights: Sequence[float],
        query: Query,
        limit: int,
        *,
        candidates: int = _MAX_RANKED,
        span: tuple[int, int] | None = None,
    ) -> list[PassageHit]:
        tsquery = self._tsquery(match)
        if not tsquery:
            return []
        conditions, values = _conditions(query, span)
        values |= {"match": tsquery, "among": candidates, "limit": limit}
        rows = self._fetch(
            f"""SELECT sid, seq, at, ({_score(weights)})::double precision AS score FROM (
                SELECT p.sid, p.seq, p.at, p.kind, p.words FROM {self._from(conditions)}
                WHERE p.words @@ %(match)s::tsquery {_and(conditions)}
                ORDER BY p.sid DESC, p.seq DESC LIMIT %(among)s
            ) p ORDER BY score, at DESC, sid DESC, seq DESC LIMIT %(limit)s""",
            values,
        )
        return [_hit(*row) for row in rows]

    def find_substrings(self, match: str, query: Query, per_session: int) -> list[PassageHit]:
        """Return the newest passages of every session with names that contain the terms."""
        names = [vocabulary.normalize(name) for name in re.findall(r'"((?:[^"]|"")*)"', match)]
        trigrams = sorted({gram for name in names for gram in vocabulary.split_trigrams(name)})
        if not trigrams:
            return []
        conditions, values = _conditions(query, None)
        for number, name in enumerate(names):
            conditions.append(f"strpos(lower(p.text), %(name{number})s) > 0")
            values[f"name{number}"] = storable_text(name)
        # The indexed condition first: the others must read the text.
        conditions.insert(0, "p.inside @@ %(match)s::tsquery")
        values["match"] = " & ".join(f"'{gram}'" for gram in trigrams)
        return self._gather("-1.0", conditions, values, per_session)

    def count_matches(self, match: str) -> int:
        """Count matching passages, up to twice the budget of a ranking."""
        tsquery = self._tsquery(match)
        if not tsquery:
            return 0
        rows = self._run_named("count_matches", {"match": tsquery, "limit": 2 * BUDGET})
        return int(rows[0][0])

    def matching_rows(self, match: str, limit: int) -> list[int]:
        """Return the row ids of the newest matching passages, up to `limit`."""
        tsquery = self._tsquery(match)
        if not tsquery:
            return []
        rows = self._run_named("newest_matches", {"match": tsquery, "limit": limit})
        return [_row_id(sid, seq) for sid, seq in rows]

    def count_passages(self) -> int:
        """Count all passages."""
        return int(self._run_named("count_passages", {})[0][0])

    def load_passages(
        self, rows: Sequence[int], match: str, marks: tuple[str, str], words: int
    ) -> dict[int, PassageText]:
        """Load passages, each with a snippet in which the matches are marked."""
        if not rows:
            return {}
        positions = [(UUID(int=row >> _SEQ_BITS), row & ((1 << _SEQ_BITS) - 1)) for row in rows]
        values = {"sids": [sid for sid, _ in positions], "seqs": [seq for _, seq in positions]}
        passages = self._run_named("passage_texts", values)
        node = vocabulary.parse_match(match) if match else None
        lexemes = self._lexemes(node)
        stems = self._candidate_stems(lexemes, (row[4] for row in passages))

        def is_match(word: str) -> bool:
            stem = stems.get(word, word)
            return any(stem.startswith(lexeme) if is_prefix else stem == lexeme for lexeme, is_prefix in lexemes)

        return {
            _row_id(sid, seq): PassageText(kind, at, make_snippet(content, is_match, marks, words), content)
            for sid, seq, kind, at, content in passages
        }

    def _lexemes(self, node: vocabulary.Node | None) -> list[tuple[str, bool]]:
        """Return the lexemes of a query, and whether each is a prefix."""
        stems = self._stem(vocabulary.all_words(node))
        return [
            (stems.get(word, word), term.is_prefix and number == len(term.words))
            for term in vocabulary.positive_terms(node)
            for number, word in enumerate(term.words, 1)
        ]

    def _candidate_stems(self, lexemes: Sequence[tuple[str, bool]], texts: Iterable[str]) -> Mapping[str, str]:
        """Return the stems of the words in texts that begin like a lexeme, and so may match it."""
        prefixes = tuple({lexeme[:3] for lexeme, _ in lexemes})
        if not prefixes:
            return {}
        words = (word for text in texts for word in vocabulary.encode_words(text))
        return self._stem(word for word in words if word.startswith(prefixes))

    def _tsquery(self, match: str) -> str:
        node = vocabulary.parse_match(match)
        return vocabulary.to_tsquery(node, self._stem(vocabulary.all_words(node)))

    def _stem(self, words: Iterable[str]) -> Mapping[str, str]:
        """Return the lexeme of each word; the server is asked once per word."""
        requested = set(words)
        new = sorted(requested - self._stems.keys())
        if new:
            if len(self._stems) + len(new) > _MAX_STEMS:
                self._stems = {}
                new = sorted(requested)
            for word, vector in self._run_named("stems", {"words": new}):
                lexeme = _LEXEME.search(vector)
                self._stems[word] = lexeme[1].replace("''", "'") if lexeme else word
        stems = self._stems
        return {word: stems.get(word, word) for word in requested}

    def _from(self, conditions: Sequence[str]) -> str:
        source = f'"{self._schema}".passage p'
        if any(condition.find("l.") >= 0 for condition in conditions):
            source += f' JOIN "{self._schema}".listing l ON l.sid = p.sid'
        return source

    def _run_named(self, name: str, values: Mapping[str, Any]) -> list[Any]:
        return self._fetch(self._sql[name], values)

    def _fetch(self, statement: str, values: Mapping[str, Any]) -> list[Any]:
        return self._database.run_idempotent(
            lambda connection: connection.execute(statement, values, binary=True).fetchall()
        )


def _conditions(query: Query, span: tuple[int, int] | None) -> tuple[list[str], dict[str, Any]]:
    criteria = msgspec.structs.replace(query.criteria, since=None, unfinished=None)
    conditions, values = filter_conditions(criteria, "l.")
    if query.criteria.since is not None:
        conditions.append("p.at >= %(from)s")
        values["from"] = since_ms(query.criteria)
    if query.until is not None:
        conditions.append("p.at < %(until)s")
        values["until"] = since_ms(Filter(since=query.until))
    if query.role is not None:
        conditions.append("p.kind = %(role)s")
        values["role"] = storable_text(query.role)
    if span is not None:
        conditions += ["p.at >= %(begin)s", "p.at < %(end)s"]
        values |= {"begin": span[0], "end": span[1]}
    return conditions, values


def _score(weights: Sequence[float]) -> str:
    cases = " ".join(f"WHEN '{kind}' THEN {float(weight)}" for kind, weight in zip(KINDS, weights, strict=False))
    return f"-(ts_rank(p.words, %(match)s::tsquery, 1) + 1e-9) * CASE p.kind {cases} ELSE 1 END"


def _and(conditions: Sequence[str]) -> str:
    return "".join(f" AND {condition}" for condition in conditions)


def _row_id(sid: UUID, seq: int) -> int:
    return sid.int << _SEQ_BITS | seq


def _hit(sid: UUID, seq: int, at: int, score: float) -> PassageHit:
    return PassageHit(_row_id(sid, seq), session_of(sid), seq, at, score)
