"""Which files a conversation read and changed, and how a summary says so.

Calls are scanned, not results: a call that failed may still have touched its file. The sets are
cumulative over compactions, and a file that was changed is no longer listed as read. The lists
in a summary are for the model; the compaction record has the whole sets, paths as they were.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from everlog.context.compaction.quoting import inert
from everlog.model import Message

READING = frozenset({"read", "read_file"})
MODIFYING = frozenset({"write", "write_file", "edit", "multiedit", "notebookedit"})
PATH_KEYS = ("path", "file_path", "filePath", "notebook_path")
LISTED_READS = 100
_TAGS = ("read-files", "modified-files")


class FileOps(msgspec.Struct, frozen=True):
    """Paths, each in one of the two sets."""

    read: frozenset[str] = frozenset()
    modified: frozenset[str] = frozenset()


NO_OPS = FileOps()


def file_ops(messages: Iterable[Message], before: FileOps = NO_OPS) -> FileOps:
    """`before` and what the calls in these messages add to it."""
    read, modified = set(before.read), set(before.modified)
    for message in messages:
        for call in message.tool_calls:
            name = call.name.lower()
            kind = modified if name in MODIFYING else read if name in READING else None
            path = path_of(call.arguments)
            if kind is not None and path:
                kind.add(path)
    return FileOps(read=frozenset(read - modified), modified=frozenset(modified))


def path_of(arguments: Any) -> str:
    """The path among the arguments of a call, or nothing."""
    if isinstance(arguments, dict):
        for key in PATH_KEYS:
            path = arguments.get(key)
            if isinstance(path, str) and path:
                return path
    return ""


def tags(ops: FileOps, *, reads: int = LISTED_READS, modified: int | None = None) -> str:
    """Both sets inside their tags, sorted, a path a line; an empty set has no tags.

    All changed files are listed unless `modified` bounds them; of files only read, `reads`.
    """
    shown = (
        _tag(_TAGS[0], sorted(ops.read), reads),
        _tag(_TAGS[1], sorted(ops.modified), len(ops.modified) if modified is None else modified),
    )
    return "\n\n".join(part for part in shown if part)


def shown_path(path: str) -> str:
    """A path on one line that is no tag or heading; ordinary paths stay as they are."""
    if not path.isprintable():
        path = "".join(
            c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in path
        )
    line = inert(path) or repr(path)
    return f"./{line}" if line.startswith("#") else line


def without_tags(summary: str) -> str:
    """A summary without its file tags; a tag that is never closed takes nothing with it."""
    for tag in _TAGS:
        opening, closing = f"<{tag}>", f"</{tag}>"
        kept: list[str] = []
        place = 0
        while (start := summary.find(opening, place)) >= 0:
            kept.append(summary[place:start].rstrip())
            end = summary.find(closing, start)
            if end < 0:
                kept.append(summary[start:].replace(opening, ""))
                place = len(summary)
                break
            place = end + len(closing)
        if kept:
            rest = summary[place:]
            summary = "".join(kept) + ("\n" + rest.lstrip() if rest.strip() else "")
    return summary.strip()


def _tag(name: str, paths: list[str], most: int) -> str:
    if not paths or most <= 0:
        return ""
    rows = [shown_path(path) for path in paths[:most]]
    if len(paths) > most:
        rows.append(f"(and {len(paths) - most} more)")
    return "\n".join([f"<{name}>", *rows, f"</{name}>"])
