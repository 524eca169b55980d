"""Every verb answers for an unknown session with one error, in every store."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from everlog.errors import NotFoundError
from everlog.model import user
from everlog.ports import Store


def check_unknown_session(port: Store, session: str) -> None:
    """Check all verbs that take a session, by an id that none has."""
    verbs: Sequence[Callable[[str], object]] = (
        port.metadata,
        port.delete,
        port.lease,
        port.parts,
        port.verify,
        port.repair,
        lambda name: list(port.read(name)),
        lambda name: list(port.tail(name)),
        lambda name: port.append(name, [user("x")]),
        lambda name: port.append(name, []),
        lambda name: port.update(name, {"name": "x"}),
        port.fork,
    )
    for verb in verbs:
        check_unknown(verb, session)


def check_unknown_name(port: Store, name: str) -> None:
    """Check that no session is found by a name."""
    check_unknown(port.resolve, name)
    check_unknown(lambda text: port.resolve(text, prefix=True), name)


def check_unknown(verb: Callable[[str], object], name: str) -> None:
    """Check that a verb does not find a session, and says so in the same words as all others."""
    found = None
    try:
        verb(name)
    except NotFoundError as error:
        found = error.message, error.hint, error.facts
    assert found == (f"there is no session {name}", "", {"session": name}), name
