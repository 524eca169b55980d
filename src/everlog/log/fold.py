"""The fold: what a log means.

    message     is live
    tombstone   hides messages (no rewind brings them back; a later `restores` does)
    rewind      drops the live messages after its `toSeq`, for good
    compaction  stands until a later rewind goes behind what it kept
    meta        changes metadata
    event       counts (`turn_end`), keeps the queue (`queued`), never shown

`fold` reads forwards and gives the view; `Tally` keeps the metadata, record by record. What the
model is sent is read backwards by `context.build` and equals this fold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace

from everlog.ids import LAST, milliseconds, timestamp
from everlog.log.usage_fold import Purse, price, whole
from everlog.model import (
    QUEUED,
    REREAD,
    SCHEMA_VERSION,
    SETTABLE,
    TURN_END,
    TURN_INTERRUPTED,
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
    Rewind,
    Through,
    Tokens,
    Tombstone,
    Unknown,
)


class View(msgspec.Struct, frozen=True):
    """The live messages of a log, and what stood in the way of reading it."""

    messages: tuple[Message, ...]
    compaction: Compaction | None  # the newest that stands
    hidden: frozenset[int]  # seqs that a tombstone hides
    damage: tuple[Damaged, ...]
    newer: tuple[Unknown, ...]  # records of a schema version that we do not know


def fold(entries: Iterable[Entry]) -> View:
    """The view of a whole log."""
    live: list[Message] = []
    hidden: set[int] = set()
    standing: list[Compaction] = []
    damage: list[Damaged] = []
    newer: list[Unknown] = []
    for entry in entries:
        if isinstance(entry, Message):
            live.append(entry)
        elif isinstance(entry, Tombstone):
            hidden.update(entry.deletes)
            hidden.difference_update(entry.restores)
        elif isinstance(entry, Rewind):
            to = entry.to_seq
            live = [message for message in live if message.seq <= to]
            standing = [one for one in standing if to >= one.first_kept_seq - 1]
        elif isinstance(entry, Compaction):
            standing.append(entry)
        elif isinstance(entry, Damaged):
            damage.append(entry)
        elif isinstance(entry, Unknown) and entry.schema_version > SCHEMA_VERSION:
            newer.append(entry)
    return View(
        messages=tuple(message for message in live if message.seq not in hidden),
        compaction=standing[-1] if standing else None,
        hidden=frozenset(hidden),
        damage=tuple(damage),
        newer=tuple(newer),
    )


class Tally:
    """Metadata that grows with its log: give it every record once, in order."""

    def __init__(self, metadata: Metadata) -> None:
        self._facts = metadata  # all but the running numbers below
        self.count = metadata.message_count
        self.last_message_at = metadata.last_message_at
        self.seq = metadata.through.seq
        self.newest_schema = metadata.newest_schema
        self._purse = Purse(metadata)
        self._copied = _copied(metadata)

    @classmethod
    def fresh(cls, session_id: str) -> Tally:
        """The tally of an empty log."""
        created = timestamp(min(milliseconds(session_id), LAST) / 1000)
        return cls(
            Metadata(
                id=session_id,
                created_at=created,
                last_message_at=created,
                metrics=Metrics(session_id=session_id),
            )
        )

    def add(self, record: AnyRecord) -> None:
        """Fold in the next record."""
        if record.seq > self.seq:
            self.seq = record.seq
        if isinstance(record, Message):
            self.count += 1
            if record.timestamp:
                self.last_message_at = record.timestamp
            if record.model and record.model != self._facts.model and not self._facts.model_chosen:
                self._facts = replace(self._facts, model=record.model)
            if record.run_id:
                self._facts = _begin_turn(self._facts, record)
            if self.count > self._copied:
                self._spend(record)
        elif isinstance(record, Meta):
            self._facts = apply(self._facts, record.set)
            self._copied = _copied(self._facts)
            if record.set.get("forkedFrom"):
                self._purse.forget()
        elif isinstance(record, Event):
            change = _EVENTS.get(record.kind)
            if change is not None:
                self._facts = change(self._facts, record.data)
            if record.kind == TURN_END:
                day = self._purse.day(record.timestamp, self._facts.created_at)
                self._purse.end(record.data, day, self._facts.model)
            elif record.kind == TURN_INTERRUPTED:
                self._purse.settle()
            elif record.kind == REREAD:
                self._purse.forget()
        elif record.schema_version > self.newest_schema:
            self.newest_schema = record.schema_version

    def _spend(self, message: Message) -> None:
        role, facts, purse = message.role, self._facts, self._purse
        if role == "toolResult":
            return
        day = purse.day(message.timestamp, facts.created_at)
        if role == "assistant":
            purse.add(message, day, message.model or facts.model)
        elif message.run_id or facts.run is None:  # else it is part of the turn that runs
            purse.begin(day, facts.model)

    def skip(self) -> None:
        """Count a damaged line: its number is not given to another record."""
        self.seq += 1

    def metadata(self, part: int, size: int) -> Metadata:
        """The metadata as of a log position."""
        return replace(
            self._facts,
            message_count=self.count,
            last_message_at=self.last_message_at,
            newest_schema=self.newest_schema,
            spent=self._purse.spent(),
            spending=self._purse.spending(),
            through=Through(part=part, bytes=size, seq=self.seq),
        )


def _copied(metadata: Metadata) -> int:
    """How many of the first messages were said, and paid for, in another session."""
    return 0 if metadata.promoted_from is None else whole(metadata.promoted_from.get("messages"))


def apply(metadata: Metadata, changes: dict[str, Any]) -> Metadata:
    """Metadata after a `meta` record.

    Keys that we do not know are kept. A value that a key of ours cannot take changes nothing:
    another version wrote it, and the record still has it.
    """
    if "forkedFrom" in changes:  # the turn and the queue belong to the session it came from
        metadata = replace(metadata, run=None, waiting=())
    for key, value in changes.items():
        if key not in SETTABLE and key in _OURS:
            continue  # counted, not set
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


def given_facts(metadata: Metadata) -> dict[str, Any]:
    """What of the metadata was given and not counted; what says nothing is left out."""
    data = to_builtins(metadata)
    return {
        key: data[key] for key in data if key in SETTABLE and data[key] not in _NOTHING.get(key, ())
    }


_NOTHING: dict[str, tuple[Any, ...]] = {"model": ("",), "aliases": ((), []), "generations": ({},)}


def to_builtins(metadata: Metadata) -> dict[str, Any]:
    """Metadata as the JSON object of `metadata.json`."""
    data: dict[str, Any] = msgspec.to_builtins(metadata)
    extra = data.pop("extra")
    return {**extra, **{key: value for key, value in data.items() if value is not None}}


def from_builtins(data: dict[str, Any]) -> Metadata:
    """Metadata from its JSON object; raises ValidationError if it is none."""
    known = {key: value for key, value in data.items() if key in _FIELDS}
    metadata = msgspec.convert(known, Metadata)
    extra = {key: value for key, value in data.items() if key not in _FIELDS}
    return replace(metadata, extra=extra) if extra else metadata


_FIELDS = frozenset(Metadata.__struct_encode_fields__) - {"extra"}
_OURS = _FIELDS | {"crc"}


def _add_turn(metadata: Metadata, data: dict[str, Any]) -> Metadata:
    usage = data.get("usage")
    counted = usage if isinstance(usage, dict) else {}
    old = metadata.metrics
    duration = old.total_duration_ms + whole(data.get("durationMs"))
    incoming, outgoing = whole(counted.get("inputTokens")), whole(counted.get("outputTokens"))
    metrics = Metrics(
        session_id=metadata.id,
        total_turns=old.total_turns + 1,
        total_tokens=Tokens(
            input_tokens=old.total_tokens.input_tokens + incoming,
            output_tokens=old.total_tokens.output_tokens + outgoing,
            total_tokens=old.total_tokens.total_tokens
            + (whole(counted.get("totalTokens")) or incoming + outgoing),
        ),
        total_tool_calls=old.total_tool_calls + whole(data.get("toolCalls")),
        total_duration_ms=duration,
        total_cost=old.total_cost + price(data.get("cost")),
    )
    return replace(metadata, metrics=metrics, uptime_secs=duration // 1000, run=None)


# A turn has begun with the message that carries its id, and ends with one of the two events. A
# message that must wait is a `queued` event until the turn appends it, under the same id.


def _begin_turn(metadata: Metadata, message: Message) -> Metadata:
    return replace(_leave(metadata, message.id), run=message.run_id)


def _interrupt(metadata: Metadata, data: dict[str, Any]) -> Metadata:
    return replace(metadata, run=None)


def _queue(metadata: Metadata, data: dict[str, Any]) -> Metadata:
    name = data.get("id")
    if not isinstance(name, str) or not name or name in metadata.waiting:
        return metadata
    return replace(metadata, waiting=(*metadata.waiting, name))


def _withdraw(metadata: Metadata, data: dict[str, Any]) -> Metadata:
    return _leave(metadata, data.get("id"))


def _leave(metadata: Metadata, name: object) -> Metadata:
    left = tuple(one for one in metadata.waiting if one != name)
    return metadata if len(left) == len(metadata.waiting) else replace(metadata, waiting=left)


_EVENTS: dict[str, Callable[[Metadata, dict[str, Any]], Metadata]] = {
    TURN_END: _add_turn,
    TURN_INTERRUPTED: _interrupt,
    QUEUED: _queue,
    WITHDRAWN: _withdraw,
}
