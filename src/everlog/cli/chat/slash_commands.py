"""What the slash commands do."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from everlog.cli import output
from everlog.cli.chat import session_choice
from everlog.cli.chat.event_printer import Line
from everlog.context.tokens import estimate
from everlog.errors import ConflictError, FormatError, NotFoundError, StoreFailedError
from everlog.model import Message

if TYPE_CHECKING:
    from everlog.cli.chat.repl import Chat
    from everlog.context.build import Context
    from everlog.ports import Results
    from everlog.session import Session

LISTED = 10  # sessions, prompts
SENT = 20  # messages of a context


# --- sessions -------------------------------------------------------------------------------


async def new(chat: Chat, given: str) -> None:
    """Start the next session of the same agent and sender."""
    agent, sender = chat.pair
    store = chat.partner.store
    await chat.enter(await session_choice.start(store, agent, sender, title=given or None))


async def resume(chat: Chat, given: str) -> None:
    """Go on with another session."""
    store = chat.partner.store
    if not given:
        from everlog.cli.chat.chat_screen import is_dumb

        if is_dumb():
            await sessions(chat, "")
            await chat.show([Line("/resume ID goes on with one of them")])
            return
        from everlog.cli.picker import pick_async

        async with chat.printing:  # what happens meanwhile is shown afterwards
            picked = await pick_async(store.sync)
        if picked is None:
            return
        given = picked
    session = await store.session(given)
    await session_choice.make_current(session)
    await chat.enter(session)


async def sessions(chat: Chat, given: str) -> None:
    """List sessions."""
    page = await chat.partner.store.list(limit=LISTED, title=given or None)
    now = time.time()
    rows = [
        (
            f"{'*' if one.id == chat.session.id else ' '} {one.id}",
            one.metadata.title,
            str(one.metadata.message_count),
            output.ago(one.metadata.last_message_at, now),
        )
        for one in page
    ]
    if not rows:
        await chat.show([Line("no session matches")])
        return
    titles = ("  ID", "TITLE", "MSGS", "ACTIVE")
    output.put_table(titles, rows, right=("MSGS",), elastic="TITLE", spare=("ACTIVE", "MSGS"))
    if page.next is not None:
        await chat.show([Line(f"{len(page)} of {page.total:,}")])


async def title(chat: Chat, given: str) -> None:
    """Show or set the title."""
    if given:
        await chat.partner.rename(chat.session.id, given)
    else:
        await chat.show([Line(output.one_line((await chat.session.metadata()).title), "")])


async def fork(chat: Chat, given: str) -> None:
    """Go on in a copy."""
    at = number(given.removeprefix("#"), "/fork takes the number of a message") if given else None
    made = await chat.session.fork(at)
    await session_choice.make_current(made)
    await chat.show([Line(f"· a copy of {chat.session.id}")])
    await chat.enter(made)


async def rewind(chat: Chat, given: str) -> str | None:
    """Go back to before a prompt, which can then be said in other words."""
    messages = list((await chat.session.live()).messages)
    if given.startswith("#"):
        seq = number(given[1:], "/rewind #SEQ takes the number of a message")
        await chat.partner.rewind(chat.session.id, seq)
        return None
    prompts = [at for at, one in enumerate(messages) if one.role == "user" and one.seq]
    if not prompts:
        await chat.show([Line("nothing was said yet")])
        return None
    latest = prompts[::-1][:LISTED]
    if not given:
        await chat.show(_numbered([messages[at] for at in latest]))
        given = await chat.terminal.ask("back to before which one? (Enter: none)")
        if not given:
            return None
    back = number(given, "give the number of a prompt, as /rewind lists them")
    if not 1 <= back <= len(prompts):
        raise FormatError(f"there is no prompt {back}", hint="/rewind lists them")
    at = prompts[-back]
    before = [one.seq for one in messages[:at] if one.seq]
    await chat.partner.rewind(chat.session.id, before[-1] if before else 0)
    return messages[at].text


def _numbered(prompts: list[Message]) -> Iterator[Line]:
    from everlog.cli.chat.chat_screen import columns

    for back, one in reversed(list(enumerate(prompts, 1))):
        words = output.one_line(" ".join(one.text[:200].split()))
        yield Line(output.shorten(f"{back:>3}  {words}", columns() - 1), "")


def number(text: str, problem: str) -> int:
    """What was given as a number; FormatError with the problem if it is none."""
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise FormatError(problem)
    return int(text)


# --- the context ----------------------------------------------------------------------------


async def compact(chat: Chat, given: str) -> None:
    """Summarise the older part of the session."""
    outcome = await chat.partner.compact(chat.session.id, given)
    if not outcome.compacted:
        reason = output.one_line(outcome.reason or "there is nothing to summarise")
        await chat.show([Line(f"not compacted: {reason}")])
        return
    left = outcome.tokens - outcome.tokens_freed
    head = f"compacted {outcome.messages:,} messages: {outcome.tokens:,} → {left:,} tokens"
    summary = output.safe(str((outcome.record or {}).get("summary", "")))
    await chat.show([Line(head, "bold"), *(Line(f"  {line}") for line in summary.split("\n"))])


async def context(chat: Chat, given: str) -> None:
    """Show what the model would be sent."""
    sent = await chat.partner.context(chat.session.id)
    await chat.show(_sent(sent, chat.partner.store.sync.count))


def _sent(sent: Context, count: Callable[[str], int]) -> Iterator[Line]:
    percent = sent.tokens * 100 / sent.window
    left_out = f", {len(sent.left_out):,} left out" if sent.left_out else ""
    size = f"{sent.tokens:,} of {sent.window:,} tokens ({percent:.0f} %)"
    yield Line(f"{size}, {output.plural(len(sent.messages), 'message')}{left_out}", "bold")
    earlier = len(sent.messages) - SENT
    if earlier > 0:
        yield Line(f"  … {output.plural(earlier, 'message')} before these")
    from everlog.cli.chat.chat_screen import columns

    for one in sent.messages[-SENT:]:
        place = f"#{one.seq}" if one.seq else "injected" if one.auto_injected else "summary"
        words = output.one_line(" ".join(one.text[:200].split()))
        calls = ", ".join(f"⚙ {output.one_line(call.name)}" for call in one.tool_calls)
        head = f"  {place:>8} {one.role} · {estimate(one, count):,}  "
        yield Line(output.shorten(f"{head}{words} {calls}".rstrip(), columns() - 1), "")
    for why in dict.fromkeys(one.why for one in sent.left_out):
        yield Line(f"  left out: {output.one_line(why)}")


# --- finding --------------------------------------------------------------------------------


async def search(chat: Chat, given: str) -> None:
    """Find what was said."""
    if not given:
        raise FormatError("there is nothing to search for", hint="/search WORDS")
    found = await chat.partner.store.search(given, limit=LISTED)
    await chat.show(_found(found))


def _found(found: Results) -> Iterator[Line]:
    if not found.results:
        yield Line("nothing was found")
    now = time.time()
    for one in found.results:
        yield Line(f"{output.one_line(one.title)}  {one.session}", "bold")
        for hit in one.hits:
            seq = f"#{hit.seq}" if hit.seq else ""
            ago = output.ago(hit.timestamp, now)
            yield Line(f"  {seq:>6} {hit.role} · {ago}  {output.one_line(hit.snippet)}", "")


async def memory(chat: Chat, given: str) -> None:
    """Show what the agent remembers, or what of it is about some words."""
    from everlog.memory.index_file import cut
    from everlog.memory.memory_directory import Memories, memory_path
    from everlog.memory.note_files import is_note
    from everlog.memory.note_ranking import best, items
    from everlog.memory.note_text import INDEX

    agent = (await chat.session.metadata()).agent
    memories = Memories(memory_path(chat.root, agent=agent))
    files = await chat.partner.store.call(memories.files)
    if given:
        found = best(items(files), given, LISTED)
        lines = [f"{one.file}  {one.day}  {output.one_line(one.text)}" for one in found]
    else:
        index = next((one.text for one in files if one.path == INDEX), "")
        lines = output.safe(cut(index).strip()).split("\n") if index.strip() else []
        if not lines:
            lines = [output.one_line(one.path) for one in files if is_note(one.path)]
    empty = (
        "nothing of it is about that" if given else f"{output.one_line(agent)} remembers nothing"
    )
    await chat.show([Line(line, "") for line in lines] or [Line(empty)])


# --- looking back ---------------------------------------------------------------------------


async def usage(chat: Chat, given: str) -> None:
    """Show what the session took."""
    session = chat.session.sync
    await chat.show(await chat.partner.store.call(lambda: list(_usage(session))))


def _usage(session: Session) -> Iterator[Line]:
    """What `sessions stats` tells of it too: also what other programs spent in it."""
    from everlog.app import price
    from everlog.cli.sessions_stats import cost_of
    from everlog.log.usage_report import line

    metadata = session.metadata
    spent = line(session.usage().spent, price)
    seconds = metadata.metrics.total_duration_ms / 1000
    rows = [
        ("turns", f"{spent.turns:,}"),
        ("messages", f"{metadata.message_count:,}"),
        ("tool calls", f"{spent.tool_calls:,}"),
        ("tokens in", f"{spent.input_tokens:,}"),
        ("tokens out", f"{spent.output_tokens:,}"),
        ("from the cache", f"{spent.cache_read_tokens:,}" if spent.cache_read_tokens else ""),
        ("into it", f"{spent.cache_write_tokens:,}" if spent.cache_write_tokens else ""),
        ("time", f"{seconds:,.1f} s" if seconds else ""),  # of other programs' turns none is known
        ("cost", cost_of(spent)),
    ]
    width = max(len(value) for _, value in rows)
    for name, value in rows:
        if value:
            yield Line(f"  {name:<14} {value:>{width}}", "")


async def export(chat: Chat, given: str) -> None:
    """Write the session as a page to read."""
    from everlog.interop import exporter

    usage = "/export [md|html] [FILE]"
    kind, _, file = given.partition(" ")
    if kind not in ("md", "html"):
        if file:
            name = output.shorten(kind, 30)
            hint = f"{usage}; the name of a file may have spaces behind the format"
            raise FormatError(f"there is no format {name!r}", hint=hint)
        kind, file = ("html" if given.endswith(".html") else "md"), given
    if "\0" in file:
        raise FormatError("no file has such a name", hint=usage)
    target = Path(os.path.expanduser(file.strip() or f"{chat.session.id}.{kind}"))
    if target.is_dir():
        target /= f"{chat.session.id}.{kind}"
    written, covered = await chat.partner.store.call(exporter.document, chat.session.sync, kind)
    (data,) = written.files.values()
    try:
        with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
            opened.write(data)
    except FileExistsError:
        raise ConflictError(f"{target} is there already", hint="name another file") from None
    except FileNotFoundError:
        hint = "make it, or name another file"
        raise NotFoundError(f"there is no folder {target.parent}", hint=hint) from None
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        hint = "name another file; the session is as it was"
        raise StoreFailedError(f"{target} cannot be written: {why}", hint=hint) from error
    hidden = f", {output.plural(covered, 'secret')} covered up" if covered else ""
    await chat.show([Line(f"written: {output.one_line(str(target))}{hidden}")])
