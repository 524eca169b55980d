"""`everlog serve`: the lifecycle of a home's daemon.

start   lock the home, bind the address, open the runtime and recover from a crash, then serve
run     poll config.toml once a second; an invalid one changes nothing
stop    on SIGTERM or SIGINT: disconnect clients, let turns finish or cancel and record them,
        close the store, remove the address
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import signal
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec
import uvicorn

from everlog.app import load_settings, open_runtime
from everlog.daemon import http_app, json_log
from everlog.daemon.auth import Credentials
from everlog.daemon.connection import HttpConnection
from everlog.daemon.event_stream import EventStream
from everlog.daemon.json_log import log_event
from everlog.daemon.listing_events import ListingWatcher
from everlog.daemon.request_guard import OPEN_PATH, Guard
from everlog.daemon.request_limits import RateLimiter
from everlog.daemon.run_directory import SOCKET, RunDirectory, file_stamp
from everlog.daemon.startup_steps import StartupSteps
from everlog.errors import SettingsError
from everlog.runtime.background_task import BackgroundTask
from everlog.runtime.run import RecoveredSession
from everlog.runtime.runtime import Runtime
from everlog.settings import DaemonSettings

SWITCH_SECONDS = 0.0005  # thread switch interval: the event loop waits less for busy threads
CONFIG_POLL_SECONDS = 1.0
SHUTDOWN_SECONDS = 5.0  # for responses still being sent when everything else has ended


class RunningDaemon(msgspec.Struct, frozen=True):
    """A daemon that accepts requests."""

    address: str  # http://127.0.0.1:8642
    home: Path
    make_link: Callable[[], str]  # creates a one-time link to the page
    runtime: Runtime


async def _announce_nothing(daemon: RunningDaemon) -> None:
    return


async def serve(
    home: Path,
    *,
    location: str | None = None,
    port: int | None = None,
    host: str | None = None,
    on_start: Callable[[RunningDaemon], Awaitable[None]] = _announce_nothing,
) -> None:
    """Run the daemon of a home until it is stopped; port and host override the settings.

    `on_start` is awaited while requests are served; the log of the start is written after it.
    `location` is that of the store, if it is not the one of the settings. Raises SessionBusyError if
    a daemon is already running for the home, SettingsError if it cannot listen on the address.
    """
    settings = load_settings(home)
    daemon = settings.daemon
    host = daemon.host if host is None else host
    _check_host(host, daemon)
    stop = asyncio.Event()
    async with AsyncExitStack() as stack:
        startup = ExitStack()
        stack.callback(startup.close)
        startup.enter_context(json_log.hold_back())
        run_directory = RunDirectory(home)
        stack.callback(run_directory.close)
        run_directory.claim()
        run_directory.ensure_token()
        server_socket = _bind(host, daemon.port if port is None else port)
        stack.callback(server_socket.close)
        sys.setswitchinterval(SWITCH_SECONDS)
        _handle_signals(stop.set)

        runtime = open_runtime(location, home=home, settings=settings)
        stack.push_async_callback(runtime.store.close)
        runtime.listeners.append(json_log.log_run_event)
        runtime.takeover.on_takeover = _log_recovery
        runtime.takeover.on_failure = lambda error: log_event("takeover_failed", level="warning", error=error.message)
        for recovered in await runtime.start():
            _log_recovery(recovered)
        watcher = ListingWatcher(runtime)
        watcher.start()
        stack.push_async_callback(watcher.stop)
        address = _address(server_socket, host, secure=bool(daemon.tls_certificate))
        credentials = Credentials(run_directory)
        limiter = RateLimiter(lambda: runtime.settings.daemon.requests_per_second)
        event_stream = EventStream(runtime, limiter, watcher)

        def make_link() -> str:
            return f"{address}{OPEN_PATH}{credentials.make_code()}"

        app = http_app.build_app(runtime, make_link, event_stream)
        name, _, number = address.partition("//")[2].rpartition(":")
        guard = Guard(app, credentials, lambda: runtime.settings.daemon, port=int(number), limiter=limiter, host=name)
        server = _Server(_server_config(guard, daemon))
        server_task = asyncio.create_task(server.serve(sockets=[server_socket]))
        config_watcher = _watch_config(home, runtime)
        config_watcher.start()
        steps = StartupSteps()

        async def open_socket() -> None:
            from everlog.daemon.crabtalk.handler import serve_socket  # noqa: PLC0415 - loads protobuf

            crabtalk = await serve_socket(runtime, run_directory.path / SOCKET)
            stack.push_async_callback(crabtalk.close)

        async def announce() -> None:
            run_directory.announce(address)

        try:
            if daemon.socket:
                await steps.run("socket", open_socket)
            while not server.started:
                if server_task.done():
                    return
                await asyncio.sleep(0.005)
            await steps.run("address", announce)
            log_event("daemon_start", address=address, home=str(home), pid=os.getpid())
            await on_start(RunningDaemon(address, home, make_link, runtime))
            startup.close()
            stop_task = asyncio.ensure_future(stop.wait())
            await asyncio.wait({server_task, stop_task}, return_when=asyncio.FIRST_COMPLETED)
            stop_task.cancel()
        finally:
            await steps.task.stop()
            await config_watcher.stop()
            seconds = runtime.settings.daemon.drain_seconds
            log_event("daemon_drain", seconds=seconds)
            event_stream.stop()
            await runtime.drain(seconds)
            server.should_exit = True
            await server_task
            for connection in tuple(server.server_state.connections):
                connection.transport.abort()  # otherwise the event loop could not be closed
    log_event("daemon_stop")


def run(
    home: Path,
    *,
    location: str | None = None,
    port: int | None = None,
    host: str | None = None,
    on_start: Callable[[RunningDaemon], Awaitable[None]] = _announce_nothing,
) -> None:
    """Run `serve` as a program, on uvloop."""
    import uvloop  # noqa: PLC0415 - not available on every platform

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        coroutine = serve(home, location=location, port=port, host=host, on_start=on_start)
        runner.run(coroutine)


def _log_recovery(recovered: RecoveredSession) -> None:
    log_event("recovered", **msgspec.to_builtins(recovered))


def _handle_signals(stop: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(ValueError, RuntimeError):  # not in the main thread: the task is cancelled instead
            loop.add_signal_handler(number, stop)


class _Server(uvicorn.Server):
    """uvicorn without signal handlers: the daemon ends turns before the server."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals."""
        yield


def _server_config(app: Guard, daemon: DaemonSettings) -> uvicorn.Config:
    json_log.capture_loggers("uvicorn", "litestar")
    return uvicorn.Config(
        app,
        http=partial(HttpConnection, idle={}),  # type: ignore[arg-type]
        ws="websockets-sansio",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws_max_size=daemon.body_bytes,
        ws_per_message_deflate=False,  # compression does not pay off on a local connection
        ssl_certfile=daemon.tls_certificate or None,
        ssl_keyfile=daemon.tls_key or None,
        timeout_graceful_shutdown=int(SHUTDOWN_SECONDS),
    )


def _check_host(host: str, daemon: DaemonSettings) -> None:
    if bool(daemon.tls_certificate) != bool(daemon.tls_key):
        raise SettingsError("[daemon] tls_certificate and tls_key must be set together")
    if daemon.tls_certificate:
        try:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(daemon.tls_certificate, daemon.tls_key)
        except OSError as error:
            raise SettingsError(f"[daemon] tls_certificate, tls_key: {error}") from error
    if not (_is_loopback(host) or daemon.tls_certificate):
        raise SettingsError(
            f"the daemon does not listen on {host} without TLS",
            hint="use 127.0.0.1, or set [daemon] tls_certificate and tls_key",
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound but does not listen yet."""
    try:
        candidates = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, socket_address = candidates[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(socket_address)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise SettingsError(
            f"cannot listen on {host} port {port}: {error.strerror or error}",
            hint="choose another --port; 0 picks a free one",
        ) from error
    return bound


def _address(server_socket: socket.socket, host: str, *, secure: bool) -> str:
    """Return the URL for clients on this machine, also if the socket listens on all addresses."""
    name = {"localhost": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    name = f"[{name}]" if ":" in name and not name.startswith("[") else name
    return f"{'https' if secure else 'http'}://{name}:{server_socket.getsockname()[1]}"


def _watch_config(home: Path, runtime: Runtime) -> BackgroundTask:
    """Return the task that reloads config.toml when it changes; an invalid one changes nothing."""
    file = home / "config.toml"
    last_stamp = file_stamp(file)

    async def reload_if_changed() -> None:
        nonlocal last_stamp
        stamp = file_stamp(file)
        if stamp != last_stamp:
            last_stamp = stamp
            await runtime.reload(load_settings(home))
            log_event("reload")

    return BackgroundTask(
        "config.toml",
        reload_if_changed,
        interval=CONFIG_POLL_SECONDS,
        on_failure=lambda error: log_event("reload_failed", level="error", error=str(error)),
    )
