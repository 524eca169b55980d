"""Sessions of other programs in a chat: what is offered in place of writing to their files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from everlog.cli import output
from everlog.cli.chat import session_choice
from everlog.cli.message_lines import Line
from everlog.errors import FormatError, UnsupportedError
from everlog.model import Metadata
from everlog.ports import Copying, SessionAccess

if TYPE_CHECKING:
    from everlog.aio import AsyncSession
    from everlog.cli.chat.repl import Chat


def offer_lines(access: SessionAccess, metadata: Metadata, model: str) -> Iterator[Line]:
    """Yield what can be done with a session that is not written to; nothing for one of ours."""
    if access.mode == "own" and access.allows("append"):
        return
    program = output.one_line(access.program) or "another store"
    if access.mode == "read":
        yield "yellow", f"· This is a session of {program}, which is only read here."
    elif not access.allows("append"):
        yield "yellow", f"· This is a session of {program}, whose files cannot be continued here."
    else:
        yield "yellow", f"· This is a session of {program}. Nothing is written to its file before you say so."
    if access.program and metadata.resume_command:
        yield "", f"  resume it in its program   {output.one_line(metadata.resume_command)}"
    if access.can_copy:
        yield "", "  /copy                      copy it into everlog and continue the copy"
    if access.mode == "ask" and access.allows("append"):
        yield "", f"  /continue                  continue here: {_consequence(access, model)}"


def _consequence(access: SessionAccess, model: str) -> str:
    return f"{output.one_line(model)} answers, and writes to {output.one_line(access.file)}"


async def copy(chat: Chat, argument: str) -> None:
    """Copy the session into everlog and continue the copy."""
    made = await copy_session(chat.session)
    await session_choice.make_current(made)
    await chat.show([("dim", f"· a copy of {chat.session.id}")])
    await chat.enter(made)


async def copy_session(session: AsyncSession) -> AsyncSession:
    """Return a copy of a session of another program in the store beside it."""
    copying = session.store.sync.port.capability(Copying)
    if copying is None:
        raise UnsupportedError("this session is in the store already", hint="/fork continues in a copy")
    return await session.store.session(await session.store.call(copying.copy_session, session.id))


async def continue_here(chat: Chat, argument: str) -> None:
    """Continue the session in its program's file, if the user agrees."""
    access = chat.access
    if access.mode != "ask":
        raise FormatError(
            "there is nothing to agree to: " + ("it is only read here" if access.mode == "read" else "it is yours")
        )
    access.check("append", continue_here=True)
    store = chat.backend.store.sync
    model = session_choice.model_of(store, await chat.session.metadata())
    answer = await chat.terminal.ask(f"{_consequence(access, model)}. Continue here? (y/N)")
    if answer.lower() not in ("y", "yes"):
        await chat.show([("dim", "nothing is written")])
        return
    chat.backend.continued.add(chat.session.id)
    await chat.show([("dim", f"· continuing in {output.one_line(access.file)}")])
