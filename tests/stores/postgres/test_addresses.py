"""Addresses of a database: what is wrong with one is a setting to mend, and is told as what it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from everlog.app import migrate_database, open_runtime, open_store, open_transferable
from everlog.cli.main import main
from everlog.errors import SettingsError, StoreFailedError
from everlog.settings import PostgresSettings, Settings, convert
from everlog.stores.postgres.driver_errors import Address
from everlog.stores.postgres.postgres_store import PostgresStore
from tests.stores.postgres.server import USER, Server

QUICK = Settings(postgres=PostgresSettings(wait_seconds=0.5))


@pytest.mark.parametrize(
    "end",
    [
        "?connect_timeout=abc",
        "?sslmode=bogus",
        "?keepalives=x",
        "?service=none",
        "?target_session_attrs=bogus",
        "?target_session_attrs=standby",
        "?target_session_attrs=prefer-standby",
        "?target_session_attrs=read-only",
        "?gssencmode=bogus",
        "?channel_binding=bogus",
        "?load_balance_hosts=bogus",
        "?sslnegotiation=bogus",
        "?require_auth=bogus",
        "?sslmode=require&ssl_min_protocol_version=bogus",
    ],
)
def test_what_is_wrong_in_an_address_is_a_setting_to_mend(server: Server, end: str) -> None:
    with pytest.raises(SettingsError) as raised:
        PostgresStore(server.url + end, QUICK).list()
    assert raised.value.hint
    assert "try again" not in str(raised.value) and "running" not in str(raised.value)


def test_a_port_that_there_is_not_is_a_setting_to_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    for url in (f"postgresql://{USER}@127.0.0.1:99999/postgres", "postgresql://127.0.0.1/postgres"):
        monkeypatch.setenv("PGPORT", "abc")
        with pytest.raises(SettingsError, match="port"):
            PostgresStore(url, QUICK).list()


def test_a_server_that_is_not_there_is_none() -> None:
    with pytest.raises(StoreFailedError, match="cannot be reached") as raised:
        PostgresStore("postgresql://me@127.0.0.1:1/x", QUICK).list()
    assert "running" in raised.value.hint


def test_the_only_machine_being_a_standby_is_told_with_what_to_do() -> None:
    with Server() as primary, Server(copy_of=primary) as standby:
        with pytest.raises(StoreFailedError, match="cannot be reached") as raised:
            PostgresStore(standby.url, QUICK).list()
        assert "name the primary" in raised.value.hint


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me@[::1]:5432/x", "postgresql://me@[::1]:5432/x"),
        ("postgresql://[::1]/x", "postgresql://[::1]/x"),
        ("postgresql://me@a:1,[::1]:2/x", "postgresql://me@a:1,[::1]:2/x"),
        ("postgresql://me@a,b:2/x", "postgresql://me@a,b:2/x"),
        ("postgresql://me@a,b/x?port=7", "postgresql://me@a:7,b:7/x"),
        ("postgresql://me@a:1/x", "postgresql://me@a:1/x"),
        ("postgresql://%2Fvar%2Frun/x", "postgresql:///var/run/x"),
        ("postgresql:///x?host=@abstract", "postgresql://@abstract/x"),
        ("postgresql://me:pw@a/my%40db", "postgresql://me@a/my@db"),
        ("postgresql://", "postgresql:///"),
    ],
)
def test_an_address_is_shown_as_it_is_written(url: str, shown: str) -> None:
    assert str(Address(url)) == shown


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:a@secret@host/x",
        "postgresql://me:12/secret@host/x",
        "postgresql://me:a/secret@host/x",
        "postgresql://me:@secret@host/x",
        "postgresql://me:12/sec%40ret@host/x",
    ],
)
def test_a_password_that_ends_too_early_is_not_taken_for_a_place(url: str) -> None:
    with pytest.raises(SettingsError, match="cannot be parsed") as raised:
        Address(url)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("password", ["e", "o", "role", "does"])
def test_a_short_password_changes_neither_the_kind_nor_the_words(server: Server, password: str) -> None:
    url = server.url.replace(f"{USER}@", f"nouser:{password}@")
    with pytest.raises(SettingsError) as raised:
        PostgresStore(url, QUICK).list()
    if len(password) == 1:
        assert 'role "nouser" does not exist' in raised.value.message


def test_a_password_is_hidden_however_short_it_is() -> None:
    address = Address("postgresql://me:e@host/x")
    assert address.redact("in postgresql://me:e@host/x the e is e") == "in … the … is …"
    assert address.redact("password=e, when") == "password=…, when"


@pytest.mark.parametrize("key", ["wait_seconds", "statement_seconds", "lease_seconds"])
@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e12, 1e9, 0.0])
def test_seconds_that_no_clock_counts_are_refused(key: str, value: float) -> None:
    with pytest.raises(SettingsError, match=key):
        convert({"postgres": {key: value}}, {})
    with pytest.raises(SettingsError, match=key.upper()):
        convert({}, {f"EVERLOG_POSTGRES_{key.upper()}": str(value)})


@pytest.mark.parametrize("key", ["wait_seconds", "statement_seconds"])
def test_the_longest_seconds_can_be_used(server: Server, key: str) -> None:
    longest = {"wait_seconds": 3600, "statement_seconds": 86_400}[key]
    settings = convert({"postgres": {key: longest, "schema": "longest"}}, {})
    store = PostgresStore(server.url, settings)
    store.create()
    store.close()


WORDS = "host=127.0.0.1 port=1 user=bob password=s3cr3tpw dbname=x"


@pytest.mark.parametrize("given", [WORDS, "password = s3cr3tpw", "service=s3cr3tpw"])
@pytest.mark.parametrize("opening", [open_store, open_transferable, migrate_database, open_runtime])
def test_what_only_libpq_takes_for_an_address_is_no_directory_and_is_not_repeated(
    opening: Callable[..., object], given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError) as raised:
        opening(given)
    assert "postgresql://" in raised.value.hint and "s3cr3tpw" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_such_an_address_is_refused_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERLOG_HOME", str(tmp_path / "root"))
    (tmp_path / "there").mkdir()
    for command in (
        ("store", "copy", WORDS, "there"),
        ("store", "copy", "there", WORDS),
        ("--store", WORDS, "store", "stats"),
        ("--store", WORDS, "store", "verify"),
        ("--store", WORDS, "store", "migrate"),
        ("--store", WORDS, "sessions", "list"),
    ):
        assert main(list(command)) in (1, 2)
        out, err = capsys.readouterr()
        assert "postgresql://" in err and "s3cr3tpw" not in out + err, command
    assert [one.name for one in tmp_path.iterdir()] == ["there"]


def test_directories_of_others_stand_beside_a_database_and_do_not_hinder_moving(server: Server, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    line = '{"agent":"crab","created_by":"user","created_at":"2026-01-01T00:00:00+00:00","title":"x","uptime_secs":0}'
    (theirs / "crab_user_1.jsonl").write_text(line + '\n{"role":"user","content":"theirs"}\n', encoding="utf-8")
    (tmp_path / "config.toml").write_text(f'[[stores]]\nlocation = "{theirs}"\n', encoding="utf-8")
    with open_store(server.url, home=tmp_path) as store:
        store.session("ours", create=True).append("ours")
        assert {row.source for row in (each.metadata for each in store.list())} == {"interactive", "crabtalk"}
        assert [hit.session for hit in store.search("theirs").results] == ["crab_user_1"]
    open_transferable(server.url, home=tmp_path).close()
    migrate_database(server.url, home=tmp_path)
