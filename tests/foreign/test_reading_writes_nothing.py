"""No command that reads writes, renames or makes anything in the directory of another program: seen by strace."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.runner import environment
from tests.foreign.foreign_directories import SESSIONS, made, picoclaw_files
from tests.interop.test_legacy_workspace import STEM, document

CALLS = "creat,link,linkat,symlink,symlinkat,rename,renameat,renameat2,mkdir,mkdirat,unlink,unlinkat,rmdir,truncate"
CHANGES = f"openat,open,{CALLS},ftruncate,chmod,fchmod,fchmodat,chown,fchown,utimensat,write,writev,pwrite64,pwritev"
OPENED_TO_WRITE = re.compile(r"O_(WRONLY|RDWR|CREAT|TRUNC|APPEND)")
COMMANDS = (
    ("sessions", "list"),
    ("sessions", "list", "--json"),
    ("sessions", "show", "ID"),
    ("sessions", "show", "ID", "--all", "--json"),
    ("sessions", "search", "hello"),
    ("sessions", "stats"),
    ("sessions", "stats", "ID"),
    ("sessions", "context", "ID"),
    ("sessions", "parts", "ID"),
    ("sessions", "verify"),
    ("sessions", "export", "ID", "--format", "markdown"),
    ("store", "stats"),
    ("store", "verify"),
    ("sessions", "show", "agent:main:main"),
    ("sessions", "show", "no-such-session"),
    ("doctor",),
)
SCRIPT = """
import json, sys
from everlog.cli.main import main
for location, session in json.loads(sys.argv[1]):
    for command in json.loads(sys.argv[2]):
        main(["--store", location, *(session if word == "ID" else word for word in command)])
"""


def _listing(root: Path) -> dict[str, tuple[int, int, bytes]]:
    paths = sorted(root.rglob("*"))
    stats = {path: path.lstat() for path in (root, *paths)}
    return {
        str(path): (status.st_ino, status.st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path, status in stats.items()
    }


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_no_reading_command_changes_anything_there(tmp_path: Path) -> None:
    place = tmp_path / "theirs"
    locations: list[tuple[str, str]] = []
    for name, (files, session) in SESSIONS.items():
        locations.append((f"{name}:{made(place / name, files)}", session))
    legacy = {"old.json": document(), **picoclaw_files("agent:main:direct:1"), **picoclaw_files("agent:main:direct:2")}
    garbled = {"agent_main_direct_2.meta.json": b'{"key": "ag'}
    locations.append((f"picoclaw:{made(place / 'legacy', {**legacy, **garbled})}", STEM))
    locations.append((str(made(place / "documents", {"old.json": document()})), STEM))
    before = _listing(place)
    trace = tmp_path / "trace"
    child = [sys.executable, "-c", SCRIPT, json.dumps(locations), json.dumps(COMMANDS)]
    done = subprocess.run(
        ["strace", "-f", "-qq", "-y", "--seccomp-bpf", "-s", "0", "-e", f"trace={CHANGES}", "-o", str(trace), *child],
        env=environment(tmp_path / "home"),
        capture_output=True,
        check=False,
    )
    if b"Operation not permitted" in done.stderr and not trace.stat().st_size:
        pytest.skip("this machine lets nobody trace")
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.count(b"hello") >= 2 * len(locations) and done.stdout.count(b"They met.") >= 2
    lines = [line for line in trace.read_text(errors="replace").splitlines() if str(place) in line]
    assert len(lines) > len(locations), "the trace sees the directory"
    changing = [line for line in lines if not re.search(r" open(at)?\(", line) or OPENED_TO_WRITE.search(line)]
    assert changing == []
    assert _listing(place) == before
