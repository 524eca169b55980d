"""`sessions verify`, `repair`, `rm` and `prune`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from everlog.model import user
from everlog.session import Session, Store
from tests.cli.runner import Cli, run_on_terminal, run_process

OLD = "2020-01-01T00:00:00.000Z"


def log_of(root: Path, session: Session) -> Path:
    return root / "sessions" / session.id / "session.jsonl"


def flip(root: Path, session: Session) -> None:
    """Change one byte of the second message."""
    session.store.close()
    log = log_of(root, session)
    assert log.read_bytes().count(b'"two"') == 1
    log.write_bytes(log.read_bytes().replace(b'"two"', b'"tvo"'))


@pytest.fixture
def spoken(session: Session) -> Session:
    """A session with three messages."""
    for text in ("one", "two", "three"):
        session.append(user(text))
    return session


# --- verify


def test_verify_of_a_sound_session(cli: Cli, spoken: Session) -> None:
    assert cli("sessions", "verify", spoken.id) == (0, "1 session verified, no damage\n", "")
    assert cli("sessions", "verify", spoken.id, "--json").json == {"ok": True, "damage": []}


def test_verify_names_file_byte_range_and_seq(cli: Cli, root: Path, spoken: Session) -> None:
    flip(root, spoken)
    start = log_of(root, spoken).read_bytes().index(b'{"recordType":"message","schemaVersion":1,"seq":2')
    done = cli("sessions", "verify", spoken.id, "--json")
    assert done.code == 1 and done.json["ok"] is False
    (damage,) = done.json["damage"]
    assert set(damage) == {"file", "start", "end", "seq", "problem"}
    assert (damage["file"], damage["start"], damage["seq"]) == ("session.jsonl", start, 2)
    plain = cli("sessions", "verify", spoken.id)
    assert plain.code == 1
    assert f"session.jsonl bytes {start} to {damage['end']} seq 2: " in plain.out
    assert plain.err.startswith("everlog: 1 problem in 1 session") and plain.err.count("\n") == 1


def test_verify_of_all_names_the_session(cli: Cli, root: Path, spoken: Session, store: Store) -> None:
    for _ in range(3):
        store.create().append(user("fine"))
    assert cli("sessions", "verify").out == "4 sessions verified, no damage\n"
    flip(root, spoken)
    done = cli("sessions", "verify", "--json")
    assert done.code == 1
    assert [one["session"] for one in done.json["damage"]] == [spoken.id]


def test_verify_on_a_terminal_leaves_only_its_answer(root: Path, spoken: Session) -> None:
    done = run_on_terminal(root, "sessions", "verify", NO_COLOR="1", TERM="dumb")
    assert done.code == 0 and "1 session verified, no damage" in done.out


def test_verify_of_all_goes_on_behind_a_session_that_cannot_be_read(
    cli: Cli, root: Path, spoken: Session, store: Store
) -> None:
    flip(root, spoken)
    bad = store.create()
    bad.append(user("one"))
    store.close()
    log_of(root, bad).rename(root / "elsewhere.jsonl")
    log_of(root, bad).symlink_to(root / "elsewhere.jsonl")
    done = cli("sessions", "verify", "--json")
    assert done.code == 1
    assert {one["session"] for one in done.json["damage"]} == {spoken.id, bad.id}


# --- repair


def test_repair_of_a_sound_session_does_nothing(cli: Cli, root: Path, spoken: Session) -> None:
    before = log_of(root, spoken).read_bytes()
    assert cli("sessions", "repair", spoken.id).code == 0
    answer = cli("sessions", "repair", spoken.id, "--json").json
    assert answer == {"id": spoken.id, "done": []}
    assert log_of(root, spoken).read_bytes() == before


def test_repair_sets_a_torn_tail_aside_and_says_so(cli: Cli, root: Path, spoken: Session) -> None:
    spoken.store.close()
    with log_of(root, spoken).open("ab") as log:
        log.write(b'{"recordType":"message","schemaVersion":1,"seq":4,"ro')
    assert cli("sessions", "verify", spoken.id).code == 1
    done = cli("sessions", "repair", spoken.id)
    assert done.code == 0 and "torn." in done.out
    aside = [path for path in log_of(root, spoken).parent.iterdir() if path.name.startswith("torn.")]
    assert [path.read_bytes()[-4:] for path in aside] == [b'"ro'] or len(aside) == 1
    assert cli("sessions", "verify", spoken.id).code == 0


def test_append_after_a_crash_tells_what_it_set_aside(cli: Cli, root: Path, spoken: Session) -> None:
    spoken.store.close()
    with log_of(root, spoken).open("ab") as log:
        log.write(b'{"recordType":"mess')
    done = cli("sessions", "append", spoken.id, "four")
    assert done.code == 0 and "torn." in done.err
    assert [one.text for one in spoken.messages()] == ["one", "two", "three", "four"]


def test_repair_says_what_it_cannot_set_right(cli: Cli, root: Path, spoken: Session) -> None:
    flip(root, spoken)
    done = cli("sessions", "repair", spoken.id)
    assert done.code == 0
    if cli("sessions", "verify", spoken.id).code:
        assert "could not be repaired" in done.err


# --- rm


def test_rm_says_how_many_parts_it_deleted(cli: Cli, root: Path, spoken: Session, store: Store) -> None:
    assert cli("sessions", "rm", spoken.id, "--yes") == (0, f"deleted {spoken.id}: 1 part\n", "")
    assert not (root / "sessions" / spoken.id).exists()
    other = store.create()
    assert cli("sessions", "rm", other.id, "--yes", "--json").json == {"id": other.id, "parts": 1}


def test_rm_without_a_terminal_needs_yes(cli: Cli, spoken: Session) -> None:
    done = cli("sessions", "rm", spoken.id, stdin=b"y\n")
    assert done.code == 2 and "--yes" in done.err and done.err.count("\n") == 1
    assert len(spoken.messages()) == 3


@pytest.mark.parametrize(("typed", "code"), [(b"y\n", 0), (b"n\n", 1), (b"\n", 1), (b"\x04", 1)])
def test_rm_asks_on_a_terminal(cli: Cli, root: Path, spoken: Session, typed: bytes, code: int) -> None:
    spoken.store.close()
    done = run_on_terminal(root, "sessions", "rm", spoken.id, typed=typed)
    assert done.code == code
    assert "Fix the tests, 3 messages" in done.out and "Traceback" not in done.out
    assert (root / "sessions" / spoken.id).exists() == (code != 0)


def test_rm_of_a_busy_session_is_refused(cli: Cli, spoken: Session) -> None:
    with spoken.lease():
        done = cli("sessions", "rm", spoken.id, "--yes")
    assert done.code == 1 and done.err.count("\n") == 1
    assert len(spoken.messages()) == 3


def test_rm_during_a_turn_of_another_process_names_it(root: Path, spoken: Session) -> None:
    with spoken.lease():
        done = run_process(root, "sessions", "rm", spoken.id, "--yes")
    assert done.code == 1 and done.err.count("\n") == 1
    assert f"a turn of session {spoken.id} is running in process {os.getpid()} (" in done.err


# --- prune


@pytest.fixture
def old(store: Store) -> list[Session]:
    """Two sessions whose last message is years old."""
    made = [store.create(title=f"old {number}") for number in range(2)]
    for session in made:
        session.append(user("long ago", timestamp=OLD))
    return made


def test_prune_is_a_dry_run_unless_yes(cli: Cli, old: list[Session], session: Session) -> None:
    answer = cli("sessions", "prune", "--older-than", "30d", "--json").json
    assert answer["dryRun"] is True and answer["deleted"] == 0
    assert {one["id"] for one in answer["sessions"]} == {one.id for one in old}
    assert all(one["lastMessageAt"] == OLD for one in answer["sessions"])
    done = cli("sessions", "prune", "--older-than", "30d")
    assert done.out.count("would delete ") == 2 and "nothing was deleted" in done.out
    assert len(cli("sessions", "list", "--json").json["sessions"]) == 3


def test_prune_with_yes_deletes_by_last_activity(cli: Cli, old: list[Session], session: Session) -> None:
    old[0].append(user("and today"))
    answer = cli("sessions", "prune", "--older-than", "4w", "--yes", "--json").json
    assert answer["dryRun"] is False and answer["deleted"] == 1
    left = {one["id"] for one in cli("sessions", "list", "--json").json["sessions"]}
    assert left == {old[0].id, session.id}


def test_prune_skips_what_is_busy_and_says_so(cli: Cli, old: list[Session]) -> None:
    with old[0].lease():
        done = cli("sessions", "prune", "--older-than", "1d", "--yes")
    assert done.code == 0 and "1 session deleted" in done.out
    assert f"skipped {old[0].id}: busy" in done.err
    assert len(old[0].messages()) == 1


def test_prune_of_nothing(cli: Cli, session: Session) -> None:
    done = cli("sessions", "prune", "--older-than", "1d", "--yes")
    assert done.code == 0 and "0 sessions deleted" in done.out
