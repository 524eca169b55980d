"""Search by the engine's own full text: passages in rows, their words in a tsvector with an index.

The same questions as those of the index of files (`index.fulltext`): `stores.searching` asks both.
A row's number is made of its session's id and its seq. Ranking is ts_rank times what the kind of
passage weighs. A search ranks all that match; of very many, recall ranks the newest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec
from psycopg import Rollback

from everlog.index.fulltext import Behind, News, Shown
from everlog.index.passages import KINDS
from everlog.index.ranking import BUDGET, Hit
from everlog.model import Metadata
from everlog.ports import Filter, Query, since_ms
from everlog.stores.postgres import text_search_words as vocabulary
from everlog.stores.postgres.connections import Database, Link
from everlog.stores.postgres.id_columns import session_of, sid_of, stripe_of
from everlog.stores.postgres.metadata_rows import Rows, conditions_of, decoded, one, text
from everlog.stores.postgres.snippets import cut_out
from everlog.stores.postgres.statements import load

_BITS = 40  # of a row's number that are the seq
_AMONG = 20_000  # passages that are ranked for one question, the newest
_REMEMBERED = 50_000  # stems
_LEXEME = re.compile(r"'((?:[^']|'')*)'")


class Texts:
    """The passages of one store."""

    def __init__(self, database: Database, rows: Rows) -> None:
        self._database = database
        self._rows = rows
        self._schema = database.settings.schema
        self._sql = load("search", self._schema)
        self._stems: dict[str, str] = {}

    # --- taking in

    def await_(self, link: Link, sid: UUID, seq: int) -> None:
        """A session has something that is to be taken in."""
        link.execute(self._sql["await"], {"sid": sid, "seq": seq})

    def behind(self, limit: int = 1_000) -> list[Behind]:
        """Sessions that have gone on since they were taken in, the oldest first."""
        rows = self._all("behind", {"limit": limit})
        return [
            Behind(session_of(sid), seq, size, decoded(data) or Metadata(id=session_of(sid)))
            for sid, seq, size, data in rows
        ]

    def take(self, news: Iterable[News]) -> None:
        """Take in what is new of some sessions, each in a transaction of its own."""
        for some in news:
            self._database.changing(lambda link, some=some: self._take(link, some))  # type: ignore[misc]

    def _take(self, link: Link, news: News) -> None:
        sid, seq = sid_of(news.before.session), news.before.seq
        through = max(news.change.through, seq)
        values = {"sid": sid, "seq": seq, "through": through}
        link.execute(self._sql["first"], {"sid": sid})
        if not link.execute(self._sql["taken"], values).rowcount:
            return  # another process was here
        more = 0
        for first, last in news.change.dropped:
            dropped = {"sid": sid, "first": first, "last": last}
            more -= link.execute(self._sql["drop_range"], dropped).rowcount
        if news.change.gone:
            gone = {"sid": sid, "seqs": sorted(news.change.gone)}
            more -= link.execute(self._sql["drop_these"], gone).rowcount
        rows = [
            {
                "sid": sid,
                "seq": passage.seq,
                "at": passage.at,
                "kind": passage.kind,
                "text": text(passage.text),
                "words": vocabulary.document(passage.text, passage.grams),
                "inside": vocabulary.trigrams(passage.text),
            }
            for passage in news.passages
        ]
        if rows:
            with link.cursor() as cursor:
                cursor.executemany(self._sql["put"], rows)
        # As late as can be: an append waits for it. Before this, a deletion makes it all undone;
        # behind it, a deletion waits for the end, and finds what was written here.
        if link.execute(self._sql["hold"], {"sid": sid}).fetchone() is None:
            raise Rollback
        stripe = {"stripe": stripe_of(sid.bytes), "more": more + len(rows)}
        link.execute(self._sql["count"], stripe)
        link.execute(self._sql["done"], {"sid": sid, "through": through})

    def drop(self, link: Link, sid: UUID) -> None:
        """Forget a session."""
        gone = link.execute(self._sql["drop_passages"], {"sid": sid}).rowcount
        for name in ("drop_taken", "drop_pending"):
            link.execute(self._sql[name], {"sid": sid})
        if gone:
            link.execute(self._sql["count"], {"stripe": stripe_of(sid.bytes), "more": -gone})

    # --- asking

    def find(self, match: str, weights: Sequence[float], query: Query, limit: int) -> list[Hit]:
        """The best passages for an expression."""
        return self._hits(match, weights, query, limit)

    def gather(self, match: str, weights: Sequence[float], query: Query, each: int) -> list[Hit]:
        """The best passages of every session that has something, so many of each."""
        asked = self._tsquery(match)
        if not asked:
            return []
        conditions, values = _conditions(query, None)
        conditions.append("p.words @@ %(match)s::tsquery")
        return self._gathered(_score(weights), conditions, values | {"match": asked}, each)

    def _gathered(
        self, score: str, conditions: Sequence[str], values: Mapping[str, Any], each: int
    ) -> list[Hit]:
        rows = self._ask(
            f"""SELECT sid, seq, at, score FROM (
                SELECT sid, seq, at, score,
                    row_number() OVER (PARTITION BY sid ORDER BY score, seq DESC) AS place
                FROM (
                    SELECT p.sid, p.seq, p.at, ({score})::double precision AS score
                    FROM {self._from(conditions)} WHERE {" AND ".join(conditions)}
                ) ranked
            ) placed WHERE place <= %(each)s""",
            {**values, "each": each},
        )
        return [_hit(*row) for row in rows]

    def newest(self, match: str, weights: Sequence[float], among: int, limit: int) -> list[Hit]:
        """The best passages among the newest that have any of some words."""
        return self._hits(match, weights, Query(text=""), limit, among=among)

    def between(
        self,
        match: str,
        weights: Sequence[float],
        query: Query,
        span: tuple[int, int],
        limit: int,
    ) -> list[Hit]:
        """The best passages of a time."""
        return self._hits(match, weights, query, limit, span=span)

    def _hits(
        self,
        match: str,
        weights: Sequence[float],
        query: Query,
        limit: int,
        *,
        among: int = _AMONG,
        span: tuple[int, int] | None = None,
    ) -> list[Hit]:
        asked = self._tsquery(match)
        if not asked:
            return []
        conditions, values = _conditions(query, span)
        values |= {"match": asked, "among": among, "limit": limit}
        rows = self._ask(
            f"""SELECT sid, seq, at, ({_score(weights)})::double precision AS score FROM (
                SELECT p.sid, p.seq, p.at, p.kind, p.words FROM {self._from(conditions)}
                WHERE p.words @@ %(match)s::tsquery {_and(conditions)}
                ORDER BY p.sid DESC, p.seq DESC LIMIT %(among)s
            ) p ORDER BY score, at DESC, sid DESC, seq DESC LIMIT %(limit)s""",
            values,
        )
        return [_hit(*row) for row in rows]

    def inside(self, match: str, query: Query, each: int) -> list[Hit]:
        """Likewise those with names that contain something, the newest."""
        names = [vocabulary.plain(name) for name in re.findall(r'"((?:[^"]|"")*)"', match)]
        pieces = sorted({piece for name in names for piece in vocabulary.threes(name)})
        if not pieces:
            return []
        conditions, values = _conditions(query, None)
        for number, name in enumerate(names):
            conditions.append(f"strpos(lower(p.text), %(name{number})s) > 0")
            values[f"name{number}"] = text(name)
        # First what the index tells: to look into a text it must be read.
        conditions.insert(0, "p.inside @@ %(match)s::tsquery")
        values["match"] = " & ".join(f"'{piece}'" for piece in pieces)
        return self._gathered("-1.0", conditions, values, each)

    def count(self, match: str) -> int:
        """How many passages have something, up to more than anybody looks at."""
        asked = self._tsquery(match)
        if not asked:
            return 0
        rows = self._all("number", {"match": asked, "limit": 2 * BUDGET})
        return int(rows[0][0])

    def places(self, match: str, limit: int) -> list[int]:
        """The rows of the passages that have something, of at most so many, the newest."""
        asked = self._tsquery(match)
        if not asked:
            return []
        return [
            _row(sid, seq) for sid, seq in self._all("places", {"match": asked, "limit": limit})
        ]

    def total(self) -> int:
        """How many passages there are."""
        return int(self._database.reading(lambda link: one(link, self._sql["total"])))

    def shown(
        self, rows: Sequence[int], match: str, marks: tuple[str, str], words: int
    ) -> dict[int, Shown]:
        """Passages with a piece of each in which what was found is marked."""
        if not rows:
            return {}
        places = [(UUID(int=row >> _BITS), row & ((1 << _BITS) - 1)) for row in rows]
        values = {"sids": [sid for sid, _ in places], "seqs": [seq for _, seq in places]}
        found = self._all("shown", values)
        node = vocabulary.parse(match) if match else None
        asked = self._asked(node)
        stems = self._likely(asked, (row[4] for row in found))

        def is_found(word: str) -> bool:
            stem = stems.get(word, word)
            return any(
                stem.startswith(lexeme) if begun else stem == lexeme for lexeme, begun in asked
            )

        return {
            _row(sid, seq): Shown(kind, at, cut_out(said, is_found, marks, words), said)
            for sid, seq, kind, at, said in found
        }

    def _asked(self, node: vocabulary.Node | None) -> list[tuple[str, bool]]:
        """The words that are looked for, and whether each is only begun."""
        stems = self._stemmed(vocabulary.every(node))
        return [
            (stems.get(word, word), term.begun and number == len(term.said))
            for term in vocabulary.terms(node)
            for number, word in enumerate(term.said, 1)
        ]

    def _likely(self, asked: Sequence[tuple[str, bool]], texts: Iterable[str]) -> Mapping[str, str]:
        """The stems of those words of texts that can be what is looked for: they begin alike."""
        begin = tuple({lexeme[:3] for lexeme, _ in asked})
        if not begin:
            return {}
        found = {
            word for said in texts for word in vocabulary.words(said) if word.startswith(begin)
        }
        return self._stemmed(found)

    def _tsquery(self, match: str) -> str:
        node = vocabulary.parse(match)
        return vocabulary.tsquery(node, self._stemmed(vocabulary.every(node)))

    def _stemmed(self, given: Iterable[str]) -> Mapping[str, str]:
        """Words as the index has them; the server is asked once for each."""
        wanted = set(given)
        new = sorted(wanted - self._stems.keys())
        if new:
            if len(self._stems) + len(new) > _REMEMBERED:
                self._stems = {}
                new = sorted(wanted)
            for word, vector in self._all("stems", {"words": new}):
                lexeme = _LEXEME.search(vector)
                self._stems[word] = lexeme[1].replace("''", "'") if lexeme else word
        known = self._stems
        return {word: known.get(word, word) for word in wanted}

    def _from(self, conditions: Sequence[str]) -> str:
        source = f'"{self._schema}".passage p'
        if any(condition.find("l.") >= 0 for condition in conditions):
            source += f' JOIN "{self._schema}".listing l ON l.sid = p.sid'
        return source

    def _all(self, name: str, values: Mapping[str, Any]) -> list[Any]:
        return self._ask(self._sql[name], values)

    def _ask(self, statement: str, values: Mapping[str, Any]) -> list[Any]:
        return self._database.reading(
            lambda link: link.execute(statement, values, binary=True).fetchall()
        )


def _conditions(query: Query, span: tuple[int, int] | None) -> tuple[list[str], dict[str, Any]]:
    whose = msgspec.structs.replace(query.which, since=None, unfinished=None)
    conditions, values = conditions_of(whose, "l.")
    if query.which.since is not None:
        conditions.append("p.at >= %(from)s")
        values["from"] = since_ms(query.which)
    if query.until is not None:
        conditions.append("p.at < %(until)s")
        values["until"] = since_ms(Filter(since=query.until))
    if query.role is not None:
        conditions.append("p.kind = %(role)s")
        values["role"] = text(query.role)
    if span is not None:
        conditions += ["p.at >= %(begin)s", "p.at < %(end)s"]
        values |= {"begin": span[0], "end": span[1]}
    return conditions, values


def _score(weights: Sequence[float]) -> str:
    weight = " ".join(
        f"WHEN '{kind}' THEN {float(one)}" for kind, one in zip(KINDS, weights, strict=False)
    )
    return f"-(ts_rank(p.words, %(match)s::tsquery, 1) + 1e-9) * CASE p.kind {weight} ELSE 1 END"


def _and(conditions: Sequence[str]) -> str:
    return "".join(f" AND {one}" for one in conditions)


def _row(sid: UUID, seq: int) -> int:
    return sid.int << _BITS | seq


def _hit(sid: UUID, seq: int, at: int, score: float) -> Hit:
    return Hit(_row(sid, seq), session_of(sid), seq, at, score)
