"""`/sessions/{id}/context`: the exact context of the next model call."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import msgspec
from litestar import Request, Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath

from everlog.agent.agent import Agent, PreparedCall
from everlog.context.tokens import estimate
from everlog.daemon.api.session_lookup import find_session
from everlog.daemon.web.list_page import session_address
from everlog.daemon.web.templating import render_response
from everlog.log.backward_read import LeftOut
from everlog.log.plain_text import format_call
from everlog.model import AnyBlock, File, Image, Message, OtherBlock, Text, Thinking, ToolCall
from everlog.render.html_text import make_readable
from everlog.runtime.runtime import Runtime

FOLD_CHARACTERS = 400  # longer items are folded
MAX_CHARACTERS = 20_000  # of one message; the session page has the remainder
BAR_WIDTH = 1_000  # SVG units
_MIN_BAR_WIDTH = 2.0  # so that a small bar is visible

_ROLE_LABELS = {"user": "You", "assistant": "Agent", "toolResult": "Tool"}
_ORIGINS = (  # prefix of an injection, and its source
    ("<recall>", "recalled from notes and earlier sessions"),
    ("<environment>", "environment: system, date, directory"),
    ("<instructions>", "AGENTS.md and CLAUDE.md"),
    ("<agents>", "available subagents"),
    ("[", "note about omitted messages"),
)
_SHORTENED = re.compile(r"\[\d+ more characters; [^\n]* Run the tool again\.\]\Z")
_CALL_ID = re.compile(r" \([^()]*\)\Z")


class Bar(msgspec.Struct, frozen=True):
    """A range of the context window."""

    kind: str
    label: str
    tokens: int
    start: float
    width: float


class ContextItem(msgspec.Struct, frozen=True):
    """A part of the context, as the page shows it."""

    kind: str  # also selects the colour of its bar
    speaker: str
    marks: list[str]
    text: str
    cut: int  # characters that are not shown
    bar: Bar
    seq: int = 0
    address: str = ""

    @property
    def is_folded(self) -> bool:
        """Whether only the preview is shown at first."""
        return len(self.text) > FOLD_CHARACTERS or self.text.count("\n") > 8

    @property
    def preview(self) -> str:
        """The first words, on one line."""
        words = " ".join(self.text[:FOLD_CHARACTERS].split())
        return words if len(words) <= 140 else f"{words[:139]}…"


class OmittedGroup(msgspec.Struct, frozen=True):
    """Messages that are left out for the same reason."""

    reason: str
    count: int
    ranges: list[tuple[int, int, str]]  # first, last, address


@get("/sessions/{session_id:str}/context", include_in_schema=False)
async def show_context(
    request: Request[Any, Any, Any], runtime: NamedDependency[Runtime], session_id: FromPath[str]
) -> Response[str]:
    """Show the context."""
    session = await find_session(runtime, session_id)
    metadata = await session.metadata()
    agent = await runtime.agents.for_session(session)
    prepared = await runtime.prepare(session)
    address = session_address(session.id)
    items = await runtime.store.call(lambda: list(_context_items(prepared, agent, address)))
    context = prepared.context
    estimated = sum(item.bar.tokens for item in items)
    return render_response(
        "context.html",
        request,
        title=metadata.display_title,
        session_address=address,
        model=agent.model,
        tokens=context.tokens,
        window=context.window,
        percent=round(context.tokens * 100 / context.window) if context.window else 0,
        is_counted=estimated != context.tokens,
        totals=_sum_by_kind(items, context.window),
        items=items,
        toolsets=prepared.toolsets,
        omitted=_group_omitted(context.left_out, address),
        stale=[(seq, f"{address}?at={seq}#m{seq}") for seq in context.stale],
        bar_width=BAR_WIDTH,
    )


def _context_items(prepared: PreparedCall, agent: Agent, address: str) -> Iterator[ContextItem]:
    """Yield everything in the context, in order."""
    window = prepared.context.window
    before = 0

    def bar(kind: str, label: str, tokens: int) -> Bar:
        nonlocal before
        start, before = before, before + tokens
        return _bar(kind, label, tokens, start, window)

    if prepared.system:
        text, cut = _truncate(prepared.system)
        tokens = agent.spec.count(prepared.system)
        yield ContextItem("system", "System prompt", [], text, cut, bar("system", "System prompt", tokens))
    if prepared.tools:
        descriptions = "\n\n".join(f"{tool.name}\n{tool.description}".strip() for tool in prepared.tools)
        text, cut = _truncate(descriptions)
        tokens = sum(map(agent.spec.tool_tokens, prepared.tools))
        count = len(prepared.tools)
        speaker = "1 tool" if count == 1 else f"{count} tools"
        yield ContextItem("tools", speaker, [], text, cut, bar("tools", "Tools", tokens))
    for index, message in enumerate(prepared.context.messages):
        kind, speaker, marks = _describe(message, first=index == 0)
        text, cut = _truncate("\n\n".join(filter(None, map(_block_text, message.content))))
        yield ContextItem(
            kind,
            speaker,
            marks,
            text,
            cut,
            bar(kind, _KIND_LABELS[kind], estimate(message, agent.spec.count)),
            seq=message.seq,
            address=f"{address}?at={message.seq}#m{message.seq}" if message.seq else "",
        )


_KIND_LABELS = {
    "summary": "Summary",
    "injected": "Injected",
    "user": "You",
    "assistant": "Agent",
    "result": "Tool results",
}


def _describe(message: Message, *, first: bool) -> tuple[str, str, list[str]]:
    """Return a message's kind, speaker and marks."""
    text = message.text
    if message.seq:
        kind = "result" if message.role == "toolResult" else message.role
        is_shortened = message.role == "toolResult" and _SHORTENED.search(text)
        marks = ["shortened; the full result is in the session"] if is_shortened else []
        if message.is_error:
            marks.append("error")
        return kind, _ROLE_LABELS[message.role], marks
    if message.auto_injected:
        origin = next((source for prefix, source in _ORIGINS if text.startswith(prefix)), "from a hook")
        return "injected", "Injected", [origin]
    if message.role == "toolResult":
        return "result", "Tool", ["placeholder for a result that was never recorded"]
    if first and message.role == "user":
        return "summary", "Summary", ["of all earlier messages"]
    return message.role, _ROLE_LABELS[message.role], ["not in the log"]


def _block_text(block: AnyBlock) -> str:
    if isinstance(block, Text):
        return block.text
    if isinstance(block, Thinking):
        return f"[thinking] {block.thinking}" if block.thinking else "[thinking]"
    if isinstance(block, ToolCall):
        return f"→ {format_call(block)}"
    if isinstance(block, Image):
        return f"[image {block.mime_type or ''}]".replace(" ]", "]")
    if isinstance(block, File):
        return f"[file {block.name or ''}]".replace(" ]", "]")
    assert isinstance(block, OtherBlock)
    return f"[{block.type or 'block'}]"


def _truncate(text: str) -> tuple[str, int]:
    return make_readable(text[:MAX_CHARACTERS]), max(len(text) - MAX_CHARACTERS, 0)


def _bar(kind: str, label: str, tokens: int, start: int, window: int) -> Bar:
    """Return the bar of a range of tokens; a range beyond the window is drawn at its end."""
    unit = BAR_WIDTH / max(window, 1)
    width = min(max(tokens * unit, _MIN_BAR_WIDTH if tokens else 0.0), float(BAR_WIDTH))
    return Bar(kind, label, tokens, round(min(start * unit, BAR_WIDTH - width), 2), round(width, 2))


def _sum_by_kind(items: Iterable[ContextItem], window: int) -> list[Bar]:
    """Return a bar for the tokens of each kind."""
    sums: dict[str, tuple[str, int]] = {}
    for item in items:
        label, tokens = sums.get(item.kind, (item.bar.label, 0))
        sums[item.kind] = label, tokens + item.bar.tokens
    bars: list[Bar] = []
    start = 0
    for kind, (label, tokens) in sums.items():
        bars.append(_bar(kind, label, tokens, start, window))
        start += tokens
    return bars


def _group_omitted(omitted: Iterable[LeftOut], address: str) -> list[OmittedGroup]:
    """Group the messages that are left out by reason."""
    by_reason: dict[str, list[int | None]] = {}
    for message in omitted:
        by_reason.setdefault(_CALL_ID.sub("", message.why), []).append(message.seq)
    return [
        OmittedGroup(make_readable(reason), len(seqs), list(_ranges((seq for seq in seqs if seq), address)))
        for reason, seqs in by_reason.items()
    ]


def _ranges(seqs: Iterable[int], address: str) -> Iterator[tuple[int, int, str]]:
    """Yield consecutive seqs as ranges: first, last, address of the first."""
    for _, group in groupby(enumerate(sorted(seqs)), lambda pair: pair[1] - pair[0]):
        numbers = [seq for _, seq in group]
        first = numbers[0]
        yield first, numbers[-1], f"{address}?at={first}#m{first}"
