"""What is in the archive, and which of it a pattern means."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from everlog.interop.archive import archive_folder
from everlog.interop.archive.archive_state import State, Version
from everlog.interop.archive.manifest import named
from everlog.interop.archive.source_scan import shown

Match = Callable[[bytes], bool]


class ListedSource(msgspec.Struct, kw_only=True, rename="camel"):
    """A file or folder that was given to the archive."""

    path: str
    since: str
    files: int = 0
    gone: int = 0  # of the files
    links: int = 0
    versions: int = 0
    bytes: int = 0  # of the latest versions
    bytes_of_all: int = 0  # of all versions


class ListedFile(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """A file or link of the archive."""

    path: str
    path64: str | None = None  # if it is not UTF-8
    target: str | None = None  # of a link
    gone: str | None = None  # since when
    versions: list[dict[str, Any]] = msgspec.field(default_factory=list)  # the oldest first


class Listed(msgspec.Struct, kw_only=True, rename="camel"):
    """What is in the archive."""

    sources: list[ListedSource]
    files: list[ListedFile]
    matching: int  # files and links, of which `files` are the first


def matcher(patterns: Sequence[str]) -> Match:
    """What the patterns mean, any of them; without any, everything.

    A pattern with a leading /, ~ or . is a path; others match at the end of a path or of a folder
    above it, with *, ? and [ ] as a shell has them.
    """
    tests = [_test(os.fsencode(pattern)) for pattern in patterns]
    return lambda path: not tests or any(test(path) for test in tests)


def _test(pattern: bytes) -> Match:
    pattern = os.path.expanduser(pattern)
    if pattern.startswith((b"/", b"./", b"../")) or pattern in (b".", b".."):
        base, name = os.path.split(os.path.abspath(pattern))
        glob = os.path.join(os.path.realpath(base), name)  # as the source was found
    else:
        glob = b"*/" + pattern.rstrip(b"/")
    above = glob + b"/"
    return lambda path: (
        path == glob  # also if it has brackets in it
        or path.startswith(above)
        or fnmatchcase(path, glob)
        or fnmatchcase(path, above + b"*")
    )


def listing(root: Path, patterns: Sequence[str] = (), *, limit: int) -> Listed:
    """The sources, and the first files that match; nothing if there is no archive."""
    if not (root / archive_folder.NAME).exists():
        return Listed(sources=[], files=[], matching=0)
    with archive_folder.opened(root) as opened:
        state = opened.state
        everything = state.beneath(b"/")
        matches = matcher(patterns)
        matching = sorted(filter(matches, everything))
        files = []
        for path in matching[:limit]:
            known = everything[path]
            files.append(
                ListedFile(
                    path=shown(path),
                    path64=named(path).get("path64"),
                    target=None if known.target is None else shown(known.target),
                    gone=known.gone,
                    versions=[_told(version) for version in state.versions(path)],
                )
            )
        return Listed(sources=_sources(state), files=files, matching=len(matching))


def _told(version: Version) -> dict[str, Any]:
    return {
        "at": version.at,
        "size": version.size,
        "mtimeNs": version.mtime_ns,
        "sha256": version.sha256,
    }


def _sources(state: State) -> list[ListedSource]:
    counted = state.counted()
    made: list[ListedSource] = []
    for place, since in state.sources():
        one = ListedSource(path=shown(place), since=since)
        for path, known in state.beneath(place).items():
            one.links += known.target is not None
            if known.target is None:
                count, size = counted.get(path, (0, 0))
                one.files += 1
                one.gone += known.gone is not None
                one.versions += count
                one.bytes += known.size
                one.bytes_of_all += size
        made.append(one)
    return made
