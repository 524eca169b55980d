"""`/sessions/{id}/context`: exactly what the model would be sent if somebody spoke now."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import msgspec
from litestar import Request, Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath

from everlog.agent.agent import Agent, Prepared
from everlog.context.tokens import estimate
from everlog.daemon.api.requests import find
from everlog.daemon.web.list_page import address_of
from everlog.daemon.web.templating import answer
from everlog.log.backward_read import LeftOut
from everlog.log.plain_text import call_text
from everlog.model import AnyBlock, File, Image, Message, OtherBlock, Text, Thinking, ToolCall
from everlog.render.html_text import readable
from everlog.runtime.runtime import Runtime

SHORT = 400  # characters that are shown unfolded
SHOWN = 20_000  # of one message; its place in the session has the rest
WIDTH = 1_000  # units of a bar
_LEAST = 2.0  # units of a bar that can be seen

_WHO = {"user": "You", "assistant": "Agent", "toolResult": "Tool"}
_ORIGINS = (  # how an injection begins, and where it comes from
    ("<recall>", "recalled from notes and earlier sessions"),
    ("<environment>", "the surroundings: system, date, directory"),
    ("<instructions>", "AGENTS.md and CLAUDE.md"),
    ("<agents>", "the agents that may be asked"),
    ("[", "a note about what is left out"),
)
_SHORTENED = re.compile(r"\[\d+ more characters; [^\n]* Run the tool again\.\]\Z")
_CALL_ID = re.compile(r" \([^()]*\)\Z")


class Bar(msgspec.Struct, frozen=True):
    """A stretch of the window."""

    kind: str
    label: str
    tokens: int
    start: float
    width: float


class Piece(msgspec.Struct, frozen=True):
    """Something that is sent, as a person reads it."""

    kind: str  # also the colour of its bar
    who: str
    marks: list[str]
    text: str
    cut: int  # characters that are not shown
    bar: Bar
    seq: int = 0
    address: str = ""

    @property
    def folded(self) -> bool:
        """Whether only its beginning is shown at first."""
        return len(self.text) > SHORT or self.text.count("\n") > 8

    @property
    def beginning(self) -> str:
        """Its first words."""
        words = " ".join(self.text[:SHORT].split())
        return words if len(words) <= 140 else f"{words[:139]}…"


class Missing(msgspec.Struct, frozen=True):
    """What is left out for one reason."""

    why: str
    count: int
    ranges: list[tuple[int, int, str]]  # first, last, address


@get("/sessions/{session_id:str}/context", include_in_schema=False)
async def context(
    request: Request[Any, Any, Any],
    runtime: NamedDependency[Runtime],
    session_id: FromPath[str],
) -> Response[str]:
    """The view."""
    session = await find(runtime, session_id)
    metadata = await session.metadata()
    agent = await runtime.agents.of(session)
    prepared = await runtime.prepare(session)
    home = address_of(session.id)
    pieces = await runtime.store.call(lambda: list(_pieces(prepared, agent, home)))
    sent = prepared.context
    guessed = sum(piece.bar.tokens for piece in pieces)
    return answer(
        "context.html",
        request,
        title=metadata.title,
        home=home,
        model=agent.model,
        tokens=sent.tokens,
        window=sent.window,
        percent=round(sent.tokens * 100 / sent.window) if sent.window else 0,
        counted=guessed != sent.tokens,
        kinds=_kinds(pieces, sent.window),
        pieces=pieces,
        toolsets=prepared.toolsets,
        missing=_missing(sent.left_out, home),
        stale=[(seq, f"{home}?at={seq}#m{seq}") for seq in sent.stale],
        width=WIDTH,
    )


def _pieces(prepared: Prepared, agent: Agent, home: str) -> Iterator[Piece]:
    """All that is sent, in its order."""
    window = prepared.context.window
    before = 0

    def bar(kind: str, label: str, tokens: int) -> Bar:
        nonlocal before
        start, before = before, before + tokens
        return _bar(kind, label, tokens, start, window)

    if prepared.system:
        text, cut = _shown(prepared.system)
        size = agent.count(prepared.system)
        yield Piece("system", "System prompt", [], text, cut, bar("system", "System prompt", size))
    if prepared.tools:
        told = "\n\n".join(f"{one.name}\n{one.description}".strip() for one in prepared.tools)
        text, cut = _shown(told)
        size = sum(map(agent.tool_tokens, prepared.tools))
        count = len(prepared.tools)
        who = "1 tool" if count == 1 else f"{count} tools"
        yield Piece("tools", who, [], text, cut, bar("tools", "Tools", size))
    for place, message in enumerate(prepared.context.messages):
        kind, who, marks = _described(message, first=place == 0)
        text, cut = _shown("\n\n".join(filter(None, map(_words, message.content))))
        yield Piece(
            kind,
            who,
            marks,
            text,
            cut,
            bar(kind, _LABELS[kind], estimate(message, agent.count)),
            seq=message.seq,
            address=f"{home}?at={message.seq}#m{message.seq}" if message.seq else "",
        )


_LABELS = {
    "summary": "Summary",
    "injected": "Injected",
    "user": "You",
    "assistant": "Agent",
    "result": "Tool results",
}


def _described(message: Message, *, first: bool) -> tuple[str, str, list[str]]:
    """Its kind, who speaks, and what is special about it."""
    text = message.text
    if message.seq:
        kind = "result" if message.role == "toolResult" else message.role
        short = message.role == "toolResult" and _SHORTENED.search(text)
        marks = ["shortened: the session has the whole result"] if short else []
        if message.is_error:
            marks.append("an error")
        return kind, _WHO[message.role], marks
    if message.auto_injected:
        origin = next((what for begin, what in _ORIGINS if text.startswith(begin)), "from a hook")
        return "injected", "Injected", [origin]
    if message.role == "toolResult":
        return "result", "Tool", ["stands in for a result that was never recorded"]
    if first and message.role == "user":
        return "summary", "Summary", ["of everything before what follows"]
    return message.role, _WHO[message.role], ["not in the log"]


def _words(block: AnyBlock) -> str:
    if isinstance(block, Text):
        return block.text
    if isinstance(block, Thinking):
        return f"[thinking] {block.thinking}" if block.thinking else "[thinking]"
    if isinstance(block, ToolCall):
        return f"→ {call_text(block)}"
    if isinstance(block, Image):
        return f"[image {block.mime_type or ''}]".replace(" ]", "]")
    if isinstance(block, File):
        return f"[file {block.name or ''}]".replace(" ]", "]")
    assert isinstance(block, OtherBlock)
    return f"[{block.type or 'block'}]"


def _shown(text: str) -> tuple[str, int]:
    return readable(text[:SHOWN]), max(len(text) - SHOWN, 0)


def _bar(kind: str, label: str, tokens: int, start: int, window: int) -> Bar:
    """Where something stands in the window; what is beyond its end stands at the end."""
    unit = WIDTH / max(window, 1)
    width = min(max(tokens * unit, _LEAST if tokens else 0.0), float(WIDTH))
    return Bar(kind, label, tokens, round(min(start * unit, WIDTH - width), 2), round(width, 2))


def _kinds(pieces: Iterable[Piece], window: int) -> list[Bar]:
    """The same, by kind."""
    sums: dict[str, tuple[str, int]] = {}
    for piece in pieces:
        label, tokens = sums.get(piece.kind, (piece.bar.label, 0))
        sums[piece.kind] = label, tokens + piece.bar.tokens
    made: list[Bar] = []
    before = 0
    for kind, (label, tokens) in sums.items():
        made.append(_bar(kind, label, tokens, before, window))
        before += tokens
    return made


def _missing(left_out: Iterable[LeftOut], home: str) -> list[Missing]:
    """What is left out, by reason."""
    by_reason: dict[str, list[int | None]] = {}
    for one in left_out:
        by_reason.setdefault(_CALL_ID.sub("", one.why), []).append(one.seq)
    return [
        Missing(readable(why), len(seqs), list(_ranges((seq for seq in seqs if seq), home)))
        for why, seqs in by_reason.items()
    ]


def _ranges(seqs: Iterable[int], home: str) -> Iterator[tuple[int, int, str]]:
    """Numbers that follow each other as one."""
    for _, group in groupby(enumerate(sorted(seqs)), lambda one: one[1] - one[0]):
        numbers = [seq for _, seq in group]
        first = numbers[0]
        yield first, numbers[-1], f"{home}?at={first}#m{first}"
