"""The session of a routed message, and how the history under an old name comes into it.

A key is made with its first message. If an older session lies under one of the legacy aliases
and has something to tell, its history is copied in, as long as the new session is empty:

    1  the old session records who takes its history, once for ever
    2  the new one records whose it takes, and how many messages those are
    3  the live messages follow, and the summary

After a crash between these, whoever comes next goes on where it stopped. The old session stays
as it is. The new one may be cleared: it was promoted into, and is not again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from everlog.errors import ConflictError, InvalidIdError, NotFoundError, SessionBusyError
from everlog.identity.key import PREFIX
from everlog.identity.route import Routed, claims
from everlog.log.fold import fold
from everlog.log.metadata_changes import is_name
from everlog.model import AnyRecord, Compaction, Message, Meta, Metadata
from everlog.ports import Store

BATCH = 500  # records of one write
PATIENCE = 10.0  # seconds to wait while another process copies


def route_to_session(
    port: Store,
    routed: Routed,
    facts: Mapping[str, Any],
    *,
    incoming: str = "",
    new_chat: bool = False,
) -> str:
    """The session that a routed message goes to, made if there is none.

    `facts` are those of a new session beside agent, key and scope; `incoming` is the key that
    came with the message.
    """
    held = None if new_chat else _holder(port, routed.session_key)
    if held is None:  # or has come meanwhile
        scope = msgspec.to_builtins(routed.scope)
        given = {**facts, "agent": routed.agent, "key": routed.session_key, "scope": scope}
        held = port.create(given, unless_held=not new_chat)
    # An id may hold anything; what cannot be a name is none.
    aliases = [alias for alias in claims(routed, incoming) if is_name(alias)]
    if aliases and _is_open(held):
        _promote(port, held.id, aliases)
    missing = [alias for alias in aliases if alias not in held.aliases]
    if missing:
        _claim(port, held.id, missing)
    return held.id


def _claim(port: Store, session: str, aliases: Sequence[str]) -> None:
    """Take the aliases that nobody has, and those whose holder is an older form of this."""
    held = port.metadata(session)
    for alias in aliases:
        other = _holder(port, alias)
        ours = other is None or (other.id != session and _goes_with(other, held))
        if ours:
            taken = {"aliases": [*held.aliases, alias]}
            held = port.update(session, taken, unless_held=other is None)


def _goes_with(other: Metadata, held: Metadata) -> bool:
    """Whether a session is an earlier chat of the same key, or its history was taken over."""
    return _promoted_to(other) == held.id or (other.key is not None and other.key == held.key)


def _holder(port: Store, name: str) -> Metadata | None:
    try:
        found = port.metadata(port.resolve(name))
    except (
        NotFoundError,
        InvalidIdError,
        ConflictError,
    ):  # nobody's; or like the beginning of some ids
        return None
    return found if name in found.names else None


# --- promotion ------------------------------------------------------------------------------


def _is_open(held: Metadata) -> bool:
    """Whether it is the first chat of its key and has no message yet, or a copy is not complete."""
    if held.promoted_from is not None:
        return held.message_count < int(held.promoted_from.get("messages", 0))
    return held.message_count == 0 and held.chat == 1


def _promoted_to(old: Metadata) -> str | None:
    return (old.promoted_to or {}).get("id")


def _promote(port: Store, session: str, aliases: Sequence[str]) -> None:
    """Copy the history of the first alias that has one, unless somebody else did."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with port.lease(session):
                _copy_first(port, session, aliases)
                return
        except SessionBusyError:  # another process copies, or speaks: then it is empty no more
            if time.monotonic() > deadline or not _is_open(port.metadata(session)):
                return
            time.sleep(0.01)


def _copy_first(port: Store, session: str, aliases: Sequence[str]) -> None:
    held = port.metadata(session)
    for alias in aliases if _is_open(held) else ():
        old = _holder(port, alias)
        if old is None or not _is_source(old, held):
            continue
        if port.promote(old.id, session, seq=old.through.seq):
            _copy(port, port.metadata(old.id), held)
            return


def _is_source(old: Metadata, held: Metadata) -> bool:
    """Whether a session is one of the old kind with a history that is free, or ours already."""
    if old.id == held.id or old.message_count == 0 or (old.key or "").startswith(PREFIX):
        return False
    return _promoted_to(old) in (None, held.id)


def _copy(port: Store, old: Metadata, held: Metadata) -> None:
    """Bring the records over, from where an earlier attempt stopped."""
    upto = int((old.promoted_to or {}).get("seq", 0))
    there = [one for one in port.read(held.id) if isinstance(one, Message | Compaction)]
    head = held.through.seq
    # The record that says whose history it is comes before the first message.
    start = there[0].seq if there else head + (1 if held.promoted_from else 2)
    wanted = _records(port, old.id, upto, start=start)
    if [one.id for one in there] != [one.id for one in wanted[: len(there)]]:
        return  # somebody spoke in between: that conversation is not ours to mix
    rest: list[AnyRecord] = list(wanted[len(there) :])
    if held.promoted_from is None:
        messages = sum(isinstance(one, Message) for one in wanted)
        source = {"id": old.id, "seq": upto, "messages": messages}
        rest.insert(0, Meta(set={"promotedFrom": source}))
    try:
        for at in range(0, len(rest), BATCH):
            head = port.append(held.id, rest[at : at + BATCH], expected_seq=head)[-1].seq
    except ConflictError:
        return  # likewise


def _records(port: Store, session: str, upto: int, *, start: int) -> list[Message | Compaction]:
    """The live messages of a session up to a seq, and its summary, to be numbered from `start`."""
    view = fold(one for one in port.read(session) if (one.seq or 0) <= upto)
    made: list[Message | Compaction] = [
        replace(one, seq=0, id=one.id or f"{session}-{one.seq}", run_id=None)
        for one in view.messages
    ]
    summary = view.compaction
    if summary is not None:
        kept = [at for at, one in enumerate(view.messages) if one.seq >= summary.first_kept_seq]
        first = start + (kept[0] if kept else len(made))
        name = summary.id or f"{session}-{summary.seq}"
        made.append(replace(summary, seq=0, id=name, first_kept_seq=first))
    return made
