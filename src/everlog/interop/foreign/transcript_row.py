"""The row of one transcript in a catalogue: what is cached of it, and how a listing shows it."""

from __future__ import annotations

import msgspec

from everlog.ids import epoch_ms, timestamp
from everlog.interop.directory_walk import Stamp
from everlog.interop.foreign.transcript_files import ENDING, ReadPosition, Signature
from everlog.interop.formats.format_types import ListingScan
from everlog.model import Metadata
from everlog.ports import SessionRow


class TranscriptRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The cached facts about one transcript."""

    folder: str
    stem: str
    version: int = 1
    format: str = msgspec.field(default="", name="dialect")  # empty: not recognised
    # If so, the formats that were tried.
    tried_formats: tuple[str, ...] = msgspec.field(default=(), name="tried")
    name: str = ""  # the session's id, unless other files have the same
    stamps: Signature = ()  # of the files when they were last read
    ancestor: Stamp | None = None  # stamp of the format's ANCESTOR_FILE then
    position: ReadPosition = msgspec.field(default=ReadPosition(), name="trail")
    sizes: tuple[int, ...] = ()
    scan: ListingScan = msgspec.field(default=ListingScan(), name="glance")
    # Whether another file of the folder has the same session id.
    has_shared_name: bool = msgspec.field(default=False, name="twin")
    parent: str = ""  # path of the transcript whose session started this one, if that is known by the place
    branch: str = ""  # id of the session within the file, if it is not the file's main one
    parent_id: str = ""  # id of the session that started this one
    agents: tuple[str, ...] = ()  # ids of the sessions that this one started
    resume: tuple[str, ...] = ()  # the command that continues it in its own program

    @property
    def path(self) -> str:
        """Path of the transcript, relative to the root."""
        return f"{self.folder}/{self.stem}{ENDING}" if self.folder else f"{self.stem}{ENDING}"

    @property
    def key(self) -> str:
        """What tells it from all other sessions of the directory."""
        return f"{self.path}#{self.branch}" if self.branch else self.path

    @property
    def is_child(self) -> bool:
        """Whether it is listed under the session that started it, not by itself."""
        return bool(self.parent or self.branch or (self.scan.skip and self.scan.parent))

    @property
    def modified_ns(self) -> int:
        """Time of the last write to the files, in ns."""
        return max((stamp[2] for stamp in self.stamps), default=0)

    @property
    def created_ms(self) -> int:
        """When the session was created: the first write to its file, if nothing in it says more."""
        return max(epoch_ms(self.scan.created) or self.modified_ns // 1_000_000, 0)

    def session_row(self, session: str) -> SessionRow:
        """Return the session as a listing shows it."""
        scan, modified = self.scan, self.modified_ns / 1e9
        extra = {"cwd": scan.cwd, "agents": self.agents, "parent": {"id": self.parent_id} if self.parent_id else None}
        last = normalize_time(scan.last) or (timestamp(modified) if scan.messages else "")
        metadata = Metadata(
            id=session,
            title=scan.title or None,
            created_at=normalize_time(scan.created) or timestamp(modified),
            last_message_at=last,
            model=scan.model,
            message_count=scan.messages,
            source=self.format,
            agent=scan.agent or "main",
            sender=scan.sender or "user",
            key=scan.key or None,
            aliases=scan.aliases,
            scope=scan.scope,
            chat=scan.chat,
            extra={"resume": self.resume, **{key: value for key, value in extra.items() if value}},
        )
        return SessionRow(metadata, sum(self.sizes), max(len(self.sizes), 1))


def normalize_time(text: str) -> str:
    """Return a time in the native notation, or an empty string if it is not a time."""
    if len(text) == len("2026-01-05T09:00:00.000Z") and text.endswith("Z"):
        return text
    time_ms = epoch_ms(text)
    return "" if time_ms is None else timestamp(time_ms / 1000)
