"""A process that writes to a foreign file once, watched and halted by a test.

It stops itself after everything is open, so that strace sees the calls of that one write.
"""

from __future__ import annotations

import os
import signal
from importlib import import_module
from pathlib import Path

import msgspec

from everlog.errors import EverlogError
from everlog.model import user
from everlog.testing.foreign_store_suite import open_foreign_store
from tests.crash.driver import serve, tell

OURS = "ours, acknowledged"
TITLE = "another title"


class Write(msgspec.Struct, frozen=True):
    """What a process writes."""

    root: str
    home: str
    format: str
    session: str
    action: str  # "append", "title", or "naive": an append that checks nothing
    line: str = ""  # what the naive twin appends


def write(job: Write) -> None:
    """Open a session, stop, write to it, and tell whether that was acknowledged."""
    with open_foreign_store(
        Path(job.root), Path(job.home), import_module(f"everlog.interop.formats.{job.format}").FORMAT
    ) as store:
        session = store.session(job.session)
        session.messages()
        tell("READY")
        os.kill(os.getpid(), signal.SIGSTOP)
        try:
            if job.action == "naive":
                _append_naively(Path(job.root), job.session, job.line)
            elif job.action == "title":
                session.rename(TITLE)
            else:
                session.append(user(OURS))
        except EverlogError as error:
            tell(f"REFUSED {type(error).__name__} {error.message}")
        else:
            tell("DONE")


def _append_naively(root: Path, session: str, line: str) -> None:
    path = next(root.rglob(f"{session}*.jsonl"))
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(descriptor, f"{line}\n".encode())
    os.fsync(descriptor)
    os.close(descriptor)


if __name__ == "__main__":
    for name in ("claude", "cersei", "crabtalk", "picoclaw", "pi"):
        import_module(f"everlog.interop.formats.{name}")
    serve(Write, write)
