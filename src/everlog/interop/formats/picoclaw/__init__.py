"""PicoClaw's session format: `.jsonl` with one message per line, and a `.meta.json` file.

    {"role":"user","content":"hello","created_at":"2026-06-13T08:00:00.123456789Z"}

    {"key": …, "summary": …, "skip": 2, "count": 5, "created_at": …, "updated_at": …,
     "scope": …, "aliases": […]}                    (indented, no final newline)

The first `skip` lines are no longer part of the conversation: the summary stands for them, or, if
there is none, they are hidden. PicoClaw may remove them from the file, so ids are derived from a
line's content, not from its number. Bytes are those of Go's `encoding/json`; times are kept as text,
because they have nanoseconds.
"""

from __future__ import annotations

from everlog.interop.formats.foreign_format import ForeignFormat
from everlog.interop.formats.format_types import Match
from everlog.interop.formats.jsonl import head_objects
from everlog.interop.formats.picoclaw.entry_builder import build_session, encode_metadata, encode_record, name_fields
from everlog.interop.formats.picoclaw.export import PicoClawExport
from everlog.interop.formats.picoclaw.history_edits import reclaim_lines
from everlog.interop.formats.picoclaw.lines import MAX_READABLE_BYTES, NAME, PICOCLAW_KEYS, lowercase_keys
from everlog.interop.formats.picoclaw.meta_file import is_stem, parse_meta
from everlog.interop.formats.picoclaw.names import (
    find_holder,
    find_session,
    promotable,
    route_changes,
    route_fields,
    unnamed_fields,
)
from everlog.interop.formats.picoclaw.reader import PicoClawReader
from everlog.ports import Route


class PicoClawFormat(ForeignFormat):
    """PicoClaw's sessions, which it continues when their chat goes on."""

    NAME = NAME
    KEYS = frozenset({"reasoning_content", "tool_call_id", *PICOCLAW_KEYS})
    READER = PicoClawReader
    EXPORT = PicoClawExport
    ACTIONS = frozenset(("append", "compact", "delete"))
    METADATA_LOCATION = "file"
    LINE_BYTES = MAX_READABLE_BYTES
    IS_REWRITTEN = True
    DEFAULT_AGENT = "main"
    is_id = staticmethod(is_stem)
    find_holder = staticmethod(find_holder)
    find_session = staticmethod(find_session)
    route_fields = staticmethod(route_fields)
    route_changes = staticmethod(route_changes)
    promotable = staticmethod(promotable)
    unnamed_fields = staticmethod(unnamed_fields)
    encode_record = staticmethod(encode_record)
    encode_metadata = staticmethod(encode_metadata)
    name_fields = staticmethod(name_fields)
    build_session = staticmethod(build_session)
    reclaim_lines = staticmethod(reclaim_lines)

    def is_damaged_metadata(self, data: bytes) -> bool:
        """Return whether PicoClaw could not read this metadata file."""
        return parse_meta(data) is None

    def thread(self, route: Route) -> str:
        """Return the key: a name that came with the message is only an alias."""
        return route.key

    def recognises(self, path: str, head: bytes) -> Match:
        """Return whether a file has messages that only PicoClaw writes, or is named like its keys."""
        if not path.endswith(".jsonl"):
            return Match.NO
        has_key_name = path.rpartition("/")[2].startswith(("sk_v1_", "agent_"))
        best = Match.NO
        for value in map(lowercase_keys, head_objects(head)):
            if "type" in value or "created_by" in value:
                # The first line of another format. After a message of PicoClaw's it is only an
                # unknown line.
                return best
            if not isinstance(value.get("role"), str) or not isinstance(value.get("content") or "", str):
                continue
            if any(key in value for key in PICOCLAW_KEYS):
                return Match.SURE
            if has_key_name or "tool_calls" in value or "tool_call_id" in value:
                best = Match.POSSIBLE
        return best


FORMAT = PicoClawFormat()
