"""A format of another program's files, and what can be asked of it.

Reading is one `SessionReader`, asked for more or less: an import reads a `Source` from its first
line, a live view the new lines after a stored state, a listing only facts. So the cost of following
a file depends on how much it grew. Writing is one `encode_record`: an append calls it for a record,
an export for all of them. The state is small, plain JSON and is stored by the caller.

Data outside the conversation (settings, snapshots, unknown types) stays in the file and is no item
of a live view. Nothing in a file is ever rewritten except what a `FileEdit` names. A format opens no
file and knows no clock.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, NoReturn

from msgspec.structs import replace

from everlog.errors import FormatError, UnsupportedError
from everlog.identity.key import session_key
from everlog.interop.formats.file_names import is_stem
from everlog.interop.formats.format_types import (
    ExportedFiles,
    FileEdit,
    ForeignSession,
    Head,
    Line,
    ListingScan,
    Match,
    MetadataLocation,
    MirrorLog,
    NewSession,
    SessionNames,
    Source,
    TailResult,
    TailState,
    TranscriptInfo,
    content_fingerprint,
)
from everlog.interop.formats.losses import IMPORT_HINT, REFUSAL, Losses
from everlog.interop.formats.session_export import SessionExport
from everlog.interop.formats.session_reader import Detail, NeedsWholeFileError, SessionReader, read_session
from everlog.model import AnyRecord, Message, Metadata
from everlog.ports import Action, Route

_PART = re.compile(r"_part([0-9]+)\.jsonl\Z")


class ForeignFormat(ABC):
    """A foreign file format. Without an `EXPORT` its files are read in place and never written."""

    NAME: ClassVar[str]
    KEYS: ClassVar[frozenset[str]]  # some keys of its lines that are characteristic of it
    READER: ClassVar[type[SessionReader]]
    EXPORT: ClassVar[type[SessionExport] | None] = None
    ACTIONS: ClassVar[frozenset[Action]] = frozenset()  # what its files can hold; none: they are only read
    METADATA_LOCATION: ClassVar[MetadataLocation] = ""
    ANCESTOR_FILE: ClassVar[str] = ""  # name of a file in a folder above that says more about sessions
    PART_BYTES: ClassVar[int] = 0  # limit of a part `<stem>_part2.jsonl`; 0: a session is one file
    TOTAL_BYTES: ClassVar[int] = 0  # limit of all parts that its program can load; 0: none
    LINE_BYTES: ClassVar[int] = 0  # limit of a line that its program can read; 0: none
    IS_REWRITTEN: ClassVar[bool] = False  # whether its program drops lines at the start of transcripts
    HAS_BRANCHES: ClassVar[bool] = False  # whether lines name their parents, and a conversation may leave a branch
    HAS_UPTIME: ClassVar[bool] = False  # whether the metadata has the total duration of turns
    DIMENSIONS: ClassVar[tuple[str, ...] | None] = None  # the only ones that separate its sessions; None: any
    DEFAULT_AGENT: ClassVar[str] = ""  # the agent of messages if the settings name none; empty: ours

    # --- names

    @abstractmethod
    def recognises(self, path: str, head: bytes) -> Match:
        """Return whether a file is such a transcript, by its name and its beginning. Never raises.

        `head` is at least 64 KiB, and longer if the first line is: it contains the whole first
        line, and its last line may be cut.
        """

    def is_id(self, text: str) -> bool:
        """Return whether a text can be the id of a session."""
        return is_stem(text)

    def session_id_of(self, stem: str, meta_bytes: bytes | None) -> str:
        """Return the id of the session in a file with this name."""
        return stem

    def fingerprint(self, message: Message) -> str:
        """Return what identifies a message in every copy of its session.

        The id, where the program gives messages ids that never change; else a digest of the
        content.
        """
        return content_fingerprint(message)

    def resume_command(self, facts: ListingScan, path: str) -> tuple[str, ...]:
        """Return the command with which the session's own program continues it; empty: none.

        `path` is that of the transcript. The command is run in the session's working directory.
        """
        return ()

    def actions(self, state: TailState) -> frozenset[Action]:
        """Return what a file can hold, by the reader's state at its end."""
        return self.ACTIONS

    def project_directory(self, cwd: str) -> tuple[str, ...]:
        """Return possible names of the folder for the sessions of a directory; empty: there is none."""
        return ()

    # --- finding the session of a message

    def find_holder(self, name: str, sessions: Sequence[SessionNames]) -> str | None:
        """Return the session with exactly this id, key or alias; None for an alias that several list."""
        return find_exact(name, sessions) or find_by_alias(name, sessions)

    def thread(self, route: Route) -> str:
        """Return what one conversation after the other of a route belongs to: a name, or `model.pair`."""
        return route.name or route.key

    def has_name(self, session: str, name: str) -> bool:
        """Return whether the id of a session is one that `name_fields` or `route_fields` gave."""
        return session == name

    def find_session(self, route: Route, sessions: Sequence[SessionNames]) -> str | None:
        """Return the session that a message goes to, by the rules of the program; None: a new one."""
        fields = self.route_fields(route, 1)
        name = fields.get("id") or fields.get("key", "")
        derived = (session.id for session in sessions if self.has_name(session.id, name))
        return self.find_holder(self.thread(route), sessions) or next(derived, None)

    def route_fields(self, route: Route, number: int) -> dict[str, Any]:
        """Return the metadata of the first or a later session of a route; `number` counts them from 1."""
        name = self.thread(route) if number == 1 else session_key(f"{self.thread(route)}|chat={number}")
        try:
            return dict(self.name_fields(name))
        except UnsupportedError:
            return dict(self.name_fields(session_key(name)))

    def unnamed_fields(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Return the metadata by which a new session is found that nobody gave a key."""
        return {}

    def route_changes(
        self, route: Route, session: SessionNames, sessions: Sequence[SessionNames], superseded: Collection[str]
    ) -> dict[str, Any]:
        """Return the metadata that a message brings to its session.

        `superseded` are the names of sessions whose history was promoted to it.
        """
        return {}

    def promotable(self, route: Route, sessions: Sequence[SessionNames]) -> Sequence[tuple[str, str]]:
        """Return the legacy sessions whose history a new session takes over: name and id, the first first."""
        return ()

    # --- reading

    def read(self, source: Source) -> ForeignSession:
        """Read a session. Never raises for any content: damage is listed in `damage`."""
        transcript, parts = self.open_source(source)
        return read_session(self.READER(transcript, Detail.FULL, whole=True), parts)

    def read_tail(self, state: TailState, lines: Iterable[Line], transcript: TranscriptInfo) -> TailResult | None:
        """Return the items of new lines; `state` is empty at the beginning of the file.

        Lines are complete; damaged and blank lines are included, the metadata line is not. Returns
        None if the items cannot be determined without the whole file (use `read_all`). `meta_bytes`
        may have changed without any new line. Does not modify `state`. Never raises.
        """
        try:
            return _tail_result(self.READER(transcript, Detail.CONVERSATION, state), lines)
        except NeedsWholeFileError:
            return None

    def read_all(self, lines: Iterable[Line], transcript: TranscriptInfo) -> TailResult:
        """Return the items of a whole session, with the same ids as `read_tail`.

        Also returns messages of abandoned branches, and hides them. Where `read_tail` never
        returns None, this equals `read_tail` from the beginning.
        """
        return _tail_result(self.READER(transcript, Detail.CONVERSATION, whole=True), lines)

    def scan_listing(self, scan: ListingScan, lines: Iterable[Line], transcript: TranscriptInfo) -> ListingScan:
        """Continue a listing scan over further lines. Fast: most lines need no parsing."""
        reader = self.READER(transcript, Detail.LISTING, scan.state, scan)
        for _ in reader.feed(lines):
            pass
        for _ in reader.finish():
            pass
        return replace(reader.facts, state=reader.state)

    def find_head(self, lines: Iterable[Line]) -> Head:
        """Return the head of a transcript whose first line is metadata; reads as few lines as possible."""
        head = next(iter(lines), None)
        return Head((), None) if head is None else Head((head,), head.data)

    def is_damaged_metadata(self, data: bytes) -> bool:
        """Return whether its program could not read this metadata file."""
        return False

    def missing_head(self, stem: str, now: str) -> bytes:
        """Return the metadata line to write into an empty file, from its name; empty: none."""
        return b""

    def open_source(self, source: Source) -> tuple[TranscriptInfo, list[tuple[str, Iterable[Line]]]]:
        """Return a source as a live view sees it: what is beside the lines, and the lines of each part."""
        first, *others = source.paths()
        numbered = sorted((int(match[1]), path) for path in others if (match := _PART.search(path)))
        parts: list[tuple[str, Iterable[Line]]] = [
            (path, source.lines(path)) for path in (first, *(path for _, path in numbered))
        ]
        head = Head((), None)
        if self.METADATA_LOCATION == "head":
            head = self.find_head(source.lines(first))
            parts[0] = (first, islice(source.lines(first), len(head.lines), None))
        elif self.METADATA_LOCATION == "file" and f"{source.name}.meta.json" in others:
            head = Head((), source.read(f"{source.name}.meta.json"))

        def read_file(path: str) -> bytes | None:
            name = f"{source.name}/{path}"
            return source.read(name) if name in others else None

        transcript = TranscriptInfo(
            self.session_id_of(source.name, head.meta_bytes),
            head.meta_bytes,
            read_file,
            source.name,
            source.find_related,
            source.find_ancestor(self.ANCESTOR_FILE) if self.ANCESTOR_FILE else None,
            read_lines=lambda: source.lines(first),
            head=head.lines,
            modified_ms=source.modified_ms,
        )
        return transcript, parts

    # --- writing

    def write(self, metadata: Metadata, records: Sequence[AnyRecord]) -> ExportedFiles:
        """Return all records of a log, in order, as files of this format."""
        if self.EXPORT is None:
            raise FormatError(f"{self.NAME} sessions cannot be written, only read", hint="export to another format")
        return self.EXPORT(self, metadata, records).write()

    def encode_record(self, state: TailState, log: MirrorLog, record: AnyRecord, losses: Losses = REFUSAL) -> FileEdit:
        """Return the edit that writes a record of ours into the session's files.

        `read_tail` of the new lines returns the record again, as far as the format can hold it,
        preceded by whatever had to be added for it. What it cannot hold is passed to `losses`, which
        by default raises UnsupportedError, with a hint for an alternative. Returns an empty edit for
        an event.
        """
        self._refuse()

    def encode_metadata(self, state: TailState, log: MirrorLog, changes: Mapping[str, Any]) -> FileEdit:
        """Return the edit that writes changed metadata, keyed like ours, into the files.

        Raises UnsupportedError if the format cannot hold it.
        """
        self._refuse()

    def name_fields(self, name: str) -> dict[str, str]:
        """Return the metadata that gives a new session an id of the caller's: `id` or `key`.

        Raises UnsupportedError if the format cannot hold such an id.
        """
        self._refuse()

    def build_session(self, metadata: Mapping[str, Any], now: str, is_taken: Callable[[str], bool]) -> NewSession:
        """Return a new session with this metadata (agent, sender, key, name, cwd …).

        `is_taken` tells whether a file with a stem exists. Raises UnsupportedError for metadata
        that the format cannot hold.
        """
        self._refuse()

    def reclaim_lines(self, data: bytes, meta_bytes: bytes | None, now: str = "") -> tuple[bytes, bytes, bytes]:
        """Remove the lines that the session's program skips.

        Return the new transcript, the new metadata file, and the removed lines. Raises
        UnsupportedError where there are no such lines.
        """
        raise UnsupportedError(
            f"a {self.NAME} session has nothing to reclaim",
            hint="only PicoClaw sessions have lines that their program skips",
        )

    def _refuse(self) -> NoReturn:
        raise UnsupportedError(f"{self.NAME} sessions cannot be written, only read", hint=IMPORT_HINT)


def find_exact(name: str, sessions: Sequence[SessionNames]) -> str | None:
    """Return the session with this id or key, or with this id in its program; None if there is none."""
    named = (session.id for session in sessions if name in (session.id, session.key, session.program_id))
    return next((session.id for session in sessions if session.id == name), None) or next(named, None)


def find_by_alias(name: str, sessions: Sequence[SessionNames]) -> str | None:
    """Return the only session that lists this alias; None if there is none, or several."""
    holders = [session.id for session in sessions if name in session.aliases]
    return holders[0] if len(holders) == 1 else None


def _tail_result(reader: SessionReader, lines: Iterable[Line]) -> TailResult:
    return TailResult([*reader.feed(lines), *reader.finish()], reader.state)
