"""What the layers above ask of a store and of a provider: duties, not code.

A store is synchronous and safe to use from several threads. No verb waits longer than one append
does; waiting for a turn is the engine's business. A provider is asynchronous and keeps nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, Self, overload

import msgspec

from holdfast.errors import FormatError
from holdfast.model import AnyRecord, Content, Damaged, Entry, Message, Metadata, Part, Usage
from holdfast.stamps import epoch_ms

Order = Literal["active", "created"]  # newest message first, or newest session first
Progress = Callable[[int, int], None]  # done, of so many


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which sessions a listing is about; None leaves a field open."""

    agent: str | None = None
    sender: str | None = None
    source: str | None = None
    since: str | None = None  # ISO 8601; last message at or after it
    title: str | None = None  # text that the title contains, whatever its case
    unfinished: bool | None = None  # a turn has not ended, or a message waits for its own


class Listed(msgspec.Struct, frozen=True, gc=False):
    """A session as a listing shows it."""

    metadata: Metadata
    bytes: int
    parts: int

    @property
    def id(self) -> str:
        """The session's id."""
        return self.metadata.id

    @property
    def active(self) -> int:
        """When it was last active, in milliseconds: what listings are sorted by."""
        times = (self.metadata.last_message_at, self.metadata.created_at)
        return next((ms for text in times if (ms := epoch_ms(text)) is not None), 0)

    @property
    def cursor(self) -> str:
        """Its place in any listing; the next page begins behind it."""
        return f"{self.active}-{self.id}"


def parse_cursor(text: str) -> tuple[int, str]:
    """Time and id of a cursor."""
    active, _, last = text.partition("-")
    if not (active.isascii() and active.isdigit() and len(active) < 19 and last):
        raise FormatError(f"not a cursor: {text[:60]!r}", hint="take the one a listing gave")
    return int(active), last


def since_ms(which: Filter) -> int | None:
    """The time of a filter in milliseconds."""
    if which.since is None:
        return None
    since = epoch_ms(which.since)
    if since is None:
        raise FormatError(f"not an ISO 8601 time: {which.since[:60]!r}")
    return since


def matcher(which: Filter) -> Callable[[Listed], bool]:
    """A filter as a test of sessions."""
    since = since_ms(which)
    title = which.title.casefold() if which.title is not None else ""

    def matches(row: Listed) -> bool:
        return (
            all(
                getattr(which, field) in (None, getattr(row.metadata, field))
                for field in ("agent", "sender", "source")
            )
            and (since is None or row.active >= since)
            and which.unfinished in (None, row.metadata.unfinished)
            and title in (row.metadata.name or "").casefold()
        )

    return matches


class Page(Sequence[Listed]):
    """Some sessions of a listing, and the cursor to the next ones."""

    def __init__(self, sessions: Sequence[Listed], next_cursor: str | None, total: int) -> None:
        self.sessions = tuple(sessions)
        self.next = next_cursor
        self.total = total  # of the whole listing

    @overload
    def __getitem__(self, index: int) -> Listed: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Listed, ...]: ...
    def __getitem__(self, index: int | slice) -> Listed | tuple[Listed, ...]:
        return self.sessions[index]

    def __len__(self) -> int:
        return len(self.sessions)


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """What is searched for, and where."""

    text: str  # words, "phrases", prefix*, AND, OR, NOT
    which: Filter = Filter()  # of sessions; `since` is about each message
    until: str | None = None  # ISO 8601; said before it
    role: str | None = None  # user, assistant, summary, title, tool
    limit: int = 20  # sessions
    hits: int = 3  # of one session
    without: frozenset[str] = frozenset()  # sessions that are left out


class Hit(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A passage that was found."""

    seq: int  # where to go for it; 0: the title
    role: str
    snippet: str  # a piece of it, what was found between « and »
    timestamp: str


class Found(msgspec.Struct, frozen=True, rename="camel"):
    """A session in which something was found."""

    session: str
    title: str
    score: float  # the larger, the better
    hits: tuple[Hit, ...]  # the best of it


class Results(msgspec.Struct, frozen=True, rename="camel"):
    """What a search found, the best first."""

    results: tuple[Found, ...] = ()
    total: int = 0  # sessions


class Chats(msgspec.Struct, frozen=True):
    """The numbered sessions of one key, or of one agent and sender."""

    current: str  # the newest, or the one last resumed
    newest: str
    highest: int  # number of the newest


class Lease(Protocol):
    """The right to run a turn, held until released; it ends with the process."""

    session: str

    def release(self) -> None:
        """Give it back; doing so twice is harmless."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


class Store(Protocol):
    """Keeps the records of sessions.

    Every verb that takes a session raises InvalidId for what cannot be an id and NotFound for an
    id without a session. An error leaves nothing of the call behind; only a crash can leave a
    prefix of an append's records, never a gap.
    """

    def create(
        self,
        facts: Mapping[str, Any] | None = None,
        *,
        unless_held: bool = False,
        at: int | None = None,
    ) -> Metadata:
        """Make an empty session. Durable on return.

        `facts` are metadata in their file's names (agent, sender, model, source, cronJobId, key,
        aliases, scope, systemPromptOverride, name …). FormatError for unknown ones. It is the
        next chat of its key, or of its agent and sender if it has none, and the current one.
        `unless_held`: if a session holds the key already, that one is returned as it is; of any
        number of such calls at once, one makes the session. `at`: when it was made elsewhere, in
        milliseconds.
        """
        ...

    def chats(self, thread: str) -> Chats | None:
        """The chats of a key, or of `model.pair(agent, sender)`; its cost does not grow with the
        number of sessions."""
        ...

    def resume(self, session: str) -> Metadata:
        """Make a session the current chat of its key, or of its agent and sender. Durable."""
        ...

    def append(
        self,
        session: str,
        records: Sequence[AnyRecord],
        *,
        expect: int | None = None,
        guard: int | None = None,
        lease: Lease | None = None,
    ) -> list[AnyRecord]:
        """Add records at the end and return them as stored. Durable on return.

        Numbers are dense and grow in the order of the appends, whoever makes them. `expect`: the
        last seq must be this. `guard`: no rewind, tombstone or compaction may have a higher seq.
        `lease`: a stale one is refused. All three raise Conflict. A record whose id is among the
        last 1,024 is not written again, the stored one is returned (Conflict if it differs);
        this is looked at first, so a retry succeeds and a batch found in part is completed.
        A message marked auto-injected is skipped: it is neither kept nor returned.
        Also raises SessionBusy, StoreFull, StoreFailed, FormatError.
        """
        ...

    def read(self, session: str, *, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
        """The records with a seq above `after`, in order, lazily; damage stands in its place.

        The birth record (seq 0) is shown only to who asks for it with `after=-1`.

        Sees everything that was acknowledged before the call. Holds no lock.
        """
        ...

    def tail(self, session: str) -> Iterator[Entry]:
        """All records, newest first, lazily: reads no further back than it is asked."""
        ...

    def metadata(self, session: str) -> Metadata:
        """What is known of a session, up to its last acknowledged record."""
        ...

    def update(
        self, session: str, changes: Mapping[str, Any], *, unless_held: bool = False
    ) -> Metadata:
        """Change metadata by a `meta` record. Durable on return; None takes a key back.

        A key or alias that another session holds moves here, or, `unless_held`, stays there.
        """
        ...

    def promote(self, session: str, to: str, *, seq: int) -> bool:
        """Record that another session takes this one's history over, up to `seq`; once for ever.

        True if it is recorded for that session, now or before; False if for another. Of any
        number of calls at once, one decides.
        """
        ...

    def list(
        self,
        which: Filter = ...,
        *,
        limit: int = 50,
        cursor: str | None = None,
        order: Order = "active",
    ) -> Page:
        """Sessions, newest first. Its cost follows what it returns."""
        ...

    def search(self, query: Query, *, progress: Progress | None = None) -> Results:
        """Sessions in which something was said, the best first.

        Sees everything that was acknowledged before the call: what is new is taken in first, which
        may take long the first time (`progress` is told). What was deleted is not found. A query
        that makes no sense is searched as words; it never raises.
        """
        ...

    def recall(self, query: Query, now: int) -> Results:
        """Sessions that a whole message, `query.text`, is about, with the passages that say so.

        Sees what was taken in already (`catch_up`); `now` in milliseconds is what "last week" in
        the message is counted from.
        """
        ...

    def catch_up(self, progress: Progress | None = None) -> int:
        """Take in what was said since the last time, for search; returns in how many sessions."""
        ...

    def delete(self, session: str) -> int:
        """Remove a session for good and return how many parts it had. Needs the turn lease."""
        ...

    def resolve(self, name: str) -> str:
        """The id behind an id, a key, an alias, or an unambiguous beginning of an id.

        NotFound if there is none, InvalidId for what can be neither, Conflict if several match.
        """
        ...

    def lease(self, session: str) -> Lease:
        """The right to run a turn, at once or SessionBusy."""
        ...

    def fork(self, session: str, at: int | None = None) -> Metadata:
        """A new session with the records up to `at` (default: all), byte for byte."""
        ...

    def parts(self, session: str) -> tuple[Part, ...]:
        """The files of a session's log, oldest first."""
        ...

    def verify(self, session: str) -> tuple[Damaged, ...]:
        """Everything wrong with a session's bytes: crc, seq, parts."""
        ...

    def repair(self, session: str) -> tuple[str, ...]:
        """Set right what can be without deleting anything; what was done, in words."""
        ...

    def close(self) -> None:
        """Bring derived data up to date and give back all descriptors."""
        ...


class Tool(msgspec.Struct, frozen=True):
    """A tool as a model is told of it."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}  # JSON Schema of its arguments
    reads: bool = False  # changes nothing anywhere: scheduled runs may use it unasked


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a model."""

    messages: tuple[Message, ...]
    system: str = ""
    model: str = ""
    tools: tuple[Tool, ...] = ()
    max_tokens: int | None = None
    temperature: float | None = None
    purpose: Literal["answer", "summary", "title"] = "answer"  # what the reply will be used for


class Delta(msgspec.Struct, frozen=True, gc=False):
    """A piece of an answer that is still being made."""

    text: str
    thinking: bool = False


# Is called in the order of the pieces, must return at once and must not raise.
Told = Callable[[Delta], None]


def unheard(delta: Delta) -> None:
    """For an answer that nobody watches being made."""


class Provider(Protocol):
    """Completes a context."""

    async def complete(self, request: Request, told: Told = unheard) -> Message:
        """The model's answer, with the model's name and, where it is known, its usage and cost.

        `told` gets the answer's text piece by piece while it is made. Raises ContextOverflow if
        the context is too large for the model, ProviderUnavailable if the same call may succeed
        later, ProviderDenied, ProviderRefused, or ProviderError for everything else that goes
        wrong. Calls once and does not retry. Nothing of the request is kept or changed.
        """
        ...

    def window(self, model: str) -> int | None:
        """The model's limit as the provider states it; None if it does not."""
        ...


class Toolset(Protocol):
    """Tools that live elsewhere, such as those of an MCP server."""

    name: str

    async def tools(self) -> Sequence[Tool]:
        """What it offers. ProviderUnavailable if it cannot be reached."""
        ...

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolAnswer:
        """Run one of its tools. A tool that fails answers so; a server that does, raises."""
        ...

    async def close(self) -> None:
        """Give back its connection or process."""
        ...


class ToolAnswer(msgspec.Struct, frozen=True):
    """What a tool gave back."""

    content: Content  # text or blocks
    is_error: bool = False
    usage: Usage | None = None  # of models that it called
