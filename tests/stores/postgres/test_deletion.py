"""Deleted means gone: no row has a word of the session, and after VACUUM (FULL) no byte of a table or an index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from everlog.model import user
from everlog.session import Store
from tests.stores.postgres.open_stores import Stores
from tests.stores.stored_text import rare_words

RELATIONS = """
SELECT relname, pg_relation_filepath(oid) FROM pg_class
WHERE relkind IN ('r', 'i') AND relnamespace = %(schema)s::regnamespace OR oid IN (
    SELECT unnest(ARRAY[reltoastrelid, indexrelid]) FROM pg_class LEFT JOIN pg_index ON indrelid = reltoastrelid
    WHERE relnamespace = %(schema)s::regnamespace)
"""


def rows_with(connection: Any, schema: str, word: str) -> list[str]:
    """The tables that have a row with a word; some columns are bytes, shown in hexadecimal."""
    tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,)).fetchall()
    query = "SELECT count(*) FROM {} AS t WHERE t::text LIKE ANY(%s)"
    counts = {
        table: connection.execute(
            query.format(f"{schema}.{table}"), ([f"%{word}%", f"%{word.encode().hex()}%"],)
        ).fetchone()[0]
        for (table,) in tables
    }
    return [table for table, count in counts.items() if count]


def files_with(connection: Any, schema: str, words: list[str]) -> list[str]:
    """The tables and indexes whose files have one of the words."""
    connection.execute("CHECKPOINT")
    (directory,) = connection.execute("SHOW data_directory").fetchone()
    paths = connection.execute(RELATIONS, {"schema": schema}).fetchall()
    contents = {name: Path(directory, path).read_bytes() for name, path in paths}
    return [name for name, data in contents.items() if any(word[2:].encode() in data for word in words)]


def test_no_table_or_index_has_a_word_of_a_deleted_session(stores: Stores) -> None:
    port = stores.new()
    store, schema = Store(port), port.database.settings.schema
    words, common = rare_words(60, "hidden"), rare_words(60, "common")
    store.create(sender="other").append_many([user(" ".join(common)) for _ in range(30)])
    session = store.create(sender="me", title=f"about {words[0]}", aliases=[f"agent:main:direct:{words[1]}"])
    for first in range(0, 60, 6):
        session.append(user(" ".join((*words[first : first + 6], *common[:20]))))
        assert store.search(words[first]).total == 1
    store.list()
    with stores.server.connect() as connection:
        assert {"rec", "passage", "claim", "listing"} <= set(rows_with(connection, schema, words[1]))
        assert "passage_words" in files_with(connection, schema, words)
        session.delete()
        assert not rows_with(connection, schema, "hidden")
        connection.commit()
        connection.autocommit = True
        for (table,) in connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,)
        ).fetchall():
            connection.execute(f"VACUUM (FULL) {schema}.{table}")
        assert not files_with(connection, schema, words)
    assert store.search(common[3]).total == 1
