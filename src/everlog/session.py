"""The public face: a store of sessions, and a session.

Thin on purpose: every durable thing happens in the store port, everything a log means in `log`
and `context`. The asynchronous twins are in `aio`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec
from msgspec.structs import replace

from everlog import ports
from everlog.context.build import Context, build
from everlog.context.tokens import WINDOW, Counter, estimate_text
from everlog.errors import (
    ConflictError,
    LogDamagedError,
    NotFoundError,
    SettingsError,
    UnsupportedError,
)
from everlog.log.backward_read import Live, read
from everlog.log.fold import View, fold
from everlog.log.tool_pairs import closing, exchange, pair
from everlog.model import (
    TURN_END,
    AnyRecord,
    Damaged,
    Entry,
    Event,
    Message,
    Metadata,
    Part,
    Rewind,
    Tombstone,
    Usage,
)
from everlog.model import pair as pair_of
from everlog.ports import (
    Filter,
    Lease,
    Order,
    Page,
    Progress,
    Provider,
    Query,
    Results,
    SessionRow,
    UsageReport,
    days_of,
)
from everlog.settings import Settings

if TYPE_CHECKING:
    from everlog.identity.route import Routed

R = TypeVar("R", bound=AnyRecord)
WHICH = "everlog sessions show ID --all shows which there are"  # records
_DEFAULTS = Settings()


class Session:
    """One conversation: an append-only log and what it means."""

    def __init__(self, store: Store, session_id: str) -> None:
        self.store = store
        self.id = session_id
        self._port = store.port

    def __repr__(self) -> str:
        return f"Session({self.id!r})"

    # --- writing

    def append(
        self,
        record: R,
        *,
        expected_seq: int | None = None,
        no_marker_after: int | None = None,
        lease: Lease | None = None,
    ) -> R:
        """Add one record; durable on return. Returns it as stored, with its seq and id.

        A message marked auto-injected is not kept and comes back as it was given.
        """
        stored = self._port.append(
            self.id,
            (record,),
            expected_seq=expected_seq,
            no_marker_after=no_marker_after,
            lease=lease,
        )
        return stored[0] if stored else record  # type: ignore[return-value]  # the same kind

    def append_many(
        self,
        records: Iterable[AnyRecord],
        *,
        expected_seq: int | None = None,
        no_marker_after: int | None = None,
        lease: Lease | None = None,
    ) -> list[AnyRecord]:
        """Add several records in one write: an error leaves none of them behind."""
        return self._port.append(
            self.id,
            list(records),
            expected_seq=expected_seq,
            no_marker_after=no_marker_after,
            lease=lease,
        )

    def tombstone(self, *seqs: int) -> Tombstone:
        """Hide messages, each with the tool calls and results it belongs to; nothing is lost."""
        return self.append(Tombstone(deletes=self._exchanges(seqs)))

    def restore(self, *seqs: int) -> Tombstone:
        """Show hidden messages again."""
        return self.append(Tombstone(restores=self._exchanges(seqs)))

    def rewind(self, to_seq: int, *, lease: Lease | None = None) -> Rewind:
        """Go back to a message: everything said after it leaves the view. 0 goes to the start."""
        if to_seq:
            self._message(to_seq)
        if lease is not None:
            return self.append(Rewind(to_seq=to_seq), lease=lease)
        with self.lease() as own:
            return self.append(Rewind(to_seq=to_seq), lease=own)

    def rename(self, title: str) -> Metadata:
        """Give the session its title."""
        return self.update(name=title)

    def update(self, **changes: Any) -> Metadata:
        """Change metadata: name, model, agent, sender, key, aliases, system_prompt_override …"""
        return self._port.update(self.id, camel(changes))

    def resume(self) -> Metadata:
        """Make it the current chat of its key, or of its agent and sender: routing follows it."""
        return self._port.resume(self.id)

    def fork(self, at: int | None = None) -> Session:
        """A new session that shares everything up to a record, byte for byte."""
        try:
            made = self._port.fork(self.id, at)
        except NotFoundError as error:
            if "seq" not in error.facts:  # not the record: the session
                raise
            raise NotFoundError(error.message, hint=WHICH, **error.facts) from error
        return Session(self.store, made.id)

    def end_turn(
        self,
        *,
        duration_ms: int,
        usage: Usage | None = None,
        cost: float = 0.0,
        tool_calls: int = 0,
        lease: Lease | None = None,
        **facts: Any,
    ) -> Event:
        """Record that a turn ended; uptime and metrics are the sums of these.

        `facts`: run_id, model, stop, error. `lease`: ConflictError if it is not held any more.
        """
        data: dict[str, Any] = {"durationMs": duration_ms, "toolCalls": tool_calls} | camel(facts)
        if usage is not None:
            data["usage"] = msgspec.to_builtins(usage)
        if cost:
            data["cost"] = cost
        return self.append(Event(kind=TURN_END, data=data), lease=lease)

    def close_calls(self, *, lease: Lease) -> list[Message]:
        """Record an error result for every tool call that never got its own.

        Only who holds the turn lease can know that none is coming any more. Done once: a call
        that is closed is not open.
        """
        while True:
            live = self.live()
            results = [
                replace(closing(call), id=self._closing_id(live, f"{number} {call.id}"))
                for number, (_, call) in enumerate(pair(live.messages).open)
            ]
            if not results:
                return []
            try:
                return self._port.append(self.id, results, no_marker_after=live.marker, lease=lease)  # type: ignore[return-value]  # messages in, messages out
            except ConflictError:
                if self.live().marker == live.marker:
                    raise  # not a marker but the lease: reading again changes nothing

    def _closing_id(self, live: Live, call: str) -> str:
        """The same for every attempt, so that a retry writes nothing twice.

        After a rewind took the result back it is another one: then it must be written again.
        """
        from uuid import NAMESPACE_OID, uuid5  # noqa: PLC0415 - seldom needed, slow to load

        return str(uuid5(NAMESPACE_OID, f"{self.id} {live.head} {live.marker} {call}"))

    def lease(self) -> Lease:
        """The right to run a turn, at once or SessionBusyError."""
        return self._port.lease(self.id)

    # --- reading

    def messages(self) -> list[Message]:
        """All live messages, the compacted past included."""
        return list(self.view().messages)

    def records(self, *, after: int = 0, limit: int | None = None) -> list[AnyRecord]:
        """Every record of the log in order; what is damaged is told by `view` and `verify`."""
        entries = self._port.read(self.id, after=after, limit=limit)
        return [entry for entry in entries if not isinstance(entry, Damaged)]

    def entries(self, *, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
        """Every record, lazily, with damage standing in its place."""
        return self._port.read(self.id, after=after, limit=limit)

    def record(self, seq: int) -> AnyRecord:
        """One record by its number."""
        for entry in self._port.read(self.id, after=seq - 1, limit=1):
            if entry.seq != seq:
                break
            if isinstance(entry, Damaged):
                raise LogDamagedError(
                    f"record {seq} of session {self.id} is damaged: {entry.problem}",
                    hint=f"see bytes {entry.start} to {entry.end} of {entry.file}",
                    session=self.id,
                    seq=seq,
                )
            return entry
        raise NotFoundError(
            f"session {self.id} has no readable record {seq}",
            hint=WHICH,
            session=self.id,
            seq=seq,
        )

    def view(self) -> View:
        """The live messages and what stood in the way of reading them."""
        return fold(self._port.read(self.id))

    def live(self, *, accept_stale: bool = True) -> Live:
        """The live messages behind the latest summary, read backwards; see `log.live`."""
        return read(self._port.tail(self.id), accept_stale=accept_stale)

    def context(
        self,
        *,
        window: int | None = None,
        inject: Iterable[Message] = (),
        tool_result_budget: int | None = None,
    ) -> Context:
        """What the model is sent next: the latest summary and the live messages after it.

        Every tool result stands directly after its call. `inject` is put just before the last
        thing the user said. What does not fit is left out and named, oldest rounds first;
        ContextOverflowError if even the newest round is larger than the window, which is 200,000
        tokens unless `[compaction]` says otherwise: no metadata is read for a context.
        """
        settings = self.store.settings.compaction
        return build(
            self.live(),
            window=window or settings.window or WINDOW,
            inject=inject,
            tool_result_budget=(
                settings.tool_result_budget if tool_result_budget is None else tool_result_budget
            ),
            count=self.store.count,
        )

    @property
    def metadata(self) -> Metadata:
        """What is known of the session, up to its last record."""
        return self._port.metadata(self.id)

    def usage(self, *, since: str | None = None, until: str | None = None) -> UsageReport:
        """What it spent, by day (UTC) and model."""
        from everlog.stores.usage_query import used  # noqa: PLC0415 - not for every session

        return used([self.metadata], days_of(Filter(since=since), until), 1)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The files of its log."""
        return self._port.parts(self.id)

    @property
    def size(self) -> int:
        """Bytes of its log."""
        return sum(part.bytes for part in self.parts)

    def verify(self) -> tuple[Damaged, ...]:
        """Everything wrong with its bytes."""
        return self._port.verify(self.id)

    def repair(self) -> tuple[str, ...]:
        """Set right what can be, deleting nothing; what was done, in words."""
        return self._port.repair(self.id)

    def reclaim(self) -> int:
        """Take out of its files what its program skips, after archiving it; the bytes freed."""
        reclaim: Callable[[str], int] | None = getattr(self._port, "reclaim", None)
        if reclaim is None:
            raise UnsupportedError(
                "a session of ours has nothing to reclaim: its log is never written anew",
                hint="everlog sessions rm removes a session, prune old ones",
            )
        return reclaim(self.id)

    def delete(self) -> int:
        """Remove it for good; returns how many parts it had."""
        return self._port.delete(self.id)

    def _exchanges(self, seqs: Sequence[int]) -> tuple[int, ...]:
        if not seqs:
            raise NotFoundError("no message was named", session=self.id)
        messages = [self._message(seq) for seq in seqs]
        if not any(message.role == "toolResult" or message.tool_calls for message in messages):
            return tuple(sorted(set(seqs)))
        said = [one for one in self._port.read(self.id) if isinstance(one, Message)]
        return tuple(sorted({one for seq in seqs for one in exchange(said, seq)}))

    def _message(self, seq: int) -> Message:
        record = self.record(seq)
        if not isinstance(record, Message):
            raise NotFoundError(
                f"record {seq} of session {self.id} is no message but a {record.record_type}",
                session=self.id,
                seq=seq,
            )
        return record


class Store:
    """Sessions, wherever they are kept."""

    def __init__(
        self,
        port: ports.Store,
        settings: Settings = _DEFAULTS,
        count: Counter = estimate_text,
        *,
        provider: Callable[[str], Provider] | None = None,
        ephemeral: Callable[[], Store] | None = None,
    ) -> None:
        self.port = port
        self.settings = settings
        self.count = count  # tokens of a text
        self._provider = provider
        self._ephemeral = ephemeral

    def create(
        self,
        *,
        agent: str = "main",
        sender: str = "user",
        model: str = "",
        source: str = "interactive",
        title: str | None = None,
        **facts: Any,
    ) -> Session:
        """Make an empty session. `facts`: cron_job_id, system_prompt_override, key, aliases …"""
        given = camel(facts) | {"agent": agent, "sender": sender, "source": source}
        if model:
            given["model"] = model
        if title is not None:
            given["name"] = title
        return Session(self, self.port.create(given).id)

    def session(self, name: str) -> Session:
        """A session by its id, key, alias, or an unambiguous beginning of its id."""
        return Session(self, self.port.resolve(name))

    def latest(self, agent: str = "main", sender: str = "user") -> Session | None:
        """The chat of a pair with the highest number, or None.

        Pairs are compared exactly. Sessions that were made with a key are chats of that key.
        """
        chats = self.port.chats(pair_of(agent, sender))
        return Session(self, chats.newest) if chats else None

    def current(
        self, agent: str = "main", sender: str = "user", *, key: str | None = None
    ) -> Session | None:
        """The chat of a key or pair that goes on: the newest, or the one last resumed."""
        chats = self.port.chats(key or pair_of(agent, sender))
        return Session(self, chats.current) if chats else None

    def route_to_session(
        self,
        routed: Routed,
        *,
        incoming: str = "",
        new_chat: bool = False,
        title: str | None = None,
        **facts: Any,
    ) -> Session:
        """The session of a routed message: the current chat of its key, made if there is none.

        A new key takes over the history under its legacy aliases, once; `incoming` is the key
        that came with the message; `new_chat` makes the next chat and makes it the current one.
        `facts` are those of a new session: sender, model, source …
        """
        from everlog.promotion import route_to_session  # noqa: PLC0415 - loads hashlib; few need it

        given = camel(facts) if title is None else {**camel(facts), "name": title}
        made = route_to_session(self.port, routed, given, incoming=incoming, new_chat=new_chat)
        return Session(self, made)

    def list(
        self,
        *,
        agent: str | None = None,
        sender: str | None = None,
        source: str | None = None,
        since: str | None = None,
        title: str | None = None,
        unfinished: bool | None = None,
        limit: int = 50,
        cursor: str | None = None,
        order: Order = "active",
    ) -> Page:
        """Sessions by their last message, newest first."""
        which = Filter(
            agent=agent,
            sender=sender,
            source=source,
            since=since,
            title=title,
            unfinished=unfinished,
        )
        return self.port.list(which, limit=limit, cursor=cursor, order=order)

    def search(
        self,
        text: str,
        *,
        until: str | None = None,
        role: str | None = None,
        limit: int = 20,
        offset: int = 0,
        progress: Progress | None = None,
        **which: Any,
    ) -> Results:
        """Sessions in which something was said, the best first, with the best passages of each.

        `text`: words, "phrases", prefix*, AND, OR, NOT. `which`: agent, sender, source, title,
        since, as in a listing. `offset`: so many of the best are passed over. What is new is taken
        in first (`progress`).
        """
        query = Query(
            text=text, which=Filter(**which), until=until, role=role, limit=limit, offset=offset
        )
        return self.port.search(query, progress=progress)

    def usage(
        self,
        *,
        until: str | None = None,
        spenders: int = 10,
        fresh: bool = True,
        progress: Progress | None = None,
        **which: Any,
    ) -> UsageReport:
        """What sessions spent, by day (UTC) and model, and which of them spent most.

        `which`: agent, sender, source, title, as in a listing; `since` and `until` are about the
        days. What is new in files of other programs is read first, unless not `fresh`.
        """
        return self.port.usage(
            Filter(**which), until=until, spenders=spenders, fresh=fresh, progress=progress
        )

    def walk(self, **which: Any) -> Iterator[SessionRow]:
        """All sessions of a listing, page by page."""
        cursor = None
        while True:
            page = self.list(limit=500, cursor=cursor, **which)
            yield from page
            cursor = page.next
            if cursor is None:
                return

    def provider(self, model: str) -> Provider:
        """What completes contexts with a model, named `provider:name`, or `offline`."""
        if self._provider is None:
            raise SettingsError("this store was made without models", hint="use open_store")
        return self._provider(model)

    def ephemeral(self) -> Store:
        """A store of the same settings that keeps nothing: for turns that leave no trace."""
        if self._ephemeral is None:
            raise SettingsError("this store has no ephemeral one", hint="use open_store")
        return self._ephemeral()

    def close(self) -> None:
        """Bring derived data up to date and give back all descriptors."""
        self.port.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def camel(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Python's names as the files'."""
    return {msgspec_camel(key): value for key, value in facts.items()}


def msgspec_camel(key: str) -> str:
    """One name as the files write it."""
    first, *rest = key.split("_")
    return first + "".join(word.capitalize() for word in rest)
