"""One writer per format: a state machine that is fed our records and returns lines.

A format implements one subclass of `SessionWriter`. Everything that writes its files asks it:

    append     resumed from the reader's state after the last line, one record; what the format
               cannot hold is refused, before anything is written
    export     from the beginning, every record; what the format cannot hold is counted, and a
               record that was read from such a file is written as the line that it was

So an export is an append of everything: a record has the same line in both. `encode_with` and
`export_with` bind a writer to `LiveFormat.encode_record` and `Format.write`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from everlog.errors import UnsupportedError
from everlog.interop.formats.writer import Losses
from everlog.model import AnyRecord, Compaction, Message, Meta, Rewind, Tombstone

IMPORT_HINT = "import the session (everlog sessions import) and continue it there"


class SessionWriter(ABC):
    """The writer of one session.

    It has the state of the file so far, given or built up by the records that were added.
    """

    PROGRAM: ClassVar[str]  # the name of the format in errors: "CrabTalk's files"

    def __init__(self, *, is_export: bool) -> None:
        self.is_export = is_export
        self.losses = Losses()
        self.lines: list[bytes] = []  # written so far, each without its newline

    def add(self, record: AnyRecord) -> None:
        """Write the lines for a record. An append raises UnsupportedError for what cannot be held."""
        if isinstance(record, Message):
            self.add_message(record)
        elif isinstance(record, Compaction):
            self.add_compaction(record)
        elif isinstance(record, Tombstone | Rewind):
            self.add_removal(record)
        elif isinstance(record, Meta):
            self.add_meta(record)
        elif self.is_export:
            self.losses.count_record(record)  # an append keeps events in the mirror

    @abstractmethod
    def add_message(self, message: Message) -> None:
        """Write the lines for a message."""

    @abstractmethod
    def add_compaction(self, record: Compaction) -> None:
        """Write the lines for a summary that replaces what is before its first kept message."""

    def add_removal(self, record: Tombstone | Rewind) -> None:
        """Write the lines that hide messages, if the format can do that."""
        self.refuse(f"the removal of messages ({record.record_type})")

    def add_meta(self, record: Meta) -> None:
        """Write the lines for changed metadata; an export writes the metadata as it is in the end."""

    def refuse(self, description: str, count: int = 1, *, hint: str = IMPORT_HINT) -> None:
        """Count what cannot be written, or, in an append, raise UnsupportedError."""
        if count and not self.is_export:
            raise UnsupportedError(f"{self.PROGRAM} cannot hold {description}", hint=hint)
        self.losses.add(description, count)
