"""`everlog archive`, `add`, `list`, `verify` and `restore`."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import everlog
from everlog.interop.archive.archive_folder import open_for_writing
from everlog.interop.archive.program_directories import VARIABLES
from everlog.model import Event
from tests.cli.runner import SRC, Cli, run_on_terminal, run_process
from tests.foreign.foreign_directories import SESSIONS, made


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two files."""
    folder = tmp_path / "projects"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"type":"user"}\n' * 100)
    (folder / "b.jsonl").write_text("{}\n")
    return folder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def test_archive_takes_a_folder_and_tells_what_it_did(cli: Cli, source: Path) -> None:
    done = cli("archive", str(source))
    assert (done.code, done.err) == (0, "")
    told = r"2 new and 0 changed of 2 files: 1\.6 kB read, \d+ B written\n"
    assert re.fullmatch(told, done.out)
    again = cli("archive", str(source), "--json")
    assert again.json == {
        "sources": [os.path.realpath(source)],
        "files": 2,
        "new": 0,
        "changed": 0,
        "gone": 0,
        "links": 0,
        "special": 0,
        "bytesRead": 0,
        "bytesWritten": 0,
        "problems": [],
    }


def test_archive_alone_takes_the_usual_places(cli: Cli, home: Path) -> None:
    nothing = cli("archive")
    assert nothing.code == 0 and "no folder of a supported program was found" in nothing.err
    for place in (".claude/projects/-x", ".codex/sessions/2026", ".pi/agent/sessions"):
        (home / place).mkdir(parents=True)
        (home / place / "s.jsonl").write_text(place)
    (home / ".claude" / "settings.json").write_text("{}")
    assert cli("archive", "--json").json["files"] == 3
    assert cli("archive").out.startswith("0 new and 0 changed of 3 files")


def test_archive_honours_where_claude_code_was_told_to_be(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(home / "elsewhere"))
    (home / "elsewhere" / "projects").mkdir(parents=True)
    assert cli("archive", "--json").json["sources"] == [os.path.realpath(home / "elsewhere" / "projects")]


def test_a_source_named_like_a_command_is_given_as_a_path(
    cli: Cli, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(source)
    (source / "verify").mkdir()
    (source / "verify" / "x").write_text("x")
    for arguments in (("./verify",), ("add", "verify"), ("--json", "./verify")):
        assert cli("archive", *arguments).code == 0
    assert [one["files"] for one in cli("archive", "list", "--json").json["sources"]] == [1]


def test_the_root_may_stand_anywhere(cli: Cli, source: Path, tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    assert cli("archive", "--home", other, str(source)).code == 0
    assert cli("archive", "--home", other, "verify").out.startswith("2 objects")
    assert cli("archive", "verify", f"--home={other}").code == 0
    assert cli("archive", f"--home={other}", "list").out.count("\n") == 2


def test_a_source_that_is_not_there_fails_in_one_line(cli: Cli, tmp_path: Path) -> None:
    done = cli("archive", str(tmp_path / "none"))
    assert (done.code, done.out) == (1, "")
    assert done.err == f"everlog: {tmp_path / 'none'}: no such file or folder\n"


def test_a_second_run_at_the_same_time_fails_in_one_line(root: Path, source: Path) -> None:
    with open_for_writing(root):
        done = run_process(root, "archive", str(source))
    assert done.code == 1
    assert done.err.startswith(f"everlog: the archive is held by process {os.getpid()} (")
    assert done.err.count("\n") == 1


def test_list_shows_sources_and_with_a_pattern_versions(cli: Cli, source: Path) -> None:
    assert "the archive is empty" in cli("archive", "list").err
    cli("archive", str(source))
    (source / "b.jsonl").write_text("{}\n{}\n")
    (source / "a.jsonl").unlink()
    cli("archive", str(source))
    title, row = cli("archive", "list").out.splitlines()
    assert title.split() == ["SOURCE", "FILES", "GONE", "VERSIONS", "SIZE", "SINCE"]
    assert row.split()[:6] == [os.path.realpath(source), "2", "1", "3", "1.6", "kB"]
    shown = cli("archive", "list", "*.jsonl").out
    assert shown.count("b.jsonl") == 2 and shown.count("gone 2") == 1
    bounded = cli("archive", "list", "*.jsonl", "--limit", "1")
    assert bounded.out.count("jsonl") == 1
    assert "1 more match (--limit 2)" in bounded.err
    answer = cli("archive", "list", "b.jsonl", "--json").json
    assert answer["matching"] == 1
    assert [one["size"] for one in answer["files"][0]["versions"]] == [3, 6]


def test_list_shows_a_name_that_is_not_text(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "odd"
    folder.mkdir()
    with open(os.path.join(os.fsencode(folder), b"\xff\x1b[31m"), "wb"):
        pass
    cli("archive", str(folder))
    shown = cli("archive", "list", "*").out
    assert "\\xff␛[31m" in shown and "\x1b" not in shown
    (file,) = cli("archive", "list", "--json").json["files"]
    assert file["path64"]


def test_verify_names_what_is_damaged_and_exits_1(cli: Cli, root: Path, source: Path) -> None:
    cli("archive", str(source))
    good = cli("archive", "verify")
    assert (good.code, good.err) == (0, "")
    told = r"2 objects \(\d+ B\) and 1 manifest verified, no damage\n"
    assert re.fullmatch(told, good.out)
    assert cli("archive", "verify", "--json").json["ok"] is True
    file = sorted((root / "archive" / "objects").rglob("*.zst"))[0]
    file.write_bytes(file.read_bytes()[:-1])
    bad = cli("archive", "verify")
    assert bad.code == 1
    assert bad.out.startswith(f"objects/{file.parent.name}/{file.name}: ")
    assert "(needed by " in bad.out and "1 problem in the archive" in bad.err
    assert cli("archive", "verify", "--json").json["damage"][0]["neededByCount"] == 1
    cli("archive", "--again", str(source))
    assert cli("archive", "verify").code == 0


def test_verify_and_restore_without_an_archive_fail(cli: Cli, tmp_path: Path) -> None:
    for arguments in (("verify",), ("restore", "-o", str(tmp_path / "out"))):
        done = cli("archive", *arguments)
        assert done.code == 1 and "nothing is archived" in done.err


def test_restore_writes_files_back(cli: Cli, source: Path, tmp_path: Path) -> None:
    cli("archive", str(source))
    expected = (source / "a.jsonl").read_bytes()
    (source / "a.jsonl").unlink()
    output = str(tmp_path / "out")
    done = cli("archive", "restore", "a.jsonl", "--output", output)
    assert (done.code, done.out) == (0, f"1 file (1.6 kB) written below {output}\n")
    back = tmp_path / "out" / os.path.realpath(source).lstrip("/") / "a.jsonl"
    assert back.read_bytes() == expected
    again = cli("archive", "restore", "a.jsonl", "--output", output)
    assert again.code == 1 and "already exists (give another --output)" in again.err
    some = cli("archive", "restore", "--output", str(tmp_path / "2"), "--json")
    assert len(some.json["files"]) == 2 and some.json["problems"] == []
    early = cli("archive", "restore", "-o", str(tmp_path / "3"), "--at", "2020-01-01")
    assert early.code == 1 and "nothing in the archive matches" in early.err


def test_restore_needs_a_folder(cli: Cli) -> None:
    assert cli("archive", "restore").code == 2


def test_a_missing_library_is_told_with_its_remedy(root: Path, source: Path, tmp_path: Path) -> None:
    (tmp_path / "zstandard.py").write_text("raise ModuleNotFoundError(name='zstandard')")
    done = run_process(root, "archive", str(source), PYTHONPATH=f"{tmp_path}{os.pathsep}{SRC}")
    assert (done.code, done.out) == (1, "")
    assert done.err == ("everlog: the archive needs zstandard (pip install 'everlog[archive]')\n")


def test_a_terminal_sees_a_bar_and_the_answer(root: Path, source: Path) -> None:
    done = run_on_terminal(root, "archive", str(source))
    assert done.code == 0
    assert "2 new and 0 changed of 2 files" in done.out


def test_a_deletion_says_what_the_archive_still_has(cli: Cli, root: Path, tmp_path: Path) -> None:
    files, session = SESSIONS["crabtalk"]
    place = made(tmp_path / "crab", files)
    with everlog.open_store(f"crabtalk:{place}", home=root) as store:
        store.session(session).append(Event(kind="note", data={"text": "kept beside"}))
    archived = cli("archive", str(place), "--json").json["sources"]
    assert len(archived) == 2 and "/companion/" in archived[0] + archived[1]
    done = cli("--store", f"crabtalk:{place}", "sessions", "rm", session, "--yes")
    assert done.code == 0 and "; the archive still has 1 file of it" in done.out
    assert not list(place.iterdir()) and not list((root / "companion").glob("*/sessions/*"))

    with everlog.open_store(home=root, create=True) as store:
        own = store.create(sender="me")
        own.append("hello")
        other = store.create(sender="other")
        other.append("hello")
    cli("archive", str(root / "sessions" / own.id))
    assert cli("sessions", "rm", own.id, "--yes", "--json").json["archived"] >= 1
    assert "archived" not in cli("sessions", "rm", other.id, "--yes", "--json").json
