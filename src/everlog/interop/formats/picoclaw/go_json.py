"""JSON and times as Go's standard library writes them."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from everlog.ids import epoch_ms, timestamp

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
# None of these bytes can be part of another character, or stand outside a string.
_ESCAPES = [(one.encode(), b"\\u%04x" % ord(one)) for one in ("<", ">", "&", "\u2028", "\u2029")]


def dump(value: Any, indent: int | None = None) -> bytes:
    """JSON as Go writes it."""
    if indent is None:
        data = msgspec.json.encode(value)
    else:
        text = json.dumps(value, ensure_ascii=False, indent=indent)
        data = text.encode("utf-8", "replace")
    for raw, escaped in _ESCAPES:
        if raw in data:
            data = data.replace(raw, escaped)
    return data


def go_time(text: str) -> str:
    """A time as Go writes it: no zeros at the end of its fraction. Empty if it is none."""
    if not TIME.fullmatch(text):
        moment = epoch_ms(text)
        text = timestamp(moment / 1000) if moment is not None and moment >= 0 else ""
    whole, dot, rest = text.partition(".")
    if not dot:
        return text.replace("+00:00", "Z")
    digits = rest.rstrip("Z") if rest.endswith("Z") else rest[:-6]
    zone = rest[len(digits) :].replace("+00:00", "Z")
    digits = digits.rstrip("0")
    return f"{whole}.{digits}{zone}" if digits else f"{whole}{zone}"
