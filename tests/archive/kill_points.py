"""A program that archives and is killed before every opening, renaming, making and removing.

Each time a child is forked off and killed at the next such call. What it leaves must be valid,
and a run after it must complete the archive. Prints how many points there were, and what was
wrong at which.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

from everlog.interop.archive import archive_folder
from everlog.interop.archive.backup import copy
from everlog.interop.archive.objects import Objects, object_path
from everlog.interop.archive.restore import restore
from everlog.interop.archive.verify import verify
from tests.archive.trees import log, restored, tree

CALLS = frozenset({"open", "os.rename", "os.mkdir", "os.remove"})


class Direct(Objects):
    """A naive twin: an object is written where it belongs, piece by piece."""

    def _write_object(self, name: str, packed: bytes) -> None:
        os.makedirs(f"/proc/self/fd/{self._directory}/{name[:2]}", exist_ok=True)
        for half in (packed[:10], packed[10:]):
            flags = os.O_CREAT | os.O_APPEND | os.O_WRONLY
            descriptor = os.open(object_path(name), flags, 0o600, dir_fd=self._directory)
            os.write(descriptor, half)
            os.close(descriptor)


def killed_at(number: int, root: Path, source: Path) -> bool:
    """Whether a run was killed at its n-th call, or came to its end before."""
    child = os.fork()
    if child:
        return os.WIFSIGNALED(os.waitpid(child, 0)[1])
    calls = 0

    def count(event: str, _: object) -> None:
        nonlocal calls
        if event in CALLS:
            calls += 1
            if calls == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    copy(root, [source])
    os._exit(0)


def change(source: Path) -> None:
    """Let a log grow, rewrite one, remove one and add one."""
    project = source / "-work-x"
    with (project / "aaaa.jsonl").open("ab") as opened:
        opened.write(log(3, 9))
    (project / "bbbb.jsonl").write_bytes(log(2, 10))
    (project / "memory" / "MEMORY.md").unlink()
    (project / "cccc.jsonl").write_bytes(log(4, 11))


def main(work: Path, source: Path) -> None:
    """Kill at every point of a first run, and of one after a change."""
    wrong: list[str] = []
    points = 0
    base = work / "base"
    for before in ("nothing", "archive"):
        expected = tree(source)
        if before == "archive":
            copy(base, [source])
            change(source)
            expected.update(tree(source))
        number = 1
        while True:
            root = work / f"{before}-{number}"
            if base.exists():
                shutil.copytree(base, root)
            if not killed_at(number, root, source):
                break
            try:
                if (root / "archive" / "manifests").exists():
                    wrong += [f"{before} {number}: {one.file}" for one in verify(root).damage]
                left = copy(root, [source]).problems
                wrong += [f"{before} {number}: {one.path}: {one.problem}" for one in left]
                wrong += [f"{before} {number}, after: {one.file}" for one in verify(root).damage]
                restore(root, root / "out")
                if tree(restored(root / "out", source)) != expected:
                    wrong.append(f"{before} {number}: not everything came back")
                if list((root / "archive" / "tmp").iterdir()):
                    wrong.append(f"{before} {number}: a temporary file stayed")
            except Exception as error:  # whatever it is, it is told
                wrong.append(f"{before} {number}: {error!r}")
            shutil.rmtree(root)
            number += 1
        points += number - 1
    print(json.dumps({"points": points, "wrong": wrong}))


if __name__ == "__main__":
    if sys.argv[3:] == ["twin"]:
        archive_folder.Objects = Direct  # type: ignore[attr-defined]
    main(Path(sys.argv[1]), Path(sys.argv[2]))
