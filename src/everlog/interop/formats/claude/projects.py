"""The folder of a project: Claude Code's rule for the path of its working directory."""

from __future__ import annotations

import re
from unicodedata import normalize

LONGEST = 200  # characters
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def project_directory(path: str) -> tuple[str, ...]:
    """The name of the folder for the sessions of a directory.

    The rule loses much: `a-b` and `a/b` share a folder. So a session's own records say where it
    was. A long name ends in a hash, for which Claude Code itself has another one than its SDK.
    """
    text = normalize("NFC", path)
    name = re.sub(r"[^A-Za-z0-9]", "-", text)
    return (name if len(name) <= LONGEST else f"{name[:LONGEST]}-{_hash(text)}",)


def _hash(text: str) -> str:
    """The SDK's: over UTF-16 units, in 32 bits with a sign, its absolute value in base 36."""
    units = text.encode("utf-16-le", "surrogatepass")
    value = 0
    for place in range(0, len(units), 2):
        value = (value * 31 + int.from_bytes(units[place : place + 2], "little")) & 0xFFFFFFFF
    value = abs(value - (1 << 32) if value >= 1 << 31 else value)
    digits = ""
    while value:
        value, rest = divmod(value, 36)
        digits = _DIGITS[rest] + digits
    return digits or "0"
