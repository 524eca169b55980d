"""`--store` and `everlog store`: commands on a database, and what is said when it is not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from everlog.stores.postgres.schema import VERSION
from tests.cli.runner import Cli
from tests.stores.postgres.open_stores import shared_server


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a database whose tables nobody else uses."""
    server = shared_server()
    schema = f"cli{os.getpid()}"
    monkeypatch.setenv("EVERLOG_POSTGRES_SCHEMA", schema)
    with server.connect() as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
    return server.url


def test_commands_work_on_a_database_as_they_do_on_files(cli: Cli, url: str, root: Path) -> None:
    made = cli("--store", url, "sessions", "new", "--title", "Elsewhere")
    session = made.out.strip()
    assert cli("sessions", "append", "--store", url, session, "hello").code == 0
    for command in (
        ("list",), ("show", session), ("parts", session), ("context", session), ("search", "hello"),
    ):  # fmt: skip
        assert cli("--store", url, "sessions", *command).code == 0
    assert "hello" in cli("--store", url, "sessions", "show", session).out
    assert cli("--store", url, "sessions", "verify").out == "1 session verified, no damage\n"
    assert cli("--store", url, "doctor").code == 0
    assert cli("--store", url, "sessions", "rm", session, "--yes").code == 0
    assert not (root / "sessions").exists()


def test_the_environment_names_a_database_too(cli: Cli, url: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERLOG_STORE", url)
    session = cli("sessions", "new").out.strip()
    assert session in cli("sessions", "list").out
    assert not root.exists()


def test_a_session_on_files_that_cannot_be_read_hides_no_other(cli: Cli, root: Path) -> None:
    first, second = (cli("sessions", "new").out.strip() for _ in range(2))
    for session in (first, second):
        assert cli("sessions", "append", session, "hello").code == 0
    log = root / "sessions" / first / "session.jsonl"
    log.unlink()
    log.mkdir()
    part = root / "sessions" / second / "session.jsonl"
    part.write_bytes(part.read_bytes().replace(b"hello", b"hallo"))
    done = cli("store", "verify")
    assert done.code == 1
    assert [line.partition("/")[0] for line in done.out.splitlines()] == [first, second]


def test_migrating_says_from_where_to_where(cli: Cli, url: str) -> None:
    assert cli("store", "migrate").out == "files need no migration\n"
    first = cli("--store", url, "store", "migrate")
    assert first.out == f"the tables have version {VERSION} now, none before\n"
    assert cli("--store", url, "store", "migrate").out == f"the tables have version {VERSION}\n"
    again = cli("--store", url, "store", "migrate", "--json")
    assert again.out == f'{{"before":{VERSION},"after":{VERSION}}}\n'


def test_a_database_that_cannot_be_used_is_one_line_without_the_password(cli: Cli) -> None:
    for url, said in (
        ("postgresql://me:hush@127.0.0.1:1/x", "postgresql://me@127.0.0.1:1/x cannot be reached"),
        ("postgresql://me:hush@[::1/x", "the database address cannot be parsed"),
        ("redis://me:hush@127.0.0.1/x", "unknown kind of location: 'redis'"),
        ("/some/where", "there is no directory /some/where"),
    ):
        done = cli("--store", url, "sessions", "list")
        assert done.code in (1, 2)
        assert said in done.err
        assert "hush" not in done.err
        assert done.err.count("\n") == 1


# --- moving


def test_sessions_go_to_a_database_and_come_back(cli: Cli, url: str, root: Path, tmp_path: Path) -> None:
    session = cli("sessions", "new", "--title", "Traveller").out.strip()
    cli("sessions", "append", session, "hello")
    back = tmp_path / "back"
    there = cli("store", "copy", str(root), url)
    assert there.code == 0
    assert there.out.startswith("1 session copied, 0 extended, 0 unchanged; 2 lines")
    assert cli("store", "copy", url, str(back), "--json").json["copied"] == 1
    log = Path("sessions") / session / "session.jsonl"
    assert (root / log).read_bytes() == (back / log).read_bytes()
    cli("sessions", "append", session, "more")
    again = cli("store", "copy", str(root), url, "--session", session[:10]).out
    assert again.startswith("0 sessions copied, 1 extended")
    assert "more" in cli("--store", url, "sessions", "show", session).out


def test_what_differs_is_refused_and_the_exit_code_says_so(cli: Cli, url: str, root: Path) -> None:
    session = cli("sessions", "new").out.strip()
    cli("sessions", "append", session, "hello")
    cli("store", "copy", str(root), url)
    cli("--store", url, "sessions", "append", session, "only there")
    done = cli("store", "copy", str(root), url)
    assert done.code == 1
    assert f"refused {session}" in done.err
    assert "the target has more records, from 2 on" in done.err


def test_damage_is_listed_and_the_rest_is_copied(cli: Cli, url: str, root: Path) -> None:
    hurt, whole = (cli("sessions", "new").out.strip() for _ in range(2))
    for session in (hurt, whole):
        for text in ("\x1b[31mone", "two", "three"):
            cli("sessions", "append", session, text)
    log = root / "sessions" / hurt / "session.jsonl"
    lines = log.read_bytes().split(b"\n")
    lines[2] = lines[2].replace(b"two", b"owt")
    log.write_bytes(b"\n".join([*lines[:3], b"put in between", *lines[3:]]))
    done = cli("store", "copy", str(root), url)
    assert done.code == 1
    assert "seq 2: crc does not match\n" in done.out
    assert "not valid JSON" in done.out
    assert done.out.count("left out") == 1
    assert "2 sessions copied" in done.out
    assert "problems in 1 session of the source" in done.err
    for where in (("--store", url), ("--home", str(root))):
        verified = cli(*where, "store", "verify")
        assert verified.code == 1
        assert "seq 2: crc does not match" in verified.out
        shown = cli(*where, "store", "verify", "--json").json
        assert (shown["ok"], shown["sessions"]) == (False, 2)
        assert {one["session"] for one in shown["damage"]} == {hurt}
    assert cli("--store", url, "sessions", "show", whole).code == 0


def test_copying_nonsense_is_one_clear_line(cli: Cli, url: str, root: Path, tmp_path: Path) -> None:
    cli("sessions", "new")
    foreign = tmp_path / "theirs"
    foreign.mkdir()
    (foreign / "a.jsonl").write_text(
        '{"type":"session","version":3,"id":"a","timestamp":"2025-01-01T00:00:00.000Z","cwd":"/"}\n'
    )
    for arguments, code, said in (
        ((str(tmp_path / "none"), url), 1, "there is no directory"),
        ((str(root), str(root / "..") + f"/{root.name}"), 2, "SRC and DST are the same"),
        ((str(foreign), url), 1, "sessions of another program"),
        ((str(root), "redis://x"), 1, "unknown kind of location"),
        ((str(root), "memory:"), 1, "cannot be copied"),
        ((str(root), "postgresql://me:hush@127.0.0.1:1/x"), 1, "cannot be reached"),
        ((str(root), url, "--session", "nobody"), 1, "nobody"),
    ):
        done = cli("store", "copy", *arguments)
        assert done.code == code, done
        assert said in done.err
        assert "hush" not in done.err
        assert "Traceback" not in done.err


def test_stats_tell_where_the_room_goes(cli: Cli, url: str, root: Path) -> None:
    session = cli("sessions", "new", "--title", "Big\x1b[31m one").out.strip()
    cli("sessions", "append", session, "x" * 5000)
    cli("store", "copy", str(root), url)
    files, tables = cli("store", "stats").out, cli("--store", url, "store", "stats").out
    for said in (files, tables):
        assert said.startswith("1 session, 1 record, 5.")
        assert session in said
        assert "\x1b" not in said
    assert "  sessions\n" in files
    assert "table version" in tables
    assert "of indexes" in tables
    held = cli("--store", url, "store", "stats", "--json", "--limit", "0").json
    assert held["biggest"] == []
    assert {"rec", "listing"} <= {room["name"] for room in held["rooms"]}


def test_an_empty_store_is_copied_verified_and_counted(cli: Cli, url: str, root: Path) -> None:
    root.mkdir()
    assert cli("store", "copy", str(root), url).code == 0
    assert cli("store", "verify").out == "0 sessions verified, no damage\n"
    assert cli("store", "stats").out.startswith("0 sessions, 0 records, 0 B")
