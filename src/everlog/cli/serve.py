"""`everlog serve` runs the daemon; `everlog page` and `everlog status` query a running one."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from everlog.cli import output
from everlog.cli.options import chosen_home, chosen_location, command, connect_daemon

if TYPE_CHECKING:
    from everlog.daemon.server import RunningDaemon

EXAMPLE_TITLE = "An example"
_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")  # set where a browser can be opened


@command()
@click.option("--port", type=click.IntRange(0, 65535), help="Listen on this port; 0 picks a free one.")
@click.option("--host", metavar="ADDRESS", help="Listen on another address; needs TLS.")
@click.option("--example", is_flag=True, help="Create an example session if there is none.")
def serve(port: int | None, host: str | None, example: bool, as_json: bool) -> None:
    """Run the daemon with its agents, web page and API.

    By default it listens only on 127.0.0.1. Every request needs the token in run/token of the home.
    Stop it with Ctrl-C or SIGTERM; it waits for running turns to end. It logs to stderr, one JSON
    object per line.
    """
    from everlog.errors import EverlogError, SettingsError

    try:
        from everlog.daemon.server import run
    except ModuleNotFoundError as error:
        hint = "pip install 'everlog[daemon]'"
        raise SettingsError(f"the daemon needs {error.name}", hint=hint) from error

    async def announce(daemon: RunningDaemon) -> None:
        if example:
            with suppress(EverlogError):  # it is not needed
                await _create_example(daemon)
        _announce(daemon, as_json)

    run(chosen_home().absolute(), location=chosen_location(), port=port, host=host, on_start=announce)


def _announce(daemon: RunningDaemon, as_json: bool) -> None:
    settings = daemon.runtime.settings
    socket = str(daemon.home / "run" / "everlog.sock") if settings.daemon.socket else None
    if as_json:
        answer = {"address": daemon.address, "page": daemon.make_link(), "home": str(daemon.home), "socket": socket}
        output.print_json(answer)
        sys.stdout.flush()
        return
    rows = [
        ("page", daemon.make_link()),
        ("API", f"{daemon.address}/api (docs at {daemon.address}/docs)"),
        ("token", str(daemon.home / "run" / "token")),
        ("home", str(daemon.home)),
        ("model", settings.model_of(daemon.runtime.router.default_agent)),
    ]
    location = daemon.runtime.store.sync.location
    if location != str(daemon.home.resolve()):
        rows.append(("store", location or "in memory"))
    if socket is not None:
        rows.append(("CrabTalk", socket))
    print("everlog is running. The page's link works once; Ctrl-C stops it.\n")
    for name, text in rows:
        print(f"  {name:<9} {output.one_line(text)}")
    sys.stdout.flush()


async def _create_example(daemon: RunningDaemon) -> None:
    """Create an example session with real turns, if there are no sessions."""
    from everlog.errors import SettingsError

    runtime = daemon.runtime
    if (await runtime.store.list(limit=1)).total:
        return
    try:
        session = await runtime.create(title=EXAMPLE_TITLE, check=True)
    except SettingsError:  # without a model that can be used there is nothing to show
        return
    for text in (
        "Hello! What is this?",
        'What time is it in Berlin?\n!call current_time {"timezone": "Europe/Berlin"}',
    ):
        await (await runtime.submit(session, text)).answer()


@command()
def status(as_json: bool) -> None:
    """Show the status of the running daemon."""
    with connect_daemon() as client:
        fields = {"address": client.address, **client.health()}
    if as_json:
        output.print_json(fields)
        return
    words = {True: "yes", False: "no"}
    rows = [
        (key, words[value] if isinstance(value, bool) else str(value)) for key, value in fields.items() if value != ""
    ]
    output.print_table(("NAME", "VALUE"), rows)


@command()
@click.option("--no-open", is_flag=True, help="Only print the link.")
def page(no_open: bool, as_json: bool) -> None:
    """Open the web page of the running daemon in your browser.

    The link is printed too; it works once. Without a terminal or a desktop nothing is opened.
    """
    with connect_daemon() as client:
        url = client.link()
    if as_json:
        output.print_json({"url": url})
        return
    print(url, flush=True)
    has_desktop = sys.platform == "darwin" or any(map(os.environ.get, _DISPLAYS))
    if output.is_terminal(sys.stdout) and has_desktop and not no_open:
        click.launch(url)
