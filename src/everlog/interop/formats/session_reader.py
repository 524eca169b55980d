"""One reader per format: a state machine that is fed lines and returns items.

A format implements one subclass of `SessionReader`. Everything that reads its files asks that
reader, for more or less:

    import          from the first line, FULL: every line becomes an item that preserves its bytes
    live view       from a stored state, CONVERSATION: the items of new lines
    whole file      from the first line, CONVERSATION, `whole`: where new lines need earlier ones
    listing         from a stored state, LISTING: no items, only `facts`

So an import, a live view and a listing cannot disagree: items have the same ids, and titles, models
and counts come from the same `facts`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Any

from everlog.ids import epoch_ms
from everlog.interop.formats.format_types import (
    DamagedBytes,
    ForeignSession,
    Item,
    Line,
    ListingScan,
    TailState,
    TranscriptInfo,
)


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
