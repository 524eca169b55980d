"""One reader per format: a state machine that is fed lines and returns items.

A format implements one subclass of `SessionReader`. Everything that reads its files asks that
reader, for more or less:

    import          from the first line, FULL: every line becomes an item that preserves its bytes
    live view       from a stored state, CONVERSATION: the items of new lines
    whole file      from the first line, CONVERSATION, `whole`: where new lines need earlier ones
    listing         from a stored state, LISTING: no items, only `facts`

So an import, a live view and a listing cannot disagree: items have the same ids, and titles, models
and counts come from the same `facts`. `make_reading` binds a reader to the four functions of
`LiveFormat`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from itertools import islice
from typing import Any, NamedTuple

from msgspec.structs import replace

from everlog.ids import epoch_ms
from everlog.interop.formats.format_types import DamagedBytes, ForeignSession, Item, Line, Source
from everlog.interop.formats.live_format import (
    Head,
    ListingScan,
    MetadataLocation,
    TailResult,
    TailState,
    TranscriptInfo,
)

_PART = re.compile(r"_part([0-9]+)\.jsonl\Z")


class Detail(IntEnum):
    """How much a reader returns of each line."""

    LISTING = 0  # nothing: it only updates `facts`
    CONVERSATION = 1  # messages, summaries, and what hides messages, without the foreign bytes
    FULL = 2  # also an event for every other line; each record preserves the bytes of its line


class NeedsWholeFileError(Exception):
    """New lines change the meaning of earlier ones that the state does not have."""


class SessionReader(ABC):
    """The reader of one session.

    `state` is what an earlier reader returned as its state, empty at the beginning of the file, and
    is not modified; `facts` likewise. With `whole`, all lines are fed from the first one on, and
    items may be returned late, by `finish`. Never raises for any content: damage is in `damage`.
    """

    def __init__(
        self,
        transcript: TranscriptInfo,
        detail: Detail = Detail.CONVERSATION,
        state: TailState | None = None,
        facts: ListingScan | None = None,
        *,
        whole: bool = False,
    ) -> None:
        self.transcript = transcript
        self.detail = detail
        self.whole = whole
        self.facts = facts or ListingScan()
        self.damage: list[DamagedBytes] = []
        self.line_count = 0  # without blank lines
        self._load_state(state or {})

    @abstractmethod
    def _load_state(self, state: TailState) -> None:
        """Continue after the lines that led to a state."""

    @abstractmethod
    def feed(self, lines: Iterable[Line], path: str = "") -> Iterator[Item]:
        """Read further lines of one file and yield their items, in file order.

        Lines are complete, blank and damaged ones included, the metadata line is not. Raises
        NeedsWholeFileError if they cannot be understood without lines that the state does not
        have; never with `whole`.
        """

    def finish(self) -> Iterator[Item]:
        """Yield what only the last line, or metadata beside the lines, decides."""
        return iter(())

    @property
    @abstractmethod
    def state(self) -> TailState:
        """The state after the lines so far: small, plain JSON."""


FindHead = Callable[[Iterable[Line]], Head]


class Reading(NamedTuple):
    """The reading functions of a format."""

    read: Callable[[Source], ForeignSession]
    read_tail: Callable[[TailState, Iterable[Line], TranscriptInfo], TailResult | None]
    read_all: Callable[[Iterable[Line], TranscriptInfo], TailResult]
    scan_listing: Callable[[ListingScan, Iterable[Line], TranscriptInfo], ListingScan]


def make_reading(
    reader: type[SessionReader],
    metadata_location: MetadataLocation = "",
    session_id_of: Callable[[str, bytes | None], str] = lambda stem, _: stem,
    ancestor_file: str = "",
    find_head: FindHead | None = None,
) -> Reading:
    """Return the reading functions of a format from its reader."""

    def read(source: Source) -> ForeignSession:
        transcript, parts = open_source(source, metadata_location, session_id_of, ancestor_file, find_head)
        return read_session(reader(transcript, Detail.FULL, whole=True), parts)

    def read_tail(state: TailState, lines: Iterable[Line], transcript: TranscriptInfo) -> TailResult | None:
        follower = reader(transcript, Detail.CONVERSATION, state)
        try:
            return _tail_result(follower, lines)
        except NeedsWholeFileError:
            return None

    def read_all(lines: Iterable[Line], transcript: TranscriptInfo) -> TailResult:
        return _tail_result(reader(transcript, Detail.CONVERSATION, whole=True), lines)

    def scan_listing(scan: ListingScan, lines: Iterable[Line], transcript: TranscriptInfo) -> ListingScan:
        lister = reader(transcript, Detail.LISTING, scan.state, scan)
        for _ in lister.feed(lines):
            pass
        for _ in lister.finish():
            pass
        return _with_state(lister)

    return Reading(read, read_tail, read_all, scan_listing)


def _tail_result(reader: SessionReader, lines: Iterable[Line]) -> TailResult:
    return TailResult([*reader.feed(lines), *reader.finish()], reader.state)


def _with_state(reader: SessionReader) -> ListingScan:
    return replace(reader.facts, state=reader.state)


def read_session(reader: SessionReader, parts: Iterable[tuple[str, Iterable[Line]]], **fields: Any) -> ForeignSession:
    """Read all parts of a session with a fresh reader; `fields` are further ones of the result."""
    items: list[Item] = []
    for path, lines in parts:
        items.extend(reader.feed(lines, path))
    items.extend(reader.finish())
    facts = reader.facts
    return ForeignSession(
        session_id=facts.program_id or reader.transcript.session_id,
        metadata={**metadata_of(facts), **fields.pop("metadata", {})},
        created_ms=max(epoch_ms(facts.created) or reader.transcript.modified_ms, 0),
        items=tuple(items),
        line_count=reader.line_count,
        damage=tuple(reader.damage),
        **fields,
    )


def metadata_of(facts: ListingScan) -> dict[str, Any]:
    """Return the metadata of a session with our keys, without what is empty."""
    metadata = {
        "name": facts.title,
        "agent": facts.agent,
        "sender": facts.sender,
        "model": facts.model,
        "cwd": facts.cwd,
        "key": facts.key,
        "aliases": facts.aliases,
        "scope": facts.scope,
        "chat": facts.chat,
    }
    return {key: value for key, value in metadata.items() if value}


def open_source(
    source: Source,
    metadata_location: MetadataLocation,
    session_id_of: Callable[[str, bytes | None], str],
    ancestor_file: str = "",
    find_head: FindHead | None = None,
) -> tuple[TranscriptInfo, list[tuple[str, Iterable[Line]]]]:
    """Return a source as a live view sees it: what is beside the lines, and the lines of each part."""
    first, *others = source.paths()
    numbered = sorted((int(match[1]), path) for path in others if (match := _PART.search(path)))
    parts: list[tuple[str, Iterable[Line]]] = [
        (path, source.lines(path)) for path in (first, *(path for _, path in numbered))
    ]
    meta_bytes: bytes | None = None
    head_lines: tuple[Line, ...] = ()
    if metadata_location == "file" and f"{source.name}.meta.json" in others:
        meta_bytes = source.read(f"{source.name}.meta.json")
    elif metadata_location == "head":
        head = (find_head or _first_line)(source.lines(first))
        meta_bytes, head_lines = head.meta_bytes, head.lines
        parts[0] = (first, islice(source.lines(first), len(head_lines), None))

    def read_file(path: str) -> bytes | None:
        name = f"{source.name}/{path}"
        return source.read(name) if name in others else None

    transcript = TranscriptInfo(
        session_id_of(source.name, meta_bytes),
        meta_bytes,
        read_file,
        source.name,
        source.find_related,
        source.find_ancestor(ancestor_file) if ancestor_file else None,
        read_lines=lambda: source.lines(first),
        head=head_lines,
        modified_ms=source.modified_ms,
    )
    return transcript, parts


def _first_line(lines: Iterable[Line]) -> Head:
    head = next(iter(lines), None)
    return Head((), None) if head is None else Head((head,), head.data)
