"""Parts shared by all format writers.

They read the preserved foreign line of a record, build a file line by line, find the messages
removed since the import, and count what a format cannot hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from everlog.interop.formats.format_types import DERIVED_KEY, extra_field
from everlog.interop.formats.jsonl import as_bytes
from everlog.log.fold import fold
from everlog.model import (
    AnyRecord,
    Compaction,
    Event,
    File,
    Image,
    Message,
    Metadata,
    OtherBlock,
    Thinking,
    Tombstone,
    ToolCall,
)


class RawLine(NamedTuple):
    """The original bytes of a record."""

    data: bytes
    ended: bool


def read_preserved(record: AnyRecord, format_name: str) -> dict[str, Any] | None:
    """Return what a record stores under the format's name; None if it came from elsewhere."""
    if b'"%b"' % format_name.encode() not in record.line:
        return None
    preserved = extra_field(record, format_name)
    return preserved if isinstance(preserved, dict) else None


def read_preserved_line(record: AnyRecord, format_name: str) -> RawLine | None:
    """Return the original line that a record stores, if any."""
    if isinstance(record, Event) and record.kind in (f"{format_name}.damaged", f"{format_name}.blank"):
        preserved, data = record.data, as_bytes(record.data)
    else:
        preserved = read_preserved(record, format_name) or {}
        data = as_bytes(preserved, "line")
    return None if data is None else RawLine(data, preserved.get("ended") is not False)


def has_newline(record: AnyRecord, format_name: str) -> bool:
    """Return whether the line that a record came from ended with a newline."""
    preserved = read_preserved(record, format_name)
    return preserved is None or preserved.get("ended") is not False


class FileBuilder:
    """A file under construction. A line never continues one without a newline."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._ended = True

    def add_line(self, data: bytes, *, ended: bool = True) -> None:
        """Append one line."""
        if not self._ended:
            self._chunks.append(b"\n")
        self._chunks.append(data)
        if ended:
            self._chunks.append(b"\n")
        self._ended = ended

    def content(self) -> bytes:
        """Return the content so far."""
        return b"".join(self._chunks)


def is_from_format(records: Sequence[AnyRecord], format_name: str) -> bool:
    """Return whether a session was read from files of the format."""
    return any(
        (isinstance(record, Event) and record.kind.startswith(f"{format_name}."))
        or read_preserved(record, format_name) is not None
        for record in records
    )


def removed_seqs(records: Sequence[AnyRecord], format_name: str) -> set[int]:
    """Return the seqs of messages that we removed from the conversation.

    Messages that the foreign file itself had hidden are not included: they stay in the file.
    """
    is_native_file = is_from_format(records, format_name)
    view = fold(record for record in records if not (is_native_file and _is_foreign_tombstone(record, format_name)))
    live = {message.seq for message in view.messages}
    messages = (record for record in records if isinstance(record, Message))
    return {message.seq for message in messages if message.seq not in live}


def _is_foreign_tombstone(record: AnyRecord, format_name: str) -> bool:
    return isinstance(record, Tombstone) and (
        read_preserved(record, format_name) is not None or extra_field(record, DERIVED_KEY) is not None
    )


def reposition_compactions(records: Sequence[AnyRecord]) -> Iterator[AnyRecord]:
    """Yield the records, with each compaction directly before the first message it keeps.

    For formats in which a summary replaces everything before it.
    """
    moved: dict[int, list[Compaction]] = {}
    for record in records:
        if isinstance(record, Compaction) and record.first_kept_seq < record.seq:
            moved.setdefault(record.first_kept_seq, []).append(record)
    targets = sorted(moved)
    for record in records:
        while targets and targets[0] <= record.seq:
            yield from moved[targets.pop(0)]
        if not (isinstance(record, Compaction) and record.first_kept_seq < record.seq):
            yield record


class Losses:
    """Counts of what a format cannot hold."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, description: str, count: int = 1) -> None:
        """Count a loss."""
        if count:
            self._counts[description] += count

    def count_blocks(self, message: Message, kinds: Iterable[type]) -> None:
        """Count blocks of these types; of thinking and tool calls only the signatures are lost."""
        for block in message.content:
            if type(block) in kinds and (not isinstance(block, Thinking | ToolCall) or block.signature):
                self.add(_BLOCK_NAMES[type(block)])

    def count_record(self, record: AnyRecord) -> None:
        """Count a record that the format cannot hold at all."""
        if isinstance(record, Event):
            self.add(f"event {record.kind}")
        elif record.record_type not in ("meta", "tombstone", "rewind"):
            self.add(f"record {record.record_type}")

    def count_metadata(self, metadata: Metadata) -> None:
        """Count who takes part, for a format that names nobody."""
        self.add("agent", metadata.agent != "main")
        self.add("sender", metadata.sender != "user")
        self.add("system prompt of the session", bool(metadata.system_prompt_override))

    def describe(self) -> tuple[str, ...]:
        """Return one text per kind of loss."""
        return tuple(f"{description}: {count}" for description, count in sorted(self._counts.items()))


_BLOCK_NAMES: dict[type, str] = {
    Image: "image",
    File: "file",
    OtherBlock: "block of an unknown type",
    Thinking: "signature of a thinking block",
    ToolCall: "signature of a tool call",
}
