"""The slash commands of a chat."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from everlog.cli import output
from everlog.cli.chat import session_choice
from everlog.cli.chat.chat_screen import is_dumb
from everlog.cli.context_report import excess_lines, omission_lines, outcome_lines
from everlog.cli.message_lines import Line
from everlog.cli.options import find_async_session
from everlog.context.tokens import estimate
from everlog.errors import ConflictError, FormatError, NotFoundError, StoreFailedError
from everlog.model import Message

if TYPE_CHECKING:
    from everlog.cli.chat.repl import Chat
    from everlog.context.build import Context
    from everlog.ports import Results
    from everlog.session import Session

MAX_LISTED = 10  # sessions, prompts, search results
MAX_CONTEXT_MESSAGES = 20  # shown by /context


# --- sessions -------------------------------------------------------------------------------


async def new(chat: Chat, argument: str) -> None:
    """Start a new session of the same agent and sender."""
    await chat.enter(await session_choice.start_session(chat.backend, *chat.pair, title=argument or None))


async def resume(chat: Chat, argument: str) -> None:
    """Continue another session."""
    store = chat.backend.store
    if not argument:
        if is_dumb():
            await sessions(chat, "")
            await chat.show([("dim", "/resume ID continues one of them")])
            return
        from everlog.cli.picker import pick_async

        async with chat.screen_lock:  # output of events waits until the picker is closed
            picked_id = await pick_async(store.sync)
        if picked_id is None:
            return
        argument = picked_id
    session = await find_async_session(store, argument)
    await session_choice.make_current(session)
    await chat.enter(session)


async def sessions(chat: Chat, argument: str) -> None:
    """List sessions."""
    page = await chat.backend.store.list(limit=MAX_LISTED, title=argument or None)
    now = time.time()
    if not page:
        await chat.show([("dim", "no session matches")])
        return
    cells = [output.session_cells(row, now) for row in page]
    marks = ["* " if row.id == chat.session.id else "  " for row in page]
    titles = ("  ID", "TITLE", "MSGS", "ACTIVE")
    rows = [(mark + row["ID"], *(row[title] for title in titles[1:])) for mark, row in zip(marks, cells, strict=True)]
    output.print_table(titles, rows, right=("MSGS",), elastic="TITLE", droppable=("ACTIVE", "MSGS"))
    if page.next is not None:
        await chat.show([("dim", f"{len(page)} of {page.total:,}")])


async def title(chat: Chat, argument: str) -> None:
    """Show or set the title."""
    if argument:
        await chat.backend.rename(chat.session.id, argument)
    else:
        await chat.show([("", output.one_line((await chat.session.metadata()).display_title))])


async def fork(chat: Chat, argument: str) -> None:
    """Continue in a copy of the session."""
    seq = None
    if argument:
        seq = parse_number(argument.removeprefix("#"), "/fork takes the number of a message")
    copy = await chat.session.fork(seq)
    await session_choice.make_current(copy)
    await chat.show([("dim", f"· a copy of {chat.session.id}")])
    await chat.enter(copy)


async def rewind(chat: Chat, argument: str) -> str | None:
    """Rewind to before a prompt, and return the prompt to be edited."""
    messages = list((await chat.session.live()).messages)
    if argument.startswith("#"):
        seq = parse_number(argument[1:], "/rewind #SEQ takes the number of a message")
        await chat.backend.rewind(chat.session.id, seq)
        return None
    prompts = [index for index, item in enumerate(messages) if item.is_typed and item.seq]
    if not prompts:
        await chat.show([("dim", "no messages yet")])
        return None
    latest = prompts[::-1][:MAX_LISTED]
    if not argument:
        await chat.show(_prompt_lines([messages[index] for index in latest]))
        argument = await chat.terminal.ask("rewind to before which prompt? (Enter: none)")
        if not argument:
            return None
    back = parse_number(argument, "/rewind takes the number of a prompt in its list")
    if not 1 <= back <= len(prompts):
        raise FormatError(f"there is no prompt {back}", hint="/rewind lists them")
    index = prompts[-back]
    before = [message.seq for message in messages[:index] if message.seq]
    await chat.backend.rewind(chat.session.id, before[-1] if before else 0)
    return messages[index].text


def _prompt_lines(prompts: list[Message]) -> Iterator[Line]:
    for back, message in reversed(list(enumerate(prompts, 1))):
        words = output.one_line(" ".join(message.text[:200].split()))
        yield "", output.shorten(f"{back:>3}  {words}", output.terminal_width() - 1)


def parse_number(text: str, problem: str) -> int:
    """Parse a number; raises FormatError with `problem` as its message."""
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise FormatError(problem)
    return int(text)


# --- the context ----------------------------------------------------------------------------


async def compact(chat: Chat, argument: str) -> None:
    """Summarise the older part of the session."""
    outcome = await chat.backend.compact(chat.session.id, argument)
    await chat.show(outcome_lines(outcome))


async def context(chat: Chat, argument: str) -> None:
    """Show what the model would be sent."""
    built = await chat.backend.context(chat.session.id)
    await chat.show(_context_lines(built, chat.backend.store.sync.count))


def _context_lines(built: Context, count: Callable[[str], int]) -> Iterator[Line]:
    percent = built.tokens * 100 / built.window
    left_out = f", {len(built.left_out):,} left out" if built.left_out else ""
    size = f"{built.tokens:,} of {built.window:,} tokens ({percent:.0f} %)"
    yield "bold", f"{size}, {output.plural(len(built.messages), 'message')}{left_out}"
    yield from excess_lines(built)
    earlier = len(built.messages) - MAX_CONTEXT_MESSAGES
    if earlier > 0:
        yield "dim", f"  … {output.plural(earlier, 'message')} before these"
    for message in built.messages[-MAX_CONTEXT_MESSAGES:]:
        origin = "injected" if message.auto_injected else "summary"
        label = f"#{message.seq}" if message.seq else origin
        words = output.one_line(" ".join(message.text[:200].split()))
        calls = ", ".join(f"⚙ {output.one_line(call.name)}" for call in message.tool_calls)
        head = f"  {label:>8} {message.role} · {estimate(message, count):,}  "
        yield "", output.shorten(f"{head}{words} {calls}".rstrip(), output.terminal_width() - 1)
    yield from omission_lines(built.left_out)


# --- search ---------------------------------------------------------------------------------


async def search(chat: Chat, argument: str) -> None:
    """Search the messages of all sessions."""
    if not argument:
        raise FormatError("the search is empty", hint="/search WORDS")
    results = await chat.backend.store.search(argument, limit=MAX_LISTED)
    await chat.show(_result_lines(results))


def _result_lines(results: Results) -> Iterator[Line]:
    if not results.results:
        yield "dim", "no matches"
    now = time.time()
    for session in results.results:
        yield "bold", f"{output.one_line(session.title)}  {session.session}"
        for hit in session.hits:
            seq = f"#{hit.seq}" if hit.seq else ""
            ago = output.ago(hit.timestamp, now)
            yield "", f"  {seq:>6} {hit.role} · {ago}  {output.one_line(hit.snippet)}"


async def memory(chat: Chat, argument: str) -> None:
    """Show the agent's memory, or search it."""
    from everlog.memory.file_memory import FileMemories

    agent = (await chat.session.metadata()).agent
    memories = FileMemories(chat.home).open(agent)
    if argument:
        matches = await chat.backend.store.call(memories.search, argument, MAX_LISTED)
        lines = [f"{item.file}  {item.day}  {output.one_line(item.text)}" for item in matches]
    else:
        index, notes, _ = await chat.backend.store.call(memories.contents)
        lines = output.safe(index.strip()).split("\n") if index.strip() else []
        lines = lines or [output.one_line(file.path) for file in notes]
    empty = "no matches" if argument else f"the memory of {output.one_line(agent)} is empty"
    await chat.show([("", line) for line in lines] or [("dim", empty)])


# --- usage and export -----------------------------------------------------------------------


async def usage(chat: Chat, argument: str) -> None:
    """Show the usage of the session."""
    session = chat.session.sync
    await chat.show(await chat.backend.store.call(lambda: list(_usage_lines(session))))


def _usage_lines(session: Session) -> Iterator[Line]:
    """Yield the same totals as `sessions stats`, including the usage of other programs."""
    from everlog.app import estimate_price
    from everlog.cli.sessions_stats import format_cost
    from everlog.log.usage_report import make_usage_line

    metadata = session.metadata
    totals = make_usage_line(session.usage().spent, estimate_price)
    seconds = metadata.metrics.total_duration_ms / 1000
    rows = [
        ("turns", f"{totals.turns:,}"),
        ("messages", f"{metadata.message_count:,}"),
        ("tool calls", f"{totals.tool_calls:,}"),
        ("tokens in", f"{totals.input_tokens:,}"),
        ("tokens out", f"{totals.output_tokens:,}"),
        ("cache reads", f"{totals.cache_read_tokens:,}" if totals.cache_read_tokens else ""),
        ("cache writes", f"{totals.cache_write_tokens:,}" if totals.cache_write_tokens else ""),
        ("time", f"{seconds:,.1f} s" if seconds else ""),  # unknown for turns of other programs
        ("cost", format_cost(totals)),
    ]
    width = max(len(value) for _, value in rows)
    for name, value in rows:
        if value:
            yield "", f"  {name:<14} {value:>{width}}"


async def export(chat: Chat, argument: str) -> None:
    """Export the session as a Markdown or HTML page."""
    from everlog.interop import exporter

    usage = "/export [md|html] [FILE]"
    kind, _, file = argument.partition(" ")
    if kind not in ("md", "html"):
        if file:
            name = output.shorten(kind, 30)
            hint = f"{usage}; a file name with spaces needs a format before it"
            raise FormatError(f"unknown format {name!r}", hint=hint)
        kind, file = ("html" if argument.endswith(".html") else "md"), argument
    if "\0" in file:
        raise FormatError("the file name is invalid", hint=usage)
    target = Path(os.path.expanduser(file.strip() or f"{chat.session.id}.{kind}"))
    if target.is_dir():
        target /= f"{chat.session.id}.{kind}"
    call, session = chat.backend.store.call, chat.session.sync
    written, redactions = await call(exporter.export_document, session, kind)
    (data,) = written.files.values()
    try:
        with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(data)
    except FileExistsError:
        raise ConflictError(f"{target} already exists", hint="choose another file") from None
    except FileNotFoundError:
        hint = "create it, or choose another file"
        raise NotFoundError(f"there is no folder {target.parent}", hint=hint) from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        hint = "choose another file; the session is unchanged"
        raise StoreFailedError(f"cannot write {target}: {reason}", hint=hint) from error
    suffix = f", {output.plural(redactions, 'secret')} redacted" if redactions else ""
    await chat.show([("dim", f"written: {output.one_line(str(target))}{suffix}")])
