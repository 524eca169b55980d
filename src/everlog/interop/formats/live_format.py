"""The `LiveFormat` protocol: formats whose files are used in place.

Besides `read` and `write`, which handle a whole session, such a format is a fold over lines:
`read_tail` takes the new lines and the state after the earlier ones and returns items;
`encode_record` builds the lines for a record of ours from the same state. The state is small, plain
JSON and is stored by the caller. So the cost of following a file, or of an append, depends only on
how much the file grew, whoever wrote to it.

Data outside the conversation (settings, snapshots, unknown types) stays in the file and is not an
item here. Nothing in the file is ever rewritten except what a `FileEdit` names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from everlog.interop.formats.format_types import Format, HiddenMessages, Line, Summary
from everlog.model import AnyRecord, Event, Message, Metadata

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


class LiveFormat(Format, Protocol):
    """A format whose files are used in place. A module implements it."""

    METADATA_LOCATION: MetadataLocation
    PART_BYTES: int  # limit of a part `<stem>_part2.jsonl`; 0: a session is one file
    TOTAL_BYTES: int  # limit of all parts that its program can load; 0: none
    LINE_BYTES: int  # limit of a line that its program can read; 0: none
    ANCESTOR_FILE: str  # name of a file in a folder above that says more about sessions; empty: none

    def is_id(self, text: str) -> bool:
        """Return whether a text can be the id of a session."""
        ...

    def session_id_of(self, stem: str, meta_bytes: bytes | None) -> str:
        """Return the id of the session in a file with this name."""
        ...

    def read_tail(self, state: TailState, lines: Iterable[Line], transcript: TranscriptInfo) -> TailResult | None:
        """Return the items of new lines; `state` is empty at the beginning of the file.

        Lines are complete; damaged and blank lines are included, the metadata line is not. Returns
        None if the items cannot be determined without the whole file (use `read_all`). `meta_bytes`
        may have changed without any new line. Does not modify `state`. Never raises.
        """
        ...

    def read_all(self, lines: Iterable[Line], transcript: TranscriptInfo) -> TailResult:
        """Return the items of a whole session, with the same ids as `read_tail`.

        Also returns messages of abandoned branches, and hides them. Where `read_tail` never
        returns None, this equals `read_tail` from the beginning.
        """
        ...

    def encode_record(self, state: TailState, log: MirrorLog, record: AnyRecord) -> FileEdit:
        """Return the edit that writes a record of ours into the session's files.

        `read_tail` of the new lines returns the record again, as far as the format can hold it,
        preceded by whatever had to be added for it. Raises UnsupportedError, with a hint for an
        alternative, if the format cannot hold the record. Returns an empty edit for an event.
        """
        ...

    def encode_metadata(self, state: TailState, log: MirrorLog, changes: Mapping[str, Any]) -> FileEdit:
        """Return the edit that writes changed metadata, keyed like ours, into the files.

        Raises UnsupportedError if the format cannot hold it.
        """
        ...

    def name_fields(self, name: str) -> dict[str, str]:
        """Return the metadata that gives a new session an id of the caller's: `id` or `key`.

        Raises UnsupportedError if the format cannot hold such an id.
        """
        ...

    def build_session(self, metadata: Mapping[str, Any], now: str, is_taken: Callable[[str], bool]) -> NewSession:
        """Return a new session with this metadata (agent, sender, key, name, cwd …).

        `is_taken` tells whether a file with a stem exists. Raises UnsupportedError for metadata
        that the format cannot hold.
        """
        ...

    def scan_listing(self, scan: ListingScan, lines: Iterable[Line], transcript: TranscriptInfo) -> ListingScan:
        """Continue a listing scan over further lines. Fast: most lines need no parsing."""
        ...

    def resume_command(self, facts: ListingScan, path: str) -> tuple[str, ...]:
        """Return the command with which the session's own program continues it; empty: none.

        `path` is that of the transcript. The command is run in the session's working directory.
        """
        ...


class HeadFormat(LiveFormat, Protocol):
    """A format with METADATA_LOCATION "head". A module implements it."""

    def find_head(self, lines: Iterable[Line]) -> Head:
        """Return the head of a transcript; reads as few of its lines as possible."""
        ...

    def missing_head(self, stem: str, now: str) -> bytes:
        """Return the metadata line to write into an empty file, from its name."""
        ...
