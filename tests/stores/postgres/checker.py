"""The checker: what is stored against what was acknowledged, session by session.

A violation is a promise that was not kept, in words; a good session has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

from tests.stores.postgres.interfaces import Ack, Face, text_of


def violations(face: Face, sessions: Iterable[str], acks: Iterable[Ack]) -> list[str]:
    """Every promise that does not hold."""
    told = list(acks)
    found = []
    for session in sessions:
        own = [ack for ack in told if ack.session == session]
        found += [f"{session}: {one}" for one in _violations(face, session, own)]
    return found


def _violations(face: Face, session: str, acks: list[Ack]) -> list[str]:
    rows = face.rows(session)
    found = []
    if [row.seq for row in rows] != list(range(1, len(rows) + 1)):
        found.append(f"not dense: {[row.seq for row in rows][:50]}")
    found += [
        f"the epoch goes back at seq {after.seq}: {before.epoch} to {after.epoch}"
        for before, after in pairwise(rows)
        if after.epoch < before.epoch
    ]
    found += [f"altered: seq {row.seq}" for row in rows if row.text != text_of(row.name)]
    names = Counter(row.name for row in rows)
    found += [f"{count} times: {name}" for name, count in names.items() if count > 1]
    stored = {row.name: row for row in rows}
    for ack in acks:
        row = stored.get(ack.name)
        if row is None:
            found.append(f"lost: {ack.name}, acknowledged as seq {ack.seq}")
        elif row.seq != ack.seq:
            found.append(f"moved: {ack.name} from seq {ack.seq} to {row.seq}")
        elif ack.epoch and row.epoch != ack.epoch:
            found.append(f"{ack.name} of epoch {ack.epoch} is stored under {row.epoch}")
    return found + face.complaints(session)
