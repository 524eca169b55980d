"""Locations of stores: what a text such as `claude:~/.claude/projects` names.

DIR                 a native store, or sessions of another program: detected by what is in it
native:DIR          a native store
FORMAT:DIR          sessions of another program, in its format; `auto:DIR` detects that of each file
postgresql://…      a database
memory:             in this process only
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from everlog.errors import NotFoundError, SettingsError

if TYPE_CHECKING:
    from everlog.interop.formats.foreign_format import ForeignFormat
    from everlog.ports import SkippedFile

DATABASE_SCHEMES = ("postgresql", "postgres")  # what the address of one begins with
NATIVE, AUTO = "native", "auto"
_NATIVE_NAMES = ("run", "live", "names.lock", "archive/manifests")  # which only a native store or our home has
_DETECTED_FILES = 20  # of a directory that are looked at to detect the format

LoadFormats = Callable[[], Sequence["ForeignFormat"]]  # only if they are needed: every command asks
Kind = Literal["memory", "database", "native", "foreign", "directory"]


class Location(NamedTuple):
    """Where sessions are."""

    kind: Kind  # "directory": what is in it decides
    address: str = ""  # of a database
    directory: Path = Path()
    format: str = ""  # of a foreign directory; AUTO: that of each file; empty: that of all, if it is one

    @property
    def text(self) -> str:
        """The location as its user would write it; of a database without its password."""
        return f"{self.format}:{self.directory}" if self.format else str(self.directory)


def parse_location(text: str, formats: Sequence[str]) -> Location:
    """Parse a location. Raises SettingsError for one that cannot name a store, without repeating a password."""
    if text == "memory:":
        return Location("memory")
    if re.match(r"\w+\s*=", text):
        raise SettingsError(
            "a database location must be a URL, not a libpq connection string",
            hint="postgresql://user@host:5432/name; a directory with = in its name: ./name",
        )
    scheme, separator, _ = text.partition("://")
    if separator:
        if scheme not in DATABASE_SCHEMES:
            raise SettingsError(
                f"unknown kind of location: {scheme[:60]!r}",
                hint="use a directory, FORMAT:DIR, postgresql://… or memory:",
            )
        return Location("database", address=text)
    name, colon, path = text.partition(":")
    if not colon or "/" in name or name.startswith("."):
        return Location("directory", directory=directory(text))
    if name not in (NATIVE, AUTO, *formats):
        raise SettingsError(
            f"no format is called {name[:60]!r}",
            hint=f"one of {', '.join((NATIVE, *formats, AUTO))}; a directory with : in its name: ./name",
        )
    if not path:
        raise SettingsError(f"{text} names no directory", hint=f"{name}:DIR")
    if name == NATIVE:
        return Location("native", directory=directory(path))
    return Location("foreign", directory=directory(path), format=name)


def directory(text: str) -> Path:
    """Return a path with `~` expanded."""
    if not text:
        raise SettingsError("the location is empty", hint="name a directory")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise SettingsError(f"{text}: {error}") from error


def detect(location: Location, load_formats: LoadFormats, *, create: bool = False) -> Location:
    """Return a directory as native or foreign, by what is in it; NotFoundError if there is none.

    With nothing but legacy documents it is PicoClaw's, unless a store is to be created in it.
    """
    if location.kind in ("native", "foreign", "directory") and not location.directory.is_dir():
        if location.directory.exists():
            raise SettingsError(f"{location.directory} is not a directory")
        raise NotFoundError(
            f"there is no directory {location.directory}", hint=f"everlog --store {location.text} store init makes it"
        )
    if location.kind != "directory":
        return location
    if holds_foreign_sessions(location.directory, load_formats):
        return location._replace(kind="foreign")
    if not create and _holds_legacy_sessions(location.directory):
        return location._replace(kind="foreign", format="picoclaw")
    return location._replace(kind="native")


def holds_foreign_sessions(path: Path, load_formats: LoadFormats) -> bool:
    """Return whether a directory holds sessions of another program and no native store."""
    if not path.is_dir() or is_native(path):
        return False
    from everlog.interop.transcript_sources import detect_format, find_files  # noqa: PLC0415 - not for every store

    files = [file for file in find_files([path])[0] if file.suffix == ".jsonl"][:_DETECTED_FILES]
    formats = load_formats() if files else ()
    with suppress(OSError):
        return any(detect_format(file, formats) for file in files)
    return False


def _holds_legacy_sessions(path: Path) -> bool:
    if is_native(path) or not next(path.glob("*.json"), None):
        return False
    from everlog.interop.legacy_workspace import legacy_documents  # noqa: PLC0415 - few directories have such files

    return bool(legacy_documents(path))


def is_native(path: Path) -> bool:
    """Return whether a directory is a native store. Other programs too have `sessions` and `config.toml`."""
    if any(os.path.lexists(path / name) for name in _NATIVE_NAMES):
        return True
    if not (path / "sessions").exists():
        return (path / "config.toml").exists()  # of a home that has only been configured
    from everlog.stores.file.layout import Root  # noqa: PLC0415 - as the store itself

    return Root(path, durable=False).exists()


def unrecognised_files(path: Path, load_formats: LoadFormats) -> Sequence[SkippedFile]:
    """Return the files of a directory that holds no store of ours, with the reason why they are no sessions."""
    if not path.is_dir() or is_native(path):
        return ()
    from everlog.interop.transcript_sources import explain_file, find_files  # noqa: PLC0415
    from everlog.ports import SkippedFile  # noqa: PLC0415

    formats = load_formats()
    files, skipped = find_files([path])
    return [*skipped, *(SkippedFile(str(file), explain_file(file, formats)) for file in files)]


def home_name(directory: Path) -> str:
    """Return the name that a foreign directory has in our home, below `live` and `companion`."""
    return sha256(os.fsencode(directory.resolve())).hexdigest()[:16]
