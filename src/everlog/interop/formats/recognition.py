"""Detecting which program wrote a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, TypeVar

from everlog.interop.formats.format_types import MAX_LINE_BYTES, Format, Match

HEAD_BYTES = 64 * 1024  # the least that is read from a file to detect its format

F = TypeVar("F", bound=Format)


def read_head(file: IO[bytes]) -> bytes:
    """Return the beginning of a file, with its first line whole."""
    head = file.read(HEAD_BYTES)
    while b"\n" not in head.lstrip(b"\n\r \0") and len(head) < MAX_LINE_BYTES:
        more = file.read(max(len(head), HEAD_BYTES))
        if not more:
            break
        head += more
    return head


def detect(path: str, head: bytes, formats: Sequence[F]) -> F | None:
    """Return the format that is the most sure of a file; None if none recognises it."""
    best, best_match = None, Match.NO
    for format in formats:
        match = format.recognises(path, head)
        if match > best_match:
            best, best_match = format, match
    return best
