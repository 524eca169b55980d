"""The SQL statements in `sql/*.sql`, by label.

-- label: What the statement does
SELECT …
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "sql"
SCHEMA = "everlog"  # the name used in the files
_LABEL = re.compile(r"^-- (\w+):.*$", re.MULTILINE)


def load_statements(file: str, schema: str = SCHEMA) -> Mapping[str, str]:
    """Return the statements of a file by label, for the tables of a schema."""
    return {name: in_schema(text, schema) for name, text in _read_file(file).items()}


def in_schema(text: str, schema: str) -> str:
    """Return SQL with the schema of the files replaced by another one."""
    return text if schema == SCHEMA else re.sub(rf"\b{SCHEMA}\.", f'"{schema}".', text)


@cache
def _read_file(file: str) -> dict[str, str]:
    text = (FOLDER / f"{file}.sql").read_text(encoding="utf-8")
    sections = _LABEL.split(text)
    return {name: body.strip() for name, body in zip(sections[1::2], sections[2::2], strict=True)}
