"""Manifests: what a run found, as JSON lines that each end in their crc, like those of a log.

The first line has the number of lines that follow and the SHA-256 of the previous manifest, so that
a missing line or manifest is detected. A path is text; one that is not UTF-8 is base64 in `path64`.
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
from everlog.stores.file.disk import map_errors, read_small_file, replace_small_file

VERSION = 1
_NAME = re.compile(r"([0-9]{8})\.jsonl")
_MAX_BYTES = 1 << 30
_CRC_LENGTH = len(',"crc":"00000000"}')


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """A part of a file, and the object that holds it."""

    object: str
    size: int


class ManifestLine(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag_field="type"):
    """A line of a manifest."""


class Head(ManifestLine, frozen=True, kw_only=True, tag="manifest"):
    """The first line."""

    version: int
    number: int
    at: str
    lines: int  # that follow
    before: str  # SHA-256 of the previous manifest; empty in the first


class _PathLine(ManifestLine, frozen=True, kw_only=True, omit_defaults=True):
    path: str | None = None
    path64: str | None = None

    @property
    def raw_path(self) -> bytes:
        """The absolute path as bytes."""
        return _decode_path(self.path, self.path64)


class Source(_PathLine, frozen=True, kw_only=True, tag="source"):
    """A file or folder that is archived for the first time."""


class File(_PathLine, frozen=True, kw_only=True, tag="file"):
    """A file as it was read."""

    size: int
    mtime_ns: int
    inode: int
    mode: int
    sha256: str  # of the whole file
    chunks: tuple[Chunk, ...] = msgspec.field(name="pieces")


class Link(_PathLine, frozen=True, kw_only=True, tag="link"):
    """A symbolic link, which is not followed."""

    target: str | None = None
    target64: str | None = None

    @property
    def raw_target(self) -> bytes:
        """The target as bytes."""
        return _decode_path(self.target, self.target64)


class Gone(_PathLine, frozen=True, kw_only=True, tag="gone"):
    """A file or link that no longer exists."""


AnyLine = Head | Source | File | Link | Gone
Entry = Source | File | Link | Gone

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[AnyLine] = msgspec.json.Decoder(AnyLine)


def path_fields(path: bytes, key: str = "path") -> dict[str, Any]:
    """Return a path as fields of a line."""
    try:
        return {key: path.decode()}
    except UnicodeDecodeError:
        return {f"{key}64": b64encode(path).decode()}


def _decode_path(text: str | None, base64: str | None) -> bytes:
    try:
        return text.encode() if text is not None else b64decode(base64 or "", validate=True)
    except (Base64Error, ValueError) as error:
        raise LogDamagedError("a path is not base64") from error


def encode_line(line: ManifestLine) -> bytes:
    """Encode a line, with its crc and newline."""
    body = _encoder.encode(line)[:-1]
    return b'%s,"crc":"%08x"}\n' % (body, crc32(body))


def decode_line(data: bytes) -> AnyLine:
    """Decode a line; LogDamagedError if it is damaged."""
    if data[-_CRC_LENGTH:] != b',"crc":"%08x"}' % crc32(data[:-_CRC_LENGTH]):
        raise LogDamagedError("the crc is wrong")
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise LogDamagedError(f"not a line of a manifest: {error}") from error


class Manifest(msgspec.Struct, frozen=True):
    """The content of one manifest."""

    number: int
    at: str
    entries: tuple[Entry, ...]
    previous_digest: str
    digest: str  # of its own bytes
    problems: tuple[str, ...] = ()  # damage in it


class Manifests:
    """The directory of manifests."""

    def __init__(self, directory: int) -> None:
        self._directory = directory

    def numbers(self) -> list[int]:
        """Return the numbers of all manifests, in order."""
        with map_errors("listing the manifests"):
            names = map(_NAME.fullmatch, os.listdir(self._directory))
            return sorted(int(match[1]) for match in names if match)

    def read(self, number: int) -> Manifest:
        """Read a manifest; damaged lines are left out and named in `problems`."""
        with map_errors(f"reading manifest {number}"):
            data = read_small_file(manifest_name(number), self._directory, _MAX_BYTES)
        problems: list[str] = []
        lines: list[AnyLine] = []
        for line_number, line_data in enumerate(data.split(b"\n")[:-1], 1):
            try:
                line = decode_line(line_data)
                if isinstance(line, File | Link | Gone | Source):
                    _ = line.raw_path
                lines.append(line)
            except LogDamagedError as error:
                problems.append(f"line {line_number}: {error.message}")
        if data and not data.endswith(b"\n"):
            problems.append("the last line has no newline")
        head = lines[0] if lines and isinstance(lines[0], Head) else None
        if head is not None and head.version > VERSION:
            raise FormatError(
                f"manifest {number} has version {head.version}", hint="use a newer everlog with this archive"
            )
        entries = tuple(line for line in lines if not isinstance(line, Head))
        if head is None or head.number != number:
            problems.append("its first line is missing")
        elif head.lines != len(entries) and not problems:
            problems.append(f"it has {len(entries)} lines instead of {head.lines}")
        return Manifest(
            number,
            head.at if head else "",
            entries,
            head.before if head else "",
            sha256(data).hexdigest(),
            tuple(problems),
        )

    def walk(self, after: int = 0) -> Iterator[Manifest]:
        """Yield the manifests after a number, in order."""
        for number in self.numbers():
            if number > after:
                yield self.read(number)

    def write(self, number: int, at: str, entries: Sequence[Entry], previous_digest: str) -> Manifest:
        """Write a manifest atomically. Durable on return."""
        head = Head(version=VERSION, number=number, at=at, lines=len(entries), before=previous_digest)
        data = b"".join(map(encode_line, (head, *entries)))
        replace_small_file(manifest_name(number), data, self._directory, durable=True)
        return Manifest(number, at, tuple(entries), previous_digest, sha256(data).hexdigest())


def manifest_name(number: int) -> str:
    """Return the file name of a manifest."""
    return f"{number:08d}.jsonl"
