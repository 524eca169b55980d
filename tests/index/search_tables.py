"""A real index of a few texts, with the columns and the tokenizer of the product."""

from __future__ import annotations

import apsw

from everlog.index.search.fts5 import to_fts5
from everlog.index.search.query import Node, identifier_parts
from everlog.index.search.ranking import WEIGHTS
from everlog.index.search.words import grams, identifiers


class Table:
    """Texts by number, from 1, each as the message of a user."""

    def __init__(self, *texts: str) -> None:
        self._connection = apsw.Connection(":memory:")
        self._connection.execute(
            f"CREATE VIRTUAL TABLE passage USING fts5({', '.join(WEIGHTS)},"
            ' tokenize = "porter unicode61 remove_diacritics 2")'
        )
        self._connection.execute("CREATE VIRTUAL TABLE inside USING fts5(names, tokenize = 'trigram')")
        for row, text in enumerate(texts, 1):
            self._connection.execute(
                "INSERT INTO passage (rowid, user, grams) VALUES (?, ?, ?)", (row, text, grams(text))
            )
            self._connection.execute("INSERT INTO inside (rowid, names) VALUES (?, ?)", (row, identifiers(text)))

    def matching(self, match: Node | None) -> list[int]:
        """The numbers of the texts that match; an expression that is no expression raises."""
        if match is None:
            return []
        table = "inside" if identifier_parts(match) else "passage"
        query = f"SELECT rowid FROM {table} WHERE {table} MATCH ? ORDER BY rowid"
        return [row[0] for row in self._connection.execute(query, (to_fts5(match),))]
