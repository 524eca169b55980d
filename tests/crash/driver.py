"""The worker: appends to a log and tells what it was promised.

    python -m tests.crash.driver JOB      one job, as JSON
    python -m tests.crash.driver --serve  jobs from stdin, each in a forked child (see children.py)

It prints one line per event, after the call returned:

    NEW <session>                a session was made
    ACK <seq> <payload>          a record was acknowledged
    ERR <class> <payload> …      an append was refused with an error
    BUSY <message>               … because another holds the session
    HELD, DELETED, TURN taken    as it says; STUCK: a child did not come to its end
    DONE                         the plan was carried out
"""

from __future__ import annotations

import codecs
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TypeVar

import msgspec

import everlog
from tests.crash.control import USUAL, Busy, Options
from tests.crash.interfaces import Everlog, Log, name_of, open_log, payload

ATTEMPTS = 3  # at opening a log before the worker gives up
J = TypeVar("J", bound=msgspec.Struct)
REFUSALS = (everlog.EverlogError, OSError, ValueError)


class Job(msgspec.Struct, frozen=True):
    """What a worker is to do."""

    kind: str  # "everlog" or the name of a twin
    root: str
    # Steps: "2*300" appends two records of 300 bytes at once, "limit:5000" limits the size of
    # files, "lift" lifts it, "delete" deletes the session, "hold" takes its lock and waits.
    plan: Sequence[str]
    writer: str = "A"
    start: int = 0  # the number of the first payload
    ids: bool = False  # whether records bring an id, so that doing it again is a retry
    session: str = ""  # default: the newest there is, or a new one
    forks: int = 0  # so many children carry out the plan too, on a log opened before
    threads: int = 0  # so many threads append while the process forks
    stuck_seconds: int = 30  # a child that takes longer waits for a lock that nobody holds
    options: Options = USUAL


def tell(line: str) -> None:
    """One event, by one call; not by write(), which strace may be told to fail."""
    os.writev(1, [f"{line}\n".encode()])


def work(job: Job) -> None:
    """Carry out a job."""
    log = _open(job)
    if log is None:
        return
    if job.threads:
        _fork_beside_threads(job, log)
    elif job.forks:
        _fork(job, log)
    else:
        _carry_out(job, log)
    tell("DONE")
    with suppress(everlog.EverlogError, OSError):
        log.close()


def _open(job: Job) -> Log | None:
    for _ in range(ATTEMPTS):
        try:
            if job.kind != "everlog":
                return open_log(job.kind, Path(job.root), job.options)
            ours = Everlog(Path(job.root), job.options, job.session, ids=job.ids)
            if ours.made:
                tell(f"NEW {ours.made}")
            return ours
        except REFUSALS as error:
            tell(f"ERR {type(error).__name__}")
    return None


def _carry_out(job: Job, log: Log) -> None:
    number = job.start
    for step in job.plan:
        word, _, value = step.partition(":")
        if word in ("limit", "lift"):
            limit = int(value) if value else resource.RLIM_INFINITY
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        elif word == "hold":
            log.hold()
            tell("HELD")
            signal.pause()
        elif word == "delete":
            _delete(log)
        else:
            count, size = map(int, step.split("*"))
            _append(log, [payload(job.writer, number + n, size) for n in range(count)])
            number += count


def _append(log: Log, texts: list[str]) -> None:
    names = [name_of(text) for text in texts]
    try:
        seqs = [log.append(texts[0])] if len(texts) == 1 else log.append_many(texts)
    except (everlog.SessionBusyError, Busy) as error:
        tell(f"BUSY {error}")
    except REFUSALS as error:
        tell(f"ERR {type(error).__name__} {' '.join(names)}")
    else:
        # At once: a kill must not fall between the lines of one acknowledgement.
        tell("\n".join(f"ACK {seq} {name}" for seq, name in zip(seqs, names, strict=True)))


def _delete(log: Log) -> None:
    try:
        log.delete()
    except REFUSALS as error:
        tell(f"ERR {type(error).__name__} delete")
    else:
        tell("DELETED")


# --- everything is opened, then the process forks


def _fork(job: Job, log: Log) -> None:
    """Open a writer, the index and the turn; fork; then parent and children append at once."""
    _append(log, [payload(job.writer, job.start, 100)])
    ours = log if isinstance(log, Everlog) else None
    turn = None
    if ours is not None:
        turn = ours.session.lease()
        ours.store.list(limit=1)
    children = []
    for n in range(job.forks):
        child = os.fork()
        if not child:
            _carry_out(msgspec.structs.replace(job, writer=f"{job.writer}{n}"), log)
            _tell_turn(ours)
            log.close()
            os._exit(0)
        children.append(child)
    _carry_out(msgspec.structs.replace(job, start=job.start + 1), log)
    for child in children:
        os.waitpid(child, 0)
    if ours is None or turn is None:
        return
    last = payload(job.writer, 10_000, 100)  # with the lease, which is still the parent's
    tell(f"ACK {ours.session.append(everlog.user(last), lease=turn).seq} {name_of(last)}")
    if not os.fork():
        _tell_turn(ours)
        os._exit(0)
    os.wait()
    turn.release()
    ours.session.lease().release()


def _fork_beside_threads(job: Job, log: Log) -> None:
    """Fork while threads are at it: whatever they hold at that moment, a child must not need."""
    done = threading.Event()

    def use(writer: str) -> None:
        number = 0
        pause = 0.01 if isinstance(log, Everlog) else 0  # others want to use the index too
        while not done.wait(pause):
            _use(log, payload(writer, number, 100))
            number += 1

    threads = [threading.Thread(target=use, args=(f"T{n}",)) for n in range(job.threads)]
    for thread in threads:
        thread.start()
    for n in range(job.forks):
        child = os.fork()
        if not child:
            signal.alarm(job.stuck_seconds)
            _use(log, payload(f"F{n}", 0, 100))
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            tell("STUCK")
    done.set()
    for thread in threads:
        thread.join()


def _use(log: Log, text: str) -> None:
    """Use all that is open: the log, and of everlog the index."""
    _append(log, [text])
    if isinstance(log, Everlog):
        try:
            log.store.create().append(everlog.user(text))
            log.store.list(limit=1)
        except REFUSALS as error:
            tell(f"ERR {type(error).__name__}")


def _tell_turn(ours: Everlog | None) -> None:
    if ours is None:
        return
    try:
        ours.session.lease().release()
    except everlog.SessionBusyError:
        tell("TURN taken")
    else:
        tell("TURN free")


# --- jobs in forked children


def serve(kind: type[J], work: Callable[[J], None]) -> None:
    """Fork a child per job, answer with its pid; and wait for children, answer with their end."""
    _import_everything()
    living: set[int] = set()
    for line in sys.stdin.buffer:
        word, _, rest = line.partition(b" ")
        if word == b"run":
            job, acks = msgspec.json.decode(rest, type=tuple[kind, str])  # type: ignore[valid-type]
            child = os.fork()
            if not child:
                _begin(job, acks, work)
            living.add(child)
            os.write(1, b"%d\n" % child)
        else:
            child = int(rest)
            _, status = os.waitpid(child, 0)
            living.discard(child)
            os.write(1, b"%d\n" % os.waitstatus_to_exitcode(status))
    for child in living:
        os.kill(child, signal.SIGKILL)


def _import_everything() -> None:
    """So that a child's system calls are those of its job."""
    for name in everlog.__all__:
        getattr(everlog, name)
    import_module("everlog.stores.file.file_store")
    codecs.lookup("utf-16-le")


def _begin(job: J, acks: str, work: Callable[[J], None]) -> None:
    """The child's life: it stops at once, tells into a file, and ends without any clean-up."""
    code = 1
    try:
        os.dup2(os.open(acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
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
        serve(Job, work)
    else:
        work(msgspec.json.decode(sys.argv[1], type=Job))


if __name__ == "__main__":
    main()
