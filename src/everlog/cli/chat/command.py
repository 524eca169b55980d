"""The command: what is asked for, and whether there is somebody at a terminal to talk with."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from everlog.cli import output
from everlog.cli.completion_source import complete_agent, complete_session
from everlog.cli.options import (
    chosen_foreign,
    chosen_root,
    chosen_store,
    json_option,
    root_option,
)

if TYPE_CHECKING:
    from everlog.cli.chat.session_choice import Wanted


@click.command()
@click.option("--new", "is_new", is_flag=True, help="Start the next session.")
@click.option(
    "--resume",
    is_flag=False,
    flag_value="",
    metavar="[ID]",
    shell_complete=complete_session,
    help="Go on with this session; without ID, with the newest of all.",
)
@click.option(
    "--agent",
    shell_complete=complete_agent,
    help="Talk with this agent; default: the default one.",
)
@click.option("--sender", help="Who talks; default: user.")
@click.option("--model", help="The model of the session from now on, provider:name or offline.")
@click.option("-p", "--prompt", metavar="TEXT", help="Say this, print the answer, and end.")
@json_option
@root_option()
def chat(
    *,
    is_new: bool,
    resume: str | None,
    agent: str | None,
    sender: str | None,
    model: str | None,
    prompt: str | None,
    as_json: bool,
) -> None:
    """Talk with an agent.

    Goes on with the current session of the agent and the sender, and says which. Through the
    daemon if one runs for the root, else in this process. Piped input is said like -p, or added
    to it. In a conversation /help tells the rest.
    """
    if is_new and resume is not None:
        raise click.UsageError("--new goes on with nothing, --resume with something: give one")
    if resume and (agent or sender):
        raise click.UsageError("--resume ID names the session: --agent and --sender are its own")
    for given in filter(None, (agent, sender, model)):
        given.encode()  # what is not UTF-8 would become another name than it was
    if model and model != "offline" and not all(model.partition(":")):
        raise click.UsageError(f"{model!r} names no model: write provider:name, or offline")
    said = _said(prompt)
    if said is None and as_json:
        raise click.UsageError("--json goes with -p, or with piped input")
    if said is None and not (output.on_terminal(sys.stdin) and output.on_terminal(sys.stdout)):
        raise click.UsageError("a conversation needs a terminal: give -p TEXT")
    import asyncio  # 50 ms, which the list of commands does not need

    from everlog.cli.chat.session_choice import Wanted

    wanted = Wanted(is_new, resume, agent, sender, model)
    asyncio.run(_talk(wanted, said, as_json))


def _said(prompt: str | None) -> str | None:
    """What is to be said at once; None if there is somebody to ask."""
    if sys.stdin is None or sys.stdin.isatty():
        piped = ""
        if prompt is None:
            return None
    else:
        piped = sys.stdin.buffer.read().decode("utf-8", "replace")
    said = "\n\n".join(text for text in (prompt, piped.rstrip("\r\n")) if text and text.strip())
    if not said:
        raise click.UsageError("there is nothing to say: the prompt is empty")
    return said


async def _talk(wanted: Wanted, said: str | None, as_json: bool) -> None:
    from everlog.cli.chat.backend import find_partner
    from everlog.cli.chat.session_choice import choose

    root = chosen_root()
    partner = await find_partner(root, chosen_foreign(), chosen_store())
    try:
        session = await choose(partner, wanted)
        if said is not None:
            from everlog.cli.chat.oneshot import ask

            await ask(partner, session.id, said, as_json=as_json)
        else:
            from everlog.cli.chat.repl import Chat

            talking = Chat(root, partner, session)
            try:
                await talking.run()
            finally:
                partner = talking.partner  # another one, if the daemon has gone
    finally:
        for report in getattr(partner.store.sync.port, "reports", ()):
            output.warn(report)
        await partner.close()
