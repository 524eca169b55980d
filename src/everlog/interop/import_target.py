"""The native session that an import writes to: which records it has, and adding those it has not."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any
from zlib import crc32

import msgspec
from msgspec.structs import replace

from everlog.errors import StoreFullError
from everlog.interop.formats.foreign_format import ForeignFormat
from everlog.interop.formats.format_types import DERIVED_KEY, HiddenMessages, Item, Summary, derive_id, extra_field
from everlog.log.line_codec import from_object
from everlog.model import AnyRecord, Compaction, Damaged, Event, Message, Meta, Tombstone
from everlog.ports import RawReadable, Store

BATCH_BYTES = 4_000_000  # of one write, about
BATCH = 500  # records of one write
_RECORDS = (Message, Event, Meta)
_END = slice(-18, None)  # of a line: its crc
TOO_LARGE = "import.too_large"  # event in place of a record that is too large for a line


def hide_before_summaries(session_id: str, items: Sequence[Item]) -> Iterator[Item]:
    """Yield the items; abandoned branches are hidden before the first summary that follows them.

    Hidden after it, they would look like deleted messages that the summary still mentions.
    """
    hidden = {
        hidden_id for item in items if isinstance(item, HiddenMessages) and not item.extra for hidden_id in item.ids
    }
    if not hidden:  # restore what an earlier import hid
        yield from items
        yield HiddenMessages(id=derive_id(session_id, f"nothing is hidden in {len(items)}"), ids=())
        return
    hidden_so_far: list[str] = []
    for item in items:
        if isinstance(item, Summary) and hidden_so_far:
            item_id = derive_id(session_id, f"left before {item.id}: {' '.join(hidden_so_far)}")
            yield _HiddenEarly(id=item_id, ids=tuple(hidden_so_far), timestamp=item.timestamp)
            hidden_so_far = []
        if item.id in hidden:
            hidden_so_far.append(item.id)
        yield item


class _HiddenEarly(HiddenMessages, frozen=True, kw_only=True):
    """Some of the hidden messages, hidden earlier than the others."""


class ImportTarget:
    """The session that is imported to, with the ids of its records."""

    def __init__(
        self,
        store: Store,
        session: str,
        other_id: Callable[[AnyRecord], str] = lambda record: "",
        *,
        format: ForeignFormat | None = None,
    ) -> None:
        """`other_id` returns a second id of a record, or an empty string; `match` needs the `format`."""
        self.session = session
        self._store = store
        self._format = format
        self.seqs: dict[str, int] = {}  # of the source's records, by their ids there
        self._last_seq = 0
        self._hidden: set[int] = set()  # by an earlier import: messages on abandoned branches
        self._messages: list[tuple[str, int]] = []  # fingerprint and seq of each stored message
        self._summaries: dict[str, int] = {}  # text → seq
        self._events: dict[str, str] = {}  # id → digest, if the format's ids may be used again
        for entry in store.read(session):
            self._last_seq = max(self._last_seq, entry.seq or 0)
            if not isinstance(entry, Damaged):
                for record_id in (entry.id, other_id(entry)):
                    if record_id:
                        self.seqs[record_id] = entry.seq
                self._note(entry)
        self._taken_ids = set(self.seqs)
        self._start_seq = self._last_seq
        self._written: dict[int, bytes] = {}  # seq → the end of its line, with the crc that stands for all bytes
        self._crc = 0  # of all lines that were written
        self._batch: list[AnyRecord] = []
        self._size = 0
        self.problems: list[str] = []
        self.is_beginning = False  # the matched file is only the beginning of what is stored

    def _note(self, entry: AnyRecord) -> None:
        """Note what `match` compares."""
        if isinstance(entry, Event) and entry.kind == TOO_LARGE:
            self.seqs[str(entry.data.get("id"))] = entry.seq  # in place of that record
            if fingerprint := entry.data.get("fingerprint"):
                self._messages.append((str(fingerprint), entry.seq))
        elif isinstance(entry, Tombstone) and extra_field(entry, DERIVED_KEY):
            self._hidden = (self._hidden - set(entry.restores)) | set(entry.deletes)
        elif self._format is None:
            return
        elif isinstance(entry, Message):
            self._messages.append((self._format.fingerprint(entry), entry.seq))
        elif isinstance(entry, Compaction):
            self._summaries[entry.summary] = entry.seq
        elif isinstance(entry, Event) and self._format.IS_REWRITTEN:
            self._events[entry.id] = _digest(entry)

    def match(self, items: Sequence[Item]) -> bool:
        """Find which items are stored already; False if the file is of another conversation.

        It is of this one if the messages of one are the beginning of the other's. Of a file whose
        program drops lines at its start, the beginning must be among the stored messages.
        """
        assert self._format is not None
        if not self._last_seq:  # nothing is stored yet
            return True
        fingerprint, is_rewritten = self._format.fingerprint, self._format.IS_REWRITTEN
        messages = [item for item in items if isinstance(item, Message)]
        start = _find_overlap(
            [said for said, _ in self._messages], [fingerprint(message) for message in messages], anywhere=is_rewritten
        )
        if start is None:
            return False
        for message in messages:  # what a message says identifies it, not its id
            self.seqs.pop(message.id, None)
        stored = self._messages[start:]
        self.is_beginning = len(messages) < len(stored)
        self.seqs |= {message.id: seq for message, (_, seq) in zip(messages, stored, strict=False)}
        for item in items:
            if isinstance(item, Summary) and item.text in self._summaries:
                self.seqs.setdefault(item.id, self._summaries[item.text])
            elif isinstance(item, Event) and self._events.get(item.id, "") not in ("", _digest(item)):
                self.seqs.pop(item.id, None)
        return True

    def add(self, item: Item | Meta) -> None:
        """Add an item unless it is stored already."""
        if item.id in self.seqs:
            return
        if len(self._batch) >= BATCH or self._size >= BATCH_BYTES:
            self.flush()
        record = item if isinstance(item, _RECORDS) else self._record(item)
        if record is None:
            return
        seq = self._last_seq + len(self._batch) + 1
        if record.id in self._taken_ids:  # by another record: the program counts its lines anew
            new_id = derive_id(record.id, seq)
            record = (
                replace(record, id=new_id)
                if not record.line
                else from_object({**msgspec.json.decode(record.line), "id": new_id})
            )
        self._batch.append(record)
        self.seqs[item.id] = seq
        self._size += len(record.line) or 1_000

    def flush(self, complete: Callable[[AnyRecord], AnyRecord] | None = None) -> None:
        """Write the batch; `complete` adds to its last record."""
        batch, self._batch, self._size = self._batch, [], 0
        if not batch:
            return
        if complete is not None:
            batch[-1] = complete(batch[-1])
        try:
            self._write(batch)
        except StoreFullError:
            for record in batch:  # one of them is too large for a line
                self._write_or_replace(record)

    def _write(self, batch: list[AnyRecord]) -> None:
        stored = self._store.append(self.session, batch, expected_seq=self._last_seq)
        self._last_seq = stored[-1].seq
        self._crc = crc32(b"\n".join([*(record.line for record in stored), b""]), self._crc)
        self._written |= {record.seq: record.line[_END] for record in stored}

    def _write_or_replace(self, record: AnyRecord) -> None:
        try:
            self._write([record])
        except StoreFullError as error:
            self.problems.append(f"record {record.id}: {error.message}")
            data = {"id": record.id, "problem": error.message}
            if isinstance(record, Message) and self._format is not None:
                data["fingerprint"] = self._format.fingerprint(record)
            self._write([Event(kind=TOO_LARGE, data=data, id=derive_id(record.id, TOO_LARGE))])
            del self._written[self._last_seq]

    def count(self, items: Iterable[Item]) -> tuple[int, int]:
        """Read the session back; return how many items this run stored, and how many were there."""
        intact, earlier = self._read_back(), range(1, self._start_seq + 1)
        seqs = [self.seqs.get(item.id, 0) for item in items]
        return sum(map(intact.__contains__, seqs)), sum(map(earlier.__contains__, seqs))

    def _read_back(self) -> Container[int]:
        """Read the records of this run back; return the seqs of those that are as they were written.

        The store proved that the lines it wrote are readable: it is enough to find their bytes again.
        """
        written, store = self._written, self._store.capability(RawReadable)
        if store is not None:
            crc = 0
            for data in store.raw_lines(self.session, after=self._start_seq):
                crc = crc32(data, crc)
            if crc == self._crc:
                return written
        entries = self._store.read(self.session, after=self._start_seq)
        readable = (entry for entry in entries if not isinstance(entry, Damaged))
        return {entry.seq for entry in readable if written.get(entry.seq) == entry.line[_END]}

    def _record(self, item: Summary | HiddenMessages) -> AnyRecord | None:
        """Return the record of an item; None if it would change nothing."""
        if isinstance(item, Summary):
            first = self.seqs.get(item.first_kept or "")
            after = self._last_seq + len(self._batch) + 2  # after the summary itself
            compaction = Compaction(
                id=item.id,
                strategy=item.strategy,
                first_kept_seq=after if first is None else first,
                summary=item.text,
                tokens_before=item.tokens_before,
                read_files=item.read_files,
                modified_files=item.modified_files,
                timestamp=item.timestamp,
            )
            return _with_extra(compaction, item.extra)
        deletes = {self.seqs[hidden_id] for hidden_id in item.ids if hidden_id in self.seqs}
        restores: set[int] = set()
        if not item.extra:
            if not isinstance(item, _HiddenEarly):
                restores = self._hidden - deletes  # that branch is active again in the file
            deletes -= self._hidden
            self._hidden = (self._hidden - restores) | deletes
            if not deletes and not restores:
                return None
        tombstone = Tombstone(
            id=item.id, deletes=tuple(sorted(deletes)), restores=tuple(sorted(restores)), timestamp=item.timestamp
        )
        return _with_extra(tombstone, item.extra or {DERIVED_KEY: True})


def _with_extra(record: Compaction | Tombstone, extra: dict[str, Any]) -> AnyRecord:
    """Return the record with additional keys."""
    return from_object({**msgspec.to_builtins(record), **extra}) if extra else record


def _digest(event: Event) -> str:
    return sha256(msgspec.json.encode([event.kind, event.data])).hexdigest()[:32]


def _find_overlap(stored: Sequence[str], source: Sequence[str], *, anywhere: bool) -> int | None:
    """Return where the source begins among what is stored; None if one does not continue the other.

    It begins at the beginning, or `anywhere`: there an empty overlap does not count.
    """
    starts = range(len(stored)) if anywhere and stored and source else range(1)
    for start in starts:
        length = min(len(stored) - start, len(source))
        if stored[start : start + length] == source[:length]:
            return start
    return None
