"""The fold: the view and the metadata that a log stands for.

    message                          is live, unless a marker removed it
    tombstone, rewind, compaction    change how others are read: `log.markers`
    meta                             changes metadata
    event                            counts (`turn_end`), keeps the queue (`queued`), never shown

`fold` reads forward and returns the view; `MetadataFold` updates the metadata record by record.
The context for a model is read backward by `context.build` and equals this fold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace

from everlog.ids import LAST, epoch_ms, milliseconds, timestamp
from everlog.log.markers import Markers
from everlog.log.usage_fold import UsageFold, parse_cost, parse_count
from everlog.model import (
    MARKERS,
    QUEUED,
    REREAD,
    SCHEMA_VERSION,
    SETTABLE,
    TURN_END,
    TURN_INTERRUPTED,
    TURN_RESUMED,
    USAGE,
    WITHDRAWN,
    AnyRecord,
    Compaction,
    Damaged,
    Entry,
    Event,
    Message,
    Meta,
    Metadata,
    Metrics,
    Through,
    Tokens,
    Unknown,
)

ADOPTION_KEY = "createdAt"  # in a `meta` record: it adopts what another program counted


class View(msgspec.Struct, frozen=True):
    """The live messages of a log, and the entries that could not be read."""

    messages: tuple[Message, ...]
    compaction: Compaction | None  # the newest that stands
    hidden: frozenset[int]  # seqs that a tombstone hides
    damage: tuple[Damaged, ...]
    newer: tuple[Unknown, ...]  # records of a newer, unknown schema version


def fold(entries: Iterable[Entry]) -> View:
    """Return the view of a whole log."""
    messages: list[Message] = []
    markers = Markers()
    damage: list[Damaged] = []
    newer: list[Unknown] = []
    for entry in entries:
        if isinstance(entry, Message):
            messages.append(entry)
        elif isinstance(entry, MARKERS):
            markers.append(entry)
        elif isinstance(entry, Damaged):
            damage.append(entry)
        elif isinstance(entry, Unknown) and entry.schema_version > SCHEMA_VERSION:
            newer.append(entry)
    return View(
        messages=tuple(markers.live(messages)),
        compaction=markers.summary(),
        hidden=frozenset(markers.hidden_seqs()),
        damage=tuple(damage),
        newer=tuple(newer),
    )


class MetadataFold:
    """The metadata of a log, updated with every record once, in order."""

    def __init__(self, metadata: Metadata) -> None:
        self._base = metadata  # all but the running counters below
        self.message_count = metadata.message_count
        self.last_message_at = metadata.last_message_at
        self.seq = metadata.through.seq
        self.newest_schema = metadata.newest_schema
        self._usage = UsageFold(metadata)
        self._copied_messages = _count_copied(metadata)

    @classmethod
    def empty(cls, session_id: str) -> MetadataFold:
        """Return the fold of an empty log."""
        created = _time_of(session_id)
        return cls(
            Metadata(id=session_id, created_at=created, last_message_at=created, metrics=Metrics(session_id=session_id))
        )

    def add(self, record: AnyRecord) -> None:
        """Fold in the next record."""
        if record.seq > self.seq:
            self.seq = record.seq
        if isinstance(record, Message):
            self.message_count += 1
            if record.timestamp:
                self.last_message_at = record.timestamp
            if record.model and record.model != self._base.model and not self._base.model_chosen:
                self._base = replace(self._base, model=record.model)
            if record.run_id:
                self._base = replace(_remove_waiting(self._base, record.id), run=record.run_id)
            if record.role != "toolResult" and self.message_count > self._copied_messages:
                self._add_usage(record)
        elif isinstance(record, Meta):
            self._base = apply_changes(self._base, record.set)
            if record.seq == 0 or ADOPTION_KEY in record.set:
                self._base = adopt_counts(self._base, record.set)
            self._copied_messages = _count_copied(self._base)
            if record.set.get("forkedFrom"):
                self._usage.clear()
        elif isinstance(record, Event):
            self._add_event(record)
        elif record.schema_version > self.newest_schema:
            self.newest_schema = record.schema_version

    def _add_event(self, event: Event) -> None:
        # A turn begins with the message that has its id as `runId`, or with `turn_resumed`, and ends
        # with one of two events. A waiting message is a `queued` event until the turn appends it,
        # under the same id.
        base, kind, data = self._base, event.kind, event.data
        if kind == TURN_END:
            self._usage.end_turn(data, self._usage.day(event.timestamp, base.created_at), base.model)
            self._base = _add_turn(base, data)
        elif kind == TURN_INTERRUPTED:
            self._usage.settle()
            self._base = replace(base, run=None)
        elif kind == TURN_RESUMED:
            run_id = data.get("runId")
            if isinstance(run_id, str) and run_id:
                self._base = replace(base, run=run_id)
        elif kind == QUEUED:
            message_id = data.get("id")
            if isinstance(message_id, str) and message_id and message_id not in base.waiting:
                self._base = replace(base, waiting=(*base.waiting, message_id))
        elif kind == WITHDRAWN:
            self._base = _remove_waiting(base, data.get("id"))
        elif kind == USAGE and self.message_count > self._copied_messages:
            self._usage.add_usage(data, self._usage.day(event.timestamp, base.created_at), base.model)
        elif kind == REREAD:
            self._usage.clear()
            self._base = base if base.model_chosen else replace(base, model="")

    def _add_usage(self, message: Message) -> None:
        base, usage = self._base, self._usage
        day = usage.day(message.timestamp, base.created_at)
        if message.role == "assistant":
            usage.add_message(message, day, message.model or base.model)
        elif message.run_id or base.run is None:  # else it belongs to the running turn
            usage.begin_exchange(day, base.model)

    def set_metrics(self, metrics: Metrics) -> None:
        """Set the sums over turns, of a log whose records do not hold them all."""
        self._base = replace(self._base, metrics=metrics)

    def skip_damaged(self) -> None:
        """Skip a damaged line: its seq is not reused."""
        self.seq += 1

    def metadata(self, part: int, size: int) -> Metadata:
        """Return the metadata as of a log position."""
        return replace(
            self._base,
            message_count=self.message_count,
            last_message_at=self.last_message_at,
            newest_schema=self.newest_schema,
            spent=self._usage.settled_rows(),
            spending=self._usage.pending_rows(),
            through=Through(part=part, bytes=size, seq=self.seq),
        )


def _count_copied(metadata: Metadata) -> int:
    """Return how many of the first messages were copied; another session counts their usage."""
    source = metadata.promoted_from
    return 0 if source is None else parse_count(source.get("messages"))


def apply_changes(metadata: Metadata, changes: dict[str, Any]) -> Metadata:
    """Return the metadata after a `meta` record.

    Unknown keys are kept. A value that is invalid for a native key changes nothing: another
    version wrote it, and the record still has it.
    """
    if "forkedFrom" in changes:  # the turn, the queue and the time belong to the original
        metadata = replace(metadata, run=None, waiting=(), created_at=_time_of(metadata.id))
    for key, value in changes.items():
        if key not in SETTABLE and key in _NATIVE_KEYS:
            continue  # counted by the fold, not settable
        if key not in SETTABLE:
            metadata = replace(metadata, extra={**metadata.extra, key: value})
            continue
        changed = to_builtins(metadata)
        changed.pop(key, None)
        if value is not None:
            changed[key] = value
        with suppress(msgspec.ValidationError):
            metadata = from_builtins(changed)
            if key == "model":
                metadata = replace(metadata, model_chosen=bool(value))
    return metadata


def settable_fields(metadata: Metadata) -> dict[str, Any]:
    """Return the fields that were set and not counted; empty values are left out."""
    data = to_builtins(metadata)
    return {key: data[key] for key in data if key in SETTABLE and data[key] not in _EMPTY.get(key, ())}


def initial_fields(metadata: Metadata) -> dict[str, Any]:
    """Return what a `meta` record must hold so that the log alone restores metadata that no record holds.

    Beside the fields that can be set: the keys of another program, and what it counted.
    """
    fields = {**metadata.extra, **settable_fields(metadata)}
    has_counts = metadata.metrics != Metrics(session_id=metadata.metrics.session_id)
    if metadata.created_at != _time_of(metadata.id) or has_counts:
        fields[ADOPTION_KEY] = metadata.created_at
    if has_counts:
        fields["metrics"] = msgspec.to_builtins(metadata.metrics)
    if metadata.model and not metadata.model_chosen:
        fields["modelChosen"] = False
    return fields


def adopt_counts(metadata: Metadata, fields: Mapping[str, Any]) -> Metadata:
    """Return the metadata with the counts that another program made: these, or none."""
    created, metrics = fields.get(ADOPTION_KEY), parse_metrics(fields.get("metrics"))
    is_time = isinstance(created, str) and epoch_ms(created) is not None
    return replace(
        metadata,
        created_at=str(created) if is_time else _time_of(metadata.id),
        metrics=replace(metrics, session_id=metadata.id),
        model_chosen=metadata.model_chosen and fields.get("modelChosen") is not False,
    )


def parse_metrics(value: object) -> Metrics:
    """Return the metrics of a metadata file; zeros for what it lacks.

    The number of tokens may be one number, as some writers of the specification have it.
    """
    data = value if isinstance(value, dict) else {}
    tokens = data.get("totalTokens")
    counts = tokens if isinstance(tokens, dict) else {"totalTokens": tokens}
    incoming, outgoing = parse_count(counts.get("inputTokens")), parse_count(counts.get("outputTokens"))
    return Metrics(
        total_turns=parse_count(data.get("totalTurns")),
        total_tokens=Tokens(incoming, outgoing, parse_count(counts.get("totalTokens")) or incoming + outgoing),
        total_tool_calls=parse_count(data.get("totalToolCalls")),
        total_duration_ms=parse_count(data.get("totalDurationMs")),
        total_cost=parse_cost(data.get("totalCost")),
    )


def _time_of(session_id: str) -> str:
    """Return the time in an id."""
    return timestamp(min(milliseconds(session_id), LAST) / 1000)


_EMPTY: dict[str, tuple[Any, ...]] = {"model": ("",), "aliases": ((), []), "generations": ({},)}


def to_builtins(metadata: Metadata) -> dict[str, Any]:
    """Return metadata as the JSON object of `metadata.json`."""
    data: dict[str, Any] = msgspec.to_builtins(metadata)
    extra = data.pop("extra")
    return {**extra, **{key: value for key, value in data.items() if value is not None}}


def from_builtins(data: dict[str, Any]) -> Metadata:
    """Return metadata from its JSON object; raises ValidationError if it is invalid."""
    fields = {key: value for key, value in data.items() if key in _FIELDS}
    metadata = msgspec.convert(fields, Metadata)
    extra = {key: value for key, value in data.items() if key not in _FIELDS}
    return replace(metadata, extra=extra) if extra else metadata


_FIELDS = frozenset(Metadata.__struct_encode_fields__) - {"extra"}
_NATIVE_KEYS = _FIELDS | {"crc"}


def _add_turn(metadata: Metadata, data: dict[str, Any]) -> Metadata:
    usage = data.get("usage")
    tokens = usage if isinstance(usage, dict) else {}
    previous = metadata.metrics
    duration = previous.total_duration_ms + parse_count(data.get("durationMs"))
    incoming = parse_count(tokens.get("inputTokens"))
    outgoing = parse_count(tokens.get("outputTokens"))
    metrics = Metrics(
        session_id=metadata.id,
        total_turns=previous.total_turns + 1,
        total_tokens=Tokens(
            input_tokens=previous.total_tokens.input_tokens + incoming,
            output_tokens=previous.total_tokens.output_tokens + outgoing,
            total_tokens=previous.total_tokens.total_tokens
            + (parse_count(tokens.get("totalTokens")) or incoming + outgoing),
        ),
        total_tool_calls=previous.total_tool_calls + parse_count(data.get("toolCalls")),
        total_duration_ms=duration,
        total_cost=previous.total_cost + parse_cost(data.get("cost")),
    )
    return replace(metadata, metrics=metrics, uptime_secs=duration // 1000, run=None)


def _remove_waiting(metadata: Metadata, message_id: object) -> Metadata:
    waiting = tuple(queued_id for queued_id in metadata.waiting if queued_id != message_id)
    return metadata if len(waiting) == len(metadata.waiting) else replace(metadata, waiting=waiting)
