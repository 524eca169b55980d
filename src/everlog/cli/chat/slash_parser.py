"""What can be done in a conversation beside talking: `/name …`."""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from everlog.cli.chat import slash_commands as commands
from everlog.cli.chat.event_printer import Line

if TYPE_CHECKING:
    from everlog.cli.chat.repl import Chat


class Verb(NamedTuple):
    """A command of the conversation."""

    does: str
    run: Callable[[Chat, str], Awaitable[str | None]]  # what is to be in the input afterwards
    takes: str = ""


async def show_help(chat: Chat, given: str) -> None:
    """Tell what there is."""
    width = max(len(f"{name} {verb.takes}") for name, verb in VERBS.items()) + 1
    lines = [
        Line(f"  {f'/{name} {verb.takes}':<{width}}  {verb.does}", "")
        for name, verb in VERBS.items()
    ]
    await chat.show([*lines, *(Line(f"  {line}") for line in KEYS)])


async def unfold(chat: Chat, given: str) -> None:
    """Show the last folded lines in full."""
    count = commands.number(given, "/expand takes how many of the last lines") if given else 0
    await chat.show(unfolded(chat, count))


async def leave(chat: Chat, given: str) -> None:
    """End the conversation."""
    chat.leave()


VERBS: dict[str, Verb] = {
    "help": Verb("tells what there is", show_help),
    "new": Verb("starts the next session", commands.new, "[TITLE]"),
    "resume": Verb("goes on with another session; without ID, a picker", commands.resume, "[ID]"),
    "sessions": Verb("list sessions, or those with TEXT in the title", commands.sessions, "[TEXT]"),
    "title": Verb("shows or sets the title", commands.title, "[TEXT]"),
    "compact": Verb("summarise the older part, with a focus", commands.compact, "[FOCUS]"),
    "context": Verb("shows what the model would be sent", commands.context),
    "rewind": Verb("goes back to before a prompt, by its number or #SEQ", commands.rewind, "[N]"),
    "fork": Verb("goes on in a copy, of everything or up to a message", commands.fork, "[#SEQ]"),
    "search": Verb("finds what was said, in all sessions", commands.search, "WORDS"),
    "memory": Verb("shows what the agent remembers, or finds it", commands.memory, "[WORDS]"),
    "usage": Verb("shows turns, tokens and cost of the session", commands.usage),
    "export": Verb("writes the session as a page to read", commands.export, "[md|html] [FILE]"),
    "expand": Verb("shows folded lines in full: the last N, or the last turn's", unfold, "[N]"),
    "exit": Verb("leaves", leave),
}  # fmt: skip

KEYS = (
    "",
    "Enter sends, Alt+Enter begins a new line, //text says what begins with a slash.",
    "What is typed while a turn runs waits for its own. Ctrl+C stops the turn, Ctrl+O unfolds",
    "tool calls and thinking, Up goes through what was typed, Ctrl+D leaves.",
)


async def run(chat: Chat, text: str) -> str:
    """Do what a line says; what is to be in the input afterwards."""
    name, _, given = text[1:].partition(" ")
    verb = VERBS.get(name.strip().lower())
    if verb is None:
        await chat.show(_unknown(name))
        return ""
    return await verb.run(chat, given.strip()) or ""


def _unknown(name: str) -> Iterator[Line]:
    from everlog.cli import output

    near = difflib.get_close_matches(name.lower(), VERBS, 1, 0.5)
    meant = f" Did you mean /{near[0]}?" if near else ""
    shown = output.shorten(output.one_line(name), 30)
    yield Line(f"There is no /{shown}.{meant} /help lists all; //… says it.", "yellow")


def unfolded(chat: Chat, count: int) -> Iterator[Line]:
    """Folded lines in full: the last ones, or with 0 all of the last turn that had some."""
    folded = list(chat.teller.folded)
    if not folded:
        yield Line("nothing is folded")
        return
    chosen = folded[-count:] if count else [one for one in folded if one.run == folded[-1].run]
    for one in chosen:
        yield Line(one.line, "cyan")
        yield from (Line(f"  {line}", "") for line in one.text.split("\n"))
