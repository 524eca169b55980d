"""The public interface: a store of sessions, and a session.

Thin on purpose: everything durable happens in the store port, everything a log means in `log`
and `context`. The asynchronous twins are in `aio`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from everlog import ports
from everlog.context.build import Context, build
from everlog.context.tokens import DEFAULT_WINDOW, TokenCounter, estimate_text
from everlog.errors import ConflictError, LogDamagedError, NotFoundError, SettingsError, UnsupportedError
from everlog.log.backward_read import LiveMessages, read_live
from everlog.log.fold import View, fold
from everlog.log.tool_pairs import exchange_seqs, make_missing_result, pair_results
from everlog.model import (
    TURN_END,
    AnyRecord,
    Damaged,
    Entry,
    Event,
    Message,
    Metadata,
    Part,
    Record,
    Rewind,
    Tombstone,
    Unknown,
    Usage,
    user,
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
    Reclaimable,
    Results,
    SessionAccess,
    SessionRow,
    UsageReport,
)
from everlog.ports.capabilities import access_of
from everlog.ports.listing import days_of
from everlog.settings import Settings

if TYPE_CHECKING:
    from everlog.identity.route import Routed

R = TypeVar("R", bound=AnyRecord)
LIST_RECORDS_HINT = "list the records with everlog sessions show ID --all"
_DEFAULTS = Settings()


class Session:
    """One conversation: an append-only log and what it means.

    Two sessions are equal if they have the same id in equal stores.
    """

    def __init__(self, store: Store, session_id: str) -> None:
        self.store = store
        self.id = session_id
        self._port = store.port

    def __repr__(self) -> str:
        return f"Session({self.id!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Session):
            return NotImplemented
        return self.id == other.id and self.store == other.store

    def __hash__(self) -> int:
        return hash((Session, self.id))

    # --- writing

    @overload
    def append(
        self,
        record: str,
        *,
        expected_seq: int | None = ...,
        no_marker_after: int | None = ...,
        lease: Lease | None = ...,
    ) -> Message: ...
    @overload
    def append(
        self, record: R, *, expected_seq: int | None = ..., no_marker_after: int | None = ..., lease: Lease | None = ...
    ) -> R: ...
    def append(
        self,
        record: AnyRecord | str,
        *,
        expected_seq: int | None = None,
        no_marker_after: int | None = None,
        lease: Lease | None = None,
    ) -> AnyRecord:
        """Append one record and return it as stored, with its seq and id; durable on return.

        A string is a user message. `expected_seq`: the last seq must be this one.
        `no_marker_after`: no rewind, tombstone or compaction may have a higher seq. Raises
        ConflictError, and writes nothing, if either does not hold or the lease was lost. A record
        whose id is stored already is not written again. An auto-injected message is not stored
        and is returned unchanged.
        """
        record = _as_record(record)
        stored = self._port.append(
            self.id, (record,), expected_seq=expected_seq, no_marker_after=no_marker_after, lease=lease
        )
        return stored[0] if stored else record

    def append_many(
        self,
        records: Iterable[AnyRecord | str],
        *,
        expected_seq: int | None = None,
        no_marker_after: int | None = None,
        lease: Lease | None = None,
    ) -> list[AnyRecord]:
        """Append several records in one write; an error leaves none of them behind."""
        return self._port.append(
            self.id,
            [_as_record(record) for record in records],
            expected_seq=expected_seq,
            no_marker_after=no_marker_after,
            lease=lease,
        )

    def tombstone(self, *seqs: int) -> Tombstone:
        """Hide messages, each with the tool calls and results it belongs to; nothing is erased."""
        return self.append(Tombstone(deletes=self._exchanges(seqs)))

    def restore(self, *seqs: int) -> Tombstone:
        """Show hidden messages again."""
        return self.append(Tombstone(restores=self._exchanges(seqs)))

    def rewind(self, to_seq: int, *, lease: Lease | None = None) -> Rewind:
        """Go back to a message: everything after it leaves the view. 0 goes back to the start."""
        if to_seq:
            self._message(to_seq)
        if lease is not None:
            return self.append(Rewind(to_seq=to_seq), lease=lease)
        with self.lease() as acquired:
            return self.append(Rewind(to_seq=to_seq), lease=acquired)

    def rename(self, title: str) -> Metadata:
        """Set the title."""
        return self.update(title=title)

    def update(
        self,
        *,
        title: str | UnsetType | None = UNSET,
        model: str | UnsetType | None = UNSET,
        agent: str | UnsetType = UNSET,
        sender: str | UnsetType = UNSET,
        source: str | UnsetType = UNSET,
        key: str | UnsetType | None = UNSET,
        aliases: Iterable[str] | UnsetType = UNSET,
        scope: Mapping[str, Any] | UnsetType | None = UNSET,
        cron_job_id: str | UnsetType | None = UNSET,
        system_prompt_override: str | UnsetType | None = UNSET,
    ) -> Metadata:
        """Change metadata; durable on return. What is not given stays, None removes a value.

        A key or alias that another session holds moves to this one.
        """
        changes = {
            "name": title,
            "model": model,
            "agent": agent,
            "sender": sender,
            "source": source,
            "key": key,
            "aliases": aliases if isinstance(aliases, UnsetType) else list(aliases),
            "scope": scope,
            "cronJobId": cron_job_id,
            "systemPromptOverride": system_prompt_override,
        }
        given = {name: value for name, value in changes.items() if value is not UNSET}
        return self._port.update(self.id, given) if given else self.metadata

    @property
    def access(self) -> SessionAccess:
        """Return what may be done with it where it is kept: a file of another program cannot hold everything."""
        return access_of(self._port, self.id)

    def resume(self) -> Metadata:
        """Make it the current chat of its key, or of its agent and sender, for routing."""
        return self._port.resume(self.id)

    def fork(self, at: int | None = None) -> Session:
        """Create a session that shares everything up to a record, byte for byte."""
        try:
            made = self._port.fork(self.id, at)
        except NotFoundError as error:
            if "seq" not in error.facts:  # not the record: the session
                raise
            raise NotFoundError(error.message, hint=LIST_RECORDS_HINT, **error.facts) from error
        return Session(self.store, made.id)

    def end_turn(
        self,
        *,
        duration_ms: int,
        usage: Usage | None = None,
        cost: float = 0.0,
        tool_calls: int = 0,
        run_id: str | None = None,
        model: str | None = None,
        stop: str | None = None,
        error: str | None = None,
        lease: Lease | None = None,
    ) -> Event:
        """Record that a turn ended; uptime and metrics are the sums of these events.

        `stop` says why it ended, `error` what went wrong. ConflictError if the lease was lost.
        """
        data: dict[str, Any] = {"durationMs": duration_ms, "toolCalls": tool_calls}
        details = {"runId": run_id, "model": model, "stop": stop, "error": error}
        data |= {name: value for name, value in details.items() if value is not None}
        if usage is not None:
            data["usage"] = msgspec.to_builtins(usage)
        if cost:
            data["cost"] = cost
        return self.append(Event(kind=TURN_END, data=data), lease=lease)

    def close_calls(self, *, lease: Lease) -> list[Message]:
        """Record an error result for every tool call that never got its own.

        Only the holder of the turn lease can know that no result is coming. Doing it twice is
        harmless.
        """
        while True:
            live = self.live()
            results = [
                replace(make_missing_result(call), id=self._closing_id(live, f"{number} {call.id}"))
                for number, (_, call) in enumerate(pair_results(live.messages).open_calls)
            ]
            if not results:
                return []
            try:
                stored = self._port.append(self.id, results, no_marker_after=live.last_marker_seq, lease=lease)
                return [record for record in stored if isinstance(record, Message)]
            except ConflictError:
                if self.live().last_marker_seq == live.last_marker_seq:
                    raise  # not a marker but the lease: reading again changes nothing

    def _closing_id(self, live: LiveMessages, call: str) -> str:
        """Return a deterministic id, so that a retried append is deduplicated.

        After a rewind removed the result the id is another: then it must be written again.
        """
        from uuid import NAMESPACE_OID, uuid5  # noqa: PLC0415 - seldom needed, slow to load

        return str(uuid5(NAMESPACE_OID, f"{self.id} {live.last_seq} {live.last_marker_seq} {call}"))

    def lease(self) -> Lease:
        """Acquire the turn lease. SessionBusyError if another turn holds it; never waits."""
        return self._port.lease(self.id)

    # --- reading

    def messages(self) -> list[Message]:
        """Return all live messages, those before a compaction included."""
        return list(self.view().messages)

    def records(self, *, after: int = 0, limit: int | None = None) -> list[AnyRecord]:
        """Return the records of the log in order; `view` and `verify` report damage."""
        entries = self._port.read(self.id, after=after, limit=limit)
        return [entry for entry in entries if not isinstance(entry, Damaged)]

    def entries(self, *, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
        """Iterate lazily over the records of the log, with damage in its place."""
        return self._port.read(self.id, after=after, limit=limit)

    def record(self, seq: int) -> AnyRecord:
        """Return the record with a seq; NotFoundError or LogDamagedError if there is none."""
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
            f"session {self.id} has no readable record {seq}", hint=LIST_RECORDS_HINT, session=self.id, seq=seq
        )

    def view(self) -> View:
        """Return the live messages, and the damage found while reading them."""
        return fold(self._port.read(self.id))

    def live(self, *, accept_stale: bool = True) -> LiveMessages:
        """Read the live messages after the latest summary, backwards; see `log.backward_read`."""
        return read_live(self._port.tail(self.id), accept_stale=accept_stale)

    def context(
        self,
        *,
        window: int | None = None,
        inject: Iterable[Message] = (),
        tool_result_budget: int | None = None,
        allow_excess: bool = False,
    ) -> Context:
        """Build what the model is sent next: the latest summary and the live messages after it.

        Every tool result directly follows its call. `inject` goes just before the last user
        message. What does not fit is left out and named in `left_out`, oldest rounds first;
        ContextOverflowError if even the newest round exceeds the window, which is 200,000 tokens
        unless `[compaction]` says otherwise: no metadata is read for a context. With `allow_excess`
        such a context is returned, to be looked at: its `excess` says by how much it is too large.
        """
        settings = self.store.settings.compaction
        return build(
            self.live(),
            window=window or settings.window or DEFAULT_WINDOW,
            inject=inject,
            tool_result_budget=(settings.tool_result_budget if tool_result_budget is None else tool_result_budget),
            count=self.store.count,
            allow_excess=allow_excess,
        )

    @property
    def metadata(self) -> Metadata:
        """The metadata, up to the last record."""
        return self._port.metadata(self.id)

    def usage(self, *, since: str | None = None, until: str | None = None) -> UsageReport:
        """Sum up its tokens and costs by day (UTC) and model."""
        from everlog.log.usage_query import query_usage  # noqa: PLC0415 - not for every session

        return query_usage([self.metadata], days_of(Filter(since=since), until), 1)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The files of the log."""
        return self._port.parts(self.id)

    @property
    def size(self) -> int:
        """The bytes of the log."""
        return sum(part.bytes for part in self.parts)

    def verify(self) -> tuple[Damaged, ...]:
        """Return everything wrong with its bytes."""
        return self._port.verify(self.id)

    def repair(self) -> tuple[str, ...]:
        """Repair what can be repaired, deleting nothing; returns what was done."""
        return self._port.repair(self.id)

    def reclaim(self) -> int:
        """Remove what its program skips from foreign files, archived first; returns bytes freed."""
        reclaimable = self._port.capability(Reclaimable)
        if reclaimable is None:
            raise UnsupportedError(
                "a native session has nothing to reclaim: its log is never rewritten",
                hint="everlog sessions rm deletes a session, prune deletes old ones",
            )
        return reclaimable.reclaim(self.id)

    def delete(self) -> int:
        """Delete it for good; returns how many parts it had."""
        return self._port.delete(self.id)

    def _exchanges(self, seqs: Sequence[int]) -> tuple[int, ...]:
        if not seqs:
            raise NotFoundError("no message was given", session=self.id)
        messages = [self._message(seq) for seq in seqs]
        if not any(message.role == "toolResult" or message.tool_calls for message in messages):
            return tuple(sorted(set(seqs)))
        messages_in_log = [entry for entry in self._port.read(self.id) if isinstance(entry, Message)]
        return tuple(sorted({one for seq in seqs for one in exchange_seqs(messages_in_log, seq)}))

    def _message(self, seq: int) -> Message:
        record = self.record(seq)
        if not isinstance(record, Message):
            raise NotFoundError(
                f"record {seq} of session {self.id} is not a message but a {record.record_type}",
                session=self.id,
                seq=seq,
            )
        return record


class Store:
    """Sessions, wherever they are kept.

    Two stores are equal if they are on the same location; one in memory equals only itself.
    """

    def __init__(
        self,
        port: ports.Store,
        settings: Settings = _DEFAULTS,
        count: TokenCounter = estimate_text,
        *,
        location: str = "",
        provider: Callable[[str], Provider] | None = None,
        ephemeral: Callable[[], Store] | None = None,
    ) -> None:
        self.port = port
        self.settings = settings
        self.count = count  # tokens of a text
        self.location = location  # empty: in memory, or not known
        self._provider = provider
        self._ephemeral = ephemeral

    def __repr__(self) -> str:
        return f"Store({self.location or 'memory:'!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Store):
            return NotImplemented
        return self.port is other.port or (self.location != "" and self.location == other.location)

    def __hash__(self) -> int:
        return hash((Store, self.location)) if self.location else hash((Store, id(self.port)))

    def create(
        self,
        *,
        agent: str = "main",
        sender: str = "user",
        model: str = "",
        source: str = "interactive",
        title: str | None = None,
        key: str | None = None,
        aliases: Iterable[str] = (),
        scope: Mapping[str, Any] | None = None,
        cron_job_id: str | None = None,
        system_prompt_override: str | None = None,
    ) -> Session:
        """Create an empty session; durable on return.

        It becomes the current chat of its key, or of its agent and sender if it has none. A key or
        alias that another session holds moves to this one.
        """
        fields = {
            "agent": agent,
            "sender": sender,
            "source": source,
            "model": model or None,
            "name": title,
            "key": key,
            "aliases": list(aliases) or None,
            "scope": scope,
            "cronJobId": cron_job_id,
            "systemPromptOverride": system_prompt_override,
        }
        return Session(self, self.port.create(_given(fields)).id)

    def session(
        self,
        session_id: str,
        *,
        create: bool = False,
        agent: str = "main",
        sender: str = "user",
        model: str = "",
        source: str = "interactive",
        title: str | None = None,
    ) -> Session:
        """Return the session with this id, key or alias.

        With `create=True` it is made if there is none, and your id becomes its alias; of any
        number of callers at once, one makes it. The other arguments are those of a new session.
        NotFoundError if there is none, InvalidIdError for what can be no id or alias.
        """
        try:
            return Session(self, self.port.resolve(session_id))
        except NotFoundError:
            if not create:
                raise
        fields = {
            "aliases": [session_id],
            "agent": agent,
            "sender": sender,
            "source": source,
            "model": model or None,
            "name": title,
        }
        return Session(self, self.port.create(_given(fields), unless_held=True).id)

    def latest(self, agent: str = "main", sender: str = "user") -> Session | None:
        """Return the newest chat of an agent and a sender, or None.

        They are compared exactly. Sessions with a key belong to that key instead.
        """
        chats = self.port.chats(pair_of(agent, sender))
        return Session(self, chats.newest) if chats else None

    def current(self, agent: str = "main", sender: str = "user", *, key: str | None = None) -> Session | None:
        """Return the current chat of a key or pair: the newest, or the last one resumed."""
        chats = self.port.chats(key or pair_of(agent, sender))
        return Session(self, chats.current) if chats else None

    def route_to_session(
        self,
        routed: Routed,
        *,
        incoming: str = "",
        new_chat: bool = False,
        sender: str | None = None,
        model: str | None = None,
        source: str | None = None,
        title: str | None = None,
    ) -> Session:
        """Return the session of a routed message: the current chat of its key, made if need be.

        A new key takes over the history under its legacy aliases, once. `incoming` is the key that
        came with the message; `new_chat` makes the next chat and makes it the current one. The
        other arguments are those of a new session.
        """
        from everlog.promotion import routing_of  # noqa: PLC0415 - loads hashlib; few need it

        fields = _given({"sender": sender, "model": model, "source": source, "name": title})
        route = routed.route(incoming, sender=sender)
        return Session(self, routing_of(self.port).route_to_session(route, fields, new_chat=new_chat))

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
        """Return a page of sessions, those with the newest messages first.

        `title` is text that the title contains; `since` is ISO 8601. The page's `next` is the
        cursor of the following one.
        """
        criteria = Filter(agent=agent, sender=sender, source=source, since=since, title=title, unfinished=unfinished)
        return self.port.list(criteria, limit=limit, cursor=cursor, order=order)

    def walk(
        self,
        *,
        agent: str | None = None,
        sender: str | None = None,
        source: str | None = None,
        since: str | None = None,
        title: str | None = None,
        unfinished: bool | None = None,
        order: Order = "active",
    ) -> Iterator[SessionRow]:
        """Iterate over all sessions of a listing, page by page."""
        criteria = Filter(agent=agent, sender=sender, source=source, since=since, title=title, unfinished=unfinished)
        page = self.port.list(criteria, limit=500, order=order)
        yield from page
        while page.next is not None:
            page = self.port.list(criteria, limit=500, cursor=page.next, order=order)
            yield from page

    def search(
        self,
        text: str,
        *,
        agent: str | None = None,
        sender: str | None = None,
        source: str | None = None,
        title: str | None = None,
        since: str | None = None,
        until: str | None = None,
        role: str | None = None,
        limit: int = 20,
        offset: int = 0,
        progress: Progress | None = None,
    ) -> Results:
        """Find sessions in which something was said, best first, with the best passages of each.

        `text`: words, "phrases", prefix*, AND, OR, NOT. `since` and `until` are about each
        message. `offset` skips so many of the best. What is new is indexed first, and `progress`
        is called with (done, total) meanwhile.
        """
        criteria = Filter(agent=agent, sender=sender, source=source, title=title, since=since)
        query = Query(text=text, criteria=criteria, until=until, role=role, limit=limit, offset=offset)
        return self.port.search(query, progress=progress)

    def usage(
        self,
        *,
        agent: str | None = None,
        sender: str | None = None,
        source: str | None = None,
        title: str | None = None,
        since: str | None = None,
        until: str | None = None,
        spenders: int = 10,
        fresh: bool = True,
        progress: Progress | None = None,
    ) -> UsageReport:
        """Sum up tokens and costs by day (UTC) and model, and name the sessions that took most.

        `since` and `until` choose days. `spenders` is how many sessions are named by tokens, and
        how many by stated costs. What is new in foreign files is read first unless `fresh` is
        False.
        """
        criteria = Filter(agent=agent, sender=sender, source=source, title=title, since=since)
        return self.port.usage(criteria, until=until, spenders=spenders, fresh=fresh, progress=progress)

    def provider(self, model: str) -> Provider:
        """Return the provider of a model, which is named `provider:name`, or `offline`."""
        if self._provider is None:
            raise SettingsError("this store has no providers", hint="use open_store")
        return self._provider(model)

    def ephemeral(self) -> Store:
        """Return a store in memory with the same settings, for turns that leave no trace."""
        if self._ephemeral is None:
            raise SettingsError("this store has no ephemeral twin", hint="use open_store")
        return self._ephemeral()

    def close(self) -> None:
        """Bring derived data up to date and release all descriptors."""
        self.port.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _as_record(record: object) -> AnyRecord:
    """Return a record, or the user message that a string stands for."""
    if isinstance(record, str):
        return user(record)
    if not isinstance(record, (Record, Unknown)):
        raise TypeError(
            "append takes a str (a user message) or a record such as everlog.user(…),"
            f" everlog.assistant(…) or everlog.tool_result(…), not {type(record).__name__}"
        )
    return record  # type: ignore[return-value]  # every Record is one of the known kinds
