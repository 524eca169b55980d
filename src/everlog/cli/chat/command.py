"""The `everlog chat` command: checks its options and starts a chat or a single prompt."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from everlog.cli import output
from everlog.cli.options import chosen_home, chosen_location, command, complete_agent, complete_session, warn_of_reports

if TYPE_CHECKING:
    from everlog.aio import AsyncStore
    from everlog.cli.chat.session_choice import SessionChoice


@command()
@click.argument("words", metavar="[TEXT]", nargs=-1)
@click.option("--new", "is_new", is_flag=True, help="Start a new session.")
@click.option(
    "--resume",
    is_flag=False,
    flag_value="",
    metavar="[ID]",
    shell_complete=complete_session,
    help="Continue this session; without ID, the newest of all.",
)
@click.option("--agent", shell_complete=complete_agent, help="Chat with this agent; default: the default agent.")
@click.option("--sender", help="Chat as this sender; default: user.")
@click.option("--model", help="Set the session's model: provider:name, or offline.")
@click.option("--continue-here", is_flag=True, help="Write to the file of another program without being asked.")
@click.option("-p", "--prompt", metavar="TEXT", help="Send TEXT, print the answer, and exit.")
def chat(
    *,
    words: tuple[str, ...],
    is_new: bool,
    resume: str | None,
    agent: str | None,
    sender: str | None,
    model: str | None,
    continue_here: bool,
    prompt: str | None,
    as_json: bool,
) -> None:
    """Chat with an agent.

    Continues the current session of the agent and the sender. Uses the daemon if one is running for
    the home, else runs in this process. With TEXT or -p it sends that, prints the answer and exits.
    Piped input is sent as the prompt, or appended to it. Type /help in a chat for its commands and
    keys.
    """
    if words and prompt is not None:
        raise click.UsageError("give the prompt once: as TEXT or with -p")
    if is_new and resume is not None:
        raise click.UsageError("--new cannot be combined with --resume")
    if resume and (agent or sender):
        raise click.UsageError("--resume ID cannot be combined with --agent or --sender")
    for value in filter(None, (agent, sender, model)):
        value.encode()  # fail here if it is not UTF-8, instead of storing another name
    if model and model != "offline" and not all(model.partition(":")):
        raise click.UsageError(f"{model!r} is not a model: use provider:name, or offline")
    text = _read_prompt(" ".join(words) if words else prompt)
    if text is None and as_json:
        raise click.UsageError("--json needs TEXT or piped input")
    if text is None and not (output.is_terminal(sys.stdin) and output.is_terminal(sys.stdout)):
        raise click.UsageError("a chat needs a terminal: give TEXT to send")
    import asyncio  # takes 50 ms; not needed to list the commands

    from everlog.cli.chat.session_choice import SessionChoice

    choice = SessionChoice(is_new, resume, agent, sender, model, continue_here)
    asyncio.run(_run_chat(choice, text, as_json))


def _read_prompt(prompt: str | None) -> str | None:
    """Return the prompt from the arguments and piped input; None for an interactive chat."""
    if sys.stdin is None or sys.stdin.isatty():
        piped = ""
        if prompt is None:
            return None
    else:
        piped = sys.stdin.buffer.read().decode("utf-8", "replace")
    combined = "\n\n".join(text for text in (prompt, piped.rstrip("\r\n")) if text and text.strip())
    if not combined:
        raise click.UsageError("the prompt is empty")
    return combined


async def _check_agent(store: AsyncStore, name: str) -> None:
    """Ask before an agent is made by a name that neither the settings nor any session has."""
    from everlog.cli.chat.session_choice import agent_names
    from everlog.errors import NotFoundError

    names = agent_names(store.sync)
    if name.lower() in map(str.lower, names) or (await store.list(limit=1, agent=name)).total:
        return
    problem = f"there is no agent {name[:60]!r}"
    if not (output.is_terminal(sys.stdin) and output.is_terminal(sys.stdout)):
        hint = f"known: {', '.join(names)}; name another in the settings: [agents.NAME]"
        raise NotFoundError(problem, hint=hint)
    click.confirm(output.one_line(f"{problem}; known: {', '.join(names)}. Start it?"), abort=True)


async def _run_chat(choice: SessionChoice, prompt: str | None, as_json: bool) -> None:
    from everlog.cli.chat.backend import find_backend
    from everlog.cli.chat.session_choice import choose_session

    home, location = chosen_home(), chosen_location()
    backend = await find_backend(home, location)
    try:
        if choice.agent:
            await _check_agent(backend.store, choice.agent)
        session = await choose_session(backend, choice)
        if prompt is not None:
            from everlog.cli.chat.oneshot import ask

            # Nothing was said in it, so that it was made for this prompt.
            is_made = (await session.metadata()).through.seq == 0
            await ask(backend, session.id, prompt, as_json=as_json, is_made=is_made)
        else:
            from everlog.cli.chat.repl import Chat

            conversation = Chat(home, location, backend, session)
            try:
                await conversation.run()
            finally:
                backend = conversation.backend  # a local one, if the daemon has stopped
    finally:
        warn_of_reports(backend.store.sync.port)
        await backend.close()
