"""The files that a conversation read and changed, and their lists in a summary.

Calls are scanned, not results: a call that failed may still have touched its file. The sets are
cumulative over compactions, and a changed file is no longer listed as read. The lists in a summary
are for the model; the compaction record has the complete sets with the original paths.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from everlog.context.compaction.quoting import escape_markup
from everlog.context.fence import Origin, block, fence
from everlog.model import Message
from everlog.ports.provider import FileAccess

READING = frozenset({"read", "read_file", "read_text_file"})
MODIFYING = frozenset({"write", "write_file", "create_file", "edit", "edit_file", "multiedit", "notebookedit"})
PATH_KEYS = ("path", "file_path", "filePath", "notebook_path")
MAX_LISTED_READS = 100
TAGS = ("read-files", "modified-files")


class FileOps(msgspec.Struct, frozen=True):
    """Paths, each in one of the two sets."""

    read: frozenset[str] = frozenset()
    modified: frozenset[str] = frozenset()


NO_OPS = FileOps()
NO_DECLARATIONS: Mapping[str, FileAccess] = MappingProxyType({})


def collect_file_ops(
    messages: Iterable[Message], earlier: FileOps = NO_OPS, declared: Mapping[str, FileAccess] = NO_DECLARATIONS
) -> FileOps:
    """Return `earlier` plus the file operations of the calls in these messages.

    `declared` is what tools say of themselves, by name.
    """
    paths: dict[str, set[str]] = {"read": set(earlier.read), "write": set(earlier.modified)}
    for message in messages:
        for call in message.tool_calls:
            access = declared.get(call.name) or _access_by_name(call.name)
            path = path_argument(call.arguments)
            if access and path:
                paths[access].add(path)
    return FileOps(read=frozenset(paths["read"] - paths["write"]), modified=frozenset(paths["write"]))


def _access_by_name(tool: str) -> FileAccess | None:
    """Return what a tool does with its file, by its usual name: without the server's, as in `mcp__fs__edit_file`."""
    name = re.split(r"__|[.:/]", tool)[-1].lower()
    return "write" if name in MODIFYING else "read" if name in READING else None


def path_argument(arguments: Any) -> str:
    """Return the path among the arguments of a call, or nothing."""
    if isinstance(arguments, dict):
        for key in PATH_KEYS:
            path = arguments.get(key)
            if isinstance(path, str) and path:
                return path
    return ""


def format_tags(ops: FileOps, *, reads: int = MAX_LISTED_READS, modified: int | None = None) -> str:
    """Format both sets inside their tags, sorted, one path per line; no tags for an empty set.

    All changed files are listed unless `modified` limits them; of files only read, `reads`.
    """
    changed = len(ops.modified) if modified is None else modified
    lists = zip(TAGS, (list_paths(ops.read, reads), list_paths(ops.modified, changed)), strict=True)
    return "\n\n".join(block(tag, *(fence(row, Origin.PATH) for row in rows)) for tag, rows in lists if rows)


def format_path(path: str) -> str:
    """Return a path on one line that is no tag or heading; ordinary paths are unchanged."""
    if not path.isprintable():
        path = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in path)
    line = escape_markup(path) or repr(path)
    return f"./{line}" if line.startswith("#") else line


def strip_tags(summary: str) -> str:
    """Return a summary without its file tags; an unclosed tag removes nothing else."""
    for tag in TAGS:
        head, *lists = summary.split(f"<{tag}>")
        pieces = [(text, text.partition(f"</{tag}>")) for text in lists]
        parts = (head, *(after if closing else text for text, (_, closing, after) in pieces))
        summary = "\n".join(part.strip() for part in parts if part.strip())
    return summary.strip()


def list_paths(paths: Iterable[str], limit: int) -> list[str]:
    """Return the first paths in order as they are written in a summary, and how many more there are."""
    ordered = sorted(paths)
    more = [f"(and {len(ordered) - limit} more)"] if len(ordered) > limit > 0 else []
    return [format_path(path) for path in ordered[: max(limit, 0)]] + more
