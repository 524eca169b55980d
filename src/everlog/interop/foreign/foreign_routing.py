"""The session of a message in a foreign directory: found and made by the rules of its format.

What the files cannot say is in a small file beside the companion logs: which session is the current
one of a key or pair, which channel a sender is known from, and which histories were promoted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, count
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from everlog.errors import UnsupportedError
from everlog.interop.foreign.session_lookup import Promotion, RoutingState, names_of
from everlog.interop.formats.foreign_format import ForeignFormat
from everlog.interop.formats.format_types import SessionNames
from everlog.log.backward_read import LiveMessages, read_live
from everlog.model import Compaction, pair
from everlog.ports import Route, Routing

DEFAULT_SENDER = "user"  # the local user
_LOCAL_CHANNELS = ("cli", "unknown")

if TYPE_CHECKING:
    from everlog.interop.foreign.foreign_store import ForeignStore


class ForeignRouting(Routing):
    """Routing by the rules of the format of a directory."""

    def __init__(self, store: ForeignStore) -> None:
        self._store = store

    @property
    def _format(self) -> ForeignFormat:
        name = self._store.main_format_name()
        if not name:
            raise UnsupportedError(
                "a new session needs a format", hint=f"name it with the directory: --store pi:{self._store.root}"
            )
        return self._store.format(name)

    @property
    def dimensions(self) -> tuple[str, ...] | None:
        """The only dimensions that the names of the format can tell apart; None: any."""
        name = self._store.main_format_name()
        return self._store.format(name).DIMENSIONS if name else None

    @property
    def default_agent(self) -> str:
        """The agent that the program itself uses."""
        name = self._store.main_format_name()
        return self._store.format(name).DEFAULT_AGENT if name else ""

    def prepare(self) -> None:
        """Do nothing: the files are as their program left them."""

    def find_session(self, route: Route) -> str | None:
        """Return the session that a message goes to, or None."""
        format, state = self._format, self._store.load_state()
        route, _ = _with_known_sender(route, format, state)
        return _find(format, route, state, self._store.session_names(format.NAME))

    def route_to_session(self, route: Route, fields: Mapping[str, Any], *, new_chat: bool = False) -> str:
        """Return the session that a message goes to, made in its format if need be."""
        format = self._format
        with self._store.names_locked():
            state = self._store.load_state()
            route, person = _with_known_sender(route, format, state)
            sessions = self._store.session_names(format.NAME)
            changed = _with_sender(state, route, person)
            session = None if new_chat else _find(format, route, state, sessions)
            if session is None:
                session, changed = self._create(format, route, fields, sessions, changed, is_next=new_chat)
                sessions = self._store.session_names(format.NAME)
            if changed != state:
                self._store.save_state(changed)
            names = names_of(sessions, session)
            self._promote_first(session, names.key, format.promotable(route, sessions))
            promoted = self._store.load_state().promoted.items()
            superseded = [name for name, entry in promoted if entry.to == names.key]
            if changes := format.route_changes(route, names, sessions, superseded):
                self._store.update(session, changes)
        return session

    def _create(
        self,
        format: ForeignFormat,
        route: Route,
        fields: Mapping[str, Any],
        sessions: Sequence[SessionNames],
        state: RoutingState,
        *,
        is_next: bool,
    ) -> tuple[str, RoutingState]:
        """Create the next session of a route and make it the current one."""
        thread, number = format.thread(route), 1
        ids = {session.id for session in sessions}
        if is_next and format.DIMENSIONS is None:
            while _find_numbered(format, route, number, sessions) in ids:
                number += 1
        own = {name: value for name, value in fields.items() if name != "sender"}
        metadata = {**own, **format.route_fields(route, number)}
        session = self._store.create_in_format(format, metadata)
        current = {name: value for name, value in state.current.items() if name != thread}
        if number > 1:
            # The files of some formats do not say what they belong to: the earlier one may be resumed.
            earlier = _find(format, route, state, sessions)
            threads = {**state.threads, session: thread, **({earlier: thread} if earlier else {})}
            return session, replace(state, current={**current, thread: session}, threads=threads)
        return session, replace(state, current=current)

    # --- promotion

    def promote_first(self, session: str, key: str, sources: Sequence[tuple[str, str]]) -> None:
        """Copy the history of the first legacy session that has one into a session that never had any.

        A history is promoted once, and a session receives one once: what a user clears stays cleared.
        """
        with self._store.names_locked():
            self._promote_first(session, key, sources)

    def _promote_first(self, session: str, key: str, sources: Sequence[tuple[str, str]]) -> None:
        promoted = self._store.load_state().promoted
        if not sources or any(entry.to == key and entry.done for entry in promoted.values()):
            return
        pending = next((name for name, entry in promoted.items() if entry.to == key), None)
        if pending is None and not self._store.is_untouched(session):
            return
        for name, source in sources:
            if source == session or promoted.get(name, Promotion(key)).to != key or pending not in (None, name):
                continue
            history = read_live(self._store.tail(source))
            if history.messages or history.summary:
                self._mark(name, Promotion(key))
                self._copy(history, session)
                self._mark(name, Promotion(key, done=True))
                return

    def _mark(self, name: str, promotion: Promotion) -> None:
        state = self._store.load_state()
        self._store.save_state(replace(state, promoted={**state.promoted, name: promotion}))

    def _copy(self, history: LiveMessages, session: str) -> None:
        """Copy messages and summary; what a crash left of an earlier copy is completed."""
        target = read_live(self._store.tail(session))
        copied = [(message.role, message.content) for message in target.messages]
        if copied and copied != [(message.role, message.content) for message in history.messages]:
            return  # it goes on already
        stored = list(target.messages)
        if not copied:
            fresh = [replace(message, id="", seq=0, line=b"", run_id=None) for message in history.messages]
            stored = [record for record in self._store.append(session, fresh) if fresh]  # type: ignore[misc]
        if history.summary is not None and target.summary is None:
            first = stored[0].seq if stored else self._store.metadata(session).through.seq + 1
            self._store.append(session, [Compaction(summary=history.summary.summary, first_kept_seq=first)])


def _find(format: ForeignFormat, route: Route, state: RoutingState, sessions: Sequence[SessionNames]) -> str | None:
    marked = state.current.get(format.thread(route))
    if any(session.id == marked for session in sessions):
        return marked
    return format.find_session(route, sessions)


def _find_numbered(format: ForeignFormat, route: Route, number: int, sessions: Sequence[SessionNames]) -> str | None:
    """Return the session with the names that a later one of a route would have."""
    if number == 1:
        return format.find_session(route, sessions)
    fields = format.route_fields(route, number)
    return format.find_holder(fields.get("id") or fields["key"], sessions)


def _with_known_sender(route: Route, format: ForeignFormat, state: RoutingState) -> tuple[Route, str]:
    """Return a route with the name of its sender in the files, and whom that name stands for; empty: anybody.

    A sender of the same name on another channel is another person, for all we know. A message
    without a sender is the local user's only if it comes from no other place.
    """
    if format.DIMENSIONS is None or route.is_main:
        return route, ""
    origin, sender = route.origin, route.sender or DEFAULT_SENDER
    is_plain = bool(route.sender) or route.scope.get("channel") in _LOCAL_CHANNELS
    person = f"{origin} {sender if is_plain else ''}"
    qualified = f"{origin.removesuffix('/default').replace('/', ':')}:{sender}"
    names = chain((sender,) if is_plain else (), (qualified,), (f"{qualified}:{number}" for number in count(2)))
    name = next(name for name in names if state.senders.get(pair(route.agent, name), person) == person)
    return replace(route, sender=name), person


def _with_sender(state: RoutingState, route: Route, person: str) -> RoutingState:
    name = pair(route.agent, route.sender)
    return state if not person else replace(state, senders={**state.senders, name: person})
