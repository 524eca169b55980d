"""Names of transcripts that are ids of sessions."""

from __future__ import annotations

import re

_MAX_STEM_BYTES = 255 - len("_part2.jsonl")
_PART_SUFFIX = re.compile(r"_part[0-9]+\Z")


def is_stem(text: str) -> bool:
    """Return whether a text can be the file name of a transcript, without its extension."""
    return (
        0 < len(text.encode("utf-8", "surrogatepass")) <= _MAX_STEM_BYTES
        and not text.startswith(".")
        and not any(character in text for character in "/\\\0")
        and _PART_SUFFIX.search(text) is None
    )
