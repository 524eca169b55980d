"""Following one foreign session and its companion into the native session that mirrors them.

`catch_up` reads the lines that were added to the file since the last time and appends their records
to the mirror, a few lines at a time. A file that was rewritten is read again from its start. If its
program drops lines at their start (PicoClaw), the messages that are still there keep their records,
and the others are hidden; else the records of the old content are rewound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import cast

from msgspec.structs import replace

from everlog.errors import LogDamagedError, NotFoundError
from everlog.interop.foreign.companion import Companion, event_id
from everlog.interop.foreign.companion_merge import CompanionMerge
from everlog.interop.foreign.foreign_files import ForeignFiles
from everlog.interop.foreign.mirrored_items import MirroredItems, hidden_seqs
from everlog.interop.foreign.origin_marks import (
    Checkpoint,
    checkpoint_of,
    compaction_record,
    id_in_file,
    strip_mark,
    with_checkpoint,
    with_generation,
    with_mark_of,
)
from everlog.interop.foreign.transcript_files import START_POSITION, AppendedLines, Signature
from everlog.interop.foreign.turn_lines import new_turns
from everlog.interop.foreign.unlimited_store import DiskFullError, UnlimitedStore
from everlog.interop.formats.foreign_format import ForeignFormat
from everlog.interop.formats.format_types import (
    DERIVED_KEY,
    ConversationItem,
    HiddenMessages,
    Summary,
    TailState,
    TranscriptInfo,
    extra_field,
)
from everlog.interop.import_target import BATCH, ImportTarget, hide_before_summaries
from everlog.log.line_codec import with_keys
from everlog.model import (
    MARKERS,
    REREAD,
    AnyRecord,
    Compaction,
    Damaged,
    Entry,
    Event,
    Message,
    Metadata,
    Rewind,
    Tombstone,
)
from everlog.ports import Store
from everlog.stores.rules import RETRY_WINDOW

BATCH_LINES = 400  # read at once, so that memory use does not grow with the file


class MirrorFollower:
    """A session in its foreign file, and the native session that mirrors it."""

    def __init__(
        self, name: str, files: ForeignFiles, format: ForeignFormat, *, companion: Companion, store: Store, session: str
    ) -> None:
        self.name = name  # its id in its format
        self.files = files
        self.format = format
        self.companion = companion
        self.session = session  # id of the mirror in the native store
        self._store = store
        self._checkpoint = Checkpoint()
        self._signature: Signature = ()
        self._last_seq = 0
        self._marker_seq = 0
        self._summary_id = ""  # of the newest summary, its id in the file
        self._last_message = ""  # id in the file of the newest message or summary
        self._pending = CompanionMerge(())  # what the companion has and the mirror has not
        self._ids: dict[str, int] = {}  # of the newest records: id here and in the file → seq
        self._hidden: set[int] = set()  # by a branch of the file, since they were last taken
        self._loaded = False
        self._has_appended = False
        self._is_damaged = False  # damage was seen in the mirror
        self.unsaved_seconds = 0.0  # of turns, not yet written to the file
        self.turns = new_turns()

    # --- following

    def catch_up(self) -> None:
        """Bring the mirror up to date with the file; LogDamagedError if a new mirror is needed."""
        self._refresh()
        if self._is_damaged:
            raise LogDamagedError(f"the mirror of {self.name} is damaged", session=self.name)
        signature = self.files.signature()
        if signature != self._signature or self.companion.last_seq() > self._checkpoint.companion:
            self._follow(signature)
            self._signature = signature

    def _follow(
        self,
        stamps: Signature = (),
        until: AppendedLines | None = None,
        native_records: Mapping[str, AnyRecord] | None = None,
    ) -> None:
        """Mirror the lines after the checkpoint: all, or those before lines that we appended.

        `stamps` are those of the files now; `native_records` are records by their ids in the file,
        which take the place of what is read.
        """
        transcript = self.files.info(self.name)
        native_records = native_records or {}
        self._pending = self._read_companion()
        is_unchanged = self.files.is_unchanged_before(self._checkpoint.position, self._checkpoint.stamps, stamps)
        self._checkpoint = replace(self._checkpoint, stamps=stamps)
        if not is_unchanged:
            if self.format.IS_REWRITTEN:
                self._checkpoint = replace(self._checkpoint, rewrites=self._checkpoint.rewrites + 1)
                self._follow_whole(transcript, until, native_records)
                return
            self._restart()
        new_lines = self.files.new_lines(self._checkpoint.position, until)
        lines = iter(new_lines)
        # A metadata file is about all lines of the transcript, so they are read at once then.
        batch_size = None if self.format.METADATA_LOCATION == "file" else BATCH_LINES
        while True:
            checkpoint, batch = self._checkpoint, list(islice(lines, batch_size))
            followed = self.format.read_tail(checkpoint.state, batch, transcript)
            if followed is None or any(map(self._needs_whole_file, followed.items)):
                self._follow_whole(transcript, until, native_records)
                return
            reached = replace(checkpoint, position=new_lines.position, state=followed.state)
            is_end = batch_size is None or len(batch) < batch_size
            if checkpoint.position != START_POSITION and len(followed.items) <= BATCH:
                items = self._pending.place(followed.items, is_end=is_end)
                records = list(self._records(items, native_records=native_records))
                self._append_to_mirror(records, replace(reached, companion=self._pending.reached))
            else:  # an earlier first read may have been interrupted: some may be stored already
                self._merge(followed.items, reached, native_records, is_end=is_end)
            if is_end:
                return

    def _follow_whole(
        self, transcript: TranscriptInfo, until: AppendedLines | None, native_records: Mapping[str, AnyRecord]
    ) -> None:
        lines = self.files.new_lines(START_POSITION, until)
        followed = self.format.read_all(lines, transcript)
        reached = replace(self._checkpoint, position=lines.position, state=followed.state)
        self._merge(followed.items, reached, native_records, whole=True)

    def _read_companion(self) -> CompanionMerge:
        """Return the records of the companion that the mirror does not have."""
        entries = list(self.companion.read(self._checkpoint.companion))
        if entries and self._last_seq:
            # A crash may have kept records in the mirror whose checkpoint was lost.
            events = (entry for entry in self._store.read(self.session) if isinstance(entry, Event))
            stored = {event_id(self.session, event) for event in events}
            entries = [entry for entry in entries if entry.message or entry.event.id not in stored]
        last_message = self.last_message()
        return CompanionMerge(
            entries,
            self._checkpoint.companion,
            self.companion.last_seq(),
            lambda file_id: file_id == last_message or file_id in self._ids,
        )

    def _needs_whole_file(self, item: ConversationItem) -> bool:
        """Return whether an item is there already, changes what is hidden, or removes the summary."""
        if isinstance(item, HiddenMessages):
            return not item.extra or self._summary_id in item.ids
        return item.id in self._ids

    def _refresh(self) -> None:
        """Load what other processes added to the mirror or removed from it."""
        if self._loaded and self._has_appended:  # then the store knows the end without reading
            through = self._store.metadata(self.session).through
            if through is not None and through.seq == self._last_seq:
                return
        newest = next(self._store.tail(self.session), None) if self._loaded else None
        if newest is not None and newest.seq == self._last_seq and not isinstance(newest, Damaged):
            return  # unchanged
        if self._loaded:
            entries = self._store.read(self.session, after=max(self._last_seq - 1, 0))
            if self._last_seq and getattr(next(entries, None), "seq", None) != self._last_seq:
                self._reset()
            else:
                for entry in entries:
                    self._note_entry(entry)
        if not self._loaded:
            self._load()

    def take_hidden(self) -> frozenset[int]:
        """Return the records that the new lines of the file moved to an abandoned branch, each once."""
        hidden, self._hidden = frozenset(self._hidden), set()
        return hidden

    def _load(self) -> None:
        is_first = not self._last_seq
        newest = list(islice(self._store.tail(self.session), RETRY_WINDOW))
        entries: Iterator[Entry] = iter(newest)
        if len(newest) == RETRY_WINDOW and not any(map(checkpoint_of, newest)):
            older = self._store.tail(self.session)
            entries = iter([*newest, *islice((entry for entry in older if checkpoint_of(entry)), 1)])
        for entry in reversed(list(entries)):
            self._note_entry(entry)
        if is_first:
            self._hidden.clear()
        self._loaded = True

    def _note_entry(self, entry: Entry) -> None:
        is_new = (entry.seq or 0) > self._last_seq
        self._last_seq = max(self._last_seq, entry.seq or 0)
        if isinstance(entry, Damaged):
            self._is_damaged = True
            return
        for entry_id in (entry.id, id_in_file(entry)):
            if entry_id:
                self._ids[entry_id] = entry.seq
        if isinstance(entry, Event) and entry.kind == REREAD:
            self._ids, self._summary_id, self._last_message = {}, "", ""
        if isinstance(entry, Message | Compaction):
            self._last_message = id_in_file(entry) or entry.id
        if len(self._ids) > 4 * RETRY_WINDOW:
            oldest = self._last_seq - RETRY_WINDOW
            self._ids = {entry_id: seq for entry_id, seq in self._ids.items() if seq > oldest}
        if isinstance(entry, MARKERS):
            self._marker_seq = entry.seq
        if isinstance(entry, Tombstone) and is_new and extra_field(entry, DERIVED_KEY):
            self._hidden = (self._hidden - set(entry.restores)) | set(entry.deletes)
        if isinstance(entry, Compaction):
            self._summary_id = id_in_file(entry) or entry.id
        self._checkpoint = checkpoint_of(entry) or self._checkpoint

    def _restart(self) -> None:
        """Rewind the mirror: the file was rewritten, and its old content leaves the view."""
        entries = self._store.read(self.session)
        if any(isinstance(entry, Compaction) and entry.first_kept_seq <= 1 for entry in entries):
            raise LogDamagedError(f"the mirror of {self.name} has a summary that no rewind undoes", session=self.name)
        old = self._checkpoint
        checkpoint = Checkpoint(
            generation=old.generation + 1, rewrites=old.rewrites + 1, stamps=old.stamps, companion=old.companion
        )
        self._summary_id = ""
        if self._last_seq:
            self._append_to_mirror([Event(kind=REREAD), Rewind(to_seq=0)], checkpoint)
        self._checkpoint = checkpoint

    def _merge(
        self,
        items: Sequence[ConversationItem],
        checkpoint: Checkpoint,
        native_records: Mapping[str, AnyRecord],
        *,
        whole: bool = False,
        is_end: bool = True,
    ) -> None:
        """Store the items that are not stored yet; `whole`: they are all items of the session."""
        mirrored = MirroredItems(self._store.read(self.session))
        if whole and not self._can_follow(items, mirrored):
            self._restart()
            mirrored = MirroredItems(())
            restarted = self._checkpoint
            checkpoint = replace(checkpoint, generation=restarted.generation, rewrites=restarted.rewrites)
        if whole and self.format.IS_REWRITTEN:
            items = mirrored.hide_dropped(items, f"{self._last_seq}")
        stored = ImportTarget(cast("Store", UnlimitedStore(self._store)), self.session, id_in_file)
        try:
            placed = self._pending.place(items, is_end=is_end)
            renamed = [self._rename(item, checkpoint.generation, mirrored.ids) for item in placed]
            checkpoint = replace(checkpoint, companion=self._pending.reached)
            for item in hide_before_summaries(self.name, renamed) if whole else renamed:
                if isinstance(item, Message):
                    native = self._find_native(item, id_in_file(item) or item.id, native_records)
                    item = native if isinstance(native, Message) else item
                stored.add(item)
            stored.flush(lambda record: with_checkpoint(record, checkpoint))
        except DiskFullError as error:
            raise error.cause from error
        self._loaded = False
        self._refresh()
        self._checkpoint = checkpoint  # newer than the one in the mirror if nothing was stored

    def _rename(
        self, item: ConversationItem, generation: int, ids: Mapping[str, str] | None = None
    ) -> ConversationItem:
        """Give an item of a file that was read again an id of its own; those of the companion keep theirs."""
        return item if item.id in self._pending.event_ids else with_generation(item, generation, ids)

    def _find_native(self, item: Message, file_id: str, native_records: Mapping[str, AnyRecord]) -> AnyRecord | None:
        """Return the message that was appended here as this item of the file."""
        noted = self._pending.find_message(item, file_id)
        return native_records.get(file_id, noted)

    def _can_follow(self, items: Sequence[ConversationItem], mirrored: MirroredItems) -> bool:
        """Return whether the mirror can become the whole session by further records.

        No native record can undo a compaction, or change the order of messages.
        """
        if self.format.IS_REWRITTEN:
            has_summary = any(isinstance(item, Summary) for item in items)
            return (has_summary or not self._summary_id) and mirrored.are_in_order(items)
        return mirrored.are_beginning_of(items)

    def _records(
        self, items: Iterable[ConversationItem], pending: int = 0, native_records: Mapping[str, AnyRecord] | None = None
    ) -> Iterator[AnyRecord]:
        """Yield the records of items; `pending` other records go into the mirror before them."""
        new_seqs: dict[str, int] = {}
        seq = self._last_seq + pending
        for item in items:
            renamed = self._rename(item, self._checkpoint.generation)
            if isinstance(renamed, Summary):
                first = [renamed.first_kept] if renamed.first_kept is not None else []
                kept_seq = [*self._seqs(first, new_seqs).values(), seq + 2][0]
                yield with_mark_of(renamed, compaction_record(renamed, kept_seq))
            elif isinstance(renamed, HiddenMessages) and not (renamed.extra or renamed.ids):
                hidden = hidden_seqs(self._store.read(self.session))  # a summary stands for them now
                if not hidden:
                    continue
                shown = Tombstone(id=renamed.id, restores=hidden, timestamp=renamed.timestamp)
                yield with_keys(shown, {DERIVED_KEY: True})
            elif isinstance(renamed, HiddenMessages):
                seqs = tuple(sorted(self._seqs(renamed.ids, new_seqs).values()))
                if not seqs:
                    continue
                yield with_mark_of(renamed, Tombstone(id=renamed.id, deletes=seqs, timestamp=renamed.timestamp))
            elif renamed.id in new_seqs or renamed.id in self._ids:
                continue  # a duplicate id: the first item counts
            elif isinstance(item, Message):
                assert isinstance(renamed, Message)
                yield self._find_native(renamed, item.id, native_records or {}) or renamed
            else:
                yield renamed
            seq += 1
            new_seqs[renamed.id] = seq

    def _seqs(self, ids: Sequence[str], new_seqs: Mapping[str, int]) -> dict[str, int]:
        """Return the seqs of the records with these ids, as far as there are any.

        The ids are in the order of the file, so that no record is older than the first one.
        """
        pairs = ((item_id, new_seqs.get(item_id) or self._ids.get(item_id)) for item_id in ids)
        seqs = {item_id: seq for item_id, seq in pairs if seq}
        missing = set(ids) - seqs.keys()
        if not missing or ids[0] in seqs:
            return seqs
        for entry in self._store.tail(self.session):
            if not isinstance(entry, Damaged):
                matches = {entry.id, id_in_file(entry)} & missing
                seqs |= dict.fromkeys(matches, entry.seq)
                missing -= matches
                if not missing or ids[0] in matches:
                    break
        return seqs

    def _append_to_mirror(self, records: Sequence[AnyRecord], checkpoint: Checkpoint) -> list[AnyRecord]:
        """Append records to the mirror, the last one with the new checkpoint."""
        stored: list[AnyRecord] = []
        if records:
            *earlier, last = records
            marked = [*earlier, with_checkpoint(last, checkpoint)]
            stored = self._store.append(self.session, marked, expected_seq=self._last_seq)
        for record in stored:
            self._note_entry(record)
        self._checkpoint = checkpoint
        self._has_appended = self._has_appended or bool(stored)
        return stored

    def _reset(self) -> None:
        """Forget everything, so that the mirror and the file are read again the next time."""
        self._loaded, self._signature, self._checkpoint = False, (), Checkpoint()
        self._has_appended = False
        self._last_seq, self._marker_seq, self._ids, self._last_message = 0, 0, {}, ""

    # --- reading the mirror

    def read(self, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
        """Return the records above a seq without their origin marks, lazily."""
        return map(self._plain_entry, self._store.read(self.session, after=after, limit=limit))

    def tail(self) -> Iterator[Entry]:
        """Return all records without their origin marks, newest first, lazily."""
        return map(self._plain_entry, self._store.tail(self.session))

    def _plain_entry(self, entry: Entry) -> Entry:
        if isinstance(entry, Damaged):
            self._is_damaged = True
            return entry
        return strip_mark(entry)

    @property
    def state(self) -> TailState:
        """The format's state after the lines so far."""
        return self._checkpoint.state

    @property
    def rewrites(self) -> int:
        """How often the file was found rewritten."""
        return self._checkpoint.rewrites

    @property
    def last_seq(self) -> int:
        """Seq of the last record in the mirror."""
        return self._last_seq

    def record(self, seq: int) -> AnyRecord:
        """Return one record of the mirror; NotFoundError if there is none or it is damaged."""
        for entry in self._store.read(self.session, after=seq - 1, limit=1):
            if entry.seq == seq and not isinstance(entry, Damaged):
                return entry
        raise NotFoundError(f"session {self.name} has no readable record {seq}", seq=seq)

    def records_from(self, seq: int) -> list[AnyRecord]:
        """Return the records of the mirror from a seq on."""
        entries = self._store.read(self.session, after=seq - 1)
        return [entry for entry in entries if not isinstance(entry, Damaged)]

    def last_message(self) -> str:
        """Return the id in the file of the newest message or summary; empty if there is none."""
        if not self._last_message and self._last_seq > RETRY_WINDOW:  # all of the newest are events
            older = (entry for entry in self._store.tail(self.session) if isinstance(entry, Message | Compaction))
            self._last_message = next((id_in_file(entry) or entry.id for entry in older), "")
        return self._last_message

    @property
    def metadata(self) -> Metadata:
        """Metadata of the mirror."""
        return self._store.metadata(self.session)
