"""The settings of `config.yaml` that everlog has an equivalent of.

Only what is unambiguous is read: a block `compaction:` with one plain boolean or number a line.
Everything else in it is named as it stands, because half of YAML is worse than none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

_KEYS = {"enabled": r"true|false", "reserve_tokens": r"[0-9]{1,9}", "keep_recent_tokens": r"[0-9]{1,9}"}
_BLOCK = re.compile(r"^compaction:[ \t]*(?P<inline>[^#\s][^#\n]*)?(#.*)?$", re.MULTILINE)
_ENTRY = re.compile(r"^(?P<indent>[ ]+)(?P<key>[A-Za-z_]+):[ ]+(?P<value>[^#\s]+)[ \t]*([ ]#.*)?$")


class Equivalent(msgspec.Struct, frozen=True):
    """A setting of another program, and ours."""

    key: str  # theirs
    value: str  # as it stands in their file
    setting: str = ""  # ours, as a line of `[compaction]` in config.toml; empty: it was not understood


def read_compaction(text: str) -> Sequence[Equivalent]:
    """Return the keys of `compaction` in a configuration file."""
    block = _BLOCK.search(text)
    if block is None:
        return ()
    if block["inline"]:
        return (Equivalent("compaction", block["inline"].strip()),)
    found = []
    for line in text[block.end() :].split("\n")[1:]:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not line.startswith(" "):
            break
        entry = _ENTRY.match(line)
        key, value = (entry["key"], entry["value"]) if entry else (line.strip(), "")
        is_known = re.fullmatch(_KEYS.get(key, "(?!)"), value) is not None
        found.append(Equivalent(f"compaction.{key}", value, f"{key} = {value}" if is_known else ""))
    return found
