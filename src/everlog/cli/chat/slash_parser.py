"""The table of slash commands, the parser of `/name argument` lines, and their completion."""

from __future__ import annotations

import difflib
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from everlog.cli import output
from everlog.cli.chat import foreign_session
from everlog.cli.chat import slash_commands as commands
from everlog.cli.message_lines import Line, unfolded_lines
from everlog.errors import EverlogError
from everlog.ports import Action, SessionAccess
from everlog.session import Store

if TYPE_CHECKING:
    from everlog.cli.chat.repl import Chat

MAX_SESSIONS = 50  # searched for a match


class SlashCommand(NamedTuple):
    """A command of a chat; `run` returns the text to put into the input afterwards."""

    help: str
    run: Callable[[Chat, str], Awaitable[str | None]]
    usage: str = ""
    action: Action | None = None  # that the session's format must be able to hold


async def show_help(chat: Chat, argument: str) -> None:
    """List the commands and keys."""
    offered = offered_commands(chat.access)
    width = max(len(f"{name} {command.usage}") for name, command in offered.items()) + 1
    lines = [("", f"  {f'/{name} {command.usage}':<{width}}  {command.help}") for name, command in offered.items()]
    await chat.show([*lines, *(("dim", f"  {line}") for line in KEY_HELP)])


async def unfold(chat: Chat, argument: str) -> None:
    """Show the last folded items in full."""
    problem = "/expand takes the number of folded items to show"
    count = commands.parse_number(argument, problem) if argument else 0
    await chat.show(unfold_lines(chat, count))


async def leave(chat: Chat, argument: str) -> None:
    """End the chat."""
    chat.leave()


SLASH_COMMANDS: dict[str, SlashCommand] = {
    "help": SlashCommand("list the commands and keys", show_help),
    "new": SlashCommand("start a new session", commands.new, "[TITLE]"),
    "resume": SlashCommand("continue another session, by ID or picked", commands.resume, "[ID]"),
    "sessions": SlashCommand("list sessions, filtered by title", commands.sessions, "[TEXT]"),
    "title": SlashCommand("show or set the title", commands.title, "[TEXT]", "rename"),
    "compact": SlashCommand("summarise the older part, with a focus", commands.compact, "[FOCUS]", "compact"),
    "context": SlashCommand("show what the model would be sent", commands.context),
    "rewind": SlashCommand("rewind to before a prompt, or to #SEQ", commands.rewind, "[N]", "rewind"),
    "fork": SlashCommand("continue in a copy, of all or up to a message", commands.fork, "[#SEQ]", "fork"),
    "search": SlashCommand("search the messages of all sessions", commands.search, "WORDS"),
    "memory": SlashCommand("show the agent's memory, or search it", commands.memory, "[WORDS]"),
    "usage": SlashCommand("show turns, tokens and cost of the session", commands.usage),
    "export": SlashCommand("export the session as a page", commands.export, "[md|html] [FILE]"),
    "expand": SlashCommand("show folded items in full: the last N or last turn's", unfold, "[N]"),
    "exit": SlashCommand("leave the chat", leave),
}  # fmt: skip

# Of sessions of other programs beside the store.
FOREIGN_COMMANDS: dict[str, SlashCommand] = {
    "copy": SlashCommand("copy the session into everlog and continue the copy", foreign_session.copy),
    "continue": SlashCommand("continue the session in its program's file", foreign_session.continue_here),
}

KEY_HELP = (
    "",
    "Enter sends, Alt+Enter starts a new line, //text sends a text that begins with a slash.",
    "Messages sent while a turn runs are queued. Ctrl+C stops the turn, Ctrl+O shows folded tool",
    "calls and thinking in full, Up recalls earlier input, Ctrl+D leaves.",
)


def offered_commands(access: SessionAccess) -> dict[str, SlashCommand]:
    """Return the commands that are possible in a session."""
    offered = {
        name: command
        for name, command in SLASH_COMMANDS.items()
        if command.action is None or access.allows(command.action)
    }
    if access.can_copy:
        offered["copy"] = FOREIGN_COMMANDS["copy"]
    if access.mode == "ask" and access.allows("append"):
        offered["continue"] = FOREIGN_COMMANDS["continue"]
    return offered


async def run_command(chat: Chat, text: str) -> str:
    """Run the command in a line; return the text to put into the input afterwards."""
    name, _, argument = text[1:].partition(" ")
    offered = offered_commands(chat.access)
    command = (offered | SLASH_COMMANDS).get(name.strip().lower())
    if command is None:
        await chat.show(_unknown_command(name, offered))
        return ""
    if command.action is not None:
        chat.access.check(command.action, continue_here=chat.session.id in chat.backend.continued)
    return await command.run(chat, argument.strip()) or ""


def _unknown_command(name: str, offered: Iterable[str]) -> Iterator[Line]:
    matches = difflib.get_close_matches(name.lower(), offered, 1, 0.5)
    suggestion = f" Did you mean /{matches[0]}?" if matches else ""
    label = output.shorten(output.one_line(name), 30)
    hint = "Type /help for the list, or start with // to send the text as it is."
    yield "yellow", f"Unknown command /{label}.{suggestion} {hint}"


def unfold_lines(chat: Chat, count: int) -> Iterator[Line]:
    """Yield the last `count` folded items in full; with 0, those of the last turn with any."""
    folded = list(chat.printer.folded)
    if not folded:
        yield "dim", "nothing is folded"
        return
    last_run, _ = folded[-1]
    selected = folded[-count:] if count else [item for item in folded if item[0] == last_run]
    for _, block in selected:
        yield from unfolded_lines(block, output.terminal_width())


class SlashCompleter(Completer):
    """Completes input that begins with a slash, and nothing else."""

    def __init__(self, store: Callable[[], Store], offered: Callable[[], dict[str, SlashCommand]]) -> None:
        self._store = store
        self._offered = offered

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Return the completions at the cursor."""
        text = document.text_before_cursor
        if not text.startswith("/") or "\n" in document.text:
            return []
        name, space, typed = text.partition(" ")
        if not space:
            return _complete_name(name, self._offered())
        if name == "/resume":
            return self._complete_session(typed)
        if name == "/export" and " " not in typed:
            kinds = [kind for kind in ("md", "html") if kind.startswith(typed)]
            return [Completion(kind, -len(typed)) for kind in kinds]
        return []

    def _complete_session(self, typed: str) -> Iterator[Completion]:
        """Complete a session by the beginning of its id, or any part of its title."""
        try:
            page = self._store().list(limit=MAX_SESSIONS)
        except EverlogError:
            return  # the command reports the error when it is run
        now = time.time()
        for row in page:
            title = output.one_line(row.metadata.display_title)
            if row.id.startswith(typed.upper()) or typed.lower() in title.lower():
                ago = output.ago(row.metadata.last_message_at, now)
                yield Completion(row.id, -len(typed), f"{row.id[:10]}… {title}", ago)


def _complete_name(typed: str, offered: dict[str, SlashCommand]) -> Iterator[Completion]:
    for name, command in offered.items():
        if f"/{name}".startswith(typed):
            display = f"/{name} {command.usage}".rstrip()
            yield Completion(f"/{name}", -len(typed), display, command.help)
