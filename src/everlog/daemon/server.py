"""`everlog serve`: one daemon per root, from its first line to its last.

start   the lock of the root, the address, the engine with what a crash left, then requests
while   config.toml is looked at once a second; one that is wrong changes nothing
stop    SIGTERM or SIGINT: clients are sent away, turns finish or are cancelled and recorded,
        the store is closed, the address is taken away
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import signal
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec
import uvicorn
from msgspec.structs import replace

from everlog.app import load_settings, open_runtime
from everlog.daemon import http_app, json_log
from everlog.daemon.auth import Keys
from everlog.daemon.connection import Connection
from everlog.daemon.event_stream import Live
from everlog.daemon.json_log import note
from everlog.daemon.listing_events import Board
from everlog.daemon.request_guard import OPEN, Guard
from everlog.daemon.request_limits import Bucket
from everlog.daemon.run_directory import SOCKET, RunDirectory
from everlog.errors import EverlogError, SettingsError
from everlog.runtime.run import Recovered
from everlog.runtime.runtime import Runtime
from everlog.settings import DaemonSettings, StoreSettings

SWITCH = 0.0005  # seconds: the event loop waits less for threads that compute
LOOK = 1.0  # seconds between two looks at config.toml
LAST = 5.0  # seconds for answers that are being sent when everything else has ended


class Served(msgspec.Struct, frozen=True):
    """A daemon that answers."""

    address: str  # http://127.0.0.1:8642
    root: Path
    make_link: Callable[[], str]  # an address that opens the page once
    runtime: Runtime


async def serve(
    root: Path,
    *,
    port: int | None = None,
    host: str | None = None,
    store: str | None = None,
    stores: Sequence[StoreSettings] = (),
    announce: Callable[[Served], None] = lambda served: None,
) -> None:
    """Run the daemon of a root until it is told to stop; port and host override the settings.

    `store` is the address of a database with the sessions, `stores` are directories of others
    beside those that the settings name. SessionBusyError if one runs already, SettingsError if it
    cannot listen there.
    """
    settings = load_settings(root)
    settings = replace(settings, stores=(*settings.stores, *stores))
    daemon = settings.daemon
    host = daemon.host if host is None else host
    _check_host(host, daemon)
    stop = asyncio.Event()
    async with AsyncExitStack() as stack:
        run = RunDirectory(root)
        stack.callback(run.close)
        run.claim()
        run.make_token()
        listening = _bind(host, daemon.port if port is None else port)
        stack.callback(listening.close)
        sys.setswitchinterval(SWITCH)
        _on_signal(stop.set)

        runtime = open_runtime(root, store=store, settings=settings)
        stack.push_async_callback(runtime.store.close)
        runtime.listeners.append(json_log.told)
        runtime.when_rescued = _note_recovered
        runtime.when_rescue_fails = _note_no_rescue
        for one in await runtime.start():
            _note_recovered(one)
        board = Board(runtime)
        board.begin()
        stack.push_async_callback(board.end)
        address = _address(listening, host, secure=bool(daemon.tls_certificate))
        application = _Application(runtime, Keys(run), address, board)
        server = _Server(_uvicorn(application.guard, daemon))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        watching = asyncio.create_task(_watch(root, runtime))
        try:
            if daemon.socket:
                await _serve_crabtalk(runtime, run.path / SOCKET, stack)
            while not server.started:
                if serving.done():
                    return
                await asyncio.sleep(0.005)
            run.announce(address)
            note("daemon_start", address=address, root=str(root), pid=os.getpid())
            announce(Served(address, root, application.make_link, runtime))
            await _first(serving, stop.wait())
        finally:
            watching.cancel()
            seconds = runtime.settings.daemon.drain_seconds
            note("daemon_drain", seconds=seconds)
            application.live.stop()
            await runtime.drain(seconds)
            server.should_exit = True
            await serving
            for left in tuple(server.server_state.connections):
                left.transport.abort()  # else the event loop could not be closed
    note("daemon_stop")


def run(
    root: Path,
    *,
    port: int | None = None,
    host: str | None = None,
    store: str | None = None,
    stores: Sequence[StoreSettings] = (),
    announce: Callable[[Served], None] = lambda served: None,
) -> None:
    """The same as a whole program, on the faster event loop."""
    import uvloop  # noqa: PLC0415 - not on every platform, and only here

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        serving = serve(root, port=port, host=host, store=store, stores=stores, announce=announce)
        runner.run(serving)


def _note_recovered(one: Recovered) -> None:
    note("recovered", **msgspec.to_builtins(one))


def _note_no_rescue(error: EverlogError) -> None:
    note("rescue_failed", level="warning", error=error.message)


def _on_signal(stop: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(ValueError, RuntimeError):  # in another thread: its task is cancelled instead
            loop.add_signal_handler(number, stop)


async def _first(serving: asyncio.Task[None], stop: Awaitable[object]) -> None:
    """Wait until the server ends by itself or is told to."""
    stopping = asyncio.ensure_future(stop)
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()


class _Application:
    """What is served: the routes and their guard."""

    def __init__(self, runtime: Runtime, keys: Keys, address: str, board: Board) -> None:
        host, _, port = address.partition("//")[2].rpartition(":")
        bucket = Bucket(lambda: runtime.settings.daemon.requests_per_second)
        self._keys = keys
        self._address = address
        self.live = Live(runtime, bucket, board)
        app = http_app.build(runtime, self.make_link, self.live)
        self.guard = Guard(
            app, keys, lambda: runtime.settings.daemon, port=int(port), bucket=bucket, host=host
        )

    def make_link(self) -> str:
        """An address that opens the page once."""
        return f"{self._address}{OPEN}{self._keys.make_code()}"


class _Server(uvicorn.Server):
    """uvicorn, but signals are ours: turns end before the server does."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def _uvicorn(app: Guard, daemon: DaemonSettings) -> uvicorn.Config:
    json_log.take_over("uvicorn", "litestar")
    return uvicorn.Config(
        app,
        http=partial(Connection, idle={}),  # type: ignore[arg-type]
        ws="websockets-sansio",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws_max_size=daemon.body_bytes,
        ws_per_message_deflate=False,  # on this machine it costs more than it saves
        ssl_certfile=daemon.tls_certificate or None,
        ssl_keyfile=daemon.tls_key or None,
        timeout_graceful_shutdown=int(LAST),
    )


def _check_host(host: str, daemon: DaemonSettings) -> None:
    if bool(daemon.tls_certificate) != bool(daemon.tls_key):
        raise SettingsError("[daemon] tls_certificate and tls_key go together: give both")
    if daemon.tls_certificate:
        try:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(daemon.tls_certificate, daemon.tls_key)
        except OSError as error:
            raise SettingsError(f"[daemon] tls_certificate, tls_key: {error}") from error
    if not (_is_loopback(host) or daemon.tls_certificate):
        raise SettingsError(
            f"the daemon does not listen on {host} without TLS",
            hint="leave 127.0.0.1, or set [daemon] tls_certificate and tls_key",
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _bind(host: str, port: int) -> socket.socket:
    """The socket, bound but not listening yet."""
    try:
        found = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, place = found[0]
        made = socket.socket(family, kind, protocol)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(place)
        except OSError:
            made.close()
            raise
    except OSError as error:
        raise SettingsError(
            f"cannot listen on {host} port {port}: {error.strerror or error}",
            hint="give another --port; 0 takes any that is free",
        ) from error
    return made


def _address(listening: socket.socket, host: str, *, secure: bool) -> str:
    """Where this machine reaches it, also if it listens on all addresses."""
    name = {"localhost": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    name = f"[{name}]" if ":" in name and not name.startswith("[") else name
    return f"{'https' if secure else 'http'}://{name}:{listening.getsockname()[1]}"


async def _serve_crabtalk(runtime: Runtime, path: Path, stack: AsyncExitStack) -> None:
    from everlog.daemon.crabtalk.handler import serve_socket  # noqa: PLC0415 - loads protobuf

    made = await serve_socket(runtime, path)
    stack.push_async_callback(made.close)


async def _watch(root: Path, runtime: Runtime) -> None:
    """Take over config.toml when it changes; one that is wrong changes nothing."""
    file = root / "config.toml"
    seen = _stamp(file)
    while True:
        await asyncio.sleep(LOOK)
        stamp = _stamp(file)
        if stamp == seen:
            continue
        seen = stamp
        try:
            await runtime.reload(load_settings(root))
            note("reload")
        except Exception as error:  # whatever it is: the next change must still be seen
            note("reload_failed", level="error", error=str(error))


def _stamp(file: Path) -> tuple[int, ...] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
