"""The string rules that keys are made by.

A key is a hash, so one code point treated otherwise is another session. These rules are
PicoClaw's, code point by code point, and do not change with the version of Python.
"""

from __future__ import annotations

import re

DEFAULT_AGENT = "main"
DEFAULT_ACCOUNT = "default"

# What Unicode calls white space. Without a list, strip() also takes U+001C to U+001F.
_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
# Capitals that Unicode got after version 15: newer Pythons lower them, and keys must stay.
_CAPITALS_SINCE = (0x1C89, 0xA7CB, 0xA7CC, 0xA7CE, 0xA7D2, 0xA7D4, 0xA7DA, 0xA7DC)
_KEPT = map(chr, (*_CAPITALS_SINCE, *range(0x10D50, 0x10D66), *range(0x16EA0, 0x16EB9)))
_LOWER = {"\u0130": "i"} | {capital: capital for capital in _KEPT}

_IDENTIFIER = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_OTHERS = re.compile(r"[^a-z0-9_-]+")
_LONGEST = 64


def trim(text: str) -> str:
    """Text without white space at its ends."""
    return text.strip(_SPACE)


def lower(text: str) -> str:
    """Text in lower case, each code point by itself: no rule looks at its neighbours."""
    if text.isascii():
        return text.lower()
    return "".join([_LOWER.get(one) or one.lower() for one in text])


def plain(text: str) -> str:
    """Trimmed and in lower case: the form in which ids and names are compared."""
    if not text:
        return text
    text = text.strip(_SPACE)
    return text.lower() if text.isascii() else lower(text)


def agent_id(text: str) -> str:
    """The id of an agent, from its name; `main` if there is none."""
    return _identifier(text, DEFAULT_AGENT)


def account_id(text: str) -> str:
    """The id of an account, from its name; `default` if there is none."""
    return _identifier(text, DEFAULT_ACCOUNT)


def _identifier(text: str, default: str) -> str:
    name = plain(text)
    if not name:
        return default
    if _IDENTIFIER.fullmatch(name):
        return name
    # Cut after the dashes are gone: a long name may end in one.
    return _OTHERS.sub("-", name).strip("-")[:_LONGEST] or default
