"""The session of a routed message, and the promotion of history from a legacy session into it.

A key comes into being with its first message. If one of its legacy aliases names an older session
with messages, their history is copied, as long as the new session is empty:

    1  the old session records which session takes its history, once and for all
    2  the new session records its source and the number of messages
    3  the live messages are appended, then the summary

After a crash between these steps, the next message continues the copy where it stopped. The old
session is not changed otherwise. If the new session is cleared, history is not promoted again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from everlog.errors import ConflictError, InvalidIdError, NotFoundError, SessionBusyError
from everlog.identity.key import KEY_PREFIX
from everlog.identity.route import Router, check_dimensions
from everlog.identity.route import Routing as RoutingSettings
from everlog.ids import is_name
from everlog.log.fold import fold
from everlog.model import AnyRecord, Compaction, Message, Meta, Metadata
from everlog.ports import Route, Routing, Store
from everlog.settings import Settings

BATCH_RECORDS = 500  # per append
COPY_TIMEOUT = 10.0  # seconds to wait while another process copies


def routing_of(port: Store) -> Routing:
    """Return what finds the session of a message in a store."""
    return port.capability(Routing) or NameRouting(port)


def make_router(port: Store, settings: Settings) -> Router:
    """Return the router of messages to a store.

    SettingsError if the settings separate sessions by what its format cannot tell apart.
    """
    routing, rules = routing_of(port), RoutingSettings.of(settings)
    if routing.dimensions is not None:
        check_dimensions(settings, routing.dimensions)
        rules = replace(rules, dimensions=routing.dimensions)
    return Router(rules, default_agent=routing.default_agent)


class NameRouting(Routing):
    """Routing by keys and aliases, on a store that has no rules of its own."""

    dimensions = None
    default_agent = ""

    def __init__(self, port: Store) -> None:
        self._port = port

    def prepare(self) -> None:
        """Do nothing: a native store is ready when it is open."""

    def find_session(self, route: Route) -> str | None:
        """Return the current chat of the key, or None."""
        chats = self._port.chats(route.key)
        return chats.current if chats else None

    def route_to_session(self, route: Route, fields: Mapping[str, Any], *, new_chat: bool = False) -> str:
        """Return the session of a message, made if need be."""
        return route_to_session(self._port, route, fields, new_chat=new_chat)


def route_to_session(port: Store, route: Route, fields: Mapping[str, Any], *, new_chat: bool = False) -> str:
    """Return the id of the session for a routed message, creating it if there is none.

    `fields` is the metadata of a new session besides agent, key and scope; `new_chat` always creates
    a session.
    """
    if route.is_main:
        return _main_session(port, route, fields)
    target = None if new_chat else _holder(port, route.key)
    if target is None:  # `create` returns one that was created meanwhile
        metadata = {**fields, "agent": route.agent, "key": route.key, "scope": route.scope}
        target = port.create(metadata, unless_held=not new_chat)
    # A sender id may contain anything; skip aliases that are not valid names.
    aliases = [alias for alias in route.aliases if is_name(alias)]
    if aliases and _is_open(target):
        _promote(port, target.id, aliases)
    missing = [alias for alias in aliases if alias not in target.aliases]
    if missing:
        _claim(port, target.id, missing)
    return target.id


def _main_session(port: Store, route: Route, fields: Mapping[str, Any]) -> str:
    """Return the main session of an agent, which has no scope and takes over no history."""
    chats = port.chats(route.key)
    if chats:
        return chats.current
    names = {"agent": route.agent, "sender": route.sender, "key": route.key, "aliases": list(route.aliases)}
    return port.create({**fields, **names}, unless_held=True).id


def _claim(port: Store, session: str, aliases: Sequence[str]) -> None:
    """Claim the aliases that no session has, or only one that this session supersedes."""
    target = port.metadata(session)
    for alias in aliases:
        other = _holder(port, alias)
        is_claimable = other is None or (other.id != session and _is_superseded_by(other, target))
        if is_claimable:
            changes = {"aliases": [*target.aliases, alias]}
            target = port.update(session, changes, unless_held=other is None)


def _is_superseded_by(other: Metadata, target: Metadata) -> bool:
    """Return whether `other` is an earlier chat of the same key, or was promoted to `target`."""
    return _promoted_to(other) == target.id or (other.key is not None and other.key == target.key)


def _holder(port: Store, name: str) -> Metadata | None:
    try:
        metadata = port.metadata(port.resolve(name))
    except (NotFoundError, InvalidIdError, ConflictError):  # ConflictError: an ambiguous id prefix
        return None
    return metadata if name in metadata.names else None


# --- promotion ------------------------------------------------------------------------------


def _is_open(target: Metadata) -> bool:
    """Return whether history may be copied: an empty first chat of its key, or an incomplete copy."""
    if target.promoted_from is not None:
        return target.message_count < int(target.promoted_from.get("messages", 0))
    return target.message_count == 0 and target.chat == 1


def _promoted_to(old: Metadata) -> str | None:
    return (old.promoted_to or {}).get("id")


def _promote(port: Store, session: str, aliases: Sequence[str]) -> None:
    """Copy the history of the first alias that has one, unless another process does."""
    deadline = time.monotonic() + COPY_TIMEOUT
    while True:
        try:
            with port.lease(session):
                _copy_first(port, session, aliases)
                return
        except SessionBusyError:  # another process copies, or runs a turn
            if time.monotonic() > deadline or not _is_open(port.metadata(session)):
                return
            time.sleep(0.01)


def _copy_first(port: Store, session: str, aliases: Sequence[str]) -> None:
    target = port.metadata(session)
    for alias in aliases if _is_open(target) else ():
        old = _holder(port, alias)
        if old is None or not _is_source(old, target):
            continue
        if port.promote(old.id, session, seq=old.through.seq):
            _copy(port, port.metadata(old.id), target)
            return


def _is_source(old: Metadata, target: Metadata) -> bool:
    """Return whether `old` is a legacy session with messages, promoted to no other session."""
    if old.id == target.id or old.message_count == 0 or (old.key or "").startswith(KEY_PREFIX):
        return False
    return _promoted_to(old) in (None, target.id)


def _copy(port: Store, old: Metadata, target: Metadata) -> None:
    """Copy the records, from where an earlier attempt stopped."""
    max_seq = int((old.promoted_to or {}).get("seq", 0))
    copied = [r for r in port.read(target.id) if isinstance(r, Message | Compaction)]
    head = target.through.seq
    # The record that names the source comes before the first message.
    start = copied[0].seq if copied else head + (1 if target.promoted_from else 2)
    expected = _records(port, old.id, max_seq, start=start)
    if [record.id for record in copied] != [record.id for record in expected[: len(copied)]]:
        return  # other messages were appended meanwhile: do not mix two conversations
    remainder: list[AnyRecord] = list(expected[len(copied) :])
    if target.promoted_from is None:
        messages = sum(isinstance(record, Message) for record in expected)
        source = {"id": old.id, "seq": max_seq, "messages": messages}
        remainder.insert(0, Meta(set={"promotedFrom": source}))
    try:
        for index in range(0, len(remainder), BATCH_RECORDS):
            batch = remainder[index : index + BATCH_RECORDS]
            head = port.append(target.id, batch, expected_seq=head)[-1].seq
    except ConflictError:
        return  # other messages were appended meanwhile


def _records(port: Store, session: str, max_seq: int, *, start: int) -> list[Message | Compaction]:
    """Return the live messages up to a seq, and the summary, to be numbered from `start`."""
    view = fold(record for record in port.read(session) if (record.seq or 0) <= max_seq)
    records: list[Message | Compaction] = [
        replace(message, seq=0, id=message.id or f"{session}-{message.seq}", run_id=None) for message in view.messages
    ]
    summary = view.compaction
    if summary is not None:
        seqs = enumerate(message.seq for message in view.messages)
        kept_indexes = (index for index, seq in seqs if seq >= summary.first_kept_seq)
        first = start + next(kept_indexes, len(records))
        name = summary.id or f"{session}-{summary.seq}"
        records.append(replace(summary, seq=0, id=name, first_kept_seq=first))
    return records
