"""The checker: take the log up again as a user would, append, and only then look.

A violation is a promise that was not kept, in words; a good log has none.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

import everlog
from tests.crash.control import USUAL, Busy, Options
from tests.crash.interfaces import Everlog, Log, name_of, open_log, payload


class Told(msgspec.Struct, frozen=True):
    """What workers told."""

    acked: dict[str, int]  # payload → seq
    refused: dict[str, str]  # payload → class of the error
    made: list[str]  # sessions
    lines: list[str]

    @property
    def errors(self) -> list[str]:
        """The classes of all errors, those of opening included."""
        return [line.split()[1] for line in self.lines if line.startswith("ERR ")]


def told(*files: Path) -> Told:
    """What the workers told into files; a last line that lacks its end was not told."""
    lines = [line for file in files if file.exists() for line in file.read_text().split("\n")[:-1]]
    return tell_apart(lines)


def tell_apart(lines: list[str]) -> Told:
    """The events of workers by their kind."""
    acked: dict[str, int] = {}
    refused: dict[str, str] = {}
    made = []
    for line in lines:
        word, *rest = line.split()
        if word == "ACK":
            acked[rest[1]] = int(rest[0])
        elif word == "ERR":
            refused |= dict.fromkeys(rest[1:], rest[0])
        elif word == "NEW":
            made.append(rest[0])
    return Told(acked, refused, made, lines)


def violations(
    kind: str,
    root: Path,
    acked: dict[str, int],
    *,
    options: Options = USUAL,
    absent: Iterable[str] = (),
    torn: Sequence[bytes] = (),
    expected: str = "",
    derived: bool = True,
    session: str = "",
) -> list[str]:
    """Reopen, read, append, and tell every promise that does not hold.

    `absent`: payloads that were refused and must not be there. `torn`: bytes that must have been
    set aside. `expected`: a pattern of damage that the scenario itself did. `derived`: whether
    what is derived is looked at too. `session`: which, if there are several.
    """
    try:
        log = open_log(kind, root, options, session)
    except (everlog.EverlogError, OSError, ValueError) as error:
        return [f"cannot be opened: {type(error).__name__}: {error}"]
    try:
        found = _violations(log, acked, absent=set(absent), expected=expected)
        found += _not_set_aside(root, torn)
        if not found and derived and not expected and isinstance(log, Everlog):
            found = _derived(log)
        return found
    finally:
        log.close()


def _violations(log: Log, acked: dict[str, int], *, absent: set[str], expected: str) -> list[str]:
    found = []
    try:
        found += _missing(log.messages(), acked, "before recovery")
        last = payload("Z", os.getpid(), 60)
        seq = log.append(last)
        messages = log.messages()
        damage = [one for one in log.damage() if not (expected and re.search(expected, one))]
    except (everlog.EverlogError, OSError, ValueError, Busy) as error:
        return [*found, f"cannot be used: {type(error).__name__}: {error}"]
    found += _missing(messages, acked, "lost")
    found += [f"altered: seq {seq}" for seq, text in messages if not name_of(text)]
    names = Counter(filter(None, (name_of(text) for _, text in messages)))
    found += [f"{count} times: {name}" for name, count in names.items() if count > 1]
    found += [f"refused and there: {name}" for name in sorted(absent & names.keys())]
    seqs = [seq for seq, _ in messages]
    if not expected and seqs != list(range(1, len(seqs) + 1)):
        found.append(f"not dense: {seqs[:50]}")
    if not messages or messages[-1] != (seq, last):
        found.append("the record appended after recovery is not the last")
    return found + [f"damage: {one}" for one in damage]


def _missing(messages: list[tuple[int, str]], acked: dict[str, int], when: str) -> list[str]:
    there = {name_of(text): seq for seq, text in messages}
    return [
        f"{when}: {name} was acknowledged as seq {seq}, there it is {there.get(name)}"
        for name, seq in acked.items()
        if there.get(name) != seq
    ]


def _not_set_aside(root: Path, torn: Sequence[bytes]) -> list[str]:
    aside = [path.read_bytes() for path in root.rglob("torn.*")] if torn else []
    return [f"{len(one)} torn bytes not set aside" for one in torn if one not in aside]


def _derived(log: Everlog) -> list[str]:
    """What is derived says the same as the log."""
    found = []
    count = len(log.messages())
    known = log.session.metadata.message_count
    if known != count:
        found.append(f"metadata counts {known} of {count} messages")
    listed = {row.id: row.metadata.message_count for row in log.store.list(limit=500)}
    if listed.get(log.session.id) != count:
        found.append(f"the listing has {listed.get(log.session.id)} of {count} messages")
    if log.store.session(log.session.id).id != log.session.id:
        found.append("the session is not found by its id")
    return found
