"""What a foreign session is made of, between its own files and our records.

A dialect reads a `Source` into a `Read`: items in the order of the file, each under an id that
follows from the source alone, so that reading a file again, or reading it when it has grown, gives
the same ids. Where an item speaks of others it names them by id; their seqs are the store's to
give. What a line has and ours has no field for stays with its record under the dialect's name, so
that `write` can give the same line back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol
from uuid import NAMESPACE_OID, uuid5

import msgspec

from everlog.model import AnyRecord, Event, Message, Metadata

DERIVED = "derived"  # key of a tombstone that no record of the source stands for
LONGEST = 64_000_000  # bytes of a line; a longer one is damage


class Line(NamedTuple):
    """One line of a file, without its newline."""

    start: int  # offset in the file
    data: bytes
    ended: bool = True  # False: the last one, without a newline


class Source(Protocol):
    """The files of one foreign session, named relative to each other."""

    @property
    def name(self) -> str:
        """That of the transcript, without its ending."""
        ...

    @property
    def modified(self) -> int:
        """When it was last written, in ms."""
        ...

    def paths(self) -> Sequence[str]:
        """The transcript first, then its parts in order, then what belongs to it."""
        ...

    def lines(self, path: str) -> Iterator[Line]:
        """The lines of one file; split at newlines only, blank ones included."""
        ...

    def read(self, path: str) -> bytes:
        """A whole file."""
        ...


class Given(NamedTuple):
    """A source that is in memory."""

    name: str
    files: Mapping[str, bytes]
    modified: int = 0

    def paths(self) -> Sequence[str]:
        """As they were given."""
        return tuple(self.files)

    def lines(self, path: str) -> Iterator[Line]:
        """The lines of one file."""
        return split(self.files[path])

    def read(self, path: str) -> bytes:
        """A whole file."""
        return self.files[path]


def split(data: bytes) -> Iterator[Line]:
    """The lines of some bytes."""
    start = 0
    while start < len(data):
        end = data.find(b"\n", start)
        if end < 0:
            yield Line(start, data[start:], ended=False)
            return
        yield Line(start, data[start:end])
        start = end + 1


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A summary that stands for everything before a message."""

    id: str
    text: str
    first_kept: str | None = None  # id of the first message it keeps; None: none before itself
    strategy: str = "prose"
    tokens_before: int = 0
    read_files: tuple[str, ...] = ()
    modified_files: tuple[str, ...] = ()
    timestamp: str = ""
    extra: dict[str, Any] = {}  # further keys of the record, such as what the dialect keeps


class Hidden(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that are in the file and no part of the conversation any more."""

    id: str
    ids: tuple[str, ...]
    timestamp: str = ""
    # Whether the file says so in a record of its own, which is kept here; else it follows from
    # the others (a branch that was left) and is not written back.
    extra: dict[str, Any] = {}


Item = Message | Event | Summary | Hidden


class Lost(msgspec.Struct, frozen=True):
    """Bytes that are no record. They are kept, as an event, and reported."""

    path: str
    start: int
    end: int
    problem: str


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """A foreign session, read."""

    name: str  # unique in its dialect: what the session is found by when it is read again
    facts: dict[str, Any] = {}  # metadata in the files' names: agent, sender, name, model, cwd …
    created: int = 0  # ms
    items: tuple[Item, ...] = ()
    lines: int = 0  # that were not blank
    lost: tuple[Lost, ...] = ()
    children: tuple[Read, ...] = ()  # transcripts of agents that it asked


class Written(msgspec.Struct, frozen=True):
    """A session in a foreign format."""

    files: dict[str, bytes]
    lost: tuple[str, ...] = ()  # what the format cannot hold, in words


class Format(Protocol):
    """One format. A module has all of these."""

    NAME: str

    def recognises(self, path: str, head: bytes) -> bool:
        """Whether a file is one of its transcripts, by its first 64 KiB; never raises."""
        ...

    def read(self, source: Source) -> Read:
        """A session. Whatever the bytes are, it returns: damage is told in `lost`."""
        ...

    def write(self, metadata: Metadata, records: Sequence[AnyRecord]) -> Written:
        """A session as files of this format, from all records of its log in order."""
        ...


def made_id(name: str, place: str | int) -> str:
    """An id for an item that has none of its own; the same each time."""
    return str(uuid5(NAMESPACE_OID, f"{name} {place}"))


def kept(record: AnyRecord, dialect: str) -> Any:
    """What a record keeps under a dialect's name; None if it came from elsewhere."""
    if not record.line:
        return None
    try:
        return msgspec.json.decode(record.line).get(dialect)
    except (ValueError, AttributeError):
        return None
