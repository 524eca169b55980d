"""Types between foreign files and our records.

A format reads a `Source` into a `ForeignSession`: items in file order, each with an id derived
from the source alone, so that reading the file again, or after it has grown, yields the same ids.
Items refer to other items by id; the store assigns seqs. Whatever a line contains that our records
have no field for is stored with its record under the format's name, so that an export can reproduce
the line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from hashlib import sha256
from typing import Any, Literal, NamedTuple, Protocol
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


# --- files that are used in place ----------------------------------------------------------------

TailState = dict[str, Any]
ConversationItem = Message | Summary | HiddenMessages | Event  # an event only of kind USAGE


class TailResult(NamedTuple):
    """The items in some lines, and the state for reading the lines after them."""

    items: Sequence[ConversationItem]
    state: TailState


class TranscriptInfo(NamedTuple):
    """The session that lines belong to."""

    session_id: str
    meta_bytes: bytes | None = None  # the metadata line or file, if the format has one
    # Reads a file in the folder named like the session (`tool-results/x.txt`); None if missing.
    read_file: Callable[[str], bytes | None] = lambda _: None
    stem: str = ""  # the transcript's file name without its extension
    # Reads another transcript of the same tree by a part of its file name (the base of a fork);
    # None if there is none.
    read_related: Callable[[str], bytes | None] = lambda _: None
    ancestor_file: bytes | None = None  # content of the format's ANCESTOR_FILE
    # Id of one of several sessions in the same file (an inline sidechain); empty: the main one.
    branch: str = ""
    # Reads all lines of the transcript; None where there is no file to read.
    read_lines: Callable[[], Iterable[Line]] | None = None
    head: tuple[Line, ...] = ()  # lines in the place of the metadata line; only for an import
    modified_ms: int = 0  # time of the last write to the file; 0: unknown, or it still changes


class MirrorLog(Protocol):
    """A session as our records, for encoding further records into its files."""

    @property
    def transcript(self) -> TranscriptInfo:
        """Return the value that `read_tail` receives."""
        ...

    @property
    def metadata(self) -> Metadata:
        """Return the session's metadata."""
        ...

    def record(self, seq: int) -> AnyRecord:
        """Return a record by its seq."""
        ...

    def records_from(self, seq: int) -> Sequence[AnyRecord]:
        """Return the records from a seq on, in order."""
        ...

    def foreign_id(self, record: AnyRecord) -> str:
        """Return the id that a record has in the file."""
        ...


class FileEdit(msgspec.Struct, frozen=True, kw_only=True):
    """Changes to make to the files, in this order."""

    lines: tuple[bytes, ...] = ()  # to append, each without its newline
    head: bytes | None = None  # replaces the first line; without its newline
    files: dict[str, bytes] = {}  # to replace as a whole: suffix of the name → content
    stem: str | None = None  # new name of the transcript, without its extension


class NewSession(NamedTuple):
    """A new session and the edit that creates it."""

    session_id: str
    stem: str  # of its file
    edit: FileEdit


class SessionNames(NamedTuple):
    """The names and other facts by which a session of a directory is found."""

    id: str
    agent: str = ""
    sender: str = ""
    key: str = ""
    program_id: str = ""
    aliases: tuple[str, ...] = ()  # that are its own
    listed: tuple[str, ...] = ()  # aliases, also those of a main session
    scope: Mapping[str, Any] | None = None
    chat: int | None = None
    modified_ns: int = 0


class ListingScan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a listing shows of a session, folded over its lines."""

    messages: int = 0  # as many as `read_tail` returns
    title: str = ""
    created: str = ""  # ISO 8601; empty: use the file's time
    last: str = ""  # ISO 8601, of the last message
    agent: str = ""
    sender: str = ""
    model: str = ""
    cwd: str = ""
    key: str = ""
    aliases: tuple[str, ...] = ()
    scope: dict[str, Any] | None = None
    chat: int | None = None
    skip: bool = False  # not a session of its own: not listed
    program_id: str = ""  # the id that the program itself gave the session; empty: the file's name
    parent: str = ""  # id of the session that started this one (a subagent, a fork)
    branches: tuple[str, ...] = ()  # ids of further sessions in the same file
    state: TailState = msgspec.field(default_factory=dict, name="notes")  # the format's; small


# Where a format stores the metadata that its program rewrites: nowhere, in the first line of the
# transcript, or in a file `<stem>.meta.json` next to it.
MetadataLocation = Literal["", "head", "file"]


class Head(NamedTuple):
    """The beginning of a transcript whose first line is metadata that its program rewrites."""

    lines: tuple[Line, ...]  # that are not part of the conversation; none if the metadata is lost
    meta_bytes: bytes | None  # the metadata line, or damage in its place

    @property
    def size(self) -> int:
        """Bytes up to the conversation."""
        if not self.lines:
            return 0
        last = self.lines[-1]
        return last.start + len(last.data) + last.ended


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
