"""JSON and times as Go's standard library writes them."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from everlog.ids import epoch_ms, timestamp

TIME_PATTERN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
# None of these bytes can be part of another character, or occur outside a string.
_ESCAPES = [(char.encode(), b"\\u%04x" % ord(char)) for char in ("<", ">", "&", "\u2028", "\u2029")]


def encode_go_json(value: Any, indent: int | None = None) -> bytes:
    """Encode a value as JSON as Go writes it."""
    if indent is None:
        data = msgspec.json.encode(value)
    else:
        text = json.dumps(value, ensure_ascii=False, indent=indent)
        data = text.encode("utf-8", "replace")
    for raw, escaped in _ESCAPES:
        if raw in data:
            data = data.replace(raw, escaped)
    return data


def format_go_time(text: str) -> str:
    """Format a time as Go does, without trailing zeros; empty if it is not a time."""
    if not TIME_PATTERN.fullmatch(text):
        time_ms = epoch_ms(text)
        text = timestamp(time_ms / 1000) if time_ms is not None and time_ms >= 0 else ""
    whole, dot, fraction = text.partition(".")
    if not dot:
        return text.replace("+00:00", "Z")
    digits = fraction.rstrip("Z") if fraction.endswith("Z") else fraction[:-6]
    zone = fraction[len(digits) :].replace("+00:00", "Z")
    digits = digits.rstrip("0")
    return f"{whole}.{digits}{zone}" if digits else f"{whole}{zone}"
