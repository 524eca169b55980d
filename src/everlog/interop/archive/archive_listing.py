"""Listing the archive, and matching its paths with patterns."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from everlog.interop.archive import archive_folder
from everlog.interop.archive.archive_state import ArchiveState, Version
from everlog.interop.archive.manifest import path_fields
from everlog.interop.archive.source_scan import display_path

Match = Callable[[bytes], bool]


class SourceRow(msgspec.Struct, kw_only=True, rename="camel"):
    """A file or folder that is archived."""

    path: str
    since: str
    files: int = 0
    gone: int = 0  # of the files
    links: int = 0
    versions: int = 0
    bytes: int = 0  # of the latest versions
    bytes_of_all: int = 0  # of all versions


class FileRow(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """A file or link of the archive."""

    path: str
    path64: str | None = None  # if it is not UTF-8
    target: str | None = None  # of a link
    gone: str | None = None  # time since when it is missing
    versions: list[dict[str, Any]] = msgspec.field(default_factory=list)  # oldest first


class ArchiveListing(msgspec.Struct, kw_only=True, rename="camel"):
    """The content of the archive."""

    sources: list[SourceRow]
    files: list[FileRow]
    matching: int  # files and links in all; `files` has the first of them


def matcher(patterns: Sequence[str]) -> Match:
    """Return a predicate for paths that match any of the patterns; all paths if there are none.

    A pattern with a leading /, ~ or . is a path; others match the end of a path or of a folder
    above it, with *, ? and [ ] as in a shell.
    """
    tests = [_pattern_matcher(os.fsencode(pattern)) for pattern in patterns]
    return lambda path: not tests or any(test(path) for test in tests)


def _pattern_matcher(pattern: bytes) -> Match:
    pattern = os.path.expanduser(pattern)
    if pattern.startswith((b"/", b"./", b"../")) or pattern in (b".", b".."):
        base, name = os.path.split(os.path.abspath(pattern))
        glob = os.path.join(os.path.realpath(base), name)  # as the source was resolved
    else:
        glob = b"*/" + pattern.rstrip(b"/")
    above = glob + b"/"
    return lambda path: (
        path == glob  # literally, also if it has brackets
        or path.startswith(above)
        or fnmatchcase(path, glob)
        or fnmatchcase(path, above + b"*")
    )


def count_archived(root: Path, paths: Sequence[Path]) -> int:
    """Return how many files at or below some paths are in the archive; 0 if there is none."""
    if not paths or not (root / archive_folder.NAME).exists():
        return 0
    with archive_folder.open_archive(root) as archive:
        return sum(len(archive.state.entries_below(os.path.realpath(os.fsencode(path)))) for path in paths)


def list_archive(root: Path, patterns: Sequence[str] = (), *, limit: int) -> ArchiveListing:
    """List the sources, and the first files that match; empty if there is no archive."""
    if not (root / archive_folder.NAME).exists():
        return ArchiveListing(sources=[], files=[], matching=0)
    with archive_folder.open_archive(root) as archive:
        state = archive.state
        entries = state.entries_below(b"/")
        matches = matcher(patterns)
        matching = sorted(filter(matches, entries))
        files = []
        for path in matching[:limit]:
            path_state = entries[path]
            files.append(
                FileRow(
                    path=display_path(path),
                    path64=path_fields(path).get("path64"),
                    target=None if path_state.target is None else display_path(path_state.target),
                    gone=path_state.gone_since,
                    versions=[_version_fields(version) for version in state.versions(path)],
                )
            )
        return ArchiveListing(sources=_source_rows(state), files=files, matching=len(matching))


def _version_fields(version: Version) -> dict[str, Any]:
    return {"at": version.archived_at, "size": version.size, "mtimeNs": version.mtime_ns, "sha256": version.sha256}


def _source_rows(state: ArchiveState) -> list[SourceRow]:
    version_counts = state.version_counts()
    rows: list[SourceRow] = []
    for source_path, since in state.sources():
        row = SourceRow(path=display_path(source_path), since=since)
        for path, path_state in state.entries_below(source_path).items():
            row.links += path_state.target is not None
            if path_state.target is None:
                count, size = version_counts.get(path, (0, 0))
                row.files += 1
                row.gone += path_state.gone_since is not None
                row.versions += count
                row.bytes += path_state.size
                row.bytes_of_all += size
        rows.append(row)
    return rows
