"""The result of importing one file, and the counts in it."""

from __future__ import annotations

import msgspec


class ImportResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The result of importing one file: `records_in` = `stored` + `already_there` + `lost`."""

    path: str
    id: str | None = None
    format: str = ""
    messages: int = msgspec.field(default_factory=lambda: 0)  # of the session now, as a listing counts them
    new_messages: int = msgspec.field(default_factory=lambda: 0)  # of them by this run
    records_in: int = msgspec.field(default_factory=lambda: 0)  # in the file
    stored: int = msgspec.field(default_factory=lambda: 0)  # by this run, and read back
    already_there: int = msgspec.field(default_factory=lambda: 0)
    lost: int = msgspec.field(default_factory=lambda: 0)  # neither
    problems: tuple[str, ...] = msgspec.field(default_factory=lambda: ())  # what was lost, and damage, which is kept
    differs_from: str | None = None  # the session with the same id in its format, if the file went another way
    children: tuple[ImportResult, ...] = ()
    problem: str = ""  # why nothing was imported
