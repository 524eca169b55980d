"""The file store on damaged, hostile and foreign bytes: reported, never hidden, never spread."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import everlog
from everlog.log import line_codec
from everlog.model import AnyRecord, Damaged, Event, Message, Unknown, user
from everlog.settings import SessionSettings, Settings
from tests.log.test_line_codec import HOSTILE

QUICK = Settings(session=SessionSettings(durability="os"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def _session(root: Path, count: int = 5, **facts: Any) -> tuple[everlog.Session, Path]:
    session = everlog.open_store(root, create=True, settings=QUICK).create(**facts)
    session.append_many([user(f"message {number}") for number in range(1, count + 1)])
    return session, root / "sessions" / session.id / "session.jsonl"


def _again(root: Path, session: everlog.Session) -> everlog.Session:
    return everlog.open_store(root, create=True, settings=QUICK).session(session.id)


def _line(record: AnyRecord, seq: int) -> bytes:
    return line_codec.build_line(line_codec.encode(record)[1], record.record_type, seq) + b"\n"


def test_hostile_lines_cost_only_themselves(root: Path) -> None:
    session, log = _session(root, 1)
    expected = [1]
    bad: list[tuple[int, int]] = []
    with open(log, "ab") as file:
        for number, line in enumerate(HOSTILE.values()):
            file.flush()
            start = file.tell()
            file.write(line + b"\n")
            bad.append((start, start + len(line)))
            seq = 2 * number + 3
            file.write(_line(user(f"good {seq}"), seq))
            expected.append(seq)
    session = _again(root, session)
    assert [message.seq for message in session.messages()] == expected
    damage = session.view().damage
    assert [(one.start, one.end) for one in damage] == bad
    assert [one.seq for one in damage] == [seq - 1 for seq in expected[1:]]
    assert [(one.start, one.end) for one in session.verify()] == bad
    assert session.append(user("goes on")).seq == expected[-1] + 1
    assert len(list(session.store.port.tail(session.id))) == len(expected) + len(bad) + 1


def test_a_line_of_64_mb_is_reported_and_its_neighbours_are_returned(root: Path) -> None:
    session, log = _session(root, 1)
    start = log.stat().st_size
    with open(log, "ab") as file:
        file.write(b'{"recordType":"event","seq":2,"kind":"' + b"x" * (64 << 20) + b'"}\n')
        end = file.tell() - 1
        file.write(_line(user("after"), 3))
    session = _again(root, session)
    assert [message.text for message in session.messages()] == ["message 1", "after"]
    assert [(one.start, one.end) for one in session.verify()] == [(start, end)]
    assert [message.text for message in session.context().messages] == ["message 1", "after"]


def test_every_flipped_bit_of_a_sample_is_found_by_verify(root: Path) -> None:
    session, log = _session(root, 200)
    whole = log.read_bytes()
    rows = whole.splitlines(keepends=True)
    ends = [len(rows[0]) - 20, len(whole) - len(rows[-1]) - 20]
    choose = random.Random(3)
    places = {choose.randrange(len(whole)) for _ in range(150)}
    for end in ends:  # the crc, its key and the newline of the first and of the last but one line
        places.update(range(end, end + 22))
    places.update(range(len(whole) - 22, len(whole)))
    store = session.store
    with open(log, "r+b", buffering=0) as file:
        for place in sorted(places):
            for bit in (choose.randrange(8), 5):
                file.seek(place)
                file.write(bytes([whole[place] ^ 1 << bit]))
                assert store.port.verify(session.id), (place, bit)
                file.seek(place)
                file.write(whole[place : place + 1])
    assert session.verify() == ()


def test_a_damaged_line_is_named_and_its_number_not_given_away(root: Path) -> None:
    session, log = _session(root)
    whole = bytearray(log.read_bytes())
    start = whole.rindex(b"\n", 0, -1) + 1
    whole[start + 60] ^= 1
    log.write_bytes(whole)
    session = _again(root, session)
    assert [message.seq for message in session.messages()] == [1, 2, 3, 4]
    (damage,) = session.verify()
    assert (damage.file, damage.start, damage.end) == ("session.jsonl", start, len(whole) - 1)
    assert damage.seq == 5
    with pytest.raises(everlog.LogDamagedError):
        session.record(5)
    assert session.append(user("next")).seq == 6
    assert [message.seq for message in session.messages()] == [1, 2, 3, 4, 6]
    assert [one.problem for one in session.verify()] == ["crc does not match"]
    assert log.read_bytes().startswith(bytes(whole))


def test_repair_keeps_a_copy_and_deletes_nothing(root: Path) -> None:
    session, log = _session(root)
    whole = bytearray(log.read_bytes())
    middle = whole.index(b"message 3")
    whole[middle] ^= 4
    log.write_bytes(bytes(whole) + b'{"torn')
    session = _again(root, session)
    done = session.repair()
    assert len(done) == 2
    kept = log.read_bytes()
    assert kept == bytes(whole)
    names = sorted(os.listdir(log.parent))
    torn = next(name for name in names if name.startswith("torn.1."))
    copy = next(name for name in names if name.startswith("damaged.1."))
    assert (log.parent / torn).read_bytes() == b'{"torn'
    assert b"iessage 3" in (log.parent / copy).read_bytes()
    assert [one.seq for one in session.verify()] == [3]


def test_lines_of_another_program_are_read_reported_and_can_be_vouched_for(root: Path) -> None:
    session, log = _session(root, 2)
    foreign = (
        b'{"recordType":"message","schemaVersion":1,"seq":3,"role":"user","content":'
        b'[{"type":"text","text":"by hand"}],"timestamp":"2026-01-01T00:00:00Z"}\n'
    )
    with open(log, "ab") as file:
        file.write(foreign)
    assert [message.text for message in session.messages()][-1] == "by hand"
    (finding,) = session.verify()
    assert (finding.seq, finding.problem) == (3, "no crc: unchecked")
    assert session.metadata.message_count == 3
    assert session.repair() == ("vouched for 1 lines without a crc",)
    assert session.verify() == ()
    vouch = session.records()[-1]
    assert isinstance(vouch, Event)
    assert vouch.kind == "vouch"
    data = bytearray(log.read_bytes())
    data[data.index(b"by hand")] ^= 1
    log.write_bytes(data)
    assert [one.seq for one in _again(root, session).verify()] == [3]


def test_a_seq_out_of_order_is_reported_and_returned(root: Path) -> None:
    session, log = _session(root, 3)
    with open(log, "ab") as file:
        file.write(_line(user("jump"), 9))
        file.write(_line(user("back"), 4))
    session = _again(root, session)
    assert [message.text for message in session.messages()][-2:] == ["jump", "back"]
    problems = [one.problem for one in session.verify()]
    assert problems == ["seq 9 where 4 was expected", "seq 4 where 10 was expected"]
    assert session.append(user("next")).seq == 10


def test_two_lines_with_one_seq_are_both_returned(root: Path) -> None:
    session, log = _session(root, 2)
    with open(log, "ab") as file:
        file.write(_line(user("twin"), 2))
    session = _again(root, session)
    assert [message.text for message in session.messages()] == ["message 1", "message 2", "twin"]
    assert len(session.verify()) == 1


@pytest.mark.parametrize("where", ["end", "middle"])
def test_a_newer_schema_version_makes_a_session_read_only(root: Path, where: str) -> None:
    session, log = _session(root, 2)
    newer = b'{"recordType":"message","schemaVersion":2,"seq":3,"role":"user","content":[]}\n'
    with open(log, "ab") as file:
        file.write(newer)
        if where == "middle":
            file.write(_line(user("later"), 4))
    before = log.read_bytes()
    session = _again(root, session)
    view = session.view()
    assert [message.seq for message in view.messages] == ([1, 2, 4] if where == "middle" else [1, 2])
    assert [one.seq for one in view.newer] == [3]
    assert isinstance(session.record(3), Unknown)
    assert [one.why for one in session.context().left_out] == ["schema version 2"]
    assert any("newer" in one.problem for one in session.verify())
    for attempt in (
        lambda: session.append(user("x")),
        lambda: session.rename("x"),
        lambda: session.tombstone(1),
        lambda: session.rewind(1),
        session.fork,
    ):
        with pytest.raises(everlog.FormatError):
            attempt()
    assert log.read_bytes() == before
    assert [row.id for row in session.store.list()] == [session.id]


def test_a_missing_part_is_reported_and_the_rest_is_read(root: Path) -> None:
    settings = Settings(session=SessionSettings(durability="os", part_bytes=1000))
    session = everlog.open_store(root, create=True, settings=settings).create()
    session.append_many([user(f"{number} " + "x" * 300) for number in range(1, 10)])
    assert len(session.parts) >= 4
    folder = root / "sessions" / session.id
    lost = set(range(1, 10)) & set(range(session.parts[1].first_seq or 0, (session.parts[1].last_seq or 0) + 1))
    os.unlink(folder / "session_part2.jsonl")
    session = everlog.open_store(root, create=True, settings=settings).session(session.id)
    assert {message.seq for message in session.messages()} == set(range(1, 10)) - lost
    assert session.verify()[0].problem == "the part is missing"
    assert session.append(user("next")).seq == 10


def test_a_log_shorter_than_its_metadata_is_reported(root: Path) -> None:
    session, log = _session(root)
    session.store.close()
    whole = log.read_bytes()
    log.write_bytes(whole[: whole.rindex(b"\n", 0, -1) + 1])
    session = _again(root, session)
    assert session.metadata.message_count == 4
    assert any(one.file == "metadata.json" for one in session.verify())


@pytest.mark.parametrize("name", ["a program that wrote a whole line", "one that died in a line"])
def test_a_writer_without_locks_between_our_look_and_our_write(root: Path, name: str) -> None:
    from everlog.stores.file.log_tail import LogTail

    session, log = _session(root, 2)
    size = log.stat().st_size
    reports: list[str] = []
    descriptor = os.open(log, os.O_RDWR | os.O_APPEND)
    tail = LogTail(descriptor, session.id, reports.append, durable=True)
    ours = _line(user("ours"), 3)
    foreign = b'{"recordType":"event","kind":"x","seq":3}'
    with open(log, "ab") as other:
        other.write(foreign + (b"\n" if "whole" in name else b""))
    if "whole" in name:
        assert tail.append(ours, size) == log.stat().st_size
        assert "ours" in [message.text for message in _again(root, session).messages()]
    else:
        with pytest.raises(everlog.StoreFailedError):
            tail.append(ours, size)
        assert log.read_bytes().startswith(log.read_bytes()[:size] + foreign)
    assert reports
    assert tail.has_unlocked_writer
    tail.close()
    again = _again(root, session)
    again.append(user("next"))
    assert [message.text for message in again.messages()][-1] == "next"
    assert {"message 1", "message 2"} <= {message.text for message in again.messages()}


def test_damage_stands_in_its_place_in_entries(root: Path) -> None:
    session, log = _session(root, 3)
    data = bytearray(log.read_bytes())
    data[data.index(b"message 2")] ^= 1
    log.write_bytes(data)
    kinds = [type(entry) for entry in _again(root, session).entries()]
    assert kinds == [Message, Damaged, Message]


def test_a_copied_session_directory_is_a_session(root: Path) -> None:
    session, log = _session(root, 3, agent="copied")
    assert len(session.store.list()) == 1
    other = "01BX5ZZKBKACTAV9WEVGEMMVRZ"
    shutil.copytree(log.parent, root / "sessions" / other)
    listed = {row.id: row.metadata.agent for row in session.store.list()}
    assert listed == {session.id: "copied", other: "copied"}
    session.store.close()  # now metadata.json of the original is up to date
    third = "01BX5ZZKBKACTAV9WEVGEMMVS0"
    shutil.copytree(log.parent, root / "sessions" / third)
    copy = session.store.session(third)
    before = copy.metadata
    assert before.created_at.startswith("2017-10-24")  # the time in its own id
    assert before.metrics.session_id == third
    os.unlink(root / "sessions" / third / "metadata.json")
    assert copy.metadata == before
    shutil.rmtree(root / "sessions" / third)
    shutil.rmtree(root / "sessions" / other)
    assert [row.id for row in session.store.list()] == [session.id]


def test_a_second_torn_tail_at_the_same_place_replaces_no_copy(root: Path) -> None:
    session, log = _session(root, 1)
    size = log.stat().st_size
    for number, torn in enumerate((b"first torn", b"second torn")):
        with open(log, "ab") as file:
            file.write(torn)
        with everlog.open_store(root, create=True, settings=QUICK) as store:
            store.session(session.id).repair()
        assert log.stat().st_size == size
        name = f"torn.1.{size}" + (".2" if number else "")
        assert (log.parent / name).read_bytes() == torn


def test_a_session_begun_by_another_program_keeps_its_facts_durably(root: Path) -> None:
    settings = Settings(session=SessionSettings(durability="always"))
    with everlog.open_store(root, create=True, settings=settings) as store:
        session = store.create()
        folder = root / "sessions" / session.id
        line = b'{"recordType":"message","schemaVersion":1,"seq":1,"role":"user","content":[]}\n'
        (folder / "session.jsonl").write_bytes(line)
        (folder / "metadata.json").write_bytes(b'{"id":"x","name":"Theirs","colour":"red"}')
    with everlog.open_store(root, create=True, settings=settings) as store:
        store.session(session.id).append(user("ours"))
    metadata = _again(root, session).metadata
    assert (metadata.title, metadata.extra) == ("Theirs", {"colour": "red"})
    assert (folder / "session.jsonl").read_bytes().startswith(line)


def test_a_full_session_still_takes_the_result_that_closes_a_call(root: Path) -> None:
    settings = Settings(session=SessionSettings(durability="os", total_bytes=1500))
    session = everlog.open_store(root, create=True, settings=settings).create()
    session.append(user("x" * 900))
    with pytest.raises(everlog.StoreFullError):
        session.append(everlog.tool_result("c", "y" * 900))
    session.append(everlog.tool_result("c", "the turn was cut off " * 40, is_error=True))
