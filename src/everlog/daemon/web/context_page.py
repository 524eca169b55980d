"""`/sessions/{id}/context`: the exact context of the next model call."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from litestar import Response, get
from litestar.di import NamedDependency

from everlog.agent.agent import Agent, PreparedCall
from everlog.context.build import EXCESS_HINT
from everlog.context.tokens import estimate
from everlog.daemon.web.session_page import SessionView
from everlog.log.backward_read import LeftOut
from everlog.log.plain_text import format_call, name_block
from everlog.model import AnyBlock, Message, Thinking, ToolCall
from everlog.render.html_text import make_readable
from everlog.render.humanize import one_line, plural, shorten
from everlog.render.transcript_items import ROLE_LABELS, speaker_label

FOLD_CHARACTERS = 400  # longer items are folded
MAX_CHARACTERS = 20_000  # of one message; the session page has the remainder
BAR_WIDTH = 1_000  # SVG units
_MIN_BAR_WIDTH = 2.0  # so that a small bar is visible

_ORIGINS = (  # prefix of an injection, and its source
    ("<recall>", "recalled from notes and earlier sessions"),
    ("<environment>", "environment: system, date, directory"),
    ("<instructions>", "AGENTS.md and CLAUDE.md"),
    ("<agents>", "available subagents"),
    ("[", "note about omitted messages"),
)
_SHORTENED = re.compile(r"\[\d+ more characters; [^\n]* Run the tool again\.\]\Z")
_CALL_ID = re.compile(r" \([^()]*\)\Z")


class Bar(NamedTuple):
    """A range of the context window."""

    kind: str
    tokens: int
    start: float
    width: float


class ContextItem(NamedTuple):
    """A part of the context, as the page shows it."""

    kind: str  # also selects the colour of its bar
    speaker: str
    marks: list[str]
    full_text: str
    bar: Bar
    seq: int = 0

    @property
    def text(self) -> str:
        """What is shown of the text."""
        return make_readable(self.full_text[:MAX_CHARACTERS])

    @property
    def cut(self) -> int:
        """The number of characters that are not shown."""
        return max(len(self.full_text) - MAX_CHARACTERS, 0)

    @property
    def is_folded(self) -> bool:
        """Return whether only the preview is shown at first."""
        return len(self.full_text) > FOLD_CHARACTERS or self.full_text.count("\n") > 8

    @property
    def preview(self) -> str:
        """The first words, on one line."""
        return shorten(one_line(make_readable(self.full_text[:FOLD_CHARACTERS])), 140)


class OmittedGroup(NamedTuple):
    """Messages that are left out for the same reason."""

    reason: str
    number: int
    ranges: list[tuple[int, int]]  # first and last seq


@get("/context")
async def show_context(view: NamedDependency[SessionView]) -> Response[str]:
    """Show the context."""
    runtime, session = view.runtime, view.session
    metadata = await session.metadata()
    agent = await runtime.agents.for_session(session)
    prepared = await runtime.prepare(session)
    items = await runtime.store.call(lambda: list(_context_items(prepared, agent)))
    context = prepared.context
    return view.render(
        "context.html",
        title=metadata.display_title,
        session_id=session.id,
        model=agent.model,
        context=context,
        percent=round(context.tokens * 100 / context.window) if context.window else 0,
        is_counted=sum(item.bar.tokens for item in items) != context.tokens,
        totals=_sum_by_kind(items, context.window),
        labels=KIND_LABELS,
        items=items,
        toolsets=prepared.toolsets,
        omitted=_group_omitted(context.left_out),
        excess_hint=EXCESS_HINT,
        bar_width=BAR_WIDTH,
    )


def _context_items(prepared: PreparedCall, agent: Agent) -> Iterator[ContextItem]:
    """Yield everything in the context, in order."""
    before = 0

    def bar(kind: str, tokens: int) -> Bar:
        nonlocal before
        start, before = before, before + tokens
        return _bar(kind, tokens, start, prepared.context.window)

    if prepared.system:
        tokens = agent.spec.count(prepared.system)
        yield ContextItem("system", "System prompt", [], prepared.system, bar("system", tokens))
    if prepared.tools:
        descriptions = "\n\n".join(f"{tool.name}\n{tool.description}".strip() for tool in prepared.tools)
        tokens = sum(map(agent.spec.tool_tokens, prepared.tools))
        yield ContextItem("tools", plural(len(prepared.tools), "tool"), [], descriptions, bar("tools", tokens))
    for index, message in enumerate(prepared.context.messages):
        kind, speaker, marks = _describe(message, first=index == 0)
        text = "\n\n".join(filter(None, map(_block_text, message.content)))
        message_bar = bar(kind, estimate(message, agent.spec.count))
        yield ContextItem(kind, speaker, marks, text, message_bar, message.seq)


KIND_LABELS = {
    "system": "System prompt",
    "tools": "Tools",
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
        return kind, speaker_label(message), marks
    if message.auto_injected:
        origin = next((source for prefix, source in _ORIGINS if text.startswith(prefix)), "from a hook")
        return "injected", "Injected", [origin]
    if message.role == "toolResult":
        return "result", "Tool", ["placeholder for a result that was never recorded"]
    if first and message.role == "user":
        return "summary", "Summary", ["of all earlier messages"]
    return message.role, ROLE_LABELS[message.role], ["not in the log"]


def _block_text(block: AnyBlock) -> str:
    if isinstance(block, Thinking):
        return f"[thinking] {block.thinking}".rstrip()
    return f"→ {format_call(block)}" if isinstance(block, ToolCall) else name_block(block)


def _bar(kind: str, tokens: int, start: int, window: int) -> Bar:
    """Return the bar of a range of tokens; a range beyond the window is drawn at its end."""
    unit = BAR_WIDTH / max(window, 1)
    width = min(max(tokens * unit, _MIN_BAR_WIDTH if tokens else 0.0), float(BAR_WIDTH))
    return Bar(kind, tokens, round(min(start * unit, BAR_WIDTH - width), 2), round(width, 2))


def _sum_by_kind(items: Iterable[ContextItem], window: int) -> list[Bar]:
    """Return a bar for the tokens of each kind."""
    sums = Counter[str]()
    for item in items:
        sums[item.kind] += item.bar.tokens
    bars: list[Bar] = []
    start = 0
    for kind, tokens in sums.items():
        bars.append(_bar(kind, tokens, start, window))
        start += tokens
    return bars


def _group_omitted(omitted: Iterable[LeftOut]) -> list[OmittedGroup]:
    """Group the messages that are left out by reason."""
    by_reason: dict[str, list[int | None]] = {}
    for message in omitted:
        by_reason.setdefault(_CALL_ID.sub("", message.why), []).append(message.seq)
    return [
        OmittedGroup(make_readable(reason), len(seqs), _ranges(seq for seq in seqs if seq))
        for reason, seqs in by_reason.items()
    ]


def _ranges(seqs: Iterable[int]) -> list[tuple[int, int]]:
    """Return consecutive seqs as ranges."""
    groups = groupby(enumerate(sorted(seqs)), lambda pair: pair[1] - pair[0])
    numbers = ([seq for _, seq in group] for _, group in groups)
    return [(consecutive[0], consecutive[-1]) for consecutive in numbers]
