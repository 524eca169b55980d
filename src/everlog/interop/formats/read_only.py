"""What formats have in common whose sessions are read in place and never written."""

from __future__ import annotations

from typing import Any, NoReturn

from everlog.errors import FormatError, UnsupportedError


def refuse_write(*_: Any, **__: Any) -> NoReturn:
    """Raise UnsupportedError, in place of every function of a `LiveFormat` that writes."""
    raise UnsupportedError(
        "sessions of this program cannot be written, only read",
        hint="import the session (everlog sessions import) and continue it there",
    )


def refuse_export(*_: Any, **__: Any) -> NoReturn:
    """Raise FormatError, in place of `write`."""
    raise FormatError("sessions of this program cannot be written, only read", hint="export to another format")
