"""Only SQL that Citus, CockroachDB and YugabyteDB take too; see docs/scale.md."""

from __future__ import annotations

import re

import pytest

from everlog.stores.postgres.schema import split_statements
from everlog.stores.postgres.statements import FOLDER, load_statements

STATEMENTS = {
    f"{file.stem}.{name}": text
    for file in sorted(FOLDER.glob("*.sql"))
    for name, text in load_statements(file.stem).items()
}
TABLES = [
    one
    for file in sorted((FOLDER / "migrations").glob("*.sql"))
    for one in split_statements(file.read_text(encoding="utf-8"))
]
_CHANGE = re.compile(r"\b(?:UPDATE|INSERT INTO|DELETE FROM)\s+everlog\.(\w+)")
_VOLATILE = re.compile(r"\b(?:clock_timestamp|random|gen_random_uuid|nextval|timeofday)\(")


@pytest.mark.parametrize("name", STATEMENTS)
def test_an_update_has_no_volatile_function(name: str) -> None:
    """Citus refuses it: which machine would say what the time is?"""
    text = STATEMENTS[name]
    assert not (re.search(r"\bUPDATE\s+everlog\.|DO UPDATE", text) and _VOLATILE.search(text))


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_changes_no_table_twice(name: str) -> None:
    """CockroachDB refuses it."""
    changed = _CHANGE.findall(STATEMENTS[name])
    assert len(changed) == len(set(changed))


@pytest.mark.parametrize("text", [*STATEMENTS.values(), *TABLES])
def test_nothing_that_only_one_engine_has(text: str) -> None:
    refused = r"(?i)\bjsonb\b|advisory|\bLISTEN\b|\bTRIGGER\b|\bSERIAL\b|SEQUENCE|EXTENSION|\bctid\b"
    assert not re.search(refused, text)


@pytest.mark.parametrize("text", [one for one in TABLES if one.startswith("CREATE TABLE")])
def test_a_table_has_a_primary_key_that_begins_with_what_it_is_found_by(text: str) -> None:
    """Which is what a distributed one is spread by; a unique rule must have it too."""
    table = text.split()[2]
    key = re.search(r"PRIMARY KEY \((\w+)", text) or re.search(r"(\w+) \w+ PRIMARY KEY", text)
    assert key is not None, table
    for unique in re.findall(r"UNIQUE \((\w+)", text):
        assert unique == key[1]
