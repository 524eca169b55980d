"""Claude Code's rule for the project folder of a working directory."""

from __future__ import annotations

import re
from unicodedata import normalize

MAX_NAME_LENGTH = 200  # characters
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def project_directory(cwd: str) -> tuple[str, ...]:
    """Return the name of the folder for the sessions of a directory.

    The rule is ambiguous: `a-b` and `a/b` share a folder. So the session's own records name its
    directory. A long name ends in a hash, for which Claude Code and its SDK differ.
    """
    text = normalize("NFC", cwd)
    name = re.sub(r"[^A-Za-z0-9]", "-", text)
    return (name if len(name) <= MAX_NAME_LENGTH else f"{name[:MAX_NAME_LENGTH]}-{_hash(text)}",)


def _hash(text: str) -> str:
    """Return the SDK's hash: UTF-16 units, 32 bits signed, absolute value in base 36."""
    units = text.encode("utf-16-le", "surrogatepass")
    value = 0
    for index in range(0, len(units), 2):
        value = (value * 31 + int.from_bytes(units[index : index + 2], "little")) & 0xFFFFFFFF
    value = abs(value - (1 << 32) if value >= 1 << 31 else value)
    digits = ""
    while value:
        value, digit = divmod(value, 36)
        digits = _DIGITS[digit] + digits
    return digits or "0"
