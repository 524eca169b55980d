"""Navigation in a session: the outline of the user's prompts, and text search.

The outline comes from the session's marker index: the log is read once, and then only what is new.
The search reads the log itself, newest first, in every block that the page shows, and skips deleted
and rewound messages. It does not use the full-text index, which knows words, not substrings.
"""

from __future__ import annotations

import re

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency
from litestar.params import FromQuery
from markupsafe import Markup

from everlog.daemon.web.marker_cache import MarkerCache
from everlog.daemon.web.session_page import SessionView
from everlog.model import Message
from everlog.render.humanize import one_line
from everlog.render.marker_index import Prompt
from everlog.render.transcript_items import block_text, speaker_label
from everlog.session import Session

MAX_PROMPTS = 1_000  # the newest
MAX_HITS = 200  # the newest
_SNIPPET_CHARACTERS = 60  # on each side of a match


class MessageHit(msgspec.Struct, frozen=True):
    """A message that contains the searched text."""

    seq: int
    speaker: str
    snippet: Markup


@get("/outline")
async def show_outline(view: NamedDependency[SessionView]) -> Response[str]:
    """Show the user's prompts, one line each."""
    prompts = await view.session.store.call(_read_prompts, view.session.sync, view.cache)
    earlier = max(len(prompts) - MAX_PROMPTS, 0)
    return view.render("session_outline.html", prompts=prompts[-MAX_PROMPTS:], earlier=earlier)


@get("/find")
async def find_text(
    view: NamedDependency[SessionView], q: FromQuery[str] = "", at: FromQuery[int] = 0
) -> Response[str]:
    """Show the messages that contain a text, ignoring case; `at` is the current one."""
    text = q.strip()
    hits = await view.session.store.call(_find_hits, view.session.sync, view.cache, text)
    is_complete = len(hits) <= MAX_HITS
    return view.render("session_hits.html", hits=hits[:MAX_HITS][::-1], is_complete=is_complete, q=text, at=at)


def _read_prompts(session: Session, cache: MarkerCache) -> list[Prompt]:
    with cache.open(session, session.metadata) as index:
        index.extend_to(1)
        return index.prompts()


def _find_hits(session: Session, cache: MarkerCache, text: str) -> list[MessageHit]:
    """Return up to MAX_HITS + 1 matching messages, newest first."""
    if not text:
        return []
    # Not with lower(), which changes the length of some letters and so the positions.
    pattern = re.compile(re.escape(text), re.IGNORECASE)
    hits: list[MessageHit] = []
    metadata = session.metadata
    for entry in session.store.port.tail(session.id):
        if not isinstance(entry, Message) or entry.seq > metadata.through.seq:
            continue
        snippets = (_snippet(block_text(block), pattern) for block in entry.content)
        snippet = next(filter(None, snippets), None)
        if snippet is None:
            continue
        with cache.open(session, metadata) as index:
            index.extend_to(entry.seq)
            if not index.is_live(entry.seq):
                continue
        hits.append(MessageHit(entry.seq, speaker_label(entry), snippet))
        if len(hits) > MAX_HITS:
            break
    return hits


def _snippet(text: str, pattern: re.Pattern[str]) -> Markup | None:
    match = pattern.search(text)
    if match is None:
        return None
    start, end = match.span()
    before = text[max(0, start - _SNIPPET_CHARACTERS) : start]
    after = text[end : end + _SNIPPET_CHARACTERS]
    cut = "…" if start > _SNIPPET_CHARACTERS else ""
    return Markup("{}{} <mark>{}</mark> {}").format(cut, one_line(before), one_line(text[start:end]), one_line(after))
