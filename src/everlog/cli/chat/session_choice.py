"""Which session a conversation goes on with, and what a person is told of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from everlog.aio import AsyncSession, AsyncStore
from everlog.cli import output
from everlog.cli.chat.backend import Partner
from everlog.cli.chat.event_printer import Line, said
from everlog.errors import NotFoundError, UnsupportedError
from everlog.identity.route import Router, Routing
from everlog.model import Message, Metadata
from everlog.session import Session, Store

BRIEF_LINES = 6  # of what was said last
BRIEF_WIDTH = 400  # characters of it


class Wanted(NamedTuple):
    """What the user asked for."""

    is_new: bool = False
    resume: str | None = None  # a session; "": the newest
    agent: str | None = None
    sender: str | None = None
    model: str | None = None


async def choose(partner: Partner, wanted: Wanted) -> AsyncSession:
    """The session, made if there is none; nothing is changed for a model that cannot be used."""
    store = partner.store
    if wanted.resume is not None:
        session = await _named(store, wanted)
        await _use_model(partner, session, wanted.model)
        await make_current(session)
        return session
    agent = wanted.agent or Router(Routing.of(store.sync.settings)).default_agent
    sender = wanted.sender or "user"
    found = None if wanted.is_new else await store.current(agent, sender)
    if found is not None:
        await _use_model(partner, found, wanted.model)
        return found
    if wanted.model:
        return await partner.create(agent=agent, sender=sender, model=wanted.model)
    return await start(store, agent, sender)


async def make_current(session: AsyncSession) -> None:
    """Let it be the one that its agent and sender go on with."""
    try:
        await session.resume()
    except UnsupportedError:
        pass  # its program goes on with the newest, whatever we think


async def start(
    store: AsyncStore, agent: str, sender: str, *, title: str | None = None
) -> AsyncSession:
    """The next session of a pair; one in which nothing was said yet will do."""
    found = await store.current(agent, sender)
    if found is not None:
        metadata = await found.metadata()
        if not (metadata.through.seq or metadata.unfinished or metadata.model_chosen):
            if title is not None:
                await found.rename(title)
            return found
    return await store.create(agent=agent, sender=sender, title=title)


async def _named(store: AsyncStore, wanted: Wanted) -> AsyncSession:
    """The session that was named, or the newest."""
    if wanted.resume:
        return await store.session(wanted.resume)
    page = await store.list(limit=1, agent=wanted.agent, sender=wanted.sender)
    if not page:
        raise NotFoundError("there is no session to resume", hint="everlog chat starts one")
    return await store.session(page[0].id)


async def _use_model(partner: Partner, session: AsyncSession, model: str | None) -> None:
    if not model:
        return
    metadata = await session.metadata()
    if metadata.model_chosen and model == metadata.model:
        return
    try:
        await partner.use_model(session.id, model)
    except (
        UnsupportedError
    ):  # its program's files have no place for it; that matters for another one
        if model != model_of(partner.store.sync, metadata):
            raise


def model_of(store: Store, metadata: Metadata) -> str:
    """The model that answers in a session."""
    chosen = metadata.model if metadata.model_chosen else ""
    return chosen or store.settings.model_of(metadata.agent)


def introduce(session: Session, place: str) -> Iterator[Line]:
    """Which session this is, how old, and what was said in it last."""
    metadata = session.metadata
    title = output.one_line(metadata.title)
    if not metadata.message_count:
        yield Line(f"A new session, {metadata.id} · {whom(metadata)} · {place}")
        return
    ago = output.ago(metadata.last_message_at, time.time())
    count = output.plural(metadata.message_count, "message")
    yield Line(title, "bold")
    yield Line(f"{metadata.id} · {whom(metadata)} · {ago} · {count} · {place}")
    yield from _last(session)
    if metadata.waiting:
        count = output.plural(len(metadata.waiting), "message")
        yield Line(f"{count} waiting: answered before what you say next")


def whom(metadata: Metadata) -> str:
    """Agent and sender."""
    return f"{output.one_line(metadata.agent)} with {output.one_line(metadata.sender)}"


def _last(session: Session) -> Iterator[Line]:
    """The last exchange, in brief."""
    answer: Message | None = None
    for message in reversed(session.live().messages):
        if message.role == "assistant" and answer is None and message.text:
            answer = message
        if message.role == "user":
            yield Line("")
            yield Line(_brief(said(message.text)))
            break
    if answer is not None:
        yield Line(_brief(output.safe(answer.text)))
    yield Line("")


def _brief(text: str) -> str:
    lines = text[:BRIEF_WIDTH].split("\n")[:BRIEF_LINES]
    kept = "\n".join(lines)
    return kept if len(kept) == len(text) else f"{kept} …"
