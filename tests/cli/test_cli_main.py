"""The entry point: version, exit codes, one line per error, and what happens to its streams."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from everlog import __version__
from everlog.session import Session
from tests.cli.runner import Cli, environment, run_process

HEAVY = ("click", "msgspec", "orjson", "apsw", "rich", "json", "inspect", "dataclasses")


def imported(root: Path, *arguments: str) -> set[str]:
    """The modules that a command imports, as the interpreter tells."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "everlog", *arguments],
        capture_output=True,
        env=environment(root),
        check=True,
    )
    rows = done.stderr.decode().splitlines()
    return {row.split("|")[-1].strip() for row in rows if row.startswith("import time:")}


def test_version_is_told(root: Path) -> None:
    assert run_process(root, "--version") == (0, f"everlog {__version__}\n", "")


def test_version_is_told_behind_other_options_too(cli: Cli, root: Path) -> None:
    assert cli("--home", str(root), "--version").out == f"everlog {__version__}\n"


def test_version_imports_nothing_heavy(root: Path) -> None:
    assert not imported(root, "--version") & set(HEAVY)


def test_list_imports_neither_rich_nor_anything_else_it_does_not_need(root: Path, session: Session) -> None:
    needless = {"rich", "asyncio", "dataclasses", "tempfile", "logging", "json", "orjson", "shutil"}
    assert not imported(root, "sessions", "list") & needless
    assert not imported(root, "sessions", "list", "--json") & needless


def test_list_shows_the_session_as_a_process(root: Path, session: Session) -> None:
    done = run_process(root, "sessions", "list")
    assert done.code == 0 and session.id in done.out and done.err == ""


def test_without_arguments_there_is_help_and_exit_2(cli: Cli) -> None:
    done = cli()
    assert done.code == 2 and "sessions" in done.err and "Traceback" not in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--nonsense",),
        ("nonsense",),
        ("sessions", "nonsense"),
        ("sessions", "show"),
        ("sessions", "list", "--limit", "0"),
        ("sessions", "list", "--limit", "many"),
        ("sessions", "list", "--limit", "99999999999999999999"),
        ("sessions", "list", "--since", "whenever"),
        ("sessions", "list", "--since", "99999-01-01"),
        ("sessions", "prune"),
        ("sessions", "prune", "--older-than", "long"),
        ("sessions", "prune", "--older-than", "-1d"),
        ("sessions", "rewind", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "-1"),
        ("sessions", "rewind", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "x"),
        ("sessions", "delete-message", "01ARZ3NDEKTSV4RRFFQ69G5FAV"),
        ("sessions", "delete-message", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "0"),
        ("sessions", "append", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "x", "--role", "system"),
        ("sessions", "show", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "--raw", "--json"),
        ("sessions", "rename", "01ARZ3NDEKTSV4RRFFQ69G5FAV", " "),
        ("--home", "", "sessions", "list"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(cli: Cli, root: Path, arguments: tuple[str, ...]) -> None:
    done = cli(*arguments)
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("everlog: ") and done.err.count("\n") == 1
    assert not root.exists()


def test_root_may_be_given_on_every_level(cli: Cli, root: Path, session: Session) -> None:
    for arguments in (
        ("--home", str(root), "sessions", "list", "--json"),
        ("sessions", "--home", str(root), "list", "--json"),
        ("sessions", "list", "--home", str(root), "--json"),
        ("--home", "/nonexistent", "sessions", "list", "--json", "--home", str(root)),
    ):
        assert cli(*arguments).json["sessions"][0]["id"] == session.id


def test_root_that_is_a_file_is_one_line(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for command in (("sessions", "list"), ("sessions", "new"), ("doctor",)):
        done = cli("--home", str(tmp_path / "file"), *command)
        assert done.code == 1 and done.err.count("\n") == 1 and "Traceback" not in done.err


def test_home_that_does_not_exist_is_one_line(cli: Cli) -> None:
    done = cli("--home", "~nosuchuser/x", "sessions", "list")
    assert done.code == 1 and done.err.startswith("everlog: ~nosuchuser/x: ")


def test_reading_commands_make_no_root(cli: Cli, root: Path) -> None:
    assert cli("sessions", "list").code == 0
    assert cli("sessions", "list", "--json").json == {"sessions": [], "next": None, "total": 0}
    assert cli("sessions", "verify").code == 0
    assert cli("config", "show").code == 0
    assert cli("sessions", "show", "01ARZ3NDEKTSV4RRFFQ69G5FAV").code == 1
    assert not root.exists()


def test_debug_lets_the_error_through(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERLOG_DEBUG", "1")
    from everlog.errors import NotFoundError

    with pytest.raises(NotFoundError):
        cli("sessions", "show", "../x")


def test_reader_that_goes_away_is_no_traceback(root: Path, session: Session) -> None:
    for number in range(200):
        session.store.create(title=f"session {number} " + "x" * 40)
    reader, writer = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-m", "everlog", "sessions", "list", "--limit", "5000", "--json"],
        stdout=writer,
        stderr=subprocess.PIPE,
        env=environment(root),
    ) as process:
        os.close(writer)
        os.close(reader)
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait() == 141


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_output_that_cannot_be_written_is_one_line(root: Path, session: Session) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "everlog", "sessions", "list"],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(root),
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith(b"everlog: ") and done.stderr.count(b"\n") == 1
    assert done.stderr.endswith(b"No space left on device\n")


def test_closed_stdout_is_no_traceback(root: Path, session: Session) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "{sys.executable}" -m everlog sessions list >&-'],
        stderr=subprocess.PIPE,
        env=environment(root),
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_interrupt_is_exit_130_and_one_line(root: Path, session: Session) -> None:
    reader, writer = os.pipe()  # stays open: the command waits for its input
    with subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "everlog", "sessions", "append", session.id],
        stdin=reader,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(root),
    ) as process:
        assert process.stderr is not None
        for row in process.stderr:  # the last import before it reads
            if row.split(b"|")[-1].strip() == b"everlog.cli.append_input":
                break
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait() == 130
    os.close(reader)
    os.close(writer)
    told = [row for row in rest.splitlines() if not row.startswith(b"import time:")]
    assert told == [b"everlog: interrupted"]


def test_every_command_has_help(cli: Cli) -> None:
    from everlog.cli import command_tree

    with command_tree.root.make_context("everlog", ["doctor"]) as context:
        names = command_tree.sessions.list_commands(context)
    for command in (("sessions",), ("config",), ("config", "show"), ("doctor",)):
        assert cli(*command, "--help").code == 0
    for name in names:
        done = cli("sessions", name, "--help")
        assert done.code == 0 and "--json" in done.out and "--home" in done.out


def test_a_usage_error_that_lists_choices_is_one_line(cli: Cli) -> None:
    done = cli("export", "01ARZ3NDEKTSV4RRFFQ69G5FAV")
    assert done.code == 2 and done.err.count("\n") == 1
    assert "Choose from: native, ulid, claude, " in done.err


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (("search", "x"), "`everlog sessions search` or `everlog memory search`"),
        (("rm", "x"), "`everlog sessions rm`"),
        (("memory", "rename"), "`everlog sessions rename`"),
        (("sessions", "serve"), "`everlog serve`"),
        (("sesions", "list"), "`everlog sessions`"),
        (("sessions", "lst"), "`everlog sessions list`"),
        (("ls",), "`everlog sessions list`"),
        (("sessions", "migrate", "DIR"), "`everlog import`"),
    ],
)
def test_an_unknown_command_suggests_the_right_one_of_any_group(
    cli: Cli, arguments: tuple[str, ...], suggestion: str
) -> None:
    done = cli(*arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1 and done.err.endswith(f"did you mean {suggestion}?\n")


def test_an_unknown_command_that_is_like_no_other_suggests_nothing(cli: Cli) -> None:
    assert "did you mean" not in cli("zzzzzz").err
