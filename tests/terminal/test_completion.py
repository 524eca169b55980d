"""Completion in real shells on a pseudo-terminal, and what a shell is answered."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from everlog.session import Store
from tests.cli.runner import Result, environment, run_process

PROMPT = "ready> "


def surroundings(root: Path, folder: Path) -> dict[str, str]:
    """An environment with `everlog` on the path."""
    command = folder / "bin" / "everlog"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m everlog "$@"\n')
    command.chmod(0o700)
    path = os.pathsep.join((str(command.parent), os.environ.get("PATH", os.defpath)))
    return environment(root, PATH=path, HOME=str(folder), INPUTRC="/dev/null", TERM="dumb")


@pytest.fixture
def bash(root: Path, tmp_path: Path) -> Iterator[pexpect.spawn[str]]:
    """An interactive bash that has the script."""
    there = shutil.which("bash")
    if there is None:
        pytest.skip("there is no bash on this machine")
    shell = pexpect.spawn(
        there,
        ["--norc", "--noprofile", "-i"],
        env=surroundings(root, tmp_path),
        encoding="utf-8",
        timeout=60,
        dimensions=(24, 200),
    )
    shell.sendline(f"PS1=re'{PROMPT[2:]}'; bind 'set enable-bracketed-paste off'")
    shell.expect_exact(PROMPT)
    shell.sendline('eval "$(everlog completion bash)"; echo do"ne"')
    shell.expect_exact("done")
    shell.expect_exact(PROMPT)
    yield shell
    shell.close(force=True)


def test_bash_completes_commands_options_ids_and_agents(bash: pexpect.spawn[str], store: Store) -> None:
    made = store.create(title="Fix the tests", agent="researcher")
    store.close()
    for typed, completed in (
        ("everlog sess\t", "ions "),
        ("everlog sessions sho\t", "w "),
        ("everlog sessions list --ag\t", "ent "),
        ("everlog sessions list --agent res\t", "earcher "),
        (f"everlog sessions show {made.id[:6]}\t", f"{made.id[6:]} "),
        (f"everlog sessions rename {made.id[:6]}\t", f"{made.id[6:]} "),
        ("everlog archive ver\t", "ify "),
        (f"everlog chat --resume {made.id[:6]}\t", f"{made.id[6:]} "),
    ):
        bash.send(typed)
        bash.expect_exact(typed.rstrip("\t") + completed)
        bash.send("\x15\n")  # nothing is run
        bash.expect_exact(PROMPT)


def test_completion_on_a_root_that_is_no_root_leaves_the_line_clean(bash: pexpect.spawn[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    bash.send(f"everlog --home {tmp_path}/file sessions show 01\t")
    bash.send("x\x15echo al'l well'\n")
    bash.expect_exact("all well")
    assert "rror" not in (bash.before or "") and "Traceback" not in (bash.before or "")


def ask(root: Path, shell: str, *words: str, incomplete: str = "") -> Result:
    """Ask as the script of a shell does."""
    line = " ".join(("everlog", *words))
    number = incomplete if shell == "fish" else str(len(words) + 1)
    return run_process(
        root, _EVERLOG_COMPLETE=f"{shell}_complete", COMP_WORDS=f"{line} {incomplete}", COMP_CWORD=number
    )


def test_zsh_and_fish_are_told_the_titles_in_one_line(root: Path, store: Store) -> None:
    made = store.create(title="Fix\n\x1b[31mthe\ttests")
    store.close()
    zsh = ask(root, "zsh", "sessions", "show")
    assert zsh.out.splitlines() == ["plain", made.id, "Fix␤␛[31mthe tests"]
    fish = ask(root, "fish", "sessions", "show", incomplete=made.id[:4])
    assert fish.out.splitlines()[-1].endswith("Fix␤␛[31mthe tests")
    assert f"plain,{made.id}\t" in fish.out


def test_at_most_fifty_sessions_are_offered_the_newest_first(root: Path, store: Store) -> None:
    made = [store.create(title=f"n{number}").id for number in range(60)]
    store.close()
    offered = [row.removeprefix("plain,") for row in ask(root, "bash", "sessions", "show").out.split()]
    assert offered == made[:9:-1]


def test_nothing_goes_wrong_aloud(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    for where in (tmp_path / "file", tmp_path / "nowhere"):
        done = ask(where, "bash", "sessions", "show")
        assert done.out.strip() == "" and done.err == ""
    assert not (tmp_path / "nowhere").exists()
    (root / "config.toml").write_text("[session\n")
    done = ask(root, "bash", "sessions", "show")
    assert done.out.strip() == "" and done.err == ""
    done = run_process(root, _EVERLOG_COMPLETE="nonsense")
    assert done.out == "" and done.err == ""
    done = run_process(root, _EVERLOG_COMPLETE="bash_complete", COMP_WORDS="everlog '", COMP_CWORD="many")
    assert done.out == "" and done.err == ""


def test_the_script_names_how_to_install_it_and_an_unknown_shell_is_refused(root: Path) -> None:
    for shell in ("bash", "zsh", "fish"):
        done = run_process(root, "completion", shell)
        assert done.code == 0 and done.err == ""
        assert done.out.startswith("# ") and f"everlog completion {shell}" in done.out
        assert f"_EVERLOG_COMPLETE={shell}_complete" in done.out
        assert run_process(root, "completion", shell, "--json").json["script"] in f"{done.out}\n"
    refused = run_process(root, "completion", "tcsh")
    assert refused.code == 2 and refused.err.count("\n") == 1
