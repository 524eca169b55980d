"""Where the sessions are, when it is said in a way that cannot be meant."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.runner import Cli

SECRET = "geheim"
URL = f"postgresql://me:{SECRET}@127.0.0.1:1/name"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, in which nothing is to be made."""
    empty = tmp_path / "here"
    empty.mkdir()
    monkeypatch.chdir(empty)
    return empty


@pytest.mark.parametrize("option", ["--home", "--store"])
def test_an_option_that_is_empty_is_refused_on_every_level(cli: Cli, option: str) -> None:
    for arguments in ((option, "", "sessions", "list"), ("sessions", "list", option, "")):
        done = cli(*arguments)
        assert done.code == 2 and "the value is empty" in done.err


@pytest.mark.parametrize("variable", ["EVERLOG_HOME", "EVERLOG_STORE"])
def test_a_variable_that_is_empty_is_refused_unless_the_option_is_given(
    cli: Cli, variable: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(variable, "")
    done = cli("sessions", "list")
    assert done.code == 2 and f"{variable} is empty" in done.err
    assert cli("--help").code == 0
    if variable == "EVERLOG_HOME":
        assert cli("--home", str(tmp_path), "sessions", "list").code == 0


def test_a_root_that_is_an_address_is_refused_and_nothing_is_made(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = (("sessions", "new"), ("sessions", "list"), ("doctor",))
    done = [cli("--home", URL, *command) for command in commands]
    monkeypatch.setenv("EVERLOG_HOME", URL)
    done += [cli(*command) for command in commands]
    for one in done:
        assert one.code == 2
        assert "--store" in one.err and SECRET not in one.err + one.out
    assert os.listdir(here) == []


@pytest.mark.parametrize("option", ["--home", "--store"])
def test_a_directory_that_is_missing_is_refused_with_the_command_that_makes_it(
    cli: Cli, here: Path, option: str
) -> None:
    refused = cli(option, str(here / "new"), "sessions", "list")
    assert refused.code == 1
    assert f"there is no directory {here}/new (everlog {option} {here}/new store init makes it)" in refused.err
    assert os.listdir(here) == []
    assert cli(option, str(here / "new"), "store", "init").code == 0
    assert cli(option, str(here / "new"), "sessions", "list").code == 0
