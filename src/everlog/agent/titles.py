"""Titles: what a session is called when nobody has named it.

After the first exchange the model is asked for a few words, in the background; the offline model
is not: then it is the first words of what the user said. A name that a user gives always stays.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

from everlog.agent.worker_threads import foreign
from everlog.aio import AsyncSession
from everlog.errors import ConflictError, EverlogError
from everlog.log.fold import fold
from everlog.model import Message, Meta, user
from everlog.ports import Request
from everlog.wire.events import SessionRenamed, Sink, Status

if TYPE_CHECKING:
    from everlog.agent.agent import Agent

LONGEST = 60  # characters
WORDS = 6
SECONDS = 60.0
_GLANCE = 50  # records at the beginning of a log among which the first exchange is
_SEEN = 200  # characters of each message that a model is shown

_SYSTEM = "You name conversations. Answer with the title alone."
_ASKED = """Give this conversation a title of 3 to 6 words, in its own language, without quotation
marks and without a full stop.

<user>
{question}
</user>
<assistant>
{answer}
</assistant>"""


def first_words(text: str) -> str:
    """The beginning of a text, cut at the end of a word."""
    words = " ".join(text.split())
    if len(words) <= LONGEST:
        return words
    kept = words[: LONGEST - 3]
    if words[LONGEST - 3] != " " and " " in kept:
        kept = kept[: kept.rindex(" ")]
    return kept.rstrip(" ,;:.-") + "..."


def tidy(answer: str) -> str:
    """A model's title without what models like to put around one."""
    line = next((line for line in answer.splitlines() if line.strip()), "")
    line = re.sub(r"^\W*title\s*:\s*", "", line.strip(), flags=re.IGNORECASE)
    return first_words(" ".join(line.strip("\"'`*#“”‘’«» ").rstrip(".").split()[:WORDS]))


async def entitle(agent: Agent, session: AsyncSession, emit: Sink) -> None:
    """Name a session after its first exchange, unless somebody has meanwhile."""
    try:
        question, answer = await session.store.call(_exchange, session)
        if not question.strip() or not answer:
            return
        title = ""
        if not getattr(agent.provider, "offline", False):
            title = await _asked(agent, question, answer)
        title = title or first_words(question)
        named = await session.store.call(_name, session, title)
        if named:
            emit(SessionRenamed(session_id=session.id, name=title))
    except EverlogError as error:
        emit(Status(session_id=session.id, message=f"no title was found: {error.message}"))


async def _asked(agent: Agent, question: str, answer: str) -> str:
    asked = _ASKED.format(question=question[:_SEEN], answer=answer[:_SEEN])
    request = Request(
        messages=(user(asked),),
        system=_SYSTEM,
        model=agent.model,
        max_tokens=64,
        temperature=0.0,
        purpose="title",
    )
    try:
        async with asyncio.timeout(SECONDS):
            return tidy((await foreign(agent.provider.complete(request))).text)
    except Exception:  # whatever a provider raises: the first words are a title as well
        return ""


def _exchange(session: AsyncSession) -> tuple[str, str]:
    """What the user said first, and what was answered."""
    view = fold(session.sync.entries(limit=_GLANCE))
    question = next((one.text for one in view.messages if one.role == "user"), "")
    return question, next((text for one in view.messages if (text := _spoken(one))), "")


def _spoken(message: Message) -> str:
    return message.text.strip() if message.role == "assistant" else ""


def _name(session: AsyncSession, title: str) -> bool:
    """Set the title if there is none; of a person and a model at once, the person wins."""
    while True:
        known = session.sync.metadata
        if known.name is not None:
            return False
        try:
            session.sync.append(Meta(set={"name": title}), expected_seq=known.through.seq)
            return True
        except ConflictError:  # something was said meanwhile, or it was renamed
            continue
