"""Search by PostgreSQL's full text: passages in rows, their words in an indexed tsvector.

The interface is that of the index of files (`fts5.FullText`), for `search_index`. A row id consists
of the session's id and the seq. The rank is ts_rank times the weight of the passage's kind. A
search ranks all matches; recall ranks the newest if there are very many.

The rules for words are those of the index of files: words are runs of letters and digits, case and
accents are ignored, English is stemmed, no word is dropped. So texts are split into words here, and
the server's 'english' does the stemming. Two things that it would do differently are prevented:

    stop words          "the" is written as "theé", which is not a stop word
    other scripts       pairs of characters are written as "é" and their code points, since which
                        of them are letters depends on the database's locale

An é is a letter to every server, and in no word of a text or a query, whose accents are removed: no
query can contain the encoded forms.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from psycopg import Rollback

from everlog.index.search.fts5 import make_snippets
from everlog.index.search.passages import KINDS, PassageText, SessionUpdate, StaleSession, query_conditions
from everlog.index.search.query import Node, Operator, Phrase, compile_node, find_phrases, identifier_parts
from everlog.index.search.ranking import BUDGET, MAX_HITS, RECALL_WEIGHTS, WEIGHTS, PassageHit
from everlog.index.search.words import identifiers
from everlog.model import Metadata
from everlog.ports import Query
from everlog.stores.postgres.connections import Connection, Database
from everlog.stores.postgres.id_columns import session_of, sid_of, stripe_of
from everlog.stores.postgres.metadata_rows import DIALECT, decode_metadata, storable_text
from everlog.stores.postgres.statements import in_schema

_SEQ_BITS = 40  # of a row id that hold the seq
_MAX_RANKED = 20_000  # the newest passages, for one query
_MAX_STEMS = 50_000  # in the cache
_LEXEME = re.compile(r"'((?:[^']|'')*)'")
_OF_SESSIONS = "p.sid IN (SELECT sid FROM everlog.listing WHERE {})"
_MATCHES = "p.{} @@ %(match)s::tsquery"
_OPERATORS: Mapping[Operator, str] = {"AND": "&", "OR": "|", "NOT": "& !"}


class PassageSearch:
    """The full-text index of one store."""

    # ts_rank is a mean over the words of a query and does not know how rare they are. It gives a passage of twenty
    # words about 0.015 for one of them, where BM25 gives 0.7 times the rarity.
    score_unit = 45.0

    def __init__(self, database: Database) -> None:
        self._database = database
        self._of_sessions = in_schema(_OF_SESSIONS, database.settings.schema)
        self._stems: dict[str, str] = {}

    # --- indexing

    def mark_pending(self, connection: Connection, sid: UUID, seq: int) -> None:
        """Mark a session as having records to index."""
        connection.run("mark_pending", {"sid": sid, "seq": seq})

    def stale_sessions(self) -> list[StaleSession]:
        """Return sessions that have grown since they were indexed, oldest first."""
        rows = self._database.fetch_all("stale_sessions", {"limit": 1_000})
        return [
            StaleSession(session_of(sid), seq, size, decode_metadata(data) or Metadata(id=session_of(sid)))
            for sid, seq, size, data in rows
        ]

    def apply_updates(self, updates: Iterable[SessionUpdate]) -> None:
        """Index new records of sessions, each session in its own transaction."""
        for update in updates:
            self._database.run_transaction(partial(self._apply_update, update))

    def _apply_update(self, update: SessionUpdate, connection: Connection) -> None:
        (session, seq, _, _), changes = update
        sid = sid_of(session)
        values = {"sid": sid, "seq": seq, "through": max(changes.last_seq, seq)}
        connection.run("insert_indexed", values)
        if not connection.run("advance_indexed", values).rowcount:
            return  # another process indexed it meanwhile
        removed = 0
        for first, last in changes.removed_ranges:
            removed += connection.run("delete_range", {"sid": sid, "first": first, "last": last}).rowcount
        if changes.removed:
            removed += connection.run("delete_seqs", {"sid": sid, "seqs": sorted(changes.removed)}).rowcount
        rows = [
            {
                "sid": sid,
                "seq": passage.seq,
                "at": passage.time,
                "kind": passage.kind,
                "text": storable_text(passage.text),
                "words": encode_document(passage.text, passage.grams),
                "inside": encode_trigrams(passage.text),
            }
            for passage in changes.new.values()
        ]
        if rows:
            connection.run_many("upsert_passage", rows)
        # As late as possible, since appends wait for it. A deletion before this point undoes all of
        # it; one after it waits for the transaction and removes what was written.
        if connection.value("keep_session", values) is None:
            raise Rollback
        connection.run("add_passages", {"stripe": stripe_of(sid.bytes), "more": len(rows) - removed})
        connection.run("delete_pending_through", values)

    def drop(self, connection: Connection, sid: UUID) -> None:
        """Delete the passages of a session."""
        count = connection.run("delete_passages", {"sid": sid}).rowcount
        for label in ("delete_indexed", "delete_pending"):
            connection.run(label, {"sid": sid})
        if count:
            connection.run("add_passages", {"stripe": stripe_of(sid.bytes), "more": -count})

    # --- searching

    def find_best(self, match: Node, query: Query, span: tuple[int, int] | None = None) -> list[PassageHit]:
        """Return the best passages of a time span, or of all, for recall; of the newest, if very many match."""
        conditions, values = query_conditions(query, self._of_sessions, "p", DIALECT, span)
        values |= {"among": _MAX_RANKED if conditions else BUDGET, "limit": MAX_HITS}
        conditions.insert(0, _MATCHES.format("words"))
        return self._find_hits("best_passages", _score(RECALL_WEIGHTS), match, conditions, values)

    def find_per_session(self, match: Node, query: Query, per_session: int) -> list[PassageHit]:
        """Return the best passages of every session with a match, up to `per_session` of each."""
        conditions, values = query_conditions(query, self._of_sessions, "p", DIALECT)
        values["each"] = per_session
        names = identifier_parts(match)
        column, score = ("inside", "-1.0") if names else ("words", _score(WEIGHTS))
        # The indexed condition first: the others must read the text.
        conditions.insert(0, _MATCHES.format(column))
        for number, name in enumerate(names):
            conditions.append(f"strpos(lower(p.text), %(name{number})s) > 0")
            values[f"name{number}"] = storable_text(normalize(name))
        return self._find_hits("best_per_session", score, match, conditions, values)

    def _find_hits(
        self, label: str, score: str, match: Node, conditions: Sequence[str], values: Mapping[str, Any]
    ) -> list[PassageHit]:
        rows = self._fetch_matches(label, match, values, score=score, conditions=" AND ".join(conditions))
        return [PassageHit(_row_id(sid, seq), session_of(sid), seq, at, score) for sid, seq, at, score in rows]

    def count_matches(self, match: Node) -> int:
        """Count matching passages, up to twice the budget of a ranking."""
        rows = self._fetch_matches("count_matches", match, {"limit": 2 * BUDGET})
        return int(rows[0][0]) if rows else 0

    def matching_rows(self, match: Node) -> list[int]:
        """Return the row ids of the newest matching passages."""
        return [_row_id(sid, seq) for sid, seq in self._fetch_matches("newest_matches", match, {"limit": BUDGET})]

    def filter_rows(self, rows: Sequence[int], match: Node) -> list[int]:
        """Return those of some rows that match."""
        sids, seqs = _split_rows(rows)
        found = self._fetch_matches("filter_passages", match, {"sids": sids, "seqs": seqs}) if rows else []
        return [_row_id(sid, seq) for sid, seq in found]

    def count_passages(self) -> int:
        """Count all passages."""
        return int(self._database.fetch_row("count_passages")[0])

    def load_passages(self, rows: Sequence[int], match: Node | None) -> dict[int, PassageText]:
        """Load passages, each with a snippet in which the matches are marked."""
        if not rows:
            return {}
        sids, seqs = _split_rows(rows)
        texts = self._database.fetch_all("passage_texts", {"sids": sids, "seqs": seqs})
        snippets = make_snippets([row[-1] for row in texts], match) if match is not None else {}
        return {
            _row_id(sid, seq): PassageText(kind, at, snippets.get(number, ""), text)
            for number, (sid, seq, kind, at, text) in enumerate(texts)
        }

    def _fetch_matches(self, label: str, match: Node, values: Mapping[str, Any], **parts: str) -> list[Any]:
        """Return the rows that match a tree; none if it has no words. `parts`: of the statement."""
        tsquery = self._to_tsquery(match)

        def fetch(connection: Connection) -> list[Any]:
            statement = connection.statements[label].format(**parts)
            return connection.execute(statement, {**values, "match": tsquery}, binary=True).fetchall()

        return self._database.run_idempotent(fetch) if tsquery else []

    def _to_tsquery(self, match: Node) -> str:
        """Return a tree as the text of a tsquery; empty if it has no words."""
        words = {word for phrase in find_phrases(match) for word in encode_phrase(phrase)}
        stems = self._stem(words) if not identifier_parts(match) else {}

        def compile_phrase(phrase: Phrase) -> str:
            lexemes = [_quote(stems.get(word, word)) for word in encode_phrase(phrase)]
            joined = (" & " if phrase.field == "names" else " <-> ").join(lexemes)
            return f"({joined}{':*' if phrase.is_prefix else ''})" if lexemes else ""

        return compile_node(match, compile_phrase, _OPERATORS)

    def _stem(self, words: set[str]) -> Mapping[str, str]:
        """Return the lexeme of each word; the server is asked once per word."""
        if len(self._stems) + len(words) > _MAX_STEMS:
            self._stems = {}
        stems = self._stems  # another thread may replace it
        new = sorted(words - stems.keys())
        for word, vector in self._database.fetch_all("stems", {"words": new}) if new else ():
            lexeme = _LEXEME.search(vector)
            stems[word] = lexeme[1].replace("''", "'") if lexeme else word
        return stems


def _score(weights: Mapping[str, float]) -> str:
    cases = " ".join(f"WHEN '{kind}' THEN {weights[kind]}" for kind in KINDS)
    return f"-(ts_rank(p.words, %(match)s::tsquery, 1) + 1e-9) * CASE p.kind {cases} ELSE 1 END"


def _quote(lexeme: str) -> str:
    return "'" + lexeme.replace("\\", "\\\\").replace("'", "''") + "'"


def _split_rows(rows: Sequence[int]) -> tuple[list[UUID], list[int]]:
    """Return the sessions and the seqs of rows."""
    return [UUID(int=row >> _SEQ_BITS) for row in rows], [row & ((1 << _SEQ_BITS) - 1) for row in rows]


def _row_id(sid: UUID, seq: int) -> int:
    return sid.int << _SEQ_BITS | seq


# --- texts as words -------------------------------------------------------------------------

_WORD = re.compile(r"[^\W_]+")
_MAX_WORD_CHARS = 100  # the remainder of a longer word is ignored
_MARK = "é"
MAX_TEXT_CHARS = 300_000  # of a text, and of its grams
# Of both: a tsvector is limited to 1 MB, and where the server's locale does not know a letter, it
# splits a word in two, each with its own positions.
_MAX_VECTOR_BYTES = 700_000
_STOP_WORDS = frozenset(
    """i me my myself we our ours ourselves you your yours yourself yourselves he him his himself
    she her hers herself it its itself they them their theirs themselves what which who whom this
    that these those am is are was were be been being have has had having do does did doing a an
    the and but if or because as until while of at by for with about against between into through
    during before after above below to from up down in out on off over under again further then
    once here there when where why how all any both each few more most other some such no nor not
    only own same so than too very s t can will just don should now""".split()  # noqa: SIM905
)
_UNSPACED = re.compile(r"[^\x00-\u0dff]")  # from Thai on: the pairs that `index.search.words` writes


def split_words(text: str) -> list[str]:
    """Return the words of a text, without case and accents."""
    return _WORD.findall(normalize(text))


def normalize(text: str) -> str:
    """Return a text without case and accents."""
    if not text.isascii():
        decomposed = unicodedata.normalize("NFKD", text)
        text = "".join(char for char in decomposed if not unicodedata.combining(char))
        text = unicodedata.normalize("NFC", text)
    return text.lower()


def encode_word(word: str) -> str:
    """Return a word encoded for the server."""
    word = word[:_MAX_WORD_CHARS]
    return word + _MARK if word in _STOP_WORDS else word


def encode_gram(word: str) -> str:
    """Encode a pair of characters of a script without spaces, or a word inside a word."""
    if not _UNSPACED.search(word):
        return encode_word(normalize(word))
    return _MARK + "".join(f"{ord(char):05x}" for char in word)


def encode_document(text: str, grams: str) -> str:
    """Return the words of a text and of its grams, separated by a word that no query contains."""
    half = _MAX_VECTOR_BYTES // 2
    gram_words, remaining = _fit_words(map(encode_gram, grams[:MAX_TEXT_CHARS].split()), half)
    text_words, _ = _fit_words(map(encode_word, split_words(text[:MAX_TEXT_CHARS])), half + remaining)
    return " ".join([*text_words, _MARK, *gram_words] if gram_words else text_words)


def encode_trigrams(text: str) -> str:
    """Return the trigrams of the identifiers in a text."""
    names = identifiers(text[:MAX_TEXT_CHARS]).split()
    trigrams = sorted({trigram for name in names for trigram in split_trigrams(name)})
    return " ".join(_fit_words(trigrams, _MAX_VECTOR_BYTES)[0])


def _fit_words(words: Iterable[str], room: int) -> tuple[list[str], int]:
    """Return the first words that fit into `room` bytes of a tsvector, and the room left."""
    fitting: list[str] = []
    seen: set[str] = set()
    for word in words:
        # A word, padded to an even length, the number of its positions, and two bytes for each.
        room -= 2 if word in seen else len(word.encode()) + 5
        if room < 0:
            return fitting, 0
        seen.add(word)
        fitting.append(word)
    return fitting, room


def split_trigrams(name: str) -> list[str]:
    """Return the trigrams of a name, with x before each and q for `_`: words to the server."""
    letters = ["q" if char == "_" else char for char in normalize(name)]
    return ["x" + "".join(letters[start : start + 3]) for start in range(len(letters) - 2)]


def encode_phrase(phrase: Phrase) -> list[str]:
    """Return the words of a phrase, encoded for the server; the start of a word is no stop word."""
    if phrase.field == "names":
        return split_trigrams(phrase.text)
    if phrase.field:
        return [encode_gram(word) for word in phrase.text.split()]
    words = split_words(phrase.text)
    if phrase.is_prefix:
        return [*map(encode_word, words[:-1]), *(word[:_MAX_WORD_CHARS] for word in words[-1:])]
    return list(map(encode_word, words))
