"""`everlog serve`: the daemon, until it is told to stop; `everlog page` and `everlog status`
talk to one that runs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from everlog.cli import output
from everlog.cli.options import (
    chosen_foreign,
    chosen_root,
    chosen_store,
    json_option,
    root_option,
)

if TYPE_CHECKING:
    from everlog.daemon.server import Served

EXAMPLE = "An example"


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), help="Where to listen; 0 takes any.")
@click.option("--host", metavar="ADDRESS", help="Another address of this machine; needs TLS.")
@click.option("--example", is_flag=True, help="Make an example session if there is none.")
@json_option
@root_option()
def serve(port: int | None, host: str | None, example: bool, as_json: bool) -> None:
    """Run the daemon: agents that answer, a web page, an API.

    Listens on 127.0.0.1 only and always wants the token in run/token of the root. Ends with
    Ctrl-C or SIGTERM, when the turns under way have ended. Its log goes to stderr, one JSON
    object a line.
    """
    from everlog.settings import StoreSettings

    try:
        from everlog.daemon.server import run
    except ModuleNotFoundError as error:
        from everlog.errors import SettingsError

        hint = "pip install 'everlog[daemon]'"
        raise SettingsError(f"the daemon needs {error.name}", hint=hint) from error

    def announce(served: Served) -> None:
        if example:
            import asyncio

            task = asyncio.ensure_future(_example(served))
            task.add_done_callback(lambda done: _announce(served, as_json))
        else:
            _announce(served, as_json)

    foreign = chosen_foreign()
    also = () if foreign is None else (StoreSettings(str(foreign[0].absolute()), foreign[1]),)
    run(
        chosen_root().absolute(),
        port=port,
        host=host,
        store=chosen_store(),
        stores=also,
        announce=announce,
    )


def _announce(served: Served, as_json: bool) -> None:
    from everlog.ports import sharing_of

    settings = served.runtime.settings
    socket = str(served.root / "run" / "everlog.sock") if settings.daemon.socket else None
    if as_json:
        answer = {
            "address": served.address,
            "page": served.make_link(),
            "root": str(served.root),
            "socket": socket,
        }
        output.put_json(answer)
        sys.stdout.flush()
        return
    rows = [
        ("page", served.make_link()),
        ("API", f"{served.address}/api (docs at {served.address}/docs)"),
        ("token", str(served.root / "run" / "token")),
        ("root", str(served.root)),
        ("model", settings.model_of(served.runtime.router.default_agent)),
    ]
    sharing = sharing_of(served.runtime.store.sync.port)
    if sharing is not None:
        rows.append(("store", sharing.address))
    if socket is not None:
        rows.append(("CrabTalk", socket))
    print("everlog is running. The page's link works once; Ctrl-C stops it.\n")
    for name, text in rows:
        print(f"  {name:<9} {output.one_line(text)}")
    sys.stdout.flush()


async def _example(served: Served) -> None:
    """A session to look at, made by a real turn."""
    runtime = served.runtime
    if (await runtime.store.list(limit=1)).total:
        return
    session = await runtime.create(title=EXAMPLE)
    for text in (
        "Hello! What is this?",
        'What time is it in Berlin?\n!call current_time {"timezone": "Europe/Berlin"}',
    ):
        await (await runtime.submit(session, text)).answer()


@click.command()
@json_option
@root_option()
def status(as_json: bool) -> None:
    """Tell how the running daemon is."""
    from everlog.client import Client

    with Client.of(chosen_root()) as client:
        health = client.health()
        if as_json:
            output.put_json({"address": client.address, **health})
        else:
            told = {"address": client.address, **health}
            words = {True: "yes", False: "no"}
            rows = [
                (key, words[value] if isinstance(value, bool) else str(value))
                for key, value in told.items()
                if value != ""
            ]
            output.put_table(("WHAT", "VALUE"), rows)


@click.command()
@json_option
@root_option()
def page(as_json: bool) -> None:
    """Print a link that opens the web page of the running daemon, once."""
    from everlog.client import Client

    with Client.of(chosen_root()) as client:
        url = client.link()
    if as_json:
        output.put_json({"url": url})
    else:
        print(url)
