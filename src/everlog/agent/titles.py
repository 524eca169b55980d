"""Automatic titles for sessions that the user has not named.

After the first exchange the model is asked for a few words, in the background. With the offline
model the title is the beginning of the user's message. A title set by the user is never replaced.
"""

from __future__ import annotations

import asyncio
import re

from everlog.agent.worker_threads import run_external
from everlog.aio import AsyncSession
from everlog.context.fence import Origin, block, fence
from everlog.errors import ConflictError, EverlogError
from everlog.log.fold import fold
from everlog.model import Meta, user
from everlog.ports import Provider, Request
from everlog.wire.events import SessionRenamed, Sink, Status

MAX_CHARACTERS = 60
MAX_WORDS = 6
TIMEOUT_SECONDS = 60.0
_FIRST_RECORDS = 50  # of a log, among which the first exchange is found

_SYSTEM = "You name conversations. Answer with the title alone."
_ASK = """Give this conversation a title of 3 to 6 words, in its own language, without quotation
marks and without a full stop."""


def first_words(text: str) -> str:
    """Return the beginning of a text, cut at the end of a word."""
    words = " ".join(text.split())
    if len(words) <= MAX_CHARACTERS:
        return words
    head = words[: MAX_CHARACTERS - 3]
    if words[MAX_CHARACTERS - 3] != " " and " " in head:
        head = head[: head.rindex(" ")]
    return head.rstrip(" ,;:.-") + "..."


def clean_title(answer: str) -> str:
    """Return a model's title without quotes, markup and a 'Title:' prefix."""
    line = next((line for line in answer.splitlines() if line.strip()), "")
    line = re.sub(r"^\W*title\s*:\s*", "", line.strip(), flags=re.IGNORECASE)
    return first_words(" ".join(line.strip("\"'`*#“”‘’«» ").rstrip(".").split()[:MAX_WORDS]))


async def set_title(provider: Provider, model: str, session: AsyncSession, emit: Sink) -> None:
    """Name a session after its first exchange, unless it has a title by now."""
    try:
        question, answer = await session.store.call(_first_exchange, session)
        if not question.strip() or not answer:
            return
        title = ""
        if not getattr(provider, "offline", False):
            title = await _ask_model(provider, model, question, answer)
        title = title or first_words(question)
        renamed = await session.store.call(_set_if_unnamed, session, title)
        if renamed:
            emit(SessionRenamed(session_id=session.id, name=title))
    except EverlogError as error:
        emit(Status(session_id=session.id, message=f"could not set a title: {error.message}"))


async def _ask_model(provider: Provider, model: str, question: str, answer: str) -> str:
    messages = (fence(f"[User]: {question}", Origin.TITLE), fence(f"[Assistant]: {answer}", Origin.TITLE))
    prompt = f"{_ASK}\n\n{block('conversation', *messages)}"
    request = Request(
        messages=(user(prompt),), system=_SYSTEM, model=model, max_tokens=64, temperature=0.0, purpose="title"
    )
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return clean_title((await run_external(provider.complete(request))).text)
    except Exception:  # a provider may raise anything; the first words serve as a title
        return ""


def _first_exchange(session: AsyncSession) -> tuple[str, str]:
    """Return the first user message and the first answer."""
    view = fold(session.sync.entries(limit=_FIRST_RECORDS))
    question = next((m.text for m in view.messages if m.is_typed), "")
    answers = (m.text.strip() for m in view.messages if m.role == "assistant")
    return question, next((answer for answer in answers if answer), "")


def _set_if_unnamed(session: AsyncSession, title: str) -> bool:
    """Set the title if there is none; a title that a user sets at the same time wins."""
    while True:
        metadata = session.sync.metadata
        if metadata.title is not None:
            return False
        try:
            session.sync.append(Meta(set={"name": title}), expected_seq=metadata.through.seq)
            return True
        except ConflictError:  # something was appended meanwhile, perhaps a title
            continue
