"""The searchable passages of a log: its messages, its summaries, its title.

Tool results are left out unless asked for; then their secrets are redacted. A message that a
tombstone or a rewind removes is not found any more; a restored one is found again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from everlog.ids import epoch_ms
from everlog.index.listing_sql import SqlDialect, filter_conditions
from everlog.index.search.words import grams
from everlog.log.markers import Markers
from everlog.model import MARKERS, AnyRecord, Compaction, Damaged, Entry, Message, Meta, Metadata
from everlog.ports import Filter, Query
from everlog.ports.listing import since_ms
from everlog.redaction import redact

# In the order of their weight; the `grams` column follows them.
KINDS = ("summary", "title", "user", "assistant", "tool")
TITLE_SEQ = 0  # the seq of a title: that of the birth record


class Passage(NamedTuple):
    """A searchable text of a session."""

    seq: int
    kind: str  # one of KINDS
    time: int  # ms
    text: str
    grams: str = ""  # further words that find it


class PassageText(NamedTuple):
    """A passage to show in search results."""

    kind: str
    time: int  # ms
    snippet: str  # with the matches marked, as far as the index can
    text: str


class StaleSession(NamedTuple):
    """A session that has grown since it was indexed."""

    session: str
    seq: int  # up to which it is indexed
    bytes: int  # its current size
    metadata: Metadata


class PassageChanges(msgspec.Struct):
    """The changes that new records make to the passages of a session."""

    new: dict[int, Passage] = {}
    removed: set[int] = set()  # seqs whose passages are not found any more
    removed_ranges: list[tuple[int, int]] = []  # all messages between two seqs, both included
    restored: set[int] = set()  # seqs of earlier records, found again unless an earlier rewind removed them
    last_seq: int = 0
    name: str | UnsetType | None = UNSET  # the title, if the records set it


class SessionUpdate(NamedTuple):
    """The changes of a session since it was indexed."""

    stale: StaleSession
    changes: PassageChanges


def query_conditions(
    query: Query, of_sessions: str, table: str, dialect: SqlDialect, span: tuple[int, int] | None = None
) -> tuple[list[str], dict[str, Any]]:
    """Return what a query requires of a passage, as SQL conditions and their values.

    `of_sessions`: the condition that a passage is of a session that meets `{}`; `table`: of the
    passages; `span`: a further time span.
    """
    conditions, values = filter_conditions(replace(query.criteria, since=None, unfinished=None), dialect=dialect)
    if query.sessions is not None:
        conditions.append(dialect.among.format(dialect.parameter.format("sessions")))
        values["sessions"] = dialect.session_ids(query.sessions)
    if conditions:
        conditions = [of_sessions.format(" AND ".join(conditions))]
    start, end = span or (None, None)
    until = since_ms(Filter(since=query.until))
    tests = (
        ("at >=", since_ms(query.criteria)),
        ("at <", until),
        ("at >=", start),
        ("at <", end),
        ("kind =", query.role),
    )
    for number, (test, value) in enumerate(tests):
        if value is not None:
            conditions.append(f"{table}.{test} {dialect.parameter.format(f'passage{number}')}")
            values[f"passage{number}"] = dialect.text(value) if isinstance(value, str) else value
    return conditions, values


def collect_changes(entries: Iterable[Entry], *, include_tools: bool = False) -> PassageChanges:
    """Collect the changes that records make, in order."""
    changes = PassageChanges()
    markers = Markers()
    for entry in entries:
        changes.last_seq = max(changes.last_seq, entry.seq or 0)
        if isinstance(entry, Damaged):
            continue
        if isinstance(entry, MARKERS):
            markers.append(entry)
        elif isinstance(entry, Meta):
            name = entry.set.get("name", UNSET)
            changes.name = name if isinstance(name, str | None) else changes.name
        if (passage := make_passage(entry, include_tools=include_tools)) is not None:
            changes.new[entry.seq] = passage
    changes.removed = markers.hidden_seqs()
    changes.removed_ranges = markers.rewound_ranges()
    changes.restored = markers.restored_seqs() - changes.new.keys()
    for seq, passage in list(changes.new.items()):
        # The summary of a rewound compaction is still found.
        if seq in changes.removed or (passage.kind != "summary" and not markers.is_live(seq)):
            del changes.new[seq]
    return changes


def make_passage(record: AnyRecord, *, include_tools: bool = False) -> Passage | None:
    """Return the searchable passage of a record; None if it has none."""
    if isinstance(record, Compaction):
        return build_passage(record.seq, "summary", record.timestamp, record.summary)
    if not isinstance(record, Message):
        return None
    if record.role == "toolResult":
        if not include_tools:
            return None
        return build_passage(record.seq, "tool", record.timestamp, redact(record.text)[0])
    return build_passage(record.seq, record.role, record.timestamp, record.text)


def build_passage(seq: int, kind: str, timestamp: str, text: str) -> Passage | None:
    """Return a text as a passage; None if it is blank."""
    return Passage(seq, kind, epoch_ms(timestamp) or 0, text, grams(text)) if text.strip() else None
