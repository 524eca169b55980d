"""The worker: appends through the public API, or through a twin, and tells what was promised.

    python -m tests.crash.driver JOB      one job, as JSON
    python -m tests.crash.driver --serve  jobs from stdin, each in a forked child (see children.py)

It prints one line per event, each by one write, after the call returned:

    NEW <session>                a session was made
    ACK <seq> <payload>          a record was acknowledged
    ERR <class> <payload> …      an append was refused with an error
    BUSY <message>               … because another holds the session
    DONE                         the plan was carried out
"""

from __future__ import annotations

import codecs
import fcntl
import os
import resource
import signal
import sys
import uuid
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Protocol

import msgspec

import holdfast
from holdfast.settings import SessionSettings, Settings
from tests.crash.control import USUAL, Busy, Options
from tests.crash.twin import TWINS

ATTEMPTS = 3  # at opening a log before the worker gives up


class Job(msgspec.Struct, frozen=True):
    """What a worker is to do."""

    kind: str  # "holdfast" or the name of a twin
    root: str
    # Steps: "2*300" appends two records of 300 bytes at once, "limit:5000" limits the size of
    # files, "lift" lifts it, "delete" deletes the session, "hold" takes its lock and waits.
    plan: Sequence[str]
    writer: str = "A"
    start: int = 0  # the number of the first payload
    repeat: int = 1  # how often the plan is carried out
    ids: bool = False  # whether records bring an id, so that doing it again is a retry
    session: str = ""  # default: the one that is there, or a new one
    forks: int = 0  # so many children carry out the plan too, on a log opened before
    options: Options = USUAL


class Log(Protocol):
    """The tiny face that holdfast and the twins share."""

    def append(self, text: str) -> int: ...
    def append_many(self, texts: Sequence[str]) -> list[int]: ...
    def messages(self) -> list[tuple[int, str]]: ...
    def damage(self) -> list[str]: ...
    def delete(self) -> None: ...
    def hold(self) -> None: ...
    def close(self) -> None: ...


class Holdfast:
    """The product behind the tiny face."""

    def __init__(
        self, root: Path, options: Options = USUAL, session: str = "", *, ids: bool = False
    ) -> None:
        self.store = holdfast.open_store(root, settings=settings(options))
        self.made = ""
        self._root = root
        self._ids = ids
        session = session or newest(root)
        if session:
            self.session = self.store.session(session)
        else:
            self.session = self.store.create()
            self.made = self.session.id

    def append(self, text: str) -> int:
        return self.session.append(self._said(text)).seq

    def append_many(self, texts: Sequence[str]) -> list[int]:
        return [record.seq for record in self.session.append_many(map(self._said, texts))]

    def messages(self) -> list[tuple[int, str]]:
        return [(message.seq, message.text) for message in self.session.messages()]

    def damage(self) -> list[str]:
        return [f"{one.file}: {one.problem} (seq {one.seq})" for one in self.session.verify()]

    def delete(self) -> None:
        self.session.delete()

    def hold(self) -> None:
        lock = self._root / "sessions" / self.session.id / "lock"
        fcntl.flock(os.open(lock, os.O_RDWR), fcntl.LOCK_EX)

    def close(self) -> None:
        self.store.close()

    def _said(self, text: str) -> holdfast.Message:
        if not self._ids:
            return holdfast.user(text)
        return holdfast.user(text, id=str(uuid.uuid5(uuid.NAMESPACE_OID, text)))


def newest(root: Path) -> str:
    """The id of the last session of a root by its directories; none if there is none."""
    there = os.listdir(root / "sessions") if (root / "sessions").is_dir() else []
    return max(there, default="")


def settings(options: Options) -> Settings:
    """The product's settings for what a log is opened with."""
    return Settings(
        SessionSettings(
            part_bytes=options.part_bytes, lock_seconds=options.lock_seconds, total_bytes=0
        )
    )


def open_log(kind: str, root: Path, options: Options = USUAL) -> Log:
    """The log of a root, recovered; a new one if there is none."""
    return Holdfast(root, options) if kind == "holdfast" else TWINS[kind](root, options)


# --- payloads say what they must be


def payload(writer: str, number: int, size: int) -> str:
    """A text of at least `size` bytes that begins with its own name."""
    name = f"{writer}.{number}.{size}"
    piece = f"{name} and on it goes, "
    return f"{name} {piece * (size // len(piece) + 1)}"[: max(size, len(name) + 1)]


def name_of(text: str) -> str | None:
    """The name of a payload, or None if the text is not exactly what was written."""
    name = text.partition(" ")[0]
    try:
        writer, number, size = name.split(".")
        return name if payload(writer, int(number), int(size)) == text else None
    except ValueError:
        return None


# --- work


def tell(line: str) -> None:
    """One event, by one call; not by write(), which strace may be told to fail."""
    os.writev(1, [f"{line}\n".encode()])


def work(job: Job) -> None:
    """Carry out a job."""
    log = _open(job)
    if log is None:
        return
    if job.forks:
        _fork(job, log)
    else:
        _carry_out(job, log)
    tell("DONE")
    try:
        log.close()
    except (holdfast.HoldfastError, OSError):
        pass


def _open(job: Job) -> Log | None:
    for _ in range(ATTEMPTS):
        try:
            if job.kind != "holdfast":
                return open_log(job.kind, Path(job.root), job.options)
            ours = Holdfast(Path(job.root), job.options, job.session, ids=job.ids)
            if ours.made:
                tell(f"NEW {ours.made}")
            return ours
        except (holdfast.HoldfastError, OSError) as error:
            tell(f"ERR {type(error).__name__}")
    return None


def _carry_out(job: Job, log: Log) -> None:
    number = job.start
    for _ in range(job.repeat):
        for step in job.plan:
            word, _, value = step.partition(":")
            if word == "limit":
                resource.setrlimit(resource.RLIMIT_FSIZE, (int(value), resource.RLIM_INFINITY))
            elif word == "lift":
                limit = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
                resource.setrlimit(resource.RLIMIT_FSIZE, limit)
            elif word == "hold":
                log.hold()
                tell("HELD")
                signal.pause()
            elif word == "delete":
                _delete(log)
            else:
                count, size = map(int, step.split("*"))
                texts = [payload(job.writer, number + n, size) for n in range(count)]
                number += count
                _append(log, texts)


def _append(log: Log, texts: list[str]) -> None:
    names = [str(name_of(text)) for text in texts]
    try:
        seqs = [log.append(texts[0])] if len(texts) == 1 else log.append_many(texts)
    except (holdfast.SessionBusy, Busy) as error:
        tell(f"BUSY {error}")
    except (holdfast.HoldfastError, OSError, ValueError) as error:
        tell(f"ERR {type(error).__name__} {' '.join(names)}")
    else:
        # One write: a crash must not fall between the lines of one acknowledgement.
        tell("\n".join(f"ACK {seq} {name}" for seq, name in zip(seqs, names, strict=True)))


def _delete(log: Log) -> None:
    try:
        log.delete()
    except (holdfast.HoldfastError, OSError) as error:
        tell(f"ERR {type(error).__name__} delete")
    else:
        tell("DELETED")


def _fork(job: Job, log: Log) -> None:
    """Everything open before: a writer, the index and the turn; then all append at once."""
    ours = log if isinstance(log, Holdfast) else None
    _append(log, [payload(job.writer, job.start, 100)])
    turn = ours.session.lease() if ours is not None else None
    if ours is not None:
        ours.store.list(limit=1)
    children = []
    for n in range(job.forks):
        child = os.fork()
        if not child:
            _carry_out(msgspec.structs.replace(job, writer=f"{job.writer}{n}"), log)
            if ours is not None:
                _turn_taken(ours)
            log.close()
            os._exit(0)
        children.append(child)
    _carry_out(msgspec.structs.replace(job, start=job.start + 1), log)
    for child in children:
        os.waitpid(child, 0)
    if ours is not None and turn is not None:
        last = payload(job.writer, 10_000, 100)
        tell(f"ACK {ours.session.append(holdfast.user(last), lease=turn).seq} {name_of(last)}")
        if not os.fork():  # nobody's lease: a child may not have the parent's
            _turn_taken(ours)
            os._exit(0)
        os.wait()
        turn.release()
        ours.session.lease().release()


def _turn_taken(ours: Holdfast) -> None:
    try:
        ours.session.lease().release()
    except holdfast.SessionBusy:
        tell("TURN taken")
    else:
        tell("TURN free")


# --- jobs in forked children


def serve() -> None:
    """Fork a child per job; it stops itself before it begins. Answers with its pid."""
    _import_everything()
    living: set[int] = set()
    for line in sys.stdin.buffer:
        word, _, rest = line.partition(b" ")
        if word == b"run":
            job, acks = msgspec.json.decode(rest, type=tuple[Job, str])
            child = os.fork()
            if not child:
                _begin(job, acks)
            living.add(child)
            os.write(1, b"%d\n" % child)
        elif word == b"wait":
            child = int(rest)
            _, status = os.waitpid(child, 0)
            living.discard(child)
            os.write(1, b"%d\n" % os.waitstatus_to_exitcode(status))
    for child in living:
        os.kill(child, signal.SIGKILL)


def _import_everything() -> None:
    """So that a child's system calls are those of its job."""
    for name in holdfast.__all__:
        getattr(holdfast, name)
    import_module("holdfast.stores.file")
    codecs.lookup("utf-16-le")


def _begin(job: Job, acks: str) -> None:
    """The child's life: it tells what happens into a file and leaves without any clean-up."""
    code = 1
    try:
        out = os.open(acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(out, 1)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        work(job)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def main() -> None:
    """See the top."""
    if sys.argv[1:] == ["--serve"]:
        serve()
    else:
        work(msgspec.json.decode(sys.argv[1], type=Job))


if __name__ == "__main__":
    main()
