"""Broken files in the directory of a live store, each among sound ones.

Whatever is in a file: the others are listed, everything in it that is whole is shown, and the
session goes on. Cuts and flips are a sample with a fixed seed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from uuid import NAMESPACE_URL, uuid5

import pytest

from everlog.errors import FormatError, UnsupportedError
from everlog.interop.formats.format_types import MAX_LINE_BYTES
from everlog.model import user
from everlog.session import Store
from tests.formats.open_stores import Place, texts

Object = dict[str, Any]
TIME = "2026-03-01T08:00:{:02d}.000Z"
SAID = tuple(f"said {number}" for number in range(8))
SAMPLE = 12  # places of a kind of damage in a file


def name_of(*what: object) -> str:
    """An id that no flipped bit makes another one's."""
    return str(uuid5(NAMESPACE_URL, " ".join(map(str, what))))


class Format(NamedTuple):
    """How a program writes a conversation."""

    session: Callable[[int], str]  # the id of a session, which is the name of its file
    head: Callable[[str], bytes]  # its first line, if it has one
    message: Callable[[str, int], Object]  # what was said, and what it hangs from
    own: str = ""  # the key of a record's id
    parent: str = ""  # and that of the one before


def claude_message(session: str, number: int) -> Object:
    role = ("user", "assistant")[number % 2]
    return {
        "parentUuid": name_of(session, number - 1) if number else None,
        "isSidechain": False,
        "cwd": "/work",
        "sessionId": session,
        "version": "2.1.325",
        "type": role,
        "message": {"role": role, "content": [{"type": "text", "text": SAID[number]}]},
        "uuid": name_of(session, number),
        "timestamp": TIME.format(number),
    }


def cersei_message(session: str, number: int) -> Object:
    role = ("user", "assistant")[number % 2]
    parent = {"parent_uuid": name_of(session, number - 1)} if number % 2 else {}
    return {
        "type": role,
        "uuid": name_of(session, number),
        **parent,
        "timestamp": TIME.format(number),
        "session_id": session,
        "cwd": "/w",
        "message": {"role": role, "content": SAID[number]},
        "is_sidechain": False,
    }


def plain_message(session: str, number: int) -> Object:
    return {"role": ("user", "assistant")[number % 2], "content": SAID[number]}


def pi_message(session: str, number: int) -> Object:
    role = ("user", "assistant")[number % 2]
    return {
        "type": "message",
        "id": name_of(session, number)[:8],
        "parentId": name_of(session, number - 1)[:8] if number else None,
        "timestamp": TIME.format(number),
        "message": {"role": role, "content": [{"type": "text", "text": SAID[number]}]},
    }


def crabtalk_head(session: str) -> bytes:
    return b'{"agent":"crab","created_by":"user","created_at":"2026-03-01T08:00:00+00:00","title":"","uptime_secs":0}\n'


def pi_head(session: str) -> bytes:
    made = {"type": "session", "version": 3, "id": session, "timestamp": TIME.format(0)}
    return encoded({**made, "cwd": "/work"})


def encoded(value: Object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def nothing(session: str) -> bytes:
    return b""


FORMATS = {
    "claude": Format(name_of, nothing, claude_message, "uuid", "parentUuid"),
    "cersei": Format("s-{:03d}".format, nothing, cersei_message, "uuid", "parent_uuid"),
    "crabtalk": Format("crab_user_{:03d}".format, crabtalk_head, plain_message),
    "picoclaw": Format("agent_main_direct_{:03d}".format, nothing, plain_message),
    "pi": Format("s-{:03d}".format, pi_head, pi_message, "id", "parentId"),
}


class Broken(NamedTuple):
    """A file that is not as its program wrote it."""

    how: str
    data: bytes
    whole: Sequence[str]  # what is whole in it
    # The first line says what kind of file this is, and is damaged. Then nobody can tell.
    unknown: bool = False


class Written:
    """A session as its program wrote it."""

    def __init__(self, dialect: str, number: int) -> None:
        self.format = FORMATS[dialect]
        self.id = self.format.session(number)
        self.head = self.format.head(self.id)
        self.objects = [self.format.message(self.id, number) for number in range(len(SAID))]

    @property
    def data(self) -> bytes:
        return self.head + b"".join(map(encoded, self.objects))

    def broken(self, how: str, data: bytes, first: int, last: int) -> Broken:
        """What is left of it when it is another one between two bytes."""
        whole, start = [], len(self.head)
        for number, one in enumerate(self.objects):
            end = start + len(encoded(one))
            if last < start or first >= end:
                whole.append(SAID[number])
            start = end
        return Broken(how, data, whole, unknown=first < len(self.head) or not whole)


# --- ways to break a file -------------------------------------------------------------------

Way = Callable[[str, random.Random], Iterator[Callable[[Written], Broken]]]


def cuts(dialect: str, chance: random.Random) -> Iterator[Callable[[Written], Broken]]:
    size = len(Written(dialect, 0).data)
    for at in (0, 1, size - 1, *chance.sample(range(size), SAMPLE)):

        def cut(written: Written, at: int = at) -> Broken:
            return written.broken(f"cut at {at}", written.data[:at], at, len(written.data))

        yield cut


def flips(dialect: str, chance: random.Random) -> Iterator[Callable[[Written], Broken]]:
    size = len(Written(dialect, 0).data)
    for at in chance.sample(range(size), 2 * SAMPLE):

        def flip(written: Written, at: int = at, bit: int = chance.randrange(8)) -> Broken:
            data = bytearray(written.data)
            is_end = data[at] == 10
            data[at] ^= 1 << bit
            # Without its newline a line is one with the next.
            return written.broken(f"bit {bit} of {at}", bytes(data), at, at + is_end)

        yield flip


def zeros(dialect: str, chance: random.Random) -> Iterator[Callable[[Written], Broken]]:
    size = len(Written(dialect, 0).data)
    for at in chance.sample(range(size), SAMPLE // 3):
        for length in (1, 300, 10_000):

            def zero(written: Written, at: int = at, length: int = length) -> Broken:
                data, over = written.data, min(length, len(written.data) - at)
                kept = data[:at] + b"\0" * length + data[at + over :]
                return written.broken(f"{length} zeros at {at}", kept, at, at + over)

            yield zero
    for number in range(len(SAID) + 1):

        def line(written: Written, number: int = number) -> Broken:
            lines = [*map(encoded, written.objects)]
            lines.insert(number, b"\0" * 5000 + b"\n")
            return Broken(f"a line of zeros at {number}", written.head + b"".join(lines), SAID)

        yield line


def tangles(dialect: str, chance: random.Random) -> Iterator[Callable[[Written], Broken]]:
    """Records that are there twice, run in a circle, or have lost their parents."""
    own, parent = FORMATS[dialect].own, FORMATS[dialect].parent

    def tangled(how: str, tangle: Callable[[list[Object]], object]) -> Callable[[Written], Broken]:
        def made(written: Written) -> Broken:
            tangle(written.objects)
            said = [json.dumps(one) for one in written.objects]
            there = [text for text in SAID if any(text in one for one in said)]
            return Broken(how, written.data, there)

        return made

    for number in (0, 1, 4, 7):

        def lose(objects: list[Object], number: int = number) -> None:
            del objects[number]

        def double(objects: list[Object], number: int = number) -> None:
            objects.append(objects[number])

        yield tangled(f"without {number}", lose)
        yield tangled(f"{number} twice", double)
        if not own:
            continue

        def strip(objects: list[Object], number: int = number) -> None:
            objects[number].pop(parent, None)

        yield tangled(f"{number} does not say what it hangs from", strip)
        for name, other in (("nobody", None), ("itself", number), ("the last", -1)):

            def hang(objects: list[Object], number: int = number, other: int | None = other) -> None:
                objects[number][parent] = "x" if other is None else objects[other][own]

            yield tangled(f"{number} hangs from {name}", hang)
    if own:
        yield tangled("all in a circle", lambda objects: _circle(objects, own, parent))


def _circle(objects: list[Object], own: str, parent: str) -> None:
    for number, one in enumerate(objects):
        one[parent] = objects[number - 1][own]


WAYS: Mapping[str, Way] = {"cut": cuts, "flipped": flips, "zeroed": zeros, "tangled": tangles}


# --- what must hold -------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dialect", FORMATS)
def test_a_broken_file_among_others_shows_what_is_whole_and_goes_on(tmp_path: Path, dialect: str, way: str) -> None:
    broken, files = {}, {}
    for number, make in enumerate(WAYS[way](dialect, random.Random(4))):
        written = Written(dialect, number)
        broken[written.id] = make(written)
        files[f"{written.id}.jsonl"] = broken[written.id].data
    neighbours = [Written(dialect, number) for number in (997, 998, 999)]
    files |= {f"{one.id}.jsonl": one.data for one in neighbours}
    place = Place(tmp_path, dialect, files)
    with place.opened() as store:
        counts = {row.id: row.metadata.message_count for row in store.walk()}
        assert all(counts.get(one.id) == len(SAID) for one in neighbours)
        known = {name: one for name, one in broken.items() if name in counts}
        assert all(one.unknown for name, one in broken.items() if name not in known)
        longer = {name for name, one in known.items() if _goes_on(store, name, one)}
        for name in known:
            store.session(name).verify()
        for neighbour in neighbours:
            assert texts(store.session(neighbour.id)) == list(SAID)
    with place.anew() as store:
        for name, one in known.items():
            said = texts(store.session(name))
            assert set(said) >= set(one.whole), one.how
            assert ("on we go" in said[-1:]) == (name in longer), one.how


def _goes_on(store: Store, name: str, broken: Broken) -> bool:
    """Whether something was added to it."""
    session = store.session(name)
    assert set(texts(session)) >= set(broken.whole), broken.how
    session.context()
    try:
        session.append(user("on we go"))
    except (FormatError, UnsupportedError):  # it does not say what it is, and that cannot be made up
        assert broken.unknown, broken.how
        return False
    assert texts(session)[-1] == "on we go", broken.how
    assert session.context().messages[-1].text == "on we go", broken.how
    return True


@pytest.mark.parametrize("dialect", FORMATS)
def test_a_line_of_64_mb_hides_no_other(tmp_path: Path, dialect: str) -> None:
    neighbour, written = Written(dialect, 0), Written(dialect, 1)
    lines = [*map(encoded, written.objects[:-1])]
    lines.insert(4, encoded(written.objects[-1]).replace(b"said 7", b"x" * MAX_LINE_BYTES))
    data = written.head + b"".join(lines)
    files = {f"{neighbour.id}.jsonl": neighbour.data, f"{written.id}.jsonl": data}
    with Place(tmp_path, dialect, files).opened() as store:
        assert {row.id for row in store.list()} == {neighbour.id, written.id}
        assert _goes_on(store, written.id, Broken("64 MB", data, SAID[:-1]))
        assert texts(store.session(neighbour.id)) == list(SAID)
