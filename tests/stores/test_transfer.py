"""Sessions that come into files from elsewhere, on a disk that fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from everlog.interop.store_copy import copy
from everlog.model import Damaged, user
from everlog.ports import RawLine
from everlog.settings import SessionSettings, Settings
from everlog.stores.file.file_store import FileStore

PROGRAM = """
import sys
from pathlib import Path
from everlog.interop.store_copy import copy
from everlog.stores.file.file_store import FileStore

try:
    copy(FileStore(Path(sys.argv[1])), FileStore(Path(sys.argv[2])))
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.crash
@pytest.mark.parametrize("number", [1, 2, 3])  # full parts, and the last one
@pytest.mark.parametrize(
    ("code", "told"), [("ENOSPC", "StoreFullError creating session"), ("EIO", "StoreFailedError creating session")]
)
def test_a_disk_that_fails_while_a_session_comes_in_is_told_as_what_it_is(
    tmp_path: Path, number: int, code: str, told: str
) -> None:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is missing (apt-get install strace)")
    store = FileStore(tmp_path / "from", Settings(session=SessionSettings(part_bytes=900)))
    session = store.create().id
    for _ in range(6):
        store.append(session, [user("x" * 300)])
    assert len(store.parts(session)) >= 3
    store.close()
    done = subprocess.run(
        [
            *(strace, "-f", "-qq", "-o", os.devnull, "-e", "trace=fdatasync"),
            *("-e", f"inject=fdatasync:error={code}:when={number}"),
            *(sys.executable, "-c", PROGRAM, str(tmp_path / "from"), str(tmp_path / "to")),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.startswith(told), (done.stdout, done.stderr)
    assert "descriptor" not in done.stdout


def test_a_session_that_another_copy_was_quicker_with_is_refused_and_the_run_goes_on(tmp_path: Path) -> None:
    source = FileStore(tmp_path / "source")
    one, two = (source.create({"sender": name}).id for name in "ab")
    for session in (one, two):
        source.append(session, [user("said")])
    target, other = (FileStore(tmp_path / "target") for _ in range(2))

    class Slow:
        """A source from which another has copied a session while its lines are written."""

        asked = 0

        def __getattr__(self, name: str) -> object:
            return getattr(source, name)

        def lines(self, session: str) -> Iterator[RawLine | Damaged]:
            self.asked += session == one
            if session == one and self.asked == 2:
                copy(source, other, [one])
            return source.lines(session)

    moved = copy(Slow(), target)  # type: ignore[arg-type]
    assert (moved.copied, [trouble.session for trouble in moved.refused]) == (1, [one])
    assert "already" in moved.refused[0].problem
    assert [len(list(target.read(session))) for session in (one, two)] == [1, 1]
    assert target.verify(one) == () and os.listdir(tmp_path / "target" / "tmp") == []
    assert copy(source, target).same == 2
