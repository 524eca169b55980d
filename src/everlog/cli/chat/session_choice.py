"""Choice and description of the session that a chat continues."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from everlog.aio import AsyncSession, AsyncStore
from everlog.cli import output
from everlog.cli.chat.backend import Backend
from everlog.cli.message_lines import Line, chat_lines, format_participants, heading_lines, note_line
from everlog.cli.options import find_async_session
from everlog.cli.transcript_output import entries_since_summary
from everlog.errors import NotFoundError, UnsupportedError
from everlog.model import Metadata
from everlog.promotion import make_router
from everlog.render.transcript_items import MessageItem, NoteItem, build_items
from everlog.session import Session, Store

BRIEF_LINES = 6  # of a message of the last exchange


class SessionChoice(NamedTuple):
    """The options of `everlog chat` that select a session."""

    is_new: bool = False
    resume: str | None = None  # a session; "": the newest
    agent: str | None = None
    sender: str | None = None
    model: str | None = None
    continue_here: bool = False  # also in the file of another program


async def choose_session(backend: Backend, choice: SessionChoice) -> AsyncSession:
    """Return the selected session, created if needed; an unusable model changes nothing."""
    store = backend.store
    if choice.resume is not None:
        session = await _find_session(store, choice)
        if choice.continue_here:
            backend.continued.add(session.id)
        await _use_model(backend, session, choice.model)
        await make_current(session)
        return session
    agent = choice.agent or make_router(store.sync.port, store.sync.settings).default_agent
    sender = choice.sender or "user"
    current = None if choice.is_new else await store.current(agent, sender)
    if current is not None:
        await _use_model(backend, current, choice.model)
        return current
    if choice.model:
        return await backend.create(agent=agent, sender=sender, model=choice.model)
    return await start_session(backend, agent, sender)


async def make_current(session: AsyncSession) -> None:
    """Make it the current session of its agent and sender, if it is in the store itself."""
    if (await session.access()).mode != "own":
        return
    try:
        await session.resume()
    except UnsupportedError:
        pass  # its program always continues the newest session


async def start_session(backend: Backend, agent: str, sender: str, *, title: str | None = None) -> AsyncSession:
    """Create the next session of a pair, or reuse the current one if it is empty.

    SettingsError, and no session, if its model cannot be used.
    """
    current = await backend.store.current(agent, sender)
    if current is not None:
        metadata = await current.metadata()
        if not (metadata.through.seq or metadata.unfinished or metadata.model_chosen):
            if title is not None:
                await current.rename(title)
            return current
    return await backend.create(agent=agent, sender=sender, title=title)


async def _find_session(store: AsyncStore, choice: SessionChoice) -> AsyncSession:
    """Return the session to resume: by its id, or the newest."""
    if choice.resume:
        return await find_async_session(store, choice.resume)
    page = await store.list(limit=1, agent=choice.agent, sender=choice.sender)
    if not page:
        raise NotFoundError("there is no session to resume", hint="everlog chat starts one")
    return await store.session(page[0].id)


async def _use_model(backend: Backend, session: AsyncSession, model: str | None) -> None:
    if not model:
        return
    metadata = await session.metadata()
    if metadata.model_chosen and model == metadata.model:
        return
    try:
        await backend.use_model(session.id, model)
    except UnsupportedError:  # the foreign format cannot store a model
        if model != model_of(backend.store.sync, metadata):
            raise


def model_of(store: Store, metadata: Metadata) -> str:
    """Return the model that answers in a session."""
    session_model = metadata.model if metadata.model_chosen else ""
    return session_model or store.settings.model_of(metadata.agent)


def agent_names(store: Store) -> list[str]:
    """Return the agents that the settings name, the default agent first."""
    rules = (rule.agent for rule in store.settings.dispatch.rules if rule.agent)
    return list(
        dict.fromkeys((make_router(store.port, store.settings).default_agent, "main", *store.settings.agents, *rules))
    )


def describe_session(session: Session, location: str) -> Iterator[Line]:
    """Yield the title, age and last exchange of a session."""
    metadata = session.metadata
    if not metadata.message_count:
        yield "dim", f"New session {metadata.id} · {format_participants(metadata)} · {location}"
        return
    ago = output.ago(metadata.last_message_at, time.time())
    count = output.plural(metadata.message_count, "message")
    yield from heading_lines(metadata, (ago, count, location))
    yield from _last_exchange(session)
    if metadata.waiting:
        count = output.plural(len(metadata.waiting), "message")
        yield "dim", f"{count} queued: answered before your next message"


def _last_exchange(session: Session) -> Iterator[Line]:
    """Yield the last message of the user and its answer, abbreviated, and whether its turn failed."""
    messages: list[MessageItem] = []  # the last first
    notes: list[NoteItem] = []  # after them
    for item in reversed(build_items(entries_since_summary(session))):
        if isinstance(item, NoteItem) and item.kind != "compacted" and not messages:
            notes.append(item)
        elif isinstance(item, MessageItem):
            is_prompt = item.message.is_typed
            if is_prompt or (item.message.role == "assistant" and item.message.text and not messages):
                messages.append(item)
            if is_prompt:
                break
    yield "", ""
    for message in reversed(messages):
        yield from (("dim", line) for _, line in chat_lines(message, output.terminal_width(), BRIEF_LINES))
    yield from map(note_line, reversed(notes))
    yield "", ""
