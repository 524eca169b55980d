"""The string rules that keys are computed with.

A key is a hash, so a single code point treated differently leads to another session. These rules
are PicoClaw's, code point by code point, and do not change with the version of Python.
"""

from __future__ import annotations

import re

DEFAULT_AGENT = "main"
DEFAULT_ACCOUNT = "default"

# White space as Unicode defines it. Without a list, strip() also removes U+001C to U+001F.
_WHITESPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
# Capitals added after Unicode 15: newer Pythons lowercase them, but keys must not change.
_NEWER_CAPITALS = (0x1C89, 0xA7CB, 0xA7CC, 0xA7CE, 0xA7D2, 0xA7D4, 0xA7DA, 0xA7DC)
_UNCHANGED = map(chr, (*_NEWER_CAPITALS, *range(0x10D50, 0x10D66), *range(0x16EA0, 0x16EB9)))
_LOWER = {"\u0130": "i"} | {capital: capital for capital in _UNCHANGED}

_IDENTIFIER = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_INVALID = re.compile(r"[^a-z0-9_-]+")
_MAX_LENGTH = 64


def trim(text: str) -> str:
    """Remove white space from both ends of a text."""
    return text.strip(_WHITESPACE)


def lower(text: str) -> str:
    """Convert a text to lower case, each code point independently of its neighbours."""
    if text.isascii():
        return text.lower()
    return "".join([_LOWER.get(char) or char.lower() for char in text])


def normalize(text: str) -> str:
    """Trim a text and convert it to lower case, the form in which ids and names are compared."""
    if not text:
        return text
    text = text.strip(_WHITESPACE)
    return text.lower() if text.isascii() else lower(text)


def agent_id(text: str) -> str:
    """Return the id of an agent, from its name; `main` if it has none."""
    return _identifier(text, DEFAULT_AGENT)


def account_id(text: str) -> str:
    """Return the id of an account, from its name; `default` if it has none."""
    return _identifier(text, DEFAULT_ACCOUNT)


def _identifier(text: str, default: str) -> str:
    name = normalize(text)
    if not name:
        return default
    if _IDENTIFIER.fullmatch(name):
        return name
    # Truncated after dashes are stripped: a long name may end in one.
    return _INVALID.sub("-", name).strip("-")[:_MAX_LENGTH] or default
