"""Manifests: what a run found, as lines of JSON that each end in their crc, like those of a log.

The first line tells how many follow and the SHA-256 of the manifest before, so that a missing
line or a missing manifest shows. A path is text; one that is not UTF-8 is base64 in `path64`.
"""

from __future__ import annotations

import os
import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any
from zlib import crc32

import msgspec

from everlog.errors import FormatError, LogDamagedError
from everlog.stores.file.disk import errors_mapped, get, put

VERSION = 1
_NAME = re.compile(r"([0-9]{8})\.jsonl")
_CAP = 1 << 30
_CRC = len(',"crc":"00000000"}')


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """A part of a file: the object that has it."""

    object: str
    size: int


class Line(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag_field="type"):
    """A line of a manifest."""


class Head(Line, frozen=True, kw_only=True, tag="manifest"):
    """The first line."""

    version: int
    number: int
    at: str
    lines: int  # that follow
    before: str  # SHA-256 of the manifest before; empty in the first


class _AtPath(Line, frozen=True, kw_only=True, omit_defaults=True):
    path: str | None = None
    path64: str | None = None

    @property
    def place(self) -> bytes:
        """The absolute path."""
        return _bytes(self.path, self.path64)


class Source(_AtPath, frozen=True, kw_only=True, tag="source"):
    """A file or folder that was given to the archive, when it was the first time."""


class File(_AtPath, frozen=True, kw_only=True, tag="file"):
    """A file as it was read."""

    size: int
    mtime_ns: int
    inode: int
    mode: int
    sha256: str  # of the whole
    pieces: tuple[Piece, ...]


class Link(_AtPath, frozen=True, kw_only=True, tag="link"):
    """A symbolic link, which is not followed."""

    target: str | None = None
    target64: str | None = None

    @property
    def to(self) -> bytes:
        """Where it leads."""
        return _bytes(self.target, self.target64)


class Gone(_AtPath, frozen=True, kw_only=True, tag="gone"):
    """A file or link that is no longer there."""


AnyLine = Head | Source | File | Link | Gone
Entry = Source | File | Link | Gone

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[AnyLine] = msgspec.json.Decoder(AnyLine)


def named(path: bytes, key: str = "path") -> dict[str, Any]:
    """A path as the keys of a line."""
    try:
        return {key: path.decode()}
    except UnicodeDecodeError:
        return {f"{key}64": b64encode(path).decode()}


def _bytes(text: str | None, base64: str | None) -> bytes:
    try:
        return text.encode() if text is not None else b64decode(base64 or "", validate=True)
    except (Base64Error, ValueError) as error:
        raise LogDamagedError("a path is not base64") from error


def seal(line: Line) -> bytes:
    """A line as it is written."""
    body = _encoder.encode(line)[:-1]
    return b'%s,"crc":"%08x"}\n' % (body, crc32(body))


def unseal(data: bytes) -> AnyLine:
    """A line as it was meant; LogDamagedError if it is not that."""
    if data[-_CRC:] != b',"crc":"%08x"}' % crc32(data[:-_CRC]):
        raise LogDamagedError("the crc is wrong")
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise LogDamagedError(f"not a line of a manifest: {error}") from error


class Manifest(msgspec.Struct, frozen=True):
    """One manifest, read."""

    number: int
    at: str
    entries: tuple[Entry, ...]
    before: str
    digest: str  # of its own bytes
    problems: tuple[str, ...] = ()  # what is damaged in it


class Manifests:
    """The directory of manifests."""

    def __init__(self, directory: int) -> None:
        self._directory = directory

    def numbers(self) -> list[int]:
        """Which there are, in order."""
        with errors_mapped("listing the manifests"):
            names = map(_NAME.fullmatch, os.listdir(self._directory))
            return sorted(int(match[1]) for match in names if match)

    def read(self, number: int) -> Manifest:
        """A manifest; what is damaged in it is left out and named."""
        with errors_mapped(f"reading manifest {number}"):
            data = get(name_of(number), self._directory, _CAP)
        problems: list[str] = []
        lines: list[AnyLine] = []
        for place, text in enumerate(data.split(b"\n")[:-1], 1):
            try:
                line = unseal(text)
                if isinstance(line, File | Link | Gone | Source):
                    _ = line.place
                lines.append(line)
            except LogDamagedError as error:
                problems.append(f"line {place}: {error.message}")
        if data and not data.endswith(b"\n"):
            problems.append("the last line has no end")
        head = lines[0] if lines and isinstance(lines[0], Head) else None
        if head is not None and head.version > VERSION:
            raise FormatError(
                f"manifest {number} has version {head.version}",
                hint="use a newer everlog with this archive",
            )
        entries = tuple(line for line in lines if not isinstance(line, Head))
        if head is None or head.number != number:
            problems.append("its first line is missing")
        elif head.lines != len(entries) and not problems:
            problems.append(f"it has {len(entries)} lines and not {head.lines}")
        return Manifest(
            number,
            head.at if head else "",
            entries,
            head.before if head else "",
            sha256(data).hexdigest(),
            tuple(problems),
        )

    def walk(self, after: int = 0) -> Iterator[Manifest]:
        """The manifests behind a number, in order."""
        for number in self.numbers():
            if number > after:
                yield self.read(number)

    def write(self, number: int, at: str, entries: Sequence[Entry], before: str) -> Manifest:
        """Write a manifest, durably and as a whole."""
        head = Head(version=VERSION, number=number, at=at, lines=len(entries), before=before)
        data = b"".join(map(seal, (head, *entries)))
        put(name_of(number), data, self._directory, durable=True)
        return Manifest(number, at, tuple(entries), before, sha256(data).hexdigest())


def name_of(number: int) -> str:
    """The file name of a manifest."""
    return f"{number:08d}.jsonl"
