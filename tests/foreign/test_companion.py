"""The companion of a foreign session: what its file has no place for, and what survives without mirrors."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import everlog
from everlog.model import (
    QUEUED,
    TURN_END,
    WITHDRAWN,
    AnyRecord,
    Event,
    Message,
    Metadata,
    ToolCall,
    Usage,
    assistant,
    tool_result,
    user,
)
from everlog.runtime.queue_log import DEFAULT_OPTIONS, queued_event
from everlog.session import Store
from tests.foreign.foreign_directories import SESSIONS, made
from tests.foreign.test_foreign_faults import EVERY, transcript


def opened(root: Path, home: Path, dialect: str) -> Store:
    home.mkdir(exist_ok=True)
    return everlog.open_store(f"{dialect}:{root}", home=home)


def records(store: Store, session: str) -> list[AnyRecord]:
    return [entry for entry in store.port.read(session) if not isinstance(entry, everlog.Damaged)]


def shown(entries: Sequence[AnyRecord]) -> list[tuple[Any, ...]]:
    """What every view uses of the records, with their places."""
    return [
        (record.seq, record.id, record.text, record.run_id, record.usage, record.model, record.stop_reason)
        if isinstance(record, Message)
        else (record.seq, record.id, record.kind, record.data)
        if isinstance(record, Event)
        else (record.seq, type(record).__name__)
        for record in entries
    ]


def counted(metadata: Metadata) -> tuple[Any, ...]:
    spent = [(row.turns, row.input_tokens, row.output_tokens) for row in metadata.spent]
    return metadata.waiting, metadata.run, metadata.metrics.total_turns, metadata.metrics.total_cost, spent


def a_turn(store: Store, session: str) -> None:
    """A turn with a queued message, a call, its end, and two more that wait; one was withdrawn."""
    one = store.session(session)
    first, second, third = (user(text, id=f"m-{text}", run_id=f"r-{text}") for text in ("one", "two", "three"))
    for message in (first, second, third):
        one.append(queued_event(message, DEFAULT_OPTIONS, f"q-{message.text}"))
    with one.lease() as lease:
        one.append(first, lease=lease)
        call = ToolCall(id="c1", name="read", arguments={"path": "a"})
        usage = Usage(input_tokens=7, output_tokens=3)
        one.append(Message(role="assistant", content=(call,), model="m-1", usage=usage), lease=lease)
        one.append(tool_result("c1", "content"), lease=lease)
        one.append(assistant("said", model="m-1", usage=usage), lease=lease)
        one.end_turn(
            duration_ms=1500, run_id="r-one", cost=0.25, usage=Usage(input_tokens=14, output_tokens=6), lease=lease
        )
    one.append(Event(kind="approval", data={"tool": "write"}))
    one.append(Event(kind=WITHDRAWN, data={"id": "m-two"}))


@EVERY
def test_everything_is_there_again_without_mirrors(tmp_path: Path, dialect: str) -> None:
    files, session = SESSIONS[dialect]
    root, home = made(tmp_path / "root", files), tmp_path / "home"
    with opened(root, home, dialect) as store:
        a_turn(store, session)
        before, metadata = records(store, session), store.session(session).metadata
        assert metadata.waiting == ("m-three",) and metadata.metrics.total_turns == 1
    shutil.rmtree(home / "live")
    with opened(root, home, dialect) as store:
        assert [row.id for row in store.list(unfinished=True)] == [session], "before anything is opened"
        assert shown(records(store, session)) == shown(before)
        assert counted(store.session(session).metadata) == counted(metadata)
        kinds = [record.kind for record in records(store, session) if isinstance(record, Event)]
        assert kinds.count(QUEUED) == 3 and kinds.count(TURN_END) == 1
        # What was there is known again: nothing is written twice.
        store.session(session).append(user("one", id="m-one", run_id="r-one"))
        assert transcript(root, dialect).read_bytes().count(b'"one"') == 1
        store.session(session).append(Event(kind=WITHDRAWN, data={"id": "m-three"}))
        assert not store.list(unfinished=True).sessions
        assert not store.session(session).metadata.waiting


@EVERY
def test_what_the_mirror_missed_is_taken_up_once(tmp_path: Path, dialect: str) -> None:
    """A mirror of yesterday, with a file and a companion of today: also what others wrote in between."""
    files, session = SESSIONS[dialect]
    root, home = made(tmp_path / "root", files), tmp_path / "home"
    with opened(root, home, dialect) as store:
        store.session(session).append(Event(kind="first", data={}))
    shutil.copytree(home / "live", tmp_path / "yesterday")
    with opened(root, home, dialect) as store:
        a_turn(store, session)
        before = shown(records(store, session))
    shutil.rmtree(home / "live")
    (tmp_path / "yesterday").rename(home / "live")
    for _ in range(2):
        with opened(root, home, dialect) as store:
            assert shown(records(store, session)) == before


@pytest.mark.parametrize("damage", ["cut", "zeros", "middle"])
def test_a_mirror_that_a_power_cut_tore_is_made_anew(tmp_path: Path, damage: str) -> None:
    """It is not synced: any of its pages may be missing."""
    files, session = SESSIONS["crabtalk"]
    root, home = made(tmp_path / "root", files), tmp_path / "home"
    with opened(root, home, "crabtalk") as store:
        a_turn(store, session)
        before = shown(records(store, session))
    (log,) = (home / "live").glob("*/sessions/*/session.jsonl")
    data = log.read_bytes()
    middle = len(data) // 2
    log.write_bytes(
        {
            "cut": data[:middle],
            "zeros": data[:middle] + bytes(len(data) - middle),
            "middle": data[: middle - 100] + bytes(200) + data[middle + 100 :],
        }[damage]
    )
    with opened(root, home, "crabtalk") as store:
        records(store, session)  # the damage is met
        assert shown(records(store, session)) == before
    assert len(list((home / "live").glob("*/sessions/*"))) == 1, "the damaged mirror is not kept"


@EVERY
def test_a_rewritten_file_keeps_its_events(tmp_path: Path, dialect: str) -> None:
    """Their program has lost the turn: what left the queue for it does not come back into the queue."""
    files, session = SESSIONS[dialect]
    root, home = made(tmp_path / "root", files), tmp_path / "home"
    file = transcript(root, dialect)
    content = file.read_bytes()
    with opened(root, home, dialect) as store:
        a_turn(store, session)
        waiting = store.session(session).metadata.waiting
    file.write_bytes(content)
    for has_mirror in (True, False, False):
        if not has_mirror:
            shutil.rmtree(home / "live")
        with opened(root, home, dialect) as store:
            metadata = store.session(session).metadata
            assert metadata.waiting == waiting and metadata.run is None
            kinds = [record.kind for record in records(store, session) if isinstance(record, Event)]
            assert kinds.count(TURN_END) == 1 and kinds.count(QUEUED) == 3


def test_a_title_in_the_name_of_the_file_leaves_the_companion_with_it(tmp_path: Path) -> None:
    files, session = SESSIONS["crabtalk"]
    root, home = made(tmp_path / "root", files), tmp_path / "home"
    with opened(root, home, "crabtalk") as store:
        a_turn(store, session)
        store.session(session).rename("About things")
    assert not transcript(root, "crabtalk").exists()
    shutil.rmtree(home / "live")
    with opened(root, home, "crabtalk") as store:
        assert store.session(session).metadata.waiting == ("m-three",)
        assert store.session(session).metadata.title == "About things"


def test_what_only_the_mirrors_of_an_old_home_have_is_adopted_once(tmp_path: Path) -> None:
    dialect = "crabtalk"
    files, session = SESSIONS[dialect]
    root, home = made(tmp_path / "root", files), tmp_path / "home"
    with opened(root, home, dialect) as store:
        a_turn(store, session)
        before = shown(records(store, session))
    shutil.rmtree(home / "companion")
    for _ in range(2):  # the second time after a crash in the first one
        next((home / "live").glob("*/adopted")).unlink()
        with opened(root, home, dialect) as store:
            assert [row.id for row in store.list(unfinished=True)] == [session]
            assert shown(records(store, session)) == before
    shutil.rmtree(home / "live")
    with opened(root, home, dialect) as store:
        assert shown(records(store, session)) == before


@pytest.mark.parametrize("seed", range(3))
@EVERY
def test_any_history_beside_another_writer_is_the_same_without_mirrors(tmp_path: Path, dialect: str, seed: int) -> None:
    """Appends of two processes, of another program, and mirrors that are deleted in between."""
    files, session = SESSIONS[dialect]
    root, home = made(tmp_path / "root", files), tmp_path / "home"
    chance = random.Random(seed)
    waiting: list[Message] = []
    for round_number in range(4):
        with (
            opened(root, home, dialect) as store,
            opened(root, home, dialect) as second,
            opened(root, tmp_path / "theirs", dialect) as program,
        ):
            for number in range(12):
                text = f"{round_number}-{number}"
                one = chance.choice((store, second)).session(session)
                step = chance.choice(("event", "message", "queue", "turn", "withdraw", "theirs", "same"))
                if step == "event":
                    one.append(Event(kind="note", data={"text": text}))
                elif step == "message":
                    one.append(user(text))
                elif step == "same":
                    one.append(assistant("the same text", model="m-1"))
                elif step == "theirs":
                    program.session(session).append(user(chance.choice((text, "the same text"))))
                elif step == "queue":
                    waiting.append(user(chance.choice((text, "go on")), id=f"m{text}", run_id=f"r{text}"))
                    one.append(queued_event(waiting[-1], DEFAULT_OPTIONS, f"q{text}"))
                elif step == "turn" and waiting:
                    with one.lease() as lease:
                        one.append(waiting[0], lease=lease)
                        one.append(assistant(f"answer {text}", model="m-2"), lease=lease)
                        one.end_turn(duration_ms=1, run_id=waiting.pop(0).run_id, lease=lease)
                elif step == "withdraw" and waiting:
                    one.append(Event(kind=WITHDRAWN, data={"id": waiting.pop().id}))
            before, metadata = shown(records(store, session)), store.session(session).metadata
            assert metadata.waiting == tuple(message.id for message in waiting) and metadata.run is None
        shutil.rmtree(home / "live")
        with opened(root, home, dialect) as store:
            assert shown(records(store, session)) == before
            assert counted(store.session(session).metadata) == counted(metadata)


def test_damage_in_a_companion_is_named_and_its_neighbours_are_kept(tmp_path: Path) -> None:
    files, session = SESSIONS["crabtalk"]
    root, home = made(tmp_path / "root", files), tmp_path / "home"
    with opened(root, home, "crabtalk") as store:
        a_turn(store, session)
    (log,) = (home / "companion").glob("*/sessions/*/session.jsonl")
    data = log.read_bytes()
    log.write_bytes(data.replace(b'"approval"', b'"approved"'))
    shutil.rmtree(home / "live")
    with opened(root, home, "crabtalk") as store:
        (damage,) = store.session(session).verify()
        assert damage.file.startswith("companion ") and damage.file.endswith("/session.jsonl")
        kinds = [record.kind for record in records(store, session) if isinstance(record, Event)]
        assert "approval" not in kinds and kinds.count(TURN_END) == 1 and kinds[-1] == WITHDRAWN
        assert store.session(session).metadata.waiting == ("m-three",)
    assert log.read_bytes() == data.replace(b'"approval"', b'"approved"')
