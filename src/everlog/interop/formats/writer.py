"""A session as lines of a foreign file: what came from there goes back as it was.

What every dialect that writes needs: the line that a record keeps, the file that grows line by
line, what was taken out since, and the count of what a format cannot hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from everlog.interop.formats.format_types import DERIVED, kept
from everlog.interop.formats.jsonl import as_bytes
from everlog.log.fold import fold
from everlog.model import (
    AnyRecord,
    Compaction,
    Event,
    File,
    Image,
    Message,
    OtherBlock,
    Thinking,
    Tombstone,
    ToolCall,
)


class Raw(NamedTuple):
    """The bytes that a record came from."""

    data: bytes
    ended: bool


def origin(record: AnyRecord, dialect: str) -> dict[str, Any] | None:
    """What a record keeps under the dialect's name; None if it came from elsewhere."""
    if b'"%b"' % dialect.encode() not in record.line:
        return None
    keep = kept(record, dialect)
    return keep if isinstance(keep, dict) else None


def original(record: AnyRecord, dialect: str) -> Raw | None:
    """The line that a record keeps, if it does."""
    if isinstance(record, Event) and record.kind in (f"{dialect}.damaged", f"{dialect}.blank"):
        keep, data = record.data, as_bytes(record.data)
    else:
        keep = origin(record, dialect) or {}
        data = as_bytes(keep, "line")
    return None if data is None else Raw(data, keep.get("ended") is not False)


def is_ended(record: AnyRecord, dialect: str) -> bool:
    """Whether a newline ended the line that a record came from."""
    keep = origin(record, dialect)
    return keep is None or keep.get("ended") is not False


class Sheet:
    """A file that is being written. No line ever continues one that was not ended."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._ended = True

    def add(self, data: bytes, *, ended: bool = True) -> None:
        """Add one line."""
        if not self._ended:
            self._pieces.append(b"\n")
        self._pieces.append(data)
        if ended:
            self._pieces.append(b"\n")
        self._ended = ended

    def content(self) -> bytes:
        """Everything so far."""
        return b"".join(self._pieces)


def came_from(records: Sequence[AnyRecord], dialect: str) -> bool:
    """Whether a session was read from files of the dialect."""
    return any(
        (isinstance(one, Event) and one.kind.startswith(f"{dialect}."))
        or origin(one, dialect) is not None
        for one in records
    )


def dropped(records: Sequence[AnyRecord], dialect: str) -> set[int]:
    """The seqs of messages that we took out of the conversation.

    What the dialect's own file had hidden is not among them: that stays in the file.
    """
    own = came_from(records, dialect)
    view = fold(one for one in records if not (own and _is_theirs(one, dialect)))
    live = {message.seq for message in view.messages}
    return {one.seq for one in records if isinstance(one, Message) and one.seq not in live}


def _is_theirs(record: AnyRecord, dialect: str) -> bool:
    return isinstance(record, Tombstone) and (
        origin(record, dialect) is not None or kept(record, DERIVED) is not None
    )


def placed(records: Sequence[AnyRecord]) -> Iterator[AnyRecord]:
    """The records, each compaction directly before what it keeps.

    For formats in which a summary stands for everything before it.
    """
    early: dict[int, list[Compaction]] = {}
    for record in records:
        if isinstance(record, Compaction) and record.first_kept_seq < record.seq:
            early.setdefault(record.first_kept_seq, []).append(record)
    waiting = sorted(early)
    for record in records:
        while waiting and waiting[0] <= record.seq:
            yield from early[waiting.pop(0)]
        if not (isinstance(record, Compaction) and record.first_kept_seq < record.seq):
            yield record


class Losses:
    """Counts what a format cannot hold."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, what: str, count: int = 1) -> None:
        """Count something."""
        if count:
            self._counts[what] += count

    def blocks(self, message: Message, kinds: Iterable[type]) -> None:
        """Count the blocks of these kinds; of thoughts and calls, only signatures are lost."""
        for block in message.content:
            if type(block) in kinds and (
                not isinstance(block, Thinking | ToolCall) or block.signature
            ):
                self.add(_WORDS[type(block)])

    def record(self, record: AnyRecord) -> None:
        """Count a record that has no place at all."""
        if isinstance(record, Event):
            self.add(f"event {record.kind}")
        elif record.record_type not in ("meta", "tombstone", "rewind"):
            self.add(f"record {record.record_type}")

    def words(self) -> tuple[str, ...]:
        """All of it, in words."""
        return tuple(f"{what}: {count}" for what, count in sorted(self._counts.items()))


_WORDS: dict[type, str] = {
    Image: "image",
    File: "file",
    OtherBlock: "block of an unknown kind",
    Thinking: "signature of a thought",
    ToolCall: "signature of a call",
}
