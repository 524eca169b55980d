"""The items of a foreign file that its mirror has, and what a rewritten file changes in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from everlog.interop.foreign.origin_marks import MARK_KEY, has_same_content, id_in_file, is_own
from everlog.interop.formats.format_types import (
    DERIVED_KEY,
    ConversationItem,
    HiddenMessages,
    Summary,
    derive_id,
    extra_field,
)
from everlog.interop.import_target import TOO_LARGE
from everlog.log.markers import Markers
from everlog.model import MARKERS, REREAD, USAGE, AnyRecord, Compaction, Damaged, Entry, Event, Message, Tombstone


class MirroredItems:
    """The records of a mirror since its file was last read again from its start."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.ids: dict[str, str] = {}  # id in the file → id of the record
        self._seqs: dict[str, int] = {}  # of the messages, by id in the file
        self._records: list[AnyRecord] = []  # messages and summaries, or what stands for one that is too large
        self._others: set[str] = set()  # ids of what the file says about them
        self._markers = Markers()
        for entry in entries:
            if isinstance(entry, Damaged):
                continue
            if isinstance(entry, MARKERS):
                self._markers.append(entry)
            file_id = id_in_file(entry) or entry.id
            if isinstance(entry, Event) and entry.kind == REREAD:
                self.ids, self._seqs, self._records, self._others = {}, {}, [], set()
            elif isinstance(entry, Event) and entry.kind == TOO_LARGE:
                file_id = str(entry.data.get("id"))
                self._seqs[file_id] = entry.seq
                self._records.append(entry)
            else:
                self.ids[file_id] = entry.id
                if isinstance(entry, Message):
                    self._seqs[file_id] = entry.seq
                if isinstance(entry, Message | Compaction):
                    self._records.append(entry)
                elif _is_about_messages(entry):
                    self._others.add(file_id)

    def are_in_order(self, items: Sequence[ConversationItem]) -> bool:
        """Return whether the messages of a file are in the mirror's order, and new ones follow."""
        seqs = [self._seqs.get(item.id, 1 << 62) for item in items if isinstance(item, Message)]
        return seqs == sorted(seqs)

    def are_beginning_of(self, items: Sequence[ConversationItem]) -> bool:
        """Return whether the records are the first items of a whole file, and still say the same."""
        shown = [item for item in items if isinstance(item, Message | Summary)]
        return (
            self._others <= {item.id for item in items}
            and len(self._records) <= len(shown)
            and all(map(self._is_record_of, shown, self._records))
        )

    def _is_record_of(self, item: ConversationItem, record: AnyRecord) -> bool:
        if isinstance(record, Event):
            return bool(item.id == record.data.get("id"))  # it is too large
        if item.id != (id_in_file(record) or record.id):
            return False
        if isinstance(item, Summary) and isinstance(record, Compaction):
            kept = record.seq + 1 if item.first_kept is None else self._seqs.get(item.first_kept)
            return item.text == record.summary and kept == record.first_kept_seq
        if not isinstance(item, Message) or not isinstance(record, Message):
            return False
        if is_own(record):
            return has_same_content(record, item)
        return _plain(record) == _plain(replace(item, timestamp=item.timestamp or record.timestamp))

    def hide_dropped(self, items: Sequence[ConversationItem], position: str) -> list[ConversationItem]:
        """Return the items of a whole file, with the messages that it no longer has among the hidden.

        A summary that still stands is left out. `position` makes the ids of other ones unique.
        """
        present = {item.id for item in items if isinstance(item, Message)}
        derived = next((item for item in items if isinstance(item, HiddenMessages) and not item.extra), None)
        ids = (*(item_id for item_id in self._seqs if item_id not in present), *(derived.ids if derived else ()))
        hidden = HiddenMessages(
            id=derive_id("hidden", position), ids=ids, timestamp=derived.timestamp if derived else ""
        )
        others = [item for item in items if item is not derived and not isinstance(item, Summary)]
        summaries = [item for item in items if isinstance(item, Summary) and not self._stands(item, items, set(ids))]
        return [*others, hidden, *(with_new_id(self._like_standing(item), position) for item in summaries)]

    def _like_standing(self, summary: Summary) -> Summary:
        """Give a summary what the same text had in the mirror: the file does not hold all of it."""
        old = self._markers.summary()
        if old is None or old.summary != summary.text:
            return summary
        return replace(
            summary,
            strategy=old.strategy,
            tokens_before=old.tokens_before,
            read_files=old.read_files,
            modified_files=old.modified_files,
        )

    def _stands(self, summary: Summary, items: Sequence[ConversationItem], hidden: set[str]) -> bool:
        """Return whether the mirror's summary has the same text and keeps the same messages."""
        old = self._markers.summary()
        if old is None or old.summary != summary.text:
            return False
        for item_id, seq in self._seqs.items():
            if seq < old.first_kept_seq and (item_id in hidden) == self._markers.is_live(seq):
                return False  # it would be stale
        messages = (item.id for item in items if isinstance(item, Message) and item.id not in hidden)
        kept = next((item_id for item_id in messages if self._seqs.get(item_id, 1 << 62) >= old.first_kept_seq), None)
        return kept == summary.first_kept


def _is_about_messages(record: AnyRecord) -> bool:
    if isinstance(record, Tombstone):
        return not extra_field(record, DERIVED_KEY)
    return isinstance(record, Event) and record.kind == USAGE


def _plain(message: Message) -> Message:
    """Return a message without what differs between a mirror and its file."""
    return replace(message, seq=0, id="", line=b"")


def with_new_id(summary: Summary, position: str) -> Summary:
    """Return a summary with an id of its own, marked with the one that it has in the file."""
    mark = {MARK_KEY: {"as": summary.id}}
    return replace(summary, id=derive_id(summary.id, position), extra={**summary.extra, **mark})


def hidden_seqs(entries: Iterable[Entry]) -> tuple[int, ...]:
    """Return the seqs of the messages that are hidden without a record of the file that says so."""
    hidden: set[int] = set()
    for entry in entries:
        if isinstance(entry, Tombstone) and extra_field(entry, DERIVED_KEY):
            hidden = (hidden - set(entry.restores)) | set(entry.deletes)
    return tuple(sorted(hidden))
