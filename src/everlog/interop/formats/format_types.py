"""Types between foreign files and our records, and the `Format` protocol.

A format reads a `Source` into a `ForeignSession`: items in file order, each with an id derived
from the source alone, so that reading the file again, or after it has grown, yields the same ids.
Items refer to other items by id; the store assigns seqs. Whatever a line contains that our records
have no field for is stored with its record under the format's name, so that `write` can reproduce
the line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from hashlib import sha256
from typing import Any, NamedTuple, Protocol
from uuid import NAMESPACE_OID, uuid5

import msgspec

from everlog.log.line_codec import encode_other_block
from everlog.model import AnyRecord, Event, Message, Metadata

_encode = msgspec.json.Encoder(enc_hook=encode_other_block).encode
DERIVED_KEY = "derived"  # key of a tombstone without a record in the source
MAX_LINE_BYTES = 64_000_000  # a longer line is treated as damage


class Line(NamedTuple):
    """One line of a file, without its newline."""

    start: int  # offset in the file
    data: bytes
    ended: bool = True  # False: the last line, without a newline


class Source(Protocol):
    """The files of one foreign session, named relative to each other."""

    @property
    def name(self) -> str:
        """Return the transcript's file name without its extension."""
        ...

    @property
    def modified_ms(self) -> int:
        """Return the time of the last write, in ms."""
        ...

    def paths(self) -> Sequence[str]:
        """Return the transcript first, then its parts in order, then its companion files."""
        ...

    def lines(self, path: str) -> Iterator[Line]:
        """Yield the lines of one file, blank ones included; only newlines separate lines."""
        ...

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        ...

    def find_ancestor(self, name: str) -> bytes | None:
        """Return the content of the nearest file with this name in the folders above; None if there is none."""
        ...

    def find_related(self, part: str) -> bytes | None:
        """Return another transcript of the same tree by a part of its file name; None if there is none."""
        ...


class InMemorySource(NamedTuple):
    """A source whose files are held in memory."""

    name: str
    files: Mapping[str, bytes]
    modified_ms: int = 0

    def paths(self) -> Sequence[str]:
        """Return the paths in the order of `files`."""
        return tuple(self.files)

    def lines(self, path: str) -> Iterator[Line]:
        """Yield the lines of one file."""
        return split_lines(self.files[path])

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        return self.files[path]

    def find_ancestor(self, name: str) -> bytes | None:
        """Return the file named `../name`, if there is one."""
        return self.files.get(f"../{name}")

    def find_related(self, part: str) -> bytes | None:
        """Return the file `../` whose name contains a text, if there is one."""
        return next((data for path, data in self.files.items() if path.startswith("../") and part in path), None)


def split_lines(data: bytes | bytearray) -> Iterator[Line]:
    """Yield the lines of a byte string, lazily and without a copy of the whole."""
    start = 0
    while start < len(data):
        end = data.find(b"\n", start)
        if end < 0:
            yield Line(start, bytes(data[start:]), ended=False)
            return
        yield Line(start, bytes(data[start:end]))
        start = end + 1


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A summary that replaces everything before a message."""

    id: str
    text: str
    first_kept: str | None = None  # id of the first message it keeps; None: keeps none
    strategy: str = "prose"
    tokens_before: int = 0
    read_files: tuple[str, ...] = ()
    modified_files: tuple[str, ...] = ()
    timestamp: str = ""
    extra: dict[str, Any] = {}  # more keys of the record, such as the format's own


class HiddenMessages(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that are in the file but no longer part of the conversation."""

    id: str
    ids: tuple[str, ...]
    timestamp: str = ""
    # The file's own record that hides them. Empty if the hiding follows from other records (an
    # abandoned branch): it is not written back then.
    extra: dict[str, Any] = {}


Item = Message | Event | Summary | HiddenMessages


class DamagedBytes(msgspec.Struct, frozen=True):
    """Bytes that are not a record. They are stored as an event and reported."""

    path: str
    start: int
    end: int
    problem: str


class ForeignSession(msgspec.Struct, frozen=True, kw_only=True):
    """The result of reading a foreign session."""

    session_id: str  # unique in its format; identifies the session when it is read again
    metadata: dict[str, Any] = {}  # with our metadata keys: agent, sender, name, model, cwd …
    created_ms: int = 0
    items: tuple[Item, ...] = ()
    line_count: int = 0  # without blank lines
    damage: tuple[DamagedBytes, ...] = ()
    children: tuple[ForeignSession, ...] = ()  # its subagents' transcripts


class ExportedFiles(msgspec.Struct, frozen=True):
    """A session in a foreign format."""

    files: dict[str, bytes]
    losses: tuple[str, ...] = ()  # what the format cannot hold, as text


class Match(IntEnum):
    """How sure a format is that a file is one of its transcripts."""

    NO = 0
    POSSIBLE = 1  # the name or later lines say so, but the first line is missing or damaged
    SURE = 2


class Format(Protocol):
    """A foreign file format. A module implements it with module-level functions."""

    NAME: str
    KEYS: frozenset[str]  # some keys of its lines that are characteristic of it
    IS_REWRITTEN: bool  # whether its program rewrites transcripts, dropping lines at their start

    def recognises(self, path: str, head: bytes) -> Match:
        """Return whether a file is such a transcript, by its name and its beginning. Never raises.

        `head` is at least 64 KiB, and longer if the first line is: it contains the whole first
        line, and its last line may be cut.
        """
        ...

    def read(self, source: Source) -> ForeignSession:
        """Read a session. Never raises for any content: damage is listed in `damage`."""
        ...

    def write(self, metadata: Metadata, records: Sequence[AnyRecord]) -> ExportedFiles:
        """Return all records of a log, in order, as files of this format."""
        ...

    def fingerprint(self, message: Message) -> str:
        """Return what identifies a message in every copy of its session.

        The id, where the program gives messages ids that never change; else a digest of the
        content (see `content_fingerprint`).
        """
        ...


def derive_id(name: str, position: str | int) -> str:
    """Return a deterministic id for an item that has none in its file."""
    return str(uuid5(NAMESPACE_OID, f"{name} {position}"))


def content_fingerprint(message: Message, *, with_time: bool = True) -> str:
    """Return a digest of what a message says, equal in every copy of its session.

    `with_time` also tells apart equal texts said at different times; leave it out where the format
    stores no times.
    """
    said: list[object] = [message.role, message.tool_call_id, message.timestamp if with_time else ""]
    if message.role != "toolResult":  # the full text of a large result may be in another file
        said.append(message.content)
    return sha256(_encode(said)).hexdigest()[:32]


def extra_field(record: AnyRecord, key: str) -> Any:
    """Return the value of an extra key of a record, or None if the record has no such key."""
    if not record.line:
        return None
    try:
        return msgspec.json.decode(record.line).get(key)
    except (ValueError, AttributeError):
        return None
