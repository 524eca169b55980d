"""The statements, which stand in `sql/*.sql` under their names.

-- name: what it is for
SELECT …
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "sql"
SCHEMA = "everlog"  # as the files have it
_HEAD = re.compile(r"^-- (\w+):.*$", re.MULTILINE)


def load(file: str, schema: str = SCHEMA) -> Mapping[str, str]:
    """The statements of a file by name, for the tables of a schema."""
    return {name: in_schema(text, schema) for name, text in _parts(file).items()}


def in_schema(text: str, schema: str) -> str:
    """SQL for the tables of another schema than the files name."""
    return text if schema == SCHEMA else re.sub(rf"\b{SCHEMA}\.", f'"{schema}".', text)


@cache
def _parts(file: str) -> dict[str, str]:
    text = (FOLDER / f"{file}.sql").read_text(encoding="utf-8")
    pieces = _HEAD.split(text)
    return {name: body.strip() for name, body in zip(pieces[1::2], pieces[2::2], strict=True)}
